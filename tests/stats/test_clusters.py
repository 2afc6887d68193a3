"""Limits over records hold as often as they say, however many models share the records."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from epsilometer import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import membership
from epsilometer.stats.clusters import (
    ScoresByRecord,
    advantage,
    advantage_at,
    auc,
    scores_needed,
    tpr_at,
)
from epsilometer.stats.membership import Limited
from tests.conftest import run_often

FLAKE = 1e-6  # chance that a correct function fails a test; tolerances follow from it
FPR, CAUGHT = 0.01, 0.05
VULNERABLE = (CAUGHT - FPR) / (1 - FPR)  # caught at any FPR, beyond those caught by chance
# Of a population exactly on the limit: TPR − FPR at best, TPR at FPR, AUC.
TRUTH = {"advantage": VULNERABLE, "tpr": CAUGHT, "auc": 0.5 + VULNERABLE / 2}
LIMITS: dict[str, Callable[..., Limited]] = {
    "advantage": advantage,
    "tpr": lambda scores, **how: tpr_at(scores, FPR, **how),
    "auc": auc,
}


def draw(kind: str, n: int, models: int, rng: np.random.Generator) -> ScoresByRecord:
    """Scores of records of which some are caught always, half of the time, or all now and then."""
    coins = rng.random((models // 2, n)) < 0.5
    member = np.concatenate([coins, ~coins])
    each = rng.random((models, n))
    caught = {
        "always": np.broadcast_to(rng.random(n) < VULNERABLE, each.shape),
        "half": (rng.random(n) < 2 * VULNERABLE) & (each < 0.5),
        "alike": each < VULNERABLE,
    }[kind]
    values = np.where(member & caught, 2.0, rng.random((models, n)))
    return ScoresByRecord.from_models(values, member)


def count_misses(
    kind: str, n: int, models: int, audits: int, rng: np.random.Generator
) -> dict[str, tuple[int, int]]:
    """How often the truth is below the lower and above the upper limit."""
    drawn = [draw(kind, n, models, rng) for _ in range(audits)]
    found = {what: [limit(each) for each in drawn] for what, limit in LIMITS.items()}
    return {
        what: (
            sum(each.low > TRUTH[what] for each in limits),
            sum(each.high < TRUTH[what] for each in limits),
        )
        for what, limits in found.items()
    }


@pytest.mark.parametrize("kind", run_often(["always", "half", "alike"], ["half"]))
def test_limits_on_records_are_wrong_no_more_often_than_they_say(
    kind: str, rng: np.random.Generator
) -> None:
    audits = 40
    most = scipy.stats.binom.isf(FLAKE, audits, 0.05)
    for what, wrong in count_misses(kind, 300, 16, audits, rng).items():
        assert sum(wrong) <= most, what


@pytest.mark.slow
@pytest.mark.parametrize("models", [2, 4, 16, 32])
@pytest.mark.parametrize("n", [300, 500, 1000])
@pytest.mark.parametrize("kind", ["always", "half", "alike"])
def test_a_population_on_the_limit_is_rarely_put_on_one_side_of_it(
    kind: str, n: int, models: int
) -> None:
    """Either verdict would be false; either is allowed in 2.5 % of audits."""
    audits = 2000
    most = scipy.stats.binom.isf(FLAKE, audits, 0.025)
    for what, wrong in count_misses(kind, n, models, audits, np.random.default_rng(n)).items():
        assert max(wrong) <= most, (what, wrong)


@pytest.mark.parametrize(
    ("limit", "truth"),
    [
        (lambda scores: tpr_at(scores.pooled, FPR), CAUGHT),
        (lambda scores: advantage_at(scores.pooled, 1.5), VULNERABLE),
    ],
)
def test_counting_scores_instead_of_records_would_be_seen(
    limit: Callable[[ScoresByRecord], Limited], truth: float, rng: np.random.Generator
) -> None:
    """The mistake that was made: 16 models on the same records taken for 16 times as many."""
    audits = 100
    wrong = 0
    for _ in range(audits):
        found = limit(draw("always", 300, 32, rng))
        wrong += not found.low <= truth <= found.high
    assert wrong > scipy.stats.binom.isf(FLAKE, audits, 0.05)


@pytest.mark.parametrize("kind", ["always", "alike"])
def test_advantage_is_limited_as_closely_as_by_massart_with_all_scores_independent(
    kind: str, rng: np.random.Generator
) -> None:
    """Massart's limits, of 8 times as many scores as there are records, were the ones before."""
    widths = []
    for _ in range(10):
        scores = draw(kind, 500, 16, rng)
        found = advantage(scores)
        widths.append(found.high - found.low)
    before = 4 * np.sqrt(np.log(4 / 0.05) / (2 * 4000))
    assert np.mean(widths) < (1.0 if kind == "alike" else 1.15) * before


