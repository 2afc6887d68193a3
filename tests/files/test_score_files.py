"""Three kinds of file, two layouts, one answer; one sentence for whatever is wrong with them."""

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epsilometer import Scores, read_records, read_scores
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files import readers
from tests.sample_files import (
    Columns,
    Planted,
    bytes_changed,
    cut_in_half,
    damaged,
    folder_named,
    fuzz,
    holding,
    missing,
    shares_kept,
    table,
)

INSIDE, OUTSIDE = [2.5, -1.0, np.inf, 1e-300], [0.1, -np.inf]
PAIRED = {"score": [*INSIDE, *OUTSIDE], "member": [1, 1, 1, 1, 0, 0]}
KINDS = ("csv", "parquet", "npz")
every_kind = pytest.mark.parametrize("kind", KINDS)


def written(folder: Path, kind: str, columns: Columns) -> Path:
    return table(folder / f"scores.{kind}", columns)


def csv_text(folder: Path, text: str) -> Path:
    return holding("scores.csv", text)(folder)


def same(scores: Scores, inside: list[float], outside: list[float]) -> bool:
    return scores.inside.tolist() == inside and scores.outside.tolist() == outside


@every_kind
def test_scores_beside_their_membership_are_read(kind: str, tmp_path: Path) -> None:
    assert same(read_scores(written(tmp_path, kind, PAIRED)), INSIDE, OUTSIDE)


@every_kind
def test_both_worlds_of_unequal_size_are_read(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind, {"inside": INSIDE, "outside": OUTSIDE})
    assert same(read_scores(path), INSIDE, OUTSIDE)
    path = written(tmp_path, kind, {"inside": OUTSIDE, "outside": INSIDE})
    assert same(read_scores(str(path)), OUTSIDE, INSIDE)


@settings(fuzz, max_examples=40)
@given(
    inside=st.lists(st.floats(allow_nan=False), min_size=1, max_size=10),
    outside=st.lists(st.floats(allow_nan=False), min_size=1, max_size=10),
)
def test_every_kind_of_file_gives_the_scores_of_the_arrays(
    inside: list[float], outside: list[float], tmp_path: Path
) -> None:
    """Bit by bit: CSV too, since the text of a float names it exactly."""
    member = [True] * len(inside) + [False] * len(outside)
    for kind in KINDS:
        apart = written(tmp_path, kind, {"inside": inside, "outside": outside})
        assert same(read_scores(apart), inside, outside)
        paired = written(tmp_path, kind, {"score": inside + outside, "member": member})
        assert same(read_scores(paired), inside, outside)


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("1", "0"),
        ("1.0", "0.0"),
        ("true", "false"),
        ("True", "FALSE"),
        ("yes", "no"),
        ("in", "out"),
        ("IN", "Out"),
        ("inside", "outside"),
        ("member", "non-member"),
        (" 1 ", "\t0"),
        ('"1"', '"0"'),
    ],
)
def test_membership_in_any_words(yes: str, no: str, tmp_path: Path) -> None:
    path = csv_text(tmp_path, f"score,member\n2,{yes}\n1,{no}\n3,{yes}\n")
    assert same(read_scores(path), [2.0, 3.0], [1.0])


