"""Tables keep their columns: names, numbers, words, and what is missing."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.tables import (
    Column,
    Table,
    cut_at_quantiles,
    read_table,
    take_words,
)

CSV = """age,job,pay,empty,mixed
39,clerk,1.5,,1
?,,NA,,x
50, baker ,2e3,,
"""


def test_numbers_words_and_gaps_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(CSV, "utf-8")
    table = read_table(path)
    assert table.names == ("age", "job", "pay", "empty", "mixed")
    assert table.rows == 3
    np.testing.assert_array_equal(table.column("age").values, [39, np.nan, 50])
    np.testing.assert_array_equal(table.column("pay").values, [1.5, np.nan, 2000])
    assert np.isnan(table.column("empty").values).all()
    job, mixed = table.column("job"), table.column("mixed")
    assert job.words == ("", "baker", "clerk")
    assert job.values.tolist() == [2, 0, 1]
    assert mixed.words == ("", "1", "x")
    zipped = tmp_path / "people.csv.gz"
    zipped.write_bytes(gzip.compress(CSV.encode()))
    assert read_table(zipped).names == table.names


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "age": [39.0, None, 50.0],
        "job": ["clerk", None, "baker"],
        "yes": [True, None, False],
    }
    pq.write_table(pa.table(columns), tmp_path / "people.parquet")
    table = read_table(tmp_path / "people.parquet")
    np.testing.assert_array_equal(table.column("age").values, [39, np.nan, 50])
    np.testing.assert_array_equal(table.column("yes").values, [1, np.nan, 0])
    assert table.column("job").words == ("", "baker", "clerk")


def test_columns_are_found_and_left_out() -> None:
    table = Table((Column("a", np.zeros(2)), Column("b", np.ones(2))))
    assert table.without("a").names == ("b",)
    for name in ("column", "without"):
        with pytest.raises(InvalidArgument, match="'c', found 'a', 'b'"):
            getattr(table, name)("c")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("people.csv", "a,b\n", "without any"),
        ("people.csv", "a,b\n1\n", "2 cells in every line"),
        ("people.csv", "a,a\n1,2\n", "the same in columns 1 and 2"),
        ("people.txt", "a\n1\n", "ending in .csv"),
    ],
)
def test_what_is_no_table_is_told(name: str, text: str, part: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises((InvalidArgument, UnreadableFile), match=part):
        read_table(tmp_path / name)
    with pytest.raises(UnreadableFile, match="found none"):
        read_table(tmp_path / "nobody.csv")


def test_equal_shares_lie_in_every_bin(rng: np.random.Generator) -> None:
    values = rng.normal(size=1000)
    values[:100] = np.nan
    cut = cut_at_quantiles(Column("x", values), 4)
    assert cut.words is not None
    assert cut.words[-1] == "missing"
    assert np.bincount(cut.values).tolist() == [225, 225, 225, 225, 100]
    same = cut_at_quantiles(Column("x", np.ones(5)), 4)
    assert np.unique(same.values).size == 1
    words = Column("w", np.array([0]), ("a",))
    assert cut_at_quantiles(words, 4) is words


def test_numbers_that_differ_late_are_different_classes_and_groups() -> None:
    codes = Column("code", np.array([1000001.0, 1000002.0, 0.1234567, 0.1234568, 1.0]))
    assert take_words(codes).tolist() == ["1000001", "1000002", "0.1234567", "0.1234568", "1"]
    times = np.repeat(1_600_000_000.0 + np.arange(8), 5)
    cut = cut_at_quantiles(Column("time", times), 4)
    assert cut.words is not None
    assert len(set(cut.words)) == 4
    assert len(set(take_words(cut).tolist())) == 4
