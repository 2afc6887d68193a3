"""Tables come from spreadsheets, Arrow files and databases too, and say the same in each."""

import datetime
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
import sqlalchemy

from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files.column_kinds import recognise_names, recognise_text
from epsilometer.files.readers import Column
from epsilometer.files.tables import Table, read_table
from epsilometer.integrations.sklearn import TableModel

NAMES = ("age", "town", "since", "paid")
DAYS = [datetime.date(2001, 12, 31), None, datetime.date(1970, 1, 2)]
CELLS = {"age": [31.0, 58.5, None], "town": ["Köln", "", "Bern"], "since": DAYS, "paid": [1, 0, 1]}


def write_excel(path: Path) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(NAMES)
    for row in zip(*CELLS.values(), strict=True):
        sheet.append(row)
    book.create_sheet("more").append(["other"])
    book.save(path)
    return path


def write_arrow(path: Path) -> Path:
    table = pyarrow.table({name: pyarrow.array(cells) for name, cells in CELLS.items()})
    if path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    return path


def write_database(path: Path, name: str = "people") -> str:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"CREATE TABLE {name} (age, town, since, paid)"))
        for row in zip(*CELLS.values(), strict=True):
            cells = dict(zip(NAMES, row, strict=True))
            cells["since"] = cells["since"] and cells["since"].isoformat()
            into = f"INSERT INTO {name} VALUES (:age, :town, :since, :paid)"
            connection.execute(sqlalchemy.text(into), cells)
    engine.dispose()
    return f"sqlite:///{path}"


def check(table: Table, dates: bool) -> None:
    assert table.names == NAMES
    np.testing.assert_array_equal(table.column("age").values, [31, 58.5, np.nan])
    assert table.column("town").words == ("", "Bern", "Köln")
    np.testing.assert_array_equal(table.column("paid").values, [1, 0, 1])
    since = table.column("since")
    if dates:
        np.testing.assert_array_equal(since.values, [11687.0, np.nan, 1.0])
    else:  # as CSV has them: texts that read_spelled turns into days
        assert since.words == ("", "1970-01-02", "2001-12-31")


@pytest.mark.parametrize("ending", ["arrow", "feather", "parquet"])
def test_arrow_is_read_with_its_dates(ending: str, tmp_path: Path) -> None:
    check(read_table(write_arrow(tmp_path / f"people.{ending}")), dates=True)