def test_one_long_cell_does_not_make_the_others_long(tmp_path: Path) -> None:
    path = csv_text(tmp_path, "score,member\n" + "2,1\n1,0\n" * 10_000 + f"3,{'x' * 1000}\n")
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match="row 20001 of the data has another value"):
        read_scores(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * path.stat().st_size  # as one array of texts it would be 1,000 times that


@every_kind
@pytest.mark.parametrize(
    "member",
    [[1, 0, 1], [1.0, 0.0, 1.0], [True, False, True], ["in", "OUT", "Yes"]],
    ids=["int", "float", "bool", "words"],
)
def test_membership_of_any_type(kind: str, member: list[Any], tmp_path: Path) -> None:
    path = written(tmp_path, kind, {"score": [2.0, 1.0, 3.0], "member": member})
    assert same(read_scores(path), [2.0, 3.0], [1.0])


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffscore,member\n2,1\n1,0\n",
        "score,member\r\n2,1\r\n1,0\r\n",
        "score,member\n2,1\n1,0",
        "score,member\n\n2,1\n\n\n1,0\n\n",
        "Score, MEMBER \n2,1\n1,0\n",
        '"score","member"\n"2.0","1"\n" 1 ","0"\n',
        "run,member,note,score\na,1,x,2\nb,0,,1\n",
        'note,member,score\n"a, ""b""\nc",1,2\n,0,1\n',
        "score,member\n2,1,\n1,0\n",
        "member,score\n1,2e0\n0,+1.\n",
        "score,member,inside\n2,1,7\n1,0,\n",
        "inside,outside\n2,1\n",
        "x,outside,inside\n0,1,2\n0,,\n",
    ],
)
def test_csv_as_people_write_it(text: str, tmp_path: Path) -> None:
    assert same(read_scores(csv_text(tmp_path, text)), [2.0], [1.0])


@every_kind
def test_a_file_may_state_its_design(kind: str, tmp_path: Path) -> None:
    rows = len(PAIRED["score"])
    stated: Columns = {**PAIRED, "design": ["Coins"] * rows, "inclusion": [0.25] * rows}
    found = read_scores(written(tmp_path, kind, stated))
    assert same(found, INSIDE, OUTSIDE)
    assert (found.design, found.inclusion) == ("coins", 0.25)
    plain = read_scores(written(tmp_path, kind, PAIRED))
    assert (plain.design, plain.inclusion) == ("runs", 0.5)


def test_both_sides_beside_a_design_with_blanks(tmp_path: Path) -> None:
    found = read_scores(csv_text(tmp_path, "inside,outside,design\n1,2,fixed\n,3,\n"))
    assert same(found, [1.0], [2.0, 3.0])
    assert found.design == "fixed"


def test_a_design_in_metadata_and_in_a_lone_array(tmp_path: Path) -> None:
    parquet = tmp_path / "scores.parquet"
    sides = pyarrow.table({"inside": [2.0, 3.0], "outside": [0.0, 1.0]})
    pyarrow.parquet.write_table(sides.replace_schema_metadata({"design": "paired"}), parquet)
    np.savez(tmp_path / "scores.npz", inside=[2.0, 3.0], outside=[0.0, 1.0], design="paired")
    for path in (parquet, tmp_path / "scores.npz"):
        found = read_scores(path)
        assert (found.design, found.n_in) == ("paired", 2)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["1,1,coins,", "0,0,runs,"], "one value of 'design' in all rows, got 2"),
        (["1,1,,", "0,0,,"], "one value of 'design' in all rows, got 0"),
        (["1,1,secret,", "0,0,secret,"], "runs, coins, fixed, paired, got another word"),
        (["1,1,coins,half", "0,0,coins,half"], "a number in .* in 'inclusion'"),
        (["1,1,coins,0", "0,0,coins,0"], r"in \(0, 1\) in 'inclusion'"),
        (["1,1,fixed,0.3", "0,0,fixed,0.3"], "0.5 for all designs but coins, got something else"),
    ],
)
def test_a_design_that_is_none_is_told(rows: list[str], told: str, tmp_path: Path) -> None:
    names = "score,member,design,inclusion" if not rows[0].endswith(",") else "score,member,design,"
    with pytest.raises(InvalidArgument, match=told) as raised:
        read_scores(csv_text(tmp_path, "\n".join([names, *rows, ""])))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("ending", ["CSV", "Npz", "PARQUET"])
def test_endings_may_be_of_either_case(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, ending.lower(), PAIRED)
    assert same(read_scores(path.rename(tmp_path / f"x.{ending}")), INSIDE, OUTSIDE)


def test_parquet_in_many_pieces_is_one_column(tmp_path: Path) -> None:
    path = tmp_path / "scores.parquet"
    table = pyarrow.table({"score": np.arange(100.0), "member": np.arange(100) % 2})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    assert same(read_scores(path), [*np.arange(1.0, 100, 2)], [*np.arange(0.0, 100, 2)])


