"""Limits on what an attack knows hold as often as they say, though thresholds are chosen."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from epsilometer import Scores
from epsilometer.stats import membership
from epsilometer.stats.membership import Limited, advantage, auc, share_above, tpr_at

FLAKE = 1e-6  # chance that a correct function fails a test; tolerances follow from it
AUDITS = 300
# Of normal scores a shift of μ apart: (largest TPR − FPR, TPR at FPR 0.05, AUC).
MU = (0.0, 0.5, 1.5)


def truths(mu: float) -> dict[str, float]:
    norm = scipy.stats.norm
    return {
        "advantage": 2 * norm.cdf(mu / 2) - 1,
        "tpr": norm.cdf(norm.ppf(0.05) + mu),
        "auc": norm.cdf(mu / np.sqrt(2)),
    }


def misses(
    limit: Callable[[Scores], Limited],
    draw: Callable[[], Scores],
    truth: float,
) -> tuple[int, int]:
    """How often the truth is below the lower and above the upper limit."""
    found = [limit(draw()) for _ in range(AUDITS)]
    return sum(each.low > truth for each in found), sum(each.high < truth for each in found)


@pytest.mark.parametrize("mu", MU)
@pytest.mark.parametrize("what", ["advantage", "tpr", "auc"])
def test_limits_are_wrong_no_oftener_than_they_say(
    mu: float, what: str, rng: np.random.Generator
) -> None:
    limits = {
        "advantage": lambda scores: advantage(scores, confidence=0.9),
        "tpr": lambda scores: tpr_at(scores, 0.05, confidence=0.9),
        "auc": lambda scores: auc(scores, confidence=0.9),
    }
    wrong = misses(
        limits[what],
        lambda: Scores(inside=rng.normal(mu, 1, 200), outside=rng.normal(0, 1, 150)),
        truths(mu)[what],
    )
    most = scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)
    assert sum(wrong) <= most


def test_many_equal_scores_are_no_reason_to_know_nothing(rng: np.random.Generator) -> None:
    """Nine of ten on either side share the highest score: at 5 % nobody can be caught."""
    wrong = 0
    for _ in range(AUDITS):
        inside, outside = (np.where(rng.random(400) < 0.9, 1.0, 0.0) for _ in range(2))
        found = tpr_at(Scores(inside, outside), 0.05, confidence=0.9)
        wrong += found.low > 0 or found.value > 0
        assert found.high < 0.1
    assert wrong == 0


def test_limits_close_in_on_the_truth() -> None:
    """No noise: even quantiles of both laws."""
    spread = scipy.stats.norm.ppf((np.arange(10**5) + 0.5) / 10**5)
    scores, truth = Scores(spread + 1, spread), truths(1.0)
    for found, value in (
        (advantage(scores), truth["advantage"]),
        (tpr_at(scores, 0.05), truth["tpr"]),
        (auc(scores), truth["auc"]),
    ):
        assert found.low < value < found.high
        assert found.high - found.low < 0.03


def test_the_classic_mistake_would_be_seen(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits at the best threshold as if it had been chosen beforehand."""
    monkeypatch.setattr(membership, "_deviation", lambda n, alpha: 0.5 / np.sqrt(n))
    below, _ = misses(
        lambda scores: advantage(scores, confidence=0.9),
        lambda: Scores(inside=rng.normal(0, 1, 200), outside=rng.normal(0, 1, 150)),
        0.0,
    )
    assert below > scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)


@pytest.mark.parametrize(("of", "above"), [(60, 0), (60, 3), (60, 30), (400, 8), (400, 200)])
def test_the_share_above_a_line_is_covered_exactly(of: int, above: int) -> None:
    """Every sample that could be drawn, with its chance."""
    measured = 40
    law = scipy.stats.hypergeom(of, above, measured)
    wrong = 0.0
    for seen in range(measured + 1):
        chance = float(law.pmf(seen))
        if chance:
            found = share_above(seen, measured, of, confidence=0.9)
            wrong += chance * (not found.low <= above / of <= found.high)
    assert wrong <= 0.1 + 1e-12


def test_nothing_is_open_where_all_were_measured() -> None:
    assert share_above(2, 50, 50) == Limited(0.04, 0.04, 0.04)