def test_more_models_narrow_limits_where_records_are_alike_and_only_there(
    rng: np.random.Generator,
) -> None:
    def width(kind: str, models: int) -> float:
        found = [tpr_at(draw(kind, 1500, models, rng), FPR) for _ in range(3)]
        return float(np.mean([each.high - each.low for each in found]))

    assert width("alike", 32) < 0.6 * width("alike", 4)
    assert width("always", 32) > 0.7 * width("always", 4)


@pytest.mark.parametrize(
    ("tpr", "fpr"),
    run_often([(0.5, 0.5), (0.9, 0.1), (0.6, 0.3), (1.0, 0.0)], [(0.5, 0.5), (0.9, 0.1)]),
)
@pytest.mark.parametrize(
    ("n_in", "n_out"), [(40, 60), pytest.param(150, 30, marks=pytest.mark.slow)]
)
def test_limits_at_a_threshold_hold_as_often_as_they_say(
    n_in: int, n_out: int, tpr: float, fpr: float, rng: np.random.Generator
) -> None:
    audits, confidence = 200, 0.9
    missed = 0
    for _ in range(audits):
        scores = Scores(rng.binomial(1, tpr, n_in) * 1.0, rng.binomial(1, fpr, n_out) * 1.0)
        found = advantage_at(scores, 0.5, confidence=confidence)
        missed += not found.low <= tpr - fpr <= found.high
    assert scipy.stats.binomtest(missed, audits, 1 - confidence, "greater").pvalue > FLAKE


@pytest.mark.parametrize(("tpr", "fpr"), [(0.5, 0.5), (0.9, 0.1), (0.05, 0.01), (1.0, 0.0)])
def test_limits_at_a_threshold_are_about_as_close_as_the_two_they_replace(
    tpr: float, fpr: float
) -> None:
    """Hoeffding's for both samples, and Clopper and Pearson's for each at half the error."""
    n = 1000
    inside, outside = (1.0 * (np.arange(n) < round(rate * n)) for rate in (tpr, fpr))
    found = advantage_at(Scores(inside, outside), 0.5)
    hoeffding = 2 * np.sqrt(np.log(2 / 0.05) / n)
    each = [membership.limit_share(int(side.sum()), n, alpha=0.0125) for side in (inside, outside)]
    exact = sum(limits.high - limits.low for limits in each)
    assert found.high - found.low < 1.1 * min(hoeffding, exact)


def test_about_as_many_scores_as_are_said_to_be_needed_suffice() -> None:
    for width in (0.05, 0.1, 0.3):
        half = np.arange(scores_needed(width)) % 2 * 1.0
        found = advantage_at(Scores(half, half), 0.5)
        assert found.high - found.value == pytest.approx(width, rel=0.2)


def test_limits_close_in_on_the_truth(rng: np.random.Generator) -> None:
    spread = scipy.stats.norm.ppf((np.arange(10**5) + 0.5) / 10**5)
    norm = scipy.stats.norm
    scores = ScoresByRecord(rng.permutation(spread + 1)[:, None], rng.permutation(spread)[:, None])
    for found, value in (
        (advantage(scores), 2 * norm.cdf(0.5) - 1),
        (tpr_at(scores, 0.05), norm.cdf(norm.ppf(0.05) + 1)),
        (auc(scores), norm.cdf(1 / np.sqrt(2))),
    ):
        assert found.low < value < found.high
        assert found.high - found.low < 0.05


def test_many_equal_scores_are_no_reason_to_know_nothing(rng: np.random.Generator) -> None:
    """Nine of ten on either side share the highest score: at 5 % nobody can be caught."""
    values = np.where(rng.random((2, 600, 8)) < 0.9, np.inf, -np.inf)
    scores = ScoresByRecord(*values)
    assert tpr_at(scores, 0.05).high < 0.1
    assert advantage(scores).high < 0.1


def test_limits_stay_where_they_can_be() -> None:
    right, wrong = Scores([1.0, 1.0], [0.0, 0.0]), Scores([0.0, 0.0], [1.0, 1.0])
    assert advantage_at(right, 0.5).high == 1.0
    assert advantage_at(wrong, 0.5).low == -1.0
    assert advantage(right) == (1.0, 0.0, 1.0)
    for n in (1, 2, 5):
        few = ScoresByRecord(np.ones((n, 2)), np.zeros((n, 2)))
        assert tpr_at(few, FPR) == (1.0, 0.0, 1.0)
        assert auc(few) == (1.0, pytest.approx(0.0, abs=0.3), 1.0)


def test_records_must_be_in_equally_many_models() -> None:
    with pytest.raises(InvalidArgument, match="both models of every pair"):
        ScoresByRecord.from_models([[1.0, 2.0]], [[True, False]])
    with pytest.raises(InvalidArgument, match="width"):
        scores_needed(0.0)
