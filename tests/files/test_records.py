"""Records from four kinds of file, one answer; one sentence for whatever is wrong with them."""

import decimal
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from epsilometer import read_records
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files import readers
from tests.sample_files import (
    Columns,
    Making,
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

TABLE: Columns = {
    "age": [39.0, 50.5, -1e-300, 28.0],
    "job": ["clerk", "smith", "clerk", "baker"],
    "hours": [40, 13, 40, 7],
    "income": ["high", "low", "low", "high"],
}
ENCODED = [
    [39.0, 0, 1, 0, 40],
    [50.5, 0, 0, 1, 13],
    [-1e-300, 0, 1, 0, 40],
    [28.0, 1, 0, 0, 7],
]


TABLES = ("csv", "csv.gz", "parquet")
every_table = pytest.mark.parametrize("kind", TABLES)


def written(folder: Path, kind: str, columns: Columns) -> Path:
    return table(folder / f"people.{kind}", columns)


def text_file(folder: Path, text: str) -> Path:
    return holding("people.csv", text)(folder)


def npz_file(folder: Path, **arrays: Any) -> Path:
    path = folder / "images.npz"
    np.savez(path, **arrays)
    return path


# Tables


@every_table
def test_numbers_stay_and_words_become_columns_in_sorted_order(kind: str, tmp_path: Path) -> None:
    features, labels = read_records(written(tmp_path, kind, TABLE))
    assert features.tolist() == ENCODED
    assert (features.dtype, labels.dtype) == (np.float64, np.int64)
    assert labels.tolist() == [0, 1, 1, 0]


@every_table
@pytest.mark.parametrize("name", ["label", "labels", "y", "target", "class", "Class", "LABEL"])
def test_the_usual_names_of_labels_are_known_wherever_they_stand(
    kind: str, name: str, tmp_path: Path
) -> None:
    columns = {"a": [1, 2, 3], name: [7, 5, 7], "b": [4, 5, 6]}
    features, labels = read_records(str(written(tmp_path, kind, columns)))
    assert features.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert labels.tolist() == [1, 0, 1]


@every_table
def test_any_column_can_be_named_the_label(kind: str, tmp_path: Path) -> None:
    features, labels = read_records(written(tmp_path, kind, TABLE), label="job")
    assert labels.tolist() == [1, 2, 1, 0]
    assert features.tolist() == [
        [39.0, 40, 1, 0],
        [50.5, 13, 0, 1],
        [-1e-300, 40, 0, 1],
        [28.0, 7, 1, 0],
    ]


@every_table
@pytest.mark.parametrize(
    ("given_", "numbered"),
    [
        ([10, 9, 2, 10], [2, 1, 0, 2]),  # as numbers, not as text
        ([-1.5, 2.0, -1.5, 0.0], [0, 2, 0, 1]),
        (["b", "a", "é", "B"], [2, 1, 3, 0]),
        (["10", "x", "9", "x"], [0, 2, 1, 2]),
        ([True, False, True, True], [1, 0, 1, 1]),
    ],
)
def test_classes_of_any_type_are_numbered_in_sorted_order(
    kind: str, given_: list[Any], numbered: list[int], tmp_path: Path
) -> None:
    columns = {"x1": [1, 2, 3, 4], "y": given_}
    assert read_records(written(tmp_path, kind, columns))[1].tolist() == numbered


names = st.text("abcdef", min_size=1, max_size=3)
words = st.text("abcxyz +/é", min_size=1, max_size=4).filter(lambda word: word.strip() == word)
NOT_MISSING = words.filter(lambda word: word.lower() not in ("n/a", "na"))


@st.composite
def tables(draw: st.DrawFn) -> Columns:
    rows = draw(st.integers(1, 6))
    cells = (
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(2**53), 2**53),
        NOT_MISSING,
    )
    found = {}
    for name in draw(st.lists(names, min_size=2, max_size=5, unique_by=str.lower)):
        column = draw(st.sampled_from(cells))
        found[name] = draw(st.lists(column, min_size=rows, max_size=rows))
    return found


