"""One reader per ending, from this package or another; CSV alike with pyarrow and without."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.errors import EpsilometerError
from epsilometer.files.readers import READERS, Column, open_columns
from epsilometer.files.tables import read_table
from tests.sample_files import fuzz

FOREIGN = """
import json
import numpy as np
from epsilometer.files.readers import Column, Content

def open_jsonl(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = tuple(rows[0])
    def read(places=None):
        wanted = range(len(names)) if places is None else places
        return [Column(names[i], np.array([row[names[i]] for row in rows])) for i in wanted]
    return Content(names, read)
"""
CELLS = st.sampled_from(
    [
        *("1", "2.5", "-3e-7", "+1.", " 4 ", "inf", "-Infinity", "nan", "NaN", "nan(x)", "1_000"),
        *("", " ", "NA", "?", "a", "b ", "é", '"q"', '"a,b"', '"x""y"', '"two\nlines"', 'm"id'),
        *("0x1p3", "1e400", "٣", "true", "2020-01-01", "\x1c1", "\u2003z", '"open', "007"),
    ]
)


def read_without_pyarrow(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Column, ...]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        return read_table(path).columns


def outcome(read: object) -> object:
    try:
        columns = read()  # type: ignore[operator]
    except EpsilometerError as error:
        return str(error)
    return [(c.name, c.values.tolist(), c.words, _listed(c.blank)) for c in columns]


def _listed(blank: object) -> object:
    return None if blank is None else np.asarray(blank).tolist()


@settings(fuzz, max_examples=150)
@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    packed=st.booleans(),
)
@example(rows=[["1", "a"], ["2", "b"]], end="\n", packed=True)
def test_csv_is_the_same_with_pyarrow_and_without(
    rows: list[list[str]], end: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = end.join(["x,y", *(",".join(row) for row in rows)]).encode()
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    fast = outcome(lambda: read_table(path).columns)
    slow = outcome(lambda: read_without_pyarrow(path, monkeypatch))
    assert repr(fast) == repr(slow)  # nan is nan


def test_scores_are_the_same_with_pyarrow_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("note,score,member\n" + "".join(f"n{i},{i / 7!r},{i % 2}\n" for i in range(99)))
    fast = em.read_scores(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    slow = em.read_scores(path)
    assert fast.inside.tolist() == slow.inside.tolist() == [i / 7 for i in range(1, 99, 2)]
    assert fast.outside.tolist() == slow.outside.tolist()


def test_a_cell_that_is_too_long_is_refused_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"x,y\n1,{'z' * 140_000}\n")
    fast = outcome(lambda: read_table(path).columns)
    assert "t.csv" in str(fast)
    assert fast == outcome(lambda: read_without_pyarrow(path, monkeypatch))


def test_another_package_adds_a_reader_that_commands_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an entry point alone: nothing of the package is changed."""
    (tmp_path / "jsonl_for_audits.py").write_text(FOREIGN)
    about = tmp_path / "jsonl_for_audits-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jsonl-for-audits\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[epsilometer.readers]\njsonl = jsonl_for_audits:open_jsonl\n"
    )
    rows = [f'{{"score": {i % 2 * 3.0}, "member": {i % 2}}}' for i in range(400)]
    (tmp_path / "scores.jsonl").write_text("\n".join(rows))
    monkeypatch.syspath_prepend(tmp_path)
    assert em.read_scores(tmp_path / "scores.jsonl").n_in == 200
    call = ["estimate", str(tmp_path / "scores.jsonl"), "--delta", "1e-5", "--claim", "1"]
    assert CliRunner().invoke(main, call).exit_code == 1
    with pytest.raises(EpsilometerError, match=r"\.npz or \.jsonl, got 'a.xyz'"):
        em.read_records(tmp_path / "a.xyz")


def test_an_archive_of_columns_is_a_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", a=[1, 2], b=["x", "y"])
    a, b = read_table(tmp_path / "t.npz").columns
    assert (a.values.tolist(), b.words, b.values.tolist()) == ([1.0, 2.0], ("x", "y"), [0, 1])
    np.savez(tmp_path / "u.npz", a=[1, 2], b=[1])
    with pytest.raises(EpsilometerError, match="one length"):
        read_table(tmp_path / "u.npz")
    np.savez(tmp_path / "v.npz", a=np.ones((2, 2)))
    with pytest.raises(EpsilometerError, match="one per record"):
        read_table(tmp_path / "v.npz")


def test_every_reader_of_the_registry_exists(tmp_path: Path) -> None:
    for ending in READERS:
        with (
            pytest.raises(EpsilometerError, match="found none"),
            open_columns(tmp_path / f"no.{ending}", advice=""),
        ):
            pass
