"""Scores are kept as they came, read-only; counts of scores are as good as the scores."""

import math
import subprocess
import sys
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument

law = settings(deadline=None)  # others may be using the machine
legal = st.floats(allow_nan=False, width=32)  # ±inf included; narrow, so that ties with cuts come
blocks = st.lists(st.lists(legal, max_size=8), max_size=6)
cuts = st.lists(legal, min_size=1, max_size=6, unique=True).map(sorted)


@pytest.mark.parametrize("made", [np.array, list, lambda a: np.array(a, np.float32)])
def test_scores_are_read_only(made: object) -> None:
    scores = Scores(made([1.0, 2.0]), made([0.0]))  # type: ignore[operator]
    for side in (scores.inside, scores.outside):
        with pytest.raises(ValueError, match="read-only"):
            side[0] = 5.0


def test_the_callers_array_stays_writeable_and_is_not_copied() -> None:
    mine = np.array([1.0, 2.0])
    scores = Scores(mine, [0.0])
    assert np.shares_memory(mine, scores.inside)
    mine[0] = 3.0  # no error


def test_fields_cannot_be_replaced() -> None:
    with pytest.raises(AttributeError):
        Scores([1.0], [0.0]).inside = np.array([2.0])  # type: ignore[misc]


@law
@given(
    st.lists(legal, min_size=1, max_size=20), st.lists(legal, min_size=1, max_size=20), st.data()
)
def test_errors_are_counted_as_defined(inside: list, outside: list, data: st.DataObject) -> None:
    """The rule is "in iff score ≥ threshold", so a tie is called in."""
    threshold = data.draw(st.sampled_from(inside + outside) | legal)
    false_positives = sum(score >= threshold for score in outside)
    false_negatives = sum(not score >= threshold for score in inside)
    scores = Scores(inside, outside)
    assert scores.errors_at(threshold) == (false_positives, false_negatives)
    assert (scores.n_in, scores.n_out) == (len(inside), len(outside))


def test_scores_are_oriented_higher_means_in() -> None:
    assert Scores(inside=[2.0], outside=[1.0]).errors_at(1.5) == (0, 0)
    assert Scores(inside=[1.0], outside=[2.0]).errors_at(1.5) == (1, 1)


def test_infinite_scores_are_kept_in_order() -> None:
    scores = Scores([np.inf, -np.inf], [-np.inf, 0.0])
    assert scores.inside.tolist() == [np.inf, -np.inf]
    assert scores.errors_at(np.inf) == (0, 1)
    assert scores.errors_at(-np.inf) == (2, 0)


def test_a_threshold_is_not_rounded_to_the_type_of_the_scores() -> None:
    just_above = math.nextafter(1.0, 2.0)  # rounds to 1 in float32
    assert Scores(np.ones(1, np.float32), np.ones(1, np.float32)).errors_at(just_above) == (0, 1)


def test_mixed_types_become_float64() -> None:
    tenth = np.float32(0.1)  # exactly 0.100000001490116…
    scores = Scores(np.array([tenth]), np.array([0.1]))
    assert scores.inside.dtype == scores.outside.dtype == np.float64
    assert scores.inside[0] == float(tenth) != scores.outside[0]


@pytest.mark.parametrize("kind", [np.float16, np.int8, np.uint64, bool, np.longdouble])
def test_other_numbers_become_float64(kind: type) -> None:
    scores = Scores(np.array([1, 0], kind), np.array([0, 1], kind))
    assert scores.inside.dtype == np.float64
    assert scores.inside.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_keep_their_type(kind: type) -> None:
    assert Scores(np.zeros(3, kind), np.zeros(2, kind)).outside.dtype == kind


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([1.0, float("nan"), float("nan")], "no nan in inside, found 2 of 3.*±inf"),
        (np.array([np.nan], np.float32), "no nan.*±inf"),
        ([], "at least one score in inside"),
        ([[1.0, 2.0]], r"one-dimensional.*\(1, 2\)"),
        (1.0, r"one-dimensional.*\(\)"),
        (["1.0", "2.0"], "Expected numbers for inside"),
        (np.array([1.0, 2.0], object), "Expected numbers for inside"),
        ([1.0, "a"], "Expected numbers for inside"),
        ([[1.0], [1.0, 2.0]], "Expected numbers for inside"),
        ([1j], "Expected numbers for inside"),
        (None, "Expected numbers for inside"),
        (np.array(["2020-01-01"], "datetime64[D]"), "Expected numbers for inside"),
    ],
)
def test_what_is_no_score_is_refused_on_either_side(bad: object, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Scores(inside=bad, outside=[0.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=told.replace("inside", "outside")):
        Scores(inside=[0.0], outside=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [["Ann Smith"], np.array(["Ann Smith", 1.0], object), "Ann Smith"])
def test_a_wrong_value_is_not_printed(bad: Any) -> None:
    """It may be a record's: a column of names that was handed over in place of scores."""
    with pytest.raises(InvalidArgument) as caught:
        Scores(bad, [0.0])
    assert "Ann" not in str(caught.value)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "int64", "bool"])
def test_torch_tensors_are_taken_as_they_are(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.0, 0.0, 1.0]).to(getattr(torch, kind))
    assert Scores(tensor, tensor).inside.tolist() == [1.0, 0.0, 1.0]


def test_tensors_that_are_still_being_differentiated_are_taken() -> None:
    torch = pytest.importorskip("torch")
    losses = torch.tensor([1.5, -2.0], requires_grad=True)
    assert Scores(-losses, losses).inside.tolist() == [-1.5, 2.0]
    counts = ScoreCounts.at([0.0]).add(inside=-losses, outside=losses.to(torch.bfloat16))
    assert counts.errors_at(0.0) == (1, 1)