def test_arrays_of_any_float_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    np.savez_compressed(path, inside=np.ones(2, np.float32), outside=np.zeros(3, np.float32))
    assert read_scores(path).inside.dtype == np.float32


def test_other_arrays_in_the_file_are_let_be(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    np.savez(path, inside=[2.0], outside=[1.0], losses=np.zeros((3, 4)), names=["a", "b"])
    assert same(read_scores(path), [2.0], [1.0])


BAD_TEXTS = {
    "empty": ("", "found none"),
    "header only": ("score,member\n", "Expected"),
    "header only, apart": ("inside,outside\n", "at least one score in inside"),
    "wrong columns": ("loss,label\n1,1\n2,0\n", "'score' and 'member'.*found 'loss', 'label'"),
    "half the columns": ("score,label\n1,1\n", "found 'score', 'label'"),
    "no header": ("0.5,1\n0.2,0\n", "found numbers in the first line"),
    "one class, in": ("score,member\n1,1\n2,1\n", "both kinds, got only inside"),
    "one class, out": ("score,member\n1,0\n2,0\n", "both kinds, got only outside"),
    "one side blank": ("inside,outside\n1,\n2,\n", "at least one score in outside"),
    "not a number": (
        "score,member\nhigh,1\n2,0\n",
        "numbers in column 'score', row 1 has something",
    ),
    "not a number, apart": (
        "inside,outside\n1,low\n",
        "numbers in column 'outside', row 1 has",
    ),
    "blank score": ("score,member\n,1\n2,0\n", "numbers in column 'score'"),
    "nan": ("score,member\nnan,1\n2,0\n", "no nan in inside.*±inf"),
    "nan, apart": ("inside,outside\n1,NaN\n", "no nan in outside.*±inf"),
    "member unknown": ("score,member\n1,1\n2,perhaps\n", "row 2 of the data has another value"),
    "member blank": ("score,member\n1,1\n2,\n", "row 2 of the data has none"),
    "member 2": ("score,member\n1,1\n2,2\n", "row 2 of the data has another value"),
    "ragged": ("score,member\n1,1\n2\n3,0\n", "2 cells in every line, line 3 has 1"),
    "decimal commas": ("inside,outside\n3,1,0,5\n2,1,0,2\n", "2 cells in every line.*2 has 4"),
    "names of rows": ('"inside","outside"\n"1",2.5,0.3\n', "2 cells in every line.*2 has 3"),
    "one line longer": ("score,member\n2,1\n1,0,1\n", "2 cells in every line.*line 3 has 3"),
    "two scores": ("score,member,Score\n2,1,0\n1,0,3\n", "one column 'score', found 2"),
    "unclosed quote": ('score,member\n1,1\n"2,0\n', "2 cells in every line"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_what_is_wrong_in_a_csv_is_told_with_its_name(case: str, tmp_path: Path) -> None:
    text, told = BAD_TEXTS[case]
    with pytest.raises(InvalidArgument, match=f"(?s)^scores.csv: .*{told}"):
        read_scores(csv_text(tmp_path, text))


UNREADABLE = {
    "missing csv": (missing("nothing.csv"), "Expected a file at .*nothing.csv', found none"),
    "missing parquet": (missing("nothing.parquet"), "found none"),
    "missing npz": (missing("nothing.npz"), "found none"),
    "folder, csv": (folder_named("scores.csv"), "scores.csv.*found a folder"),
    "folder, parquet": (folder_named("scores.parquet"), "scores.parquet.*found a folder"),
    "folder, npz": (folder_named("scores.npz"), "scores.npz.*found a folder"),
    "unknown ending": (
        holding("scores.txt", b"{}"),
        r"\.csv, .*\.tsv, .*\.parquet, .* or \.npz, got 'scores.txt'",
    ),
    "no ending": (lambda folder: folder, r"\.csv, .*\.parquet, .* or \.npz"),
    "UTF-16 without its mark": (
        holding("scores.csv", "score,member\n".encode("utf-16-le")),
        "Expected text in .scores.csv",
    ),
    "endless cell": (holding("scores.csv", b"score,member\n" + b"1" * 200_000), "scores.csv"),
    "empty parquet": (holding("scores.parquet", b""), "scores.parquet"),
    "corrupt parquet": (holding("scores.parquet", b"PAR1" + bytes(99) + b"PAR1"), "scores.parquet"),
    "half a parquet": (cut_in_half("scores.parquet", PAIRED), "scores.parquet"),
    "empty npz": (holding("scores.npz", b""), "scores.npz"),
    "corrupt npz": (holding("scores.npz", b"PK\x03\x04" + bytes(99)), "scores.npz"),
    "half an npz": (cut_in_half("scores.npz", PAIRED), "scores.npz"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_read_is_told_by_name(case: str, tmp_path: Path) -> None:
    make, told = UNREADABLE[case]
    with pytest.raises(UnreadableFile, match=told):
        read_scores(make(tmp_path))


@pytest.mark.parametrize("kind", ["parquet", "npz"])
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"loss": [1.0], "label": [1]}, "found 'loss', 'label'"),
        ({"score": [1.0, 2.0], "member": [1, 1]}, "both kinds, got only inside"),
        ({"score": [1.0, 2.0], "member": [0, 2]}, "1 or 0 .*, row 2 of the data has another"),
        (
            {"score": [1.0, 2.0], "member": [0.0, np.nan]},
            "1 or 0 .*, row 2 of the data has another",
        ),
        ({"score": [1.0, np.nan], "member": [0, 1]}, "no nan in inside.*±inf"),
        ({"score": ["a", "b"], "member": [0, 1]}, "Expected numbers"),
        ({"inside": [1.0], "outside": ["b"]}, "Expected numbers (for|in column) .?outside"),
    ],
)
def test_what_is_wrong_in_a_binary_file_is_told_with_its_name(
    kind: str, columns: Columns, told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=f"^scores.{kind}: .*{told}"):
        read_scores(written(tmp_path, kind, columns))


@pytest.mark.parametrize("name", ["score", "member"])
def test_nulls_beside_each_other_are_told(name: str, tmp_path: Path) -> None:
    columns = {"score": [1.0, 2.0, 3.0], "member": [1, 0, 1]}
    path = written(tmp_path, "parquet", {**columns, name: [1.0, 0.0, None]})
    with pytest.raises(InvalidArgument, match=r"row 3 of the data has (a blank|none)"):
        read_scores(path)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"score": [1.0, 2.0], "member": [1]}, r"as many scores as memberships, got shapes \(2,\)"),
        ({"inside": [[1.0, 2.0]], "outside": [1.0]}, "one-dimensional"),
        ({"inside": [], "outside": [1.0]}, "at least one score in inside"),
    ],
)
def test_arrays_of_wrong_shapes_are_told(columns: Columns, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=told):
        read_scores(written(tmp_path, "npz", columns))


