"""Read a table, or the result of a query, from a database by its URL."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files.cells import read_rows
from epsilometer.files.readers import LARGEST, Column, check_header

_FETCHED = 10_000  # rows at a time


def is_url(source: object) -> bool:
    """Tell whether a source is the URL of a database, and not a file."""
    return isinstance(source, str) and "://" in source


def read_sql(
    url: str, query: str | None = None, *, check: Callable[[int], None] = lambda rows: None
) -> list[Column]:
    """Return the columns of a query's result, or of a database's only table.

    Rows are fetched in blocks; only the result is held in memory.

    Args:
        url: URL for SQLAlchemy, without a password: the driver reads that from its own
            configuration.
        query: An SQL query; None for the whole of the only table.
        check: Called with the number of rows before they are read, if they can be counted.

    Raises:
        InvalidArgument: The URL has a password, or there are several tables and no query.
        UnreadableFile: The database cannot be reached, or does not answer.
    """
    with needs("sqlalchemy", extra="sql"):
        import sqlalchemy
    with _wrap_errors(sqlalchemy):
        at = sqlalchemy.make_url(url)
        if at.password is not None:
            raise InvalidArgument(
                "Expected a URL without a password, since results show it, got one. Let the driver "
                "find it: ~/.pgpass, ~/.my.cnf, PGPASSWORD."
            )
        if at.get_backend_name() == "sqlite" and at.database:
            at = at.set(database=f"file:{at.database}", query={"mode": "ro", "uri": "true"})
        engine = sqlalchemy.create_engine(at)
        try:
            with engine.connect() as connection:
                said = query or f"SELECT * FROM {_find_table(sqlalchemy, engine)}"
                if (rows := _count_rows(sqlalchemy, connection, said)) is not None:
                    check(rows)
                asked = sqlalchemy.text(said)
                answer = connection.execution_options(
                    stream_results=True, yield_per=_FETCHED
                ).execute(asked)
                if not answer.returns_rows:
                    raise InvalidArgument("Expected a query that returns rows, got another.")
                names = list(map(str, answer.keys()))
                check_header(names)
                return read_rows(names, _limit_rows(answer, len(names)))
        finally:
            engine.dispose()


def hash_columns(columns: Sequence[Column]) -> str:
    """Return the SHA-256 of names and values."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(repr((column.name, column.words, column.values.dtype.str)).encode())
        digest.update(column.values.tobytes())
    return digest.hexdigest()


def _find_table(sqlalchemy: Any, engine: Any) -> str:
    """Return the name of the only table, quoted for the database."""
    inspector = sqlalchemy.inspect(engine)
    tables = inspector.get_table_names()
    if len(tables) != 1:
        raise InvalidArgument(
            f"Expected one table in the database, found {_validate.listed(tables)}. Say what to "
            'read: --query "SELECT * FROM people".'
        )
    quoted: str = engine.dialect.identifier_preparer.quote(tables[0])
    return quoted


def _count_rows(sqlalchemy: Any, connection: Any, query: str) -> int | None:
    """Return the number of rows of a query, without reading them; None if unknown."""
    counted = f"SELECT COUNT(*) FROM ({query.strip().rstrip(';')}) AS counted"
    try:
        return int(connection.execute(sqlalchemy.text(counted)).scalar_one())
    except Exception:  # what is wrong with the query is said of the query itself
        connection.rollback()
        return None


def _limit_rows(answer: Any, width: int) -> Iterator[Any]:
    """Yield rows; raise when they no longer fit into memory."""
    for count, row in enumerate(answer):
        if 8 * count * width > LARGEST:
            raise UnreadableFile(
                f"Expected an answer of at most {LARGEST / 2**30:g} GiB, got more. Ask for fewer "
                "rows or columns: --query."
            )
        yield row


@contextmanager
def _wrap_errors(sqlalchemy: Any) -> Iterator[None]:
    """Turn a database error into one sentence; its own text may contain records."""
    try:
        yield
    except EpsilometerError:
        raise
    except ModuleNotFoundError as error:
        raise UnreadableFile(
            f"Expected the database's driver, {error.name} is not installed. Install it with pip."
        ) from error
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise InvalidArgument(
            "Expected a URL such as postgresql://host/database or sqlite:///people.db, got a kind "
            "of database that SQLAlchemy does not know."
        ) from error
    except Exception as error:  # drivers raise errors of their own
        raise UnreadableFile(
            f"Could not read from the database ({type(error).__name__}). Check the URL, query and "
            "rights.",
            withheld=str(error)[:300],
        ) from error
