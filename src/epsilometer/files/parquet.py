"""Read Parquet files: numbers as they are, texts by their dictionary of words."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from epsilometer._extras import needs
from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.arrow_columns import is_text, make_column
from epsilometer.files.readers import Column, Content, refuse_growth, refuse_huge

_GROWS = 300  # largest ratio of expanded size to file size
_FOOTER = 16 * 2**20  # bytes that describe a file; 10,000 columns need 2
_LONGEST = 1000  # bytes of a text beside the columns
_CELL = 8  # bytes that a cell becomes at least


def open_parquet(path: Path) -> Content:
    """Return the names of a file's columns, and a function that reads them.

    Raises:
        UnreadableFile: It is not a plain file, or grows too much.
    """
    with needs("pyarrow", extra="parquet"):
        import pyarrow.parquet
    packed = check_plain(path).st_size
    with path.open("rb") as file:
        file.seek(max(0, packed - 8))
        end = file.read(8)
    if end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") > _FOOTER:
        raise UnreadableFile(
            f"Expected a description of at most {_FOOTER:,} bytes in {path.name!r}, got more."
        )
    found = pyarrow.parquet.ParquetFile(path)
    about = found.metadata
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    size = max(unpacked, _CELL * about.num_rows * about.num_columns)
    refuse_growth(path, size, packed, _GROWS)
    schema = found.schema_arrow
    texts = [column.name for column in schema if is_text(column.type)]
    # Texts stay indices into a dictionary: a repeated one is stored once.
    file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
    metadata = tuple(
        (name.decode("utf-8", "replace"), text[:_LONGEST].decode("utf-8", "replace"))
        for name, text in (schema.metadata or {}).items()
    )
    return Content(
        tuple(schema.names),
        partial(_read_columns, path, file),
        metadata=metadata,
        rows=about.num_rows,
    )


def _read_columns(path: Path, file: Any, places: Sequence[int] | None = None) -> list[Column]:
    names = file.schema_arrow.names
    if not names:
        raise InvalidArgument("Expected columns, found none.")
    wanted = names if places is None else [names[place] for place in places]
    refuse_huge(path, _CELL * file.metadata.num_rows * len(wanted))
    table = file.read(columns=None if places is None else wanted)
    return [make_column(name, table.column(place)) for place, name in enumerate(wanted)]