@settings(fuzz, max_examples=60)
@given(columns=tables())
def test_every_kind_of_table_gives_the_same_records(columns: Columns, tmp_path: Path) -> None:
    """Bit by bit, and as the definition has it: column by column, word by word."""
    *features, last = columns
    expected = []
    for name in features:
        values = columns[name]
        if isinstance(values[0], str):
            expected += [[float(v == word) for v in values] for word in sorted(set(values))]
        else:
            expected.append([float(v) for v in values])
    classes = sorted(set(columns[last]))
    for kind in TABLES:
        found, labels = read_records(written(tmp_path, kind, columns), label=last)
        assert found.T.tolist() == expected
        assert labels.tolist() == [classes.index(value) for value in columns[last]]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffa,y\n1,0\n2,1\n",
        "a,y\r\n1,0\r\n2,1\r\n",
        "a,y\n1,0\n2,1",
        "\n\na,y\n\n1,0\n\n2,1\n\n",
        ' a , y \n" 1",0\n2 , 1\n',
        '"a","y"\n"1","0"\n"2","1"\n',
        "y,a\nno,+1.\nyes,2e0\n",
        "0,1\n1,0\n2,1\n",  # as written by pandas without names
        'a,y\n1,"x, ""y""\nz"\n2,y\n',
    ],
)
def test_csv_as_people_write_it(text: str, tmp_path: Path) -> None:
    features, labels = read_records(text_file(tmp_path, text))
    assert (features.tolist(), labels.tolist()) == ([[1.0], [2.0]], [0, 1])


def test_a_question_mark_among_words_is_a_word(tmp_path: Path) -> None:
    features, _ = read_records(text_file(tmp_path, "job,y\nsmith,0\n?,1\nclerk,0\n"))
    assert features.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_numbers_with_a_word_among_them_are_words(tmp_path: Path) -> None:
    features, _ = read_records(text_file(tmp_path, "age,y\n10,0\n3,1\n60+,0\n"))
    assert features.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_parquet_of_other_types_and_many_pieces(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pyarrow.table(
        {
            "small": pyarrow.array([1, 2, 3, 4], pyarrow.int8()),
            "half": pyarrow.array(np.arange(4, dtype=np.float16)),
            "exact": pyarrow.array([decimal.Decimal("1.25")] * 4),
            "true": pyarrow.array([True, False, True, True]),
            "kind": pyarrow.array(["b", "a", "b", "c"]).dictionary_encode(),
            "long": pyarrow.array(["p", "p", "q", "q"], pyarrow.large_string()),
            "grade": pyarrow.array([3, 1, 3, 1]).dictionary_encode(),
        }
    )
    pyarrow.parquet.write_table(table, path, row_group_size=3)
    features, labels = read_records(path)
    assert features.tolist() == [
        [1, 0, 1.25, 1, 0, 1, 0, 1, 0],
        [2, 1, 1.25, 0, 1, 0, 0, 1, 0],
        [3, 2, 1.25, 1, 0, 1, 0, 0, 1],
        [4, 3, 1.25, 1, 0, 0, 1, 0, 1],
    ]
    assert labels.tolist() == [1, 0, 1, 0]


# Arrays


@pytest.mark.parametrize(
    "pair",
    [("x", "y"), ("features", "labels"), ("X", "Y"), ("x", "target"), ("x_train", "y_train")],
)
def test_arrays_are_read_in_any_shape(pair: tuple[str, str], tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = npz_file(tmp_path, **{pair[0]: images, pair[1]: ["dog", "cat"], "other": np.zeros(9)})
    features, labels = read_records(path)
    np.testing.assert_array_equal(features, images)
    assert (features.dtype, labels.tolist()) == (np.float32, [1, 0])


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ("f4", "f4"),
        ("f8", "f8"),
        ("f2", "f4"),
        ("i2", "f4"),
        ("i4", "f8"),
        ("i8", "f8"),
        ("?", "f4"),
    ],
)
def test_floats_stay_and_whole_numbers_become_floats_that_hold_them(
    given_: str, read: str, tmp_path: Path
) -> None:
    path = npz_file(tmp_path, x=np.ones((2, 2), given_), y=[0, 1])
    assert read_records(path)[0].dtype == np.dtype(read)


