"""Limits on what an attack knows hold as often as they say, though thresholds are chosen."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from epsilometer import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.clusters import advantage
from epsilometer.stats.membership import Limited, auc, share_above, tpr_at

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


@pytest.mark.slow
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


def test_limits_of_means_over_pairs_are_those_of_hoeffding() -> None:
    """By the formula: either side pays half."""
    inside, outside = scipy.stats.norm.ppf(np.arange(1, 80) / 80), np.linspace(-3, 2, 50)
    scores = Scores(inside, outside)
    pairs = np.mean([(a > b) + 0.5 * (a == b) for a in inside for b in outside])
    found = auc(scores, confidence=0.8)
    off = np.sqrt(np.log(1 / 0.1) / (2 * 50))
    assert found == pytest.approx((pairs, pairs - off, pairs + off))


def test_limits_stay_where_rates_can_be() -> None:
    apart = Scores([2.0, 3.0], [0.0, 1.0])
    assert advantage(apart) == (1.0, 0.0, 1.0)
    assert auc(apart) == (1.0, 0.0, 1.0) or auc(apart).high == 1.0
    assert auc(Scores([0.0, 1.0], [2.0, 3.0])).low == 0.0
    assert tpr_at(apart, 0.05) == (1.0, 0.0, 1.0)  # two scores tell nothing of 5 %
    assert tpr_at(apart, 0.5) == (1.0, 0.0, 1.0)  # nor where both could lie above any line


@pytest.mark.parametrize("confidence", [0.9, 0.5])
@pytest.mark.parametrize(("n_in", "n_out", "fpr"), [(40, 60, 0.1), (30, 8, 0.5), (9, 200, 0.02)])
def test_tpr_is_limited_at_the_ranks_that_surely_are_on_either_side(
    n_in: int, n_out: int, fpr: float, confidence: float, rng: np.random.Generator
) -> None:
    alpha = (1 - confidence) / 4
    law, beta = scipy.stats.binom(n_out, fpr), scipy.stats.beta
    for _ in range(10):
        scores = Scores(rng.normal(1, 1, n_in).round(1), rng.normal(0, 1, n_out).round(1))
        falling = np.sort(scores.outside)[::-1]
        low, high = 0.0, 1.0
        for k in range(1, n_out + 1):  # "in iff above the k-th highest"
            caught = int((scores.inside > falling[k - 1]).sum())
            if law.cdf(k - 1) <= alpha:
                low = beta.ppf(alpha, caught, n_in - caught + 1) if caught else 0.0
        for k in range(n_out, 0, -1):
            caught = int((scores.inside > falling[k - 1]).sum())
            if law.sf(k - 1) <= alpha:
                high = beta.isf(alpha, caught + 1, n_in - caught) if caught < n_in else 1.0
        value = max(
            (scores.inside >= t).mean()
            for t in (*falling, *(falling + 1e-9), *scores.inside, np.inf)
            if (scores.outside >= t).mean() <= fpr
        )
        found = tpr_at(scores, fpr, confidence=confidence)
        assert found == pytest.approx((value, min(low, value), max(high, value)))


@pytest.mark.parametrize(("above", "measured", "of"), [(3, 40, 900), (0, 90, 100), (39, 40, 45)])
def test_share_is_limited_by_counts_and_by_what_was_seen(
    above: int, measured: int, of: int
) -> None:
    beta, below = scipy.stats.beta, measured - above
    low = beta.ppf(0.05, above, below + 1) if above else 0.0
    high = beta.isf(0.05, above + 1, below) if below else 1.0
    found = share_above(above, measured, of, confidence=0.9)
    expected = above / measured, max(low, above / of), min(high, 1 - below / of)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: advantage(s, confidence=1.0),
        lambda s: tpr_at(s, 0.1, confidence=1.0),
        lambda s: tpr_at(s, 0.0),
        lambda s: auc(s, confidence=0.0),
        lambda s: share_above(1, 2, 3, confidence=0.0),
    ],
)
def test_bad_arguments_are_told(call: Callable[[Scores], object]) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        call(Scores([1.0, 2.0], [0.0, 1.0]))
