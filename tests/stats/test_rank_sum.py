"""Rank sums: counted as by hand, wrong no more often than they say, and strong."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.rules import RankGrid, RankSum
from epsilometer.stats import rank_sum
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.rank_sum import RankSumLaw, get_law, shift_normals
from tests import oracles

ALPHA, DELTA = 0.05, 1e-5
SIZES = [(20, 20), (50, 50), (75, 75), (100, 100), (200, 200), (1000, 1000), (20, 1000), (400, 30)]


def draw_sums(
    law: RankSumLaw, n_in: int, n_out: int, mu: float, audits: int, rng: np.random.Generator
) -> np.ndarray:
    """Pairs won in audits of N(μ, 1) against N(0, 1), counted at the ranks of the law."""
    sums = []
    block = max(1, 2_000_000 // (n_in + n_out))
    for start in range(0, audits, block):
        many = min(block, audits - start)
        inside = np.sort(rng.normal(mu, 1, (many, n_in)))[:, law.ranks_in - 1]
        outside = np.sort(rng.normal(0, 1, (many, n_out)))[:, n_out - law.ranks_out]
        won = np.zeros(many, np.int64)
        for column in outside.T:
            won += (inside > column[:, None]).sum(axis=1)
        sums.append(won)
    return np.concatenate(sums)


def count_wrong(n_in: int, n_out: int, mu: float, audits: int, rng: np.random.Generator) -> int:
    """Audits that refute the true μ, by the draws that everybody shares."""
    law = get_law(n_in, n_out, ALPHA)
    sums = draw_sums(law, n_in, n_out, mu, audits, rng)
    return int(np.sum(sums >= law.find_least(shift_normals, mu)))


@pytest.fixture
def forgetful():  # type: ignore[no-untyped-def]
    """Laws are forgotten before and after a planted mistake."""
    get_law.cache_clear()
    yield
    get_law.cache_clear()


def test_pairs_are_counted_as_by_hand(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(1, 1, 60), rng.normal(0, 1, 90)
    inside[0], outside[0] = -np.inf, np.inf
    seen = get_law(60, 90, ALPHA).count(Scores(inside, outside), rng)
    assert (seen.won, seen.tied) == (np.sum(inside[:, None] > outside), False)


def test_at_some_ranks_pairs_are_those_of_the_ranked_scores(rng: np.random.Generator) -> None:
    inside, outside = np.sort(rng.normal(1, 1, 700)), np.sort(rng.normal(0, 1, 5_000))[::-1]
    law = get_law(700, 5_000, ALPHA)
    by_hand = np.sum(inside[law.ranks_in - 1][:, None] > outside[law.ranks_out - 1])
    assert law.count(Scores(inside, outside), rng).won == by_hand
    assert law.pairs == law.ranks_in.size * law.ranks_out.size
    for ranks, size in ((law.ranks_in, 700), (law.ranks_out, 5_000)):
        assert ranks[:8].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        assert np.diff(ranks).max() <= size / 50
        assert size - ranks[-1] < size / 50


def test_ties_are_won_by_chance(rng: np.random.Generator) -> None:
    law, scores = get_law(40, 40, ALPHA), Scores(np.ones(40), np.ones(40))
    sums = [law._count_once(scores, np.random.default_rng(seed)).won for seed in range(300)]
    spread = math.sqrt(40 * 40 * 81 / 12)  # of a Mann–Whitney statistic
    assert np.mean(sums) == pytest.approx(800, abs=5 * spread / math.sqrt(300))
    assert np.std(sums) == pytest.approx(spread, rel=0.25)
    assert law.count(scores, rng).tied


def test_a_larger_merit_takes_more_pairs_and_the_bound_is_the_last_refuted() -> None:
    law = get_law(30, 50, ALPHA)
    least = [law.find_least(shift_normals, mu) for mu in np.linspace(0, 4, 30)]
    assert all(a <= b for a, b in itertools.pairwise(least))
    for won in (900, 1_100, 1_400, 1_500):
        mu = law.find_merit(won, shift_normals, largest=64.0)
        assert (mu == 0) == (won < law.find_least(shift_normals, 0.0))
        if mu:
            assert law.find_least(shift_normals, mu) <= won
            assert law.find_least(shift_normals, 1.01 * mu + 0.01) > won
    assert law.find_merit(1_500, shift_normals, largest=0.3) == 0.3


# 95 % means 95 %, given the draws that everybody shares.


@pytest.mark.parametrize(("n_in", "n_out"), [(20, 20), (50, 50), (20, 400), (150, 40)])
@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.in_turn(2)
def test_errs_no_more_often_than_it_says(n_in: int, n_out: int, mu: float) -> None:
    rng = np.random.default_rng(3)
    wrong = count_wrong(n_in, n_out, mu, 20_000, rng)
    assert not oracles.too_often(wrong, 20_000)
    assert wrong > 0.038 * 20_000  # and little is left on the table


@pytest.mark.slow
@pytest.mark.parametrize(("n_in", "n_out"), [*SIZES, (5_000, 5_000)])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_all_sizes_err_no_more_often(n_in: int, n_out: int, mu: float) -> None:
    audits = 20_000 if n_in < 2_000 else 4_000
    wrong = count_wrong(n_in, n_out, mu, audits, np.random.default_rng([n_in, n_out]))
    assert not oracles.too_often(wrong, audits)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("confidence", [0.8, 0.99, 0.999])
def test_other_confidences_err_no_more_often(n: int, confidence: float) -> None:
    law, rng = get_law(n, n, 1 - confidence), np.random.default_rng(n)
    sums = draw_sums(law, n, n, 1.0, 100_000, rng)
    wrong = int(np.sum(sums >= law.find_least(shift_normals, 1.0)))
    assert not oracles.too_often(wrong, 100_000, 1 - confidence)


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
def test_bounds_of_the_whole_method_err_no_more_often(rounded: bool) -> None:
    rng, wrong, audits = np.random.default_rng(8), 0, 20_000
    for _ in range(audits):
        inside, outside = rng.normal(1, 1, 40), rng.normal(0, 1, 60)
        if rounded:
            inside, outside = np.round(inside), np.round(outside)
        bound = em.epsilon_lower_bound(Scores(inside, outside), delta=DELTA, method="gdp")
        wrong += bound.epsilon > gdp_epsilon(1.0, DELTA)
    assert not oracles.too_often(wrong, audits)


def test_attacks_below_the_curve_err_less(rng: np.random.Generator) -> None:
    law, audits = get_law(60, 60, ALPHA), 2_000
    least = law.find_least(shift_normals, 1.0)
    wrong = 0
    for _ in range(audits):  # noise that the attack adds hides what the mechanism shows
        inside, outside = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
        inside, outside = (each + rng.standard_cauchy(60) for each in (inside, outside))
        wrong += law.count(Scores(inside, outside), rng).won >= least
    assert wrong < 0.01 * audits


# Power.


def _bounds(n_in: int, n_out: int, mu: float, audits: int) -> tuple[np.ndarray, np.ndarray]:
    """ε by the rank sum and by the rank grid, of the same scores."""
    rng = np.random.default_rng(11)
    found = []
    for _ in range(audits):
        scores = Scores(rng.normal(mu, 1, n_in), rng.normal(0, 1, n_out))
        found.append(
            [
                em.epsilon_lower_bound(scores, delta=DELTA, method="gdp", rule=rule).epsilon
                for rule in (RankSum(), RankGrid())
            ]
        )
    sums, grid = np.array(found).T
    return sums, grid


@pytest.mark.parametrize(
    ("n_in", "n_out", "mu", "gain", "share"),
    [
        (50, 50, 1.0, 1.15, 0.56),
        pytest.param(1000, 1000, 0.5, 1.07, 0.79, marks=pytest.mark.slow),
        pytest.param(200, 3000, 1.0, 1.03, 0.81, marks=pytest.mark.slow),
        pytest.param(1000, 1000, 3.0, 0.995, 0.91, marks=pytest.mark.slow),
    ],
)
def test_proves_more_than_the_grid_it_replaces(
    n_in: int, n_out: int, mu: float, gain: float, share: float
) -> None:
    sums, grid = _bounds(n_in, n_out, mu, 60)
    assert sums.mean() > gain * grid.mean()
    assert sums.mean() > share * gdp_epsilon(mu, DELTA)


@pytest.mark.slow
def test_comes_near_the_test_that_knows_the_law_of_scores() -> None:
    """The mean difference of scores known to be normal of variance 1, which no audit may assume."""
    n, mu, rng = 100, 1.0, np.random.default_rng(5)
    law, ours, known = get_law(n, n, ALPHA), [], []
    for _ in range(200):
        inside, outside = rng.normal(mu, 1, n), rng.normal(0, 1, n)
        won = law.count(Scores(inside, outside), rng).won
        ours.append(law.find_merit(won, shift_normals, largest=64.0))
        known.append(inside.mean() - outside.mean() - 1.6449 * math.sqrt(2 / n))
    assert np.mean(ours) > 0.94 * np.mean(known)


def test_the_default_of_gdp_is_the_rank_sum_and_small_levels_share_out(
    rng: np.random.Generator,
) -> None:
    scores = Scores(rng.normal(2, 1, 300), rng.normal(0, 1, 300))
    asked = {"delta": DELTA, "method": "gdp"}
    assert em.epsilon_lower_bound(scores, **asked).threshold_rule == "RankSum()"  # type: ignore[arg-type]
    sums, grid = (
        em.epsilon_lower_bound(scores, confidence=1 - 1e-6, rule=rule, **asked)  # type: ignore[arg-type]
        for rule in (RankSum(), RankGrid())
    )
    assert sums.epsilon == grid.epsilon > 0


def test_many_scores_are_counted_and_quick(rng: np.random.Generator) -> None:
    cuts = np.linspace(-5, 6, 401)
    chances = [np.diff(np.concatenate([[0.0], ndtr(cuts - mu), [1.0]])) for mu in (1.0, 0.0)]
    counts = ScoreCounts(cuts, *(rng.multinomial(10**9, each) for each in chances))
    bound = em.epsilon_lower_bound(counts, delta=DELTA, method="gdp")
    assert 0.97 < bound.epsilon / gdp_epsilon(1.0, DELTA) < 1


# Classic mistakes, planted: the counting above must catch each.


def test_an_exact_p_value_over_draws_is_caught_where_draws_are_shared(
    forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Barnard's rank among 999 draws: right on average, wrong for whole sizes of samples."""
    monkeypatch.setattr(rank_sum, "find_safe_rank", lambda draws, alpha: int(alpha * (draws + 1)))
    monkeypatch.setattr(rank_sum, "_FEWEST", 999)
    monkeypatch.setattr(rank_sum, "_DRAWS", 999)
    rng = np.random.default_rng(0)
    wrong = [count_wrong(n, n, 1.0, 20_000, rng) for n in (20, 30, 33, 37)]
    assert oracles.too_often(max(wrong), 20_000)