def test_nan_in_a_tensor_is_told_like_any_other() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="±inf"):
        Scores(torch.tensor([float("nan")], dtype=torch.bfloat16), [0.0])


def test_tensors_are_taken_without_importing_torch() -> None:
    """A stand-in with the methods of a tensor, in a fresh interpreter."""
    program = """
import sys, numpy
from epsilometer import Scores

class Tensor:
    dtype = "torch.float64"
    def detach(self): return self
    def cpu(self): return self
    def numpy(self): return numpy.array([1.0, 2.0])

print(Scores(Tensor(), Tensor()).inside.sum(), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["3.0", "False"], done.stderr


@law
@given(cuts, blocks, blocks, st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_blocks_or_their_order(
    thresholds: list, inside: list, outside: list, shuffler: object
) -> None:
    whole = ScoreCounts.at(thresholds).add(inside=[*chain(*inside)], outside=[*chain(*outside)])
    parts = [ScoreCounts.at(thresholds).add(inside=block) for block in inside]
    parts += [ScoreCounts.at(thresholds).add(outside=block) for block in outside]
    shuffler.shuffle(parts)  # type: ignore[attr-defined]
    merged = sum(parts, ScoreCounts.at(thresholds))
    one_by_one = ScoreCounts.at(thresholds)
    for block in inside:
        one_by_one = one_by_one.add(inside=block)
    for block in outside:
        one_by_one = one_by_one.add(outside=block)
    for other in (merged, one_by_one):
        assert other.inside_bins.tolist() == whole.inside_bins.tolist()
        assert other.outside_bins.tolist() == whole.outside_bins.tolist()


@law
@given(cuts, st.lists(legal, min_size=1), st.lists(legal, min_size=1))
def test_counts_have_the_errors_of_their_scores(
    thresholds: list, inside: list, outside: list
) -> None:
    scores = Scores(inside, outside)
    counts = ScoreCounts.at(thresholds).add(inside=inside, outside=outside)
    assert (counts.n_in, counts.n_out) == (scores.n_in, scores.n_out)
    for threshold in thresholds:
        assert counts.errors_at(threshold) == scores.errors_at(threshold)


def test_adding_leaves_the_old_counts_alone() -> None:
    empty = ScoreCounts.at([0.0])
    empty.add(inside=[1.0], outside=[1.0])
    assert (empty.n_in, empty.n_out) == (0, 0)
    with pytest.raises(ValueError, match="read-only"):
        empty.inside_bins[0] = 1


def test_billions_are_counted_exactly() -> None:
    """Bins of int32 would overflow here; the sums are those of Python's whole numbers."""
    most = 2**31 - 1
    bins = np.array([most, most, 1], np.int32)
    counts = ScoreCounts([0.0, 1.0], bins, bins)
    for _ in range(10):
        counts = counts + counts
    assert counts.n_in == 1024 * (2 * most + 1)
    assert counts.errors_at(1.0) == (1024, 2048 * most)
    assert counts.errors_at(0.0) == (1024 * (most + 1), 1024 * most)
    assert counts.add(inside=[2.0]).n_in == counts.n_in + 1


@pytest.mark.parametrize(
    "thresholds", [[1.0, 0.0], [0.0, 0.0], [], [np.nan], [[0.0]], ["a"], [np.inf, 0.0]]
)
def test_wrong_thresholds_are_told(thresholds: list) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        ScoreCounts.at(thresholds)


@pytest.mark.parametrize(
    "bins", [[1, 2], [1, 2, 3, 4], [1, -1, 2], [1.0, 2.0, 3.0], [[1, 2, 3]], 3, ["a", "b", "c"]]
)
def test_wrong_bins_are_told(bins: object) -> None:
    good = [0, 0, 0]
    with pytest.raises(InvalidArgument, match="3 counts of 0 or more in inside_bins"):
        ScoreCounts([0.0, 1.0], bins, good)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="3 counts of 0 or more in outside_bins"):
        ScoreCounts([0.0, 1.0], good, bins)  # type: ignore[arg-type]


def test_counts_at_other_thresholds_are_not_added() -> None:
    with pytest.raises(InvalidArgument, match="same thresholds"):
        ScoreCounts.at([0.0, 1.0]) + ScoreCounts.at([0.0, 2.0])
    with pytest.raises(InvalidArgument, match="same thresholds"):
        ScoreCounts.at([0.0, 1.0]) + ScoreCounts.at([0.0])


@pytest.mark.parametrize("threshold", [0.5, -1.0, 2.0, np.inf])
def test_errors_between_thresholds_are_refused(threshold: float) -> None:
    counts = ScoreCounts.at([0.0, 1.0]).add(inside=[0.2], outside=[0.7])
    with pytest.raises(InvalidArgument, match="2 thresholds that were counted at"):
        counts.errors_at(threshold)


def test_a_bad_block_is_told_and_an_empty_one_is_nothing() -> None:
    counts = ScoreCounts.at([0.0])
    for bad in ([np.nan], [[1.0]], ["a"]):
        with pytest.raises(InvalidArgument, match="inside"):
            counts.add(inside=bad)
    assert counts.add(inside=[], outside=np.array([])).n_in == 0


def test_infinite_scores_are_counted_in_the_outer_bins() -> None:
    counts = ScoreCounts.at([0.0]).add(inside=[-np.inf, np.inf, np.inf])
    assert counts.inside_bins.tolist() == [1, 2]
