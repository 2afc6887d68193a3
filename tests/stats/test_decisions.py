"""Differences of two attacks on the same runs are seen."""

import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import advantage_difference

FLAKE = 1e-6


def decisions(rng: np.random.Generator, tpr: float, fpr: float, runs: int) -> tuple:
    return rng.random(runs) < tpr, rng.random(runs) < fpr


def test_intervals_of_differences_cover(rng: np.random.Generator) -> None:
    """A bootstrap of 60 runs may cover a little less than its 95 %."""
    audits, covered, truth = 400, 0, 0.1  # 0.7 − 0.3 of the first, 0.6 − 0.3 of the second
    for _ in range(audits):
        first = decisions(rng, 0.7, 0.3, 60)
        # The second attack copies the first in two thirds of runs.
        second = tuple(
            np.where(rng.random(60) < 2 / 3, mine, other)
            for mine, other in zip(first, decisions(rng, 0.4, 0.3, 60), strict=True)
        )
        found = advantage_difference(first, second, rng=rng)
        covered += found.low <= truth <= found.high
    assert scipy.stats.binomtest(covered, audits, 0.92, "less").pvalue > FLAKE


def test_what_is_got_right_together_cancels_out(rng: np.random.Generator) -> None:
    first = decisions(rng, 0.6, 0.4, 100)
    alike = advantage_difference(first, first, rng=rng)
    assert alike == (0.0, 0.0, 0.0)
    apart = advantage_difference(first, decisions(rng, 0.6, 0.4, 100), rng=rng)
    assert apart.high - apart.low > 0.1


def test_decisions_on_other_runs_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="same runs"):
        advantage_difference(decisions(rng, 1, 0, 10), decisions(rng, 1, 0, 9), rng=rng)


def test_differences_are_of_both_worlds_and_scatter_as_their_runs() -> None:
    """Even shares, so that the normal law tells the interval: its half is 0.674 deviations."""
    runs = 4000
    first = np.arange(runs) % 10 < 7, np.arange(runs) % 10 < 5
    second = np.arange(runs) % 10 < 3, np.arange(runs) % 10 < 4
    gaps = [a.astype(float) - b for a, b in zip(first, second, strict=True)]
    deviation = np.sqrt(sum(gap.var() / runs for gap in gaps))
    found = advantage_difference(first, second, confidence=0.5, rng=np.random.default_rng(0))
    assert found.value == pytest.approx(0.4 - 0.1)
    # 2,000 resamples place a quartile to 0.03 deviations.
    for end, side in ((found.low, -1), (found.high, 1)):
        assert end == pytest.approx(found.value + side * 0.6745 * deviation, abs=0.13 * deviation)


@pytest.mark.parametrize("shape", [(0,), (3, 2)])
def test_decisions_that_are_none_are_refused(shape: tuple[int, ...]) -> None:
    none, some = np.zeros(shape, bool), np.zeros(4, bool)
    for pair in ((none, some), (some, none)):
        with pytest.raises(InvalidArgument, match="same runs"):
            advantage_difference(pair, pair, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="zip"):
        advantage_difference((some, some), (some,), rng=np.random.default_rng(0))  # type: ignore[arg-type]