def test_the_first_sheet_is_read(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "people.xlsx")
    table = read_table(path)
    assert table.notes == ("people.xlsx has 2 sheets: the first was read.",)
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.load_workbook(path)
    del book["more"]
    book.save(path)
    table = read_table(path)
    assert table.notes == ()
    assert table.column("age").values.tolist()[:2] == [31, 58.5]
    assert table.column("town").words == ("", "Bern", "Köln")
    assert table.column("since").words == ("", "1970-01-02 00:00:00", "2001-12-31 00:00:00")


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + bytes(18), b"no archive", b"PK\3\4" * 20])
def test_what_is_no_spreadsheet_is_refused(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "people.xlsx"
    path.write_bytes(content)
    with pytest.raises(EpsilometerError, match=r"people\.xlsx"):
        read_table(path)


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1\0\0" + bytes(50), b"\xff" * 9])
def test_what_is_no_arrow_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "people.arrow"
    path.write_bytes(content)
    with pytest.raises(EpsilometerError, match=r"people\.arrow"):
        read_table(path)


def test_the_only_table_of_a_database_is_read(tmp_path: Path) -> None:
    url = write_database(tmp_path / "people.db")
    check(read_table(url), dates=False)
    few = read_table(url, query="SELECT age, paid FROM people WHERE paid = 1")
    assert few.names == ("age", "paid")
    assert few.rows == 2


@pytest.mark.parametrize("query", [None, "SELECT age FROM people;", "SELECT age, town FROM people"])
def test_rows_of_a_database_are_counted_before_they_are_read(
    query: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_database(tmp_path / "people.db")
    rows = read_table(url, query=query, most=100).rows
    monkeypatch.setattr("epsilometer.files.sql.read_rows", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InvalidArgument, match=f"at most {rows - 1} records, got about {rows}"):
        read_table(url, query=query, most=rows - 1)


def test_a_database_is_never_changed(tmp_path: Path) -> None:
    url = write_database(tmp_path / "people.db")
    before = (tmp_path / "people.db").read_bytes()
    with pytest.raises(EpsilometerError):
        read_table(url, query="DELETE FROM people")
    assert (tmp_path / "people.db").read_bytes() == before
    with pytest.raises(UnreadableFile):
        read_table(f"sqlite:///{tmp_path / 'none.db'}", query="SELECT 1 AS one")
    assert not (tmp_path / "none.db").exists()


def test_what_to_read_has_to_be_clear(tmp_path: Path) -> None:
    url = write_database(tmp_path / "people.db")
    write_database(tmp_path / "people.db", "others")
    with pytest.raises(InvalidArgument, match="--query"):
        read_table(url)
    with pytest.raises(InvalidArgument, match="without a password"):
        read_table("postgresql://ann:secret@host/people")
    with pytest.raises(InvalidArgument, match="does not know"):
        read_table("nosuchbase://host/people")
    with pytest.raises(InvalidArgument, match="URL of a database"):
        read_table(tmp_path / "people.csv", query="SELECT 1")


def test_errors_of_a_database_show_no_record(tmp_path: Path) -> None:
    url = write_database(tmp_path / "people.db")
    with pytest.raises(UnreadableFile) as caught:
        read_table(url, query="SELECT * FROM people WHERE name = 'Ann Secret'")
    assert "Secret" not in caught.value.shareable


def test_decimal_commas_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("pay;share\n1.234;0,5\n2.500;1,25\n")
    assert read_table(path).column("pay").values.tolist() == [1.234, 2.5]  # what it says
    given = read_table(path, decimal=",")
    assert given.column("pay").values.tolist() == [1234, 2500]
    assert given.column("share").values.tolist() == [0.5, 1.25]
    path.write_text('pay,share\n"1,234",0.5\n"12,500",x\n')
    assert read_table(path, decimal=".").column("pay").values.tolist() == [1234, 12500]
    with pytest.raises(InvalidArgument, match="point or a comma"):
        read_table(path, decimal=";")


def test_a_million_rows_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,label\n" + "31,yes\n58,no\n" * 500_000)
    began = time.process_time()
    with pytest.raises(InvalidArgument, match=r"at most 500,000 records.*--rows 50000"):
        TableModel(path, "label").load()
    assert time.process_time() - began < 5


def test_rows_are_drawn_by_chance_where_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    rows = (f"{i},{'yes' if i % 2 else 'no'}\n" for i in range(2000))
    path.write_text("age,label\n" + "".join(rows))
    drawn = TableModel(path, "label", rows=400).load()
    assert len(drawn["y"]) == 400
    assert "400 of 2,000 records were drawn" in drawn["caveats"][0]
    again = TableModel(path, "label", rows=400).load()
    np.testing.assert_array_equal(drawn["X"], again["X"])
    assert not np.array_equal(drawn["X"], TableModel(path, "label", rows=400, seed=1).load()["X"])


def words(*texts: str) -> Column:
    return Column.of_words("c", texts, np.arange(len(texts)))


NOTES = [f"Patient number {i} was seen in ward {i % 7}" for i in range(40)]


def test_free_text_is_recognised_and_refused(tmp_path: Path) -> None:
    assert recognise_text(words(*NOTES))
    assert not recognise_text(words(*(f"town {i}" for i in range(40))))
    few = Column("job", np.arange(400) % 4, ("a b c d", "b c d e", "c d e f", "d e f g"))
    assert not recognise_text(few)  # long, but many have the same
    path = tmp_path / "people.csv"
    lines = (f"{i},{note},{'yes' if i % 2 else 'no'}" for i, note in enumerate(NOTES))
    path.write_text("age,note,label\n" + "\n".join(lines))
    with pytest.raises(InvalidArgument, match=r"'note' holds free text.*--drop note"):
        TableModel(path, "label").load()
    assert TableModel(path, "label", drop=("note",)).load()["feature_names"] == ("age",)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([f"ann{i % 25}@mail.example" for i in range(50)], "e-mail"),
        ([f"+49 30 1234{i % 25:03}" for i in range(50)], "telephone"),
        ([f"DE89 3704 0044 0532 0130 {i % 25:02}" for i in range(50)], "account"),
        ([f"0{i % 25:07x}-1234-1234-1234-123456789abc" for i in range(50)], "unique identifiers"),
        ([f"name {i}" for i in range(50)], "every row"),
        ([f"name {min(i, 47)}" for i in range(50)], "96% of rows"),
        ([f"name {i % 30}" for i in range(50)], None),
        (["2001-12-31", "2002-01-01"] * 25, None),
        (["12 High Street", "1 Low Road"] * 25, None),
    ],
)
def test_names_of_people_are_recognised(texts: list[str], why: str | None) -> None:
    order = sorted(set(texts))
    column = Column.of_words("c", order, np.array([order.index(text) for text in texts]))
    found = recognise_names(column)
    assert found is None if why is None else why in (found or "")


def test_an_audit_of_a_database_is_repeated_from_its_settings(tmp_path: Path) -> None:
    import epsilometer as em
    from epsilometer.core.settings import from_settings

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'people.db'}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE people (age, label)"))
        for i in range(60):
            row = {"age": i * 7 % 50, "label": "yes" if i % 3 else "no"}
            connection.execute(sqlalchemy.text("INSERT INTO people VALUES (:age, :label)"), row)
    engine.dispose()
    source = {
        "type": "TableModel",
        "file": f"sqlite:///{tmp_path / 'people.db'}",
        "query": "SELECT age, label FROM people",
        "label": "label",
    }
    subject = from_settings(em.Classifier, {"source": source, "attacks": []})
    audit = em.audit(subject, engine=em.InProcess())
    assert audit.provenance.settings["source"]["query"] == source["query"]
    again = from_settings(em.Classifier, audit.provenance.settings)
    assert em.audit(again, engine=em.InProcess()) == audit