def test_a_planted_pickle_is_never_loaded(tmp_path: Path) -> None:
    trap, path = tmp_path / "sprung", tmp_path / "scores.npz"
    planted = np.array([Planted(trap)], object)
    np.savez(path, inside=planted, outside=[1.0])
    with pytest.raises(UnreadableFile, match=r"scores\.npz"):
        read_scores(path)
    path.write_bytes(pickle.dumps(Planted(trap)))  # np.load takes this for a pickle
    with pytest.raises(UnreadableFile, match=r"scores\.npz"):
        read_scores(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside", pickle.dumps(Planted(trap)))
        archive.writestr("outside.npy", pickle.dumps(Planted(trap)))
    with pytest.raises(EpsilometerError):
        read_scores(path)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Planted(trap)))
    assert trap.exists()  # the trap is a real one


@every_kind
def test_a_huge_file_is_told_to_be_counted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, kind, PAIRED)
    monkeypatch.setattr(readers, "LARGEST", 20)
    with pytest.raises(UnreadableFile, match=r"scores\.\w+' has .*ScoreCounts.at\(thresholds\)"):
        read_scores(path)


def test_a_small_archive_of_huge_arrays_is_huge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.npz"
    np.savez_compressed(path, inside=np.zeros(10**6), outside=np.zeros(10**6))
    monkeypatch.setattr(readers, "LARGEST", 10**6)
    assert path.stat().st_size < 10**5
    with pytest.raises(UnreadableFile, match="ScoreCounts"):
        read_scores(path)