def test_another_array_of_labels_can_be_named(tmp_path: Path) -> None:
    path = npz_file(tmp_path, x=np.ones((2, 1)), y=[0, 1], coarse=[1, 0])
    assert read_records(path, label="coarse")[1].tolist() == [1, 0]


def test_real_images_by_every_way(tmp_path: Path) -> None:
    pixels, digits = load_digits(return_X_y=True)
    columns = {f"p{i}": pixels[:, i].tolist() for i in range(64)} | {"digit": digits.tolist()}
    np.savez_compressed(tmp_path / "digits.npz", x=pixels, y=digits)
    paths = [written(tmp_path, kind, columns) for kind in TABLES]
    for path in (*paths, tmp_path / "digits.npz"):
        features, labels = read_records(path)
        np.testing.assert_array_equal(features, pixels)
        np.testing.assert_array_equal(labels, digits)


# Bad files

BAD_TEXTS = {
    "empty": ("", "names of columns.*found nothing"),
    "header only": ("a,y\n", "Expected records, got a file without any"),
    "one column": ("y\n1\n2\n", "features besides the labels 'y'"),
    "no header": ("0.5,1\n0.2,0\n", "found a number in column 1.*begin with a record"),
    "no header, twins": ("3,1,3\n2,2,0\n", "found the same in columns 1 and 3"),
    "twin names": ("a,a,y\n1,2,0\n", "found the same in columns 1 and 2"),
    "two labels": ("a,y,class\n1,2,0\n", "one column of labels, found 'y', 'class'.*label='y'"),
    "blank": (
        "a,b,y\n1,2,0\n1,,1\n",
        "no blanks in column 'b', found 1, first in row 2.*Fill them in",
    ),
    "blank label": ("a,y\n1,0\n2, \n", "no blanks in column 'y', found 1, first in row 2"),
    "NA": ("a,y\n1,0\nNA,1\n", "numbers in column 'a', found missing.*row 2 of the data.*Fill"),
    "question mark": ("a,y\n1,0\n?,1\n", r"numbers in column 'a', found missing"),
    "nan": ("a,y\n1,0\nnan,1\n", "finite numbers in column 'a'.*1 of 2 records, first in row 2"),
    "infinite": ("a,y\n-inf,0\n1,1\n", "finite numbers in column 'a'.*row 1"),
    "label nan": ("a,y\n1,0\n2,nan\n", "finite numbers in column 'y'"),
    "short line": ("a,b,y\n1,2,0\n1,1\n", "3 cells in every line.*line 3 has 2"),
    "long line": ("a,y\n1,0\n1,1,1\n", "2 cells in every line.*line 3 has 3"),
    "unclosed quote": ('a,y\n1,0\n"2,1\n', "2 cells in every line"),
    "names of people": (
        "a,y\n" + "".join(f"p{i},0\n" for i in range(1001)),
        "at most 1000 different texts in column 'a', found 1001",
    ),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_what_is_wrong_in_a_csv_is_told_with_its_name(case: str, tmp_path: Path) -> None:
    text, said = BAD_TEXTS[case]
    with pytest.raises(InvalidArgument, match=f"(?s)^people.csv: .*{said}"):
        read_records(text_file(tmp_path, text))
    packed = tmp_path / "people.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InvalidArgument, match=f"(?s)^people.csv.gz: .*{said}"):
        read_records(packed)


@every_table
def test_a_label_that_is_not_there_is_told(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind, TABLE)
    with pytest.raises(InvalidArgument, match="column 'wage' of labels, found 'age', 'job', 'hou"):
        read_records(path, label="wage")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "columns, found none"),
        ({"y": [1, 2]}, "features beside"),
        ({"a": pyarrow.array([], pyarrow.int64()), "y": pyarrow.array([], "int64")}, "records"),
        ({"a": [1, None], "y": [0, 1]}, "no blanks in column 'a', found 1.*Fill"),
        ({"a": [1.0, np.nan], "y": [0, 1]}, "finite numbers in column 'a'.*row 2"),
        ({"a": [1, 2], "y": [0, None]}, "no blanks in column 'y'"),
        ({"a": [[1], [2]], "y": [0, 1]}, "numbers, dates or text in column 'a', got list"),
        ({"a": [b"x", b"y"], "y": [0, 1]}, "column 'a', got binary"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_in_a_parquet_is_told(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=f"(?s)^people.parquet: .*{said}"):
        read_records(written(tmp_path, "parquet", columns))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "'x' .or 'features'. and 'y' .or 'labels'., found none"),
        ({"x": np.ones((2, 1))}, "found 'x'"),
        ({"images": np.ones((2, 1)), "y": [0, 1]}, "found 'images', 'y'"),
        ({"x": np.ones(2), "y": [0, 1]}, r"got \(2,\) and \(2,\)"),
        ({"x": np.ones((2, 1)), "y": [0, 1, 2]}, r"got \(2, 1\) and \(3,\)"),
        ({"x": np.ones((2, 1)), "y": [[0], [1]]}, r"got \(2, 1\) and \(2, 1\)"),
        ({"x": np.ones((0, 3)), "y": []}, r"n ≥ 1"),
        ({"x": np.ones((2, 0)), "y": [0, 1]}, r"got \(2, 0\)"),
        ({"x": 1.0, "y": 0}, r"got \(\) and \(\)"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "numbers in 'x', got <U1"),
        ({"x": np.ones((2, 1), complex), "y": [0, 1]}, "numbers in 'x', got complex"),
        ({"x": [[1.0], [np.nan]], "y": [0, 1]}, "finite numbers in 'x'.*row 2"),
        ({"x": [[[np.inf, -np.inf]], [[1.0, 1.0]]], "y": [0, 1]}, "finite numbers in 'x'.*row 1"),
        ({"x": np.ones((2, 1)), "y": [0.0, np.nan]}, "finite numbers in 'y'"),
        ({"x": np.ones((2, 1)), "y": [1j, 2j]}, "numbers or text in 'y'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_in_arrays_is_told(arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"(?s)^images.npz: .*{said}"):
        read_records(npz_file(tmp_path, **arrays))


def test_large_numbers_that_are_finite_are_not_called_infinite(tmp_path: Path) -> None:
    """Their sum is not."""
    path = npz_file(tmp_path, x=np.full((2, 3), 3e38, np.float32), y=[0, 1])
    assert read_records(path)[0].shape == (2, 3)


def test_a_named_array_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = npz_file(tmp_path, x=np.ones((2, 1)), y=[0, 1])
    with pytest.raises(InvalidArgument, match="and 'z', found 'x', 'y'"):
        read_records(path, label="z")


def half_a_gz(folder: Path) -> Path:
    path = written(folder, "csv.gz", TABLE)
    path.write_bytes(path.read_bytes()[:-12])
    return path


UNREADABLE: dict[str, tuple[Making, str]] = {
    "missing csv": (missing("no.csv"), "Expected a file at .*no.csv', found none"),
    "missing gz": (missing("no.csv.gz"), "found none"),
    "missing parquet": (missing("no.parquet"), "found none"),
    "missing npz": (missing("no.npz"), "found none"),
    "folder": (folder_named("x.csv"), "x.csv.*found a folder"),
    "unknown ending": (holding("x.json", b"{}"), r"\.csv, .*\.parquet, .* or \.npz, got"),
    "another gz": (holding("x.gz", b""), r"\.csv\.gz, .*\.npz, got 'x.gz'"),
    "endless cell": (holding("x.csv", b"a,y\n" + b"1" * 200_000), "x.csv"),
    "no gz": (holding("x.csv.gz", b"a,y\n1,0\n"), "x.csv.gz"),
    "half a gz": (half_a_gz, "people.csv.gz"),
    "empty parquet": (holding("x.parquet", b""), "x.parquet"),
    "half a parquet": (cut_in_half("x.parquet", TABLE), "x.parquet"),
    "corrupt npz": (holding("x.npz", b"PK\x03\x04" + bytes(99)), "x.npz"),
    "half an npz": (cut_in_half("x.npz", {"x": [[1.0]], "y": [0]}), "x.npz"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_read_is_told_by_name(case: str, tmp_path: Path) -> None:
    make, said = UNREADABLE[case]
    with pytest.raises(UnreadableFile, match=said):
        read_records(make(tmp_path))


def test_a_planted_pickle_is_never_loaded(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    path = npz_file(tmp_path, x=np.array([[Planted(trap)]], object), y=[0])
    with pytest.raises(UnreadableFile, match=r"images\.npz"):
        read_records(path)
    path.write_bytes(pickle.dumps(Planted(trap)))
    with pytest.raises(UnreadableFile, match=r"images\.npz"):
        read_records(path)
    assert not trap.exists()


@pytest.mark.parametrize("kind", [*TABLES, "npz"])
def test_a_huge_file_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is small on the disk."""
    many = {"a": [0.0] * 20_000, "y": [0, 1] * 10_000}
    if kind == "npz":
        path = tmp_path / "x.npz"
        np.savez_compressed(path, x=np.zeros((20_000, 1)), y=np.zeros(20_000))
    else:
        path = written(tmp_path, kind, many)
    monkeypatch.setattr(readers, "LARGEST", 100_000)
    with pytest.raises(UnreadableFile, match=r"at most .* GiB, .*Give fewer records"):
        read_records(path)


def test_words_that_would_fill_the_memory_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = text_file(tmp_path, "a,y\n" + "".join(f"w{i},0\n" for i in range(900)))
    monkeypatch.setattr(readers, "LARGEST", 900 * 900 * 8 - 1)
    with pytest.raises(UnreadableFile, match="fewer records"):
        read_records(path)


def reads_or_tells(path: Path) -> None:
    """Anything but records or our own error fails the test."""
    try:
        features, labels = read_records(path)
    except EpsilometerError as error:
        assert str(error)  # noqa: PT017 - most damage is told, some leaves records
    else:
        assert len(features) == len(labels) > 0
        assert np.isfinite(features).all()
        assert set(labels.tolist()) == set(range(labels.max() + 1))


@fuzz
@given(kind=st.sampled_from([*TABLES, "npz"]), content=st.binary(max_size=300))
@example(kind="csv", content=b"a,y\n1,1\x00\n2,0\n")
@example(kind="npz", content=b"PK\x05\x06" + bytes(18))
@example(kind="parquet", content=b"PAR1PAR1")
@example(kind="csv.gz", content=gzip.compress(b"\xff\xfe"))
def test_random_bytes_raise_only_our_errors(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"people.{kind}"
    path.write_bytes(content)
    reads_or_tells(path)


@fuzz
@given(
    kind=st.sampled_from([*TABLES, "npz"]),
    changed=bytes_changed,
    kept=shares_kept,
)
def test_damaged_files_raise_only_our_errors(
    kind: str, changed: list[tuple[float, int]], kept: float, tmp_path: Path
) -> None:
    if kind == "npz":
        path = npz_file(tmp_path, x=np.ones((3, 2)), y=["a", "b", "a"])
    else:
        path = written(tmp_path, kind, TABLE)
    reads_or_tells(damaged(path, changed, kept))


@fuzz
@given(rows=st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=3), max_size=5))
def test_any_cells_raise_only_our_errors(rows: list[list[str]], tmp_path: Path) -> None:
    reads_or_tells(text_file(tmp_path, "\n".join(["a,y", *(",".join(row) for row in rows)])))
