"""Texts are read as people save them: whatever separates cells, and however letters are encoded."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files.tables import Table, read_table
from tests.files.test_readers import read_without_pyarrow

ROWS = [
    ["näme", "town", "age"],
    ["Zoë", "Köln", "31"],
    ["Åsa", "Málaga; old", "58"],
    ["Jürg", "Zürich", ""],
]


def write(path: Path, delimiter: str, encoding: str) -> Path:
    quoted = [[f'"{cell}"' if delimiter in cell else cell for cell in row] for row in ROWS]
    data = "\n".join(delimiter.join(row) for row in quoted).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def check(table: Table) -> None:
    assert table.names == ("näme", "town", "age")
    assert table.column("näme").words == ("Jürg", "Zoë", "Åsa")
    assert table.column("town").words == ("Köln", "Málaga; old", "Zürich")
    np.testing.assert_array_equal(table.column("age").values, [31, 58, np.nan])


@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
@pytest.mark.parametrize(
    ("delimiter", "encoding"),
    [*itertools.product(",;\t|", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "latin-1"])],
)
def test_delimiters_and_encodings_are_found(
    delimiter: str, encoding: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / f"people.{ending}", delimiter, encoding)
    table = read_table(path)
    check(table)
    slow = read_without_pyarrow(path, monkeypatch)
    assert [(c.name, c.words, c.values.tolist()) for c in slow][:2] == [
        (c.name, c.words, c.values.tolist()) for c in table.columns
    ][:2]
    guessed = encoding in ("cp1252", "latin-1")
    assert table.notes == ((f"people.{ending} is not UTF-8, and was read as cp1252.",) * guessed)


def test_what_is_not_found_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv", ";", "utf-16-le")  # no mark says so
    with pytest.raises(UnreadableFile, match="Save it as UTF-8"):
        read_table(path)
    check(read_table(path, encoding="utf-16-le"))
    mac = write(tmp_path / "people.csv", "\t", "mac-roman")
    assert "näme" not in read_table(mac).names
    check(read_table(mac, encoding="mac-roman", delimiter="tab"))
    assert read_table(mac, encoding="mac-roman").notes == ()
    wrong = tmp_path / "both.csv"
    wrong.write_text("a,b;c\n1,2;3\n4,5;6\n")
    with pytest.raises(InvalidArgument, match=r"commas and semicolons both.*--delimiter"):
        read_table(wrong)
    assert read_table(wrong, delimiter=";").names == ("a,b", "c")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"encoding": "klingon"}, "an encoding such as utf-8.*'klingon'"),
        ({"encoding": "ascii"}, "no ascii text, at byte"),
        ({"delimiter": "::"}, "one character as delimiter, or tab, got '::'"),
    ],
)
def test_what_is_said_wrongly_is_refused(given: dict[str, str], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv", ";", "utf-8")
    with pytest.raises(EpsilometerError, match=said):
        read_table(path, **given)  # type: ignore[arg-type]
    np.savez(tmp_path / "t.npz", a=[1, 2])
    with pytest.raises(InvalidArgument, match="of CSV only"):
        read_table(tmp_path / "t.npz", delimiter=";")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a\n1\n2\n", ("a",)),
        ("why;so\n1\n2\n", ("why;so",)),  # one column, whose name has a semicolon
        ("a,b|c\n1,2\n3,4\n", ("a", "b|c")),
        ("a;b\n1,5;2\n2,5;3\n", ("a", "b")),  # decimal commas
        ('a,b\n"1;2",3\n"4;5",6\n', ("a", "b")),
    ],
)
def test_commas_stay_what_separates_where_nothing_else_does(
    text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert read_table(path).names == names


def test_letters_that_one_encoding_lacks_are_of_another(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n\x81x,1\n\x8dx,2\n")  # cp1252 has no such letters
    table = read_table(path)
    assert table.column("a").width == 2
    assert "latin-1" in table.notes[0]
    path.write_bytes(b"a,b\n" + b"x,1\n" * 300_000 + b"\xfc,2\xc3")  # the last byte, cut off
    assert "cp1252" in read_table(path).notes[0]


def test_an_irregular_line_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;2\n3\n")
    with pytest.raises(InvalidArgument, match="2 cells in every line, as in the first, line 3"):
        read_table(path)