def test_what_does_not_fit_into_memory_is_told_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(path: Path) -> None:
        raise MemoryError

    monkeypatch.setattr("epsilometer.files.csv_text.open_csv", too_much)
    with pytest.raises(UnreadableFile, match="ScoreCounts"):
        read_scores(csv_text(tmp_path, "score,member\n1,1\n2,0\n"))


def reads_or_tells(path: Path) -> None:
    """Anything but scores or our own error fails the test."""
    try:
        scores = read_scores(path)
    except EpsilometerError as error:
        assert str(error)  # noqa: PT017 - most damage is told, some leaves scores
    else:
        assert scores.n_in > 0
        assert scores.n_out > 0


@fuzz
@given(kind=st.sampled_from(KINDS), content=st.binary(max_size=300))
@example(kind="csv", content=b"score,member\n1,1\x00\n2,0\n")
@example(kind="npz", content=b"PK\x05\x06" + bytes(18))  # an archive of nothing
@example(kind="parquet", content=b"PAR1PAR1")
def test_random_bytes_raise_only_our_errors(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"scores.{kind}"
    path.write_bytes(content)
    reads_or_tells(path)


@fuzz
@given(
    kind=st.sampled_from(KINDS),
    apart=st.booleans(),
    changed=bytes_changed,
    kept=shares_kept,
)
def test_damaged_files_raise_only_our_errors(
    kind: str, apart: bool, changed: list[tuple[float, int]], kept: float, tmp_path: Path
) -> None:
    columns = {"inside": INSIDE, "outside": OUTSIDE} if apart else PAIRED
    reads_or_tells(damaged(written(tmp_path, kind, columns), changed, kept))


@fuzz
@given(rows=st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=5), apart=st.booleans())
def test_any_cells_raise_only_our_errors(
    rows: list[list[str]], apart: bool, tmp_path: Path
) -> None:
    header = "inside,outside" if apart else "score,member"
    text = "\n".join([header, *(",".join(row) for row in rows)])
    reads_or_tells(csv_text(tmp_path, text))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8'}",
        "__import__('os')",
    ],
)
def test_lying_array_headers_are_told(header: str, tmp_path: Path) -> None:
    raw = io.BytesIO()
    text = header.ljust(117).encode() + b"\n"
    raw.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8))
    path = tmp_path / "scores.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside.npy", raw.getvalue())
        archive.writestr("outside.npy", raw.getvalue())
    with pytest.raises(UnreadableFile, match=r"scores\.npz"):
        read_scores(path)


TOKEN = "Jane-Q-2718"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.csv", f"score,member\n1,1\n{TOKEN},0\n"),
        ("scores.csv", f"score,member\n1,{TOKEN}\n2,0\n"),
        ("scores.csv", f"0.5,{TOKEN}\n0.2,1\n"),
        ("people.csv", f"0.5,{TOKEN}\n0.2,{TOKEN}\n"),
        ("people.csv", f"{TOKEN},{TOKEN}\n1,2\n"),
        ("people.csv", f"a,y\n1,2\n1,{TOKEN},3\n"),
        ("people.csv", f"a,y\n1,2\n{TOKEN},\n"),
    ],
)
def test_no_error_repeats_a_cell(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    read = read_scores if name == "scores.csv" else read_records
    with pytest.raises(EpsilometerError) as refused:
        read(tmp_path / name)
    assert TOKEN not in str(refused.value)
    assert name in str(refused.value)
