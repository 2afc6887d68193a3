"""Risk as it is seen through few decimals."""

import numpy as np
import pytest

from epsilometer.audits.classifier.leave_one_out.pdtp import (
    changes,
    find_flips,
    measure_changes,
    predict_class,
    show,
)
from epsilometer.errors import InvalidArgument

pytest.importorskip("sklearn")


@pytest.fixture
def both(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    first = rng.dirichlet([2.0, 2.0, 2.0], 500)
    moved = first * rng.uniform(0.3, 3.0, first.shape)
    second = moved / moved.sum(axis=1, keepdims=True)
    return np.log(first), np.log(second)


def test_two_decimals_are_the_papers_bins(both: tuple[np.ndarray, np.ndarray]) -> None:
    values, binned = changes(*both)
    found = measure_changes(*both, decimals=2)
    np.testing.assert_allclose(found.shown, binned, rtol=1e-12)
    np.testing.assert_allclose(found.unbinned, values, rtol=1e-12)


def test_risk_is_never_above_either(both: tuple[np.ndarray, np.ndarray]) -> None:
    for decimals in (None, 4, 2, 1):
        found = measure_changes(*both, decimals=decimals)
        assert np.all(found.risk <= np.minimum(found.shown, found.unbinned) + 1e-12)
    np.testing.assert_array_equal(found.risk, found.risk)
    everything = measure_changes(*both, decimals=None)
    np.testing.assert_array_equal(everything.risk, everything.unbinned)
    np.testing.assert_allclose(measure_changes(*both, decimals=9).risk, everything.risk, rtol=1e-4)


def test_an_edge_in_one_class_and_a_tail_in_another_are_no_risk() -> None:
    """The smaller is taken class by class: the larger of two small changes stays small."""
    full = np.log([[0.00990, 1e-12, 0.99010 - 1e-12]])
    without = np.log([[0.01010, 1e-9, 0.98990 - 1e-9]])
    found = measure_changes(full, without, decimals=2)
    assert found.shown[0] > 1
    assert found.unbinned[0] > 6
    assert found.risk[0] < 0.03


def test_a_class_that_vanishes_is_infinite_at_full_precision_only() -> None:
    full, without = np.log([[0.3, 0.7]]), np.array([[-np.inf, 0.0]])
    found = measure_changes(full, without, decimals=2)
    assert np.isinf(found.unbinned[0])
    np.testing.assert_allclose(found.risk, np.log(0.305 / 0.005))
    silent = np.full((1, 2), np.nan)
    assert measure_changes(full, silent, decimals=2).risk[0] == np.inf
    assert measure_changes(silent, silent, decimals=2).risk[0] == 0


def test_the_class_alone_flips_or_not() -> None:
    full, without = np.log([[0.6, 0.4], [0.6, 0.4]]), np.log([[0.4, 0.6], [0.55, 0.45]])
    assert find_flips(full, without).tolist() == [True, False]
    assert predict_class(np.array([[np.nan, np.nan], [-1.0, -1.0]])).tolist() == [0, 0]


def test_decimals_are_whole_and_at_least_one() -> None:
    with pytest.raises(InvalidArgument, match="decimals"):
        show(np.zeros((1, 2)), 0)