def test_forgetting_that_a_sum_equals_another_is_caught(
    forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few scores have few sums: refuting by one that is reached too often errs far more."""
    find = RankSumLaw.find_least
    monkeypatch.setattr(RankSumLaw, "find_least", lambda law, *asked: find(law, *asked) - 1)
    rng = np.random.default_rng(1)
    assert oracles.too_often(count_wrong(2, 6, 0.0, 20_000, rng), 20_000)


def test_a_middle_guess_is_caught(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_sum, "find_safe_rank", lambda draws, alpha: draws // 2)
    assert oracles.too_often(count_wrong(40, 40, 1.0, 500, np.random.default_rng(2)), 500)


def test_winning_all_ties_is_caught() -> None:
    rng, law, wrong, audits = np.random.default_rng(4), get_law(40, 40, ALPHA), 0, 500
    least = law.find_least(shift_normals, 0.7)
    honest = 0
    for _ in range(audits):
        inside, outside = np.round(rng.normal(0.7, 1, 40)), np.round(rng.normal(0, 1, 40))
        honest += law.count(Scores(inside, outside), rng).won >= least
        wrong += int(np.sum(inside[:, None] >= outside)) >= least
    assert oracles.too_often(wrong, audits)
    assert not oracles.too_often(honest, audits)


def test_the_law_without_a_shift_is_mann_and_whitneys() -> None:
    n = 30
    law = get_law(n, n, ALPHA)
    least = law.find_least(shift_normals, 0.0)
    spread = math.sqrt(n * n * (2 * n + 1) / 12)
    tail = scipy.stats.norm.sf((least - 0.5 - n * n / 2) / spread)
    assert 0.04 < tail <= 0.05
