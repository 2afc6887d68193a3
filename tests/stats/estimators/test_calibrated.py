"""The calibrated bound as a method: what it proves, and where it turns to others."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.rules import AllRanks, HoldOut, RankGrid, RankSum
from epsilometer.stats import rank_walk
from epsilometer.stats.derivations import derivation_of
from epsilometer.stats.estimators import calibrated, choose_rule
from tests.calibration import tight

ALL = AllRanks()


def bound(scores: Scores | ScoreCounts, **knobs: object) -> em.EpsilonLowerBound:
    return em.epsilon_lower_bound(scores, **{"delta": 0.0, "rule": ALL, **knobs})  # type: ignore[arg-type]


def separated(n_in: int, n_out: int) -> Scores:
    return Scores(1.0 + np.arange(n_in), -1.0 - np.arange(n_out))


@pytest.mark.parametrize(
    ("size", "most"), [(50, 3.4726), (100, 4.1835), (1000, 6.5020), (10_000, 8.8061)]
)
def test_perfect_separation_proves_what_theory_lets_it(size: int, most: float) -> None:
    found = bound(separated(size, size)).epsilon
    assert most - 1e-3 < found < most + 1e-4
    assert bound(Scores(np.ones(size), np.zeros(size))).epsilon == found


@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (1, 500), (500, 1), (2, 3), (7, 100_000)])
def test_any_sizes_give_a_bound(n_in: int, n_out: int) -> None:
    found = bound(separated(n_in, n_out), delta=1e-5)
    assert 0 <= found.epsilon < 14
    reversed_ = Scores(-np.arange(n_in) - 1.0, np.arange(n_out) + 1.0)
    assert bound(reversed_, delta=1e-5).epsilon == 0


def test_laws_that_used_to_prove_more_by_the_grid_prove_less() -> None:
    """Laplace 2 at 1,000 + 1,000 was 1.2 % ahead of a simulated bound of the same kind."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(30):
        scores = Scores(rng.laplace(2, 1, 1000), rng.laplace(0, 1, 1000))
        pairs.append([bound(scores, delta=1e-5, rule=rule).epsilon for rule in (ALL, RankGrid())])
    ours, grid = np.mean(pairs, axis=0)
    assert ours > grid


@pytest.mark.parametrize(
    ("mechanism", "size", "least"),
    [
        (tight.respond(1.0), 100, 1.4),
        (tight.respond(3.0), 1000, 1.08),
        (tight.respond_among(3, 2.0, 0.3), 1000, 1.15),
        (tight.gaussian(1.0), 100, 1.05),
        (tight.gaussian(2.0), 1000, 1.02),
        (tight.laplace(2.0), 100, 1.04),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.in_turn(3)
def test_proves_more_than_the_rank_grid(
    mechanism: tight.Mechanism, size: int, least: float
) -> None:
    rng = np.random.default_rng(7)
    pairs = []
    for seed in range(30):
        scores = mechanism.draw(rng, size, size)
        pairs.append(
            [bound(scores, delta=1e-5, rule=rule, seed=seed).epsilon for rule in (ALL, RankGrid())]
        )
    ours, grid = np.mean(pairs, axis=0)
    assert ours > least * grid


def test_noise_smaller_than_the_gaps_changes_nothing_on_average() -> None:
    rng = np.random.default_rng(3)
    mechanism = tight.respond_among(3, 2.0, 0.6)
    tied, jittered = [], []
    for seed in range(250):
        scores = mechanism.draw(rng, 100, 100)
        tied.append(bound(scores, seed=seed).epsilon)
        moved = Scores(*(side + rng.random(100) / 2 for side in (scores.inside, scores.outside)))
        jittered.append(bound(moved, seed=seed).epsilon)
    error = math.hypot(np.std(tied), np.std(jittered)) / math.sqrt(250)
    assert np.mean(tied) == pytest.approx(np.mean(jittered), abs=4 * error)


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 200), st.integers(5, 200), st.floats(0, 3), st.integers(0, 10**6))
def test_an_inside_score_that_moves_up_never_proves_less(
    m: int, n: int, shift: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(shift, 1, m), rng.normal(0, 1, n)
    before = bound(Scores(inside, outside), delta=1e-4).epsilon
    inside[rng.integers(m)] += rng.exponential()
    assert bound(Scores(inside, outside), delta=1e-4).epsilon >= before - 1e-9


@pytest.mark.parametrize("confidence", [0.5, 0.99, 1 - 1e-6, 1 - 1e-8, 1 - 1e-12])
def test_confidence_costs_what_it_must(confidence: float) -> None:
    scores = separated(200, 200)
    found = bound(scores, confidence=confidence)
    alpha = 1 - confidence
    if alpha >= 1e-9:  # with p = e^ε/(1 + e^ε), p^(m + n) is nearly the chance of separation
        most = -math.log(math.expm1(-math.log(alpha) / 400))
        assert found.epsilon == pytest.approx(most, abs=0.1)
        assert found.direction == "both"
    else:
        grid = bound(scores, confidence=confidence, rule=RankGrid())
        assert found.epsilon == grid.epsilon
    assert derivation_of(found).formula


def test_many_revealed_scores_are_simulated() -> None:
    """The exact law would take a walk for every number of them."""
    scores = separated(3000, 3000)
    assert not rank_walk.is_affordable(3000, 3000, delta=0.01, alpha=0.05)
    found = bound(scores, delta=0.01)
    # 30 of the 3,000 scores of each side are revealed for nothing.
    assert 5.5 < found.epsilon < 7.6
    assert bound(scores, delta=0.01, confidence=1 - 1e-5).epsilon > 4


def test_delta_of_one_proves_nothing() -> None:
    assert bound(separated(50, 50), delta=1.0).epsilon == 0
    assert bound(separated(50, 50), delta=0.999).epsilon < 1


def test_infinite_scores_keep_their_order() -> None:
    inside, outside = np.full(60, np.inf), np.full(60, -np.inf)
    assert bound(Scores(inside, outside)).epsilon == bound(separated(60, 60)).epsilon
    assert bound(Scores(outside, inside)).epsilon == 0


def test_seed_orders_ties_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    smooth = Scores(rng.normal(1, 1, 90), rng.normal(0, 1, 90))
    assert len({bound(smooth, seed=seed).epsilon for seed in range(5)}) == 1
    tied = Scores(np.round(smooth.inside), np.round(smooth.outside))
    assert len({bound(tied, seed=seed).epsilon for seed in range(5)}) > 1


def test_counts_prove_what_scores_prove_on_average() -> None:
    rng = np.random.default_rng(5)
    cuts = np.arange(-3.0, 5.0)
    raw, counted = [], []
    for seed in range(120):
        scores = Scores(*(np.floor(rng.normal(mu, 1, 150)) for mu in (1.5, 0.0)))
        counts = ScoreCounts.at(cuts).add(inside=scores.inside, outside=scores.outside)
        raw.append(bound(scores, seed=seed).epsilon)
        counted.append(bound(counts, seed=seed).epsilon)
    assert np.mean(raw) == pytest.approx(np.mean(counted), abs=0.06)


def test_what_is_kept_depends_on_no_score() -> None:
    rng = np.random.default_rng(6)
    scores = Scores(rng.normal(1, 1, 120), rng.normal(0, 1, 130))
    first = bound(scores)
    calibrated.find_epsilon.cache_clear()
    calibrated.get_family.cache_clear()
    assert bound(scores) == first


def test_rules_and_methods_find_each_other() -> None:
    assert choose_rule(None, ALL) == ("calibrated", ALL)
    assert choose_rule("calibrated", None) == ("calibrated", ALL)
    assert choose_rule("gdp", None) == ("gdp", RankSum())
    assert choose_rule(None, HoldOut()) == ("clopper_pearson", HoldOut())


@settings(max_examples=12, deadline=None)
@given(st.integers(20, 300), st.floats(0.5, 4), st.integers(0, 10**6))
def test_explanation_gives_the_bound(size: int, shift: float, seed: int) -> None:
    """Who simulates what the text says arrives at α."""
    rng = np.random.default_rng(seed)
    delta = 1e-3
    found = bound(Scores(rng.normal(shift, 1, size), rng.normal(0, 1, size + 7)), delta=delta)
    derived = derivation_of(found)
    text = "\n".join(derived.formula)
    if found.epsilon == 0:
        assert "ε = 0" in text
        return
    pairs = text.split("one of these: ")[1].split("\n")[0].strip("()").split("), (")
    k, x = np.array([[int(part) for part in pair.split(", ")] for pair in pairs]).T
    epsilon, alpha = (float(part) for part in text.split("= α: p(")[1].split(") = "))
    assert epsilon == pytest.approx(found.epsilon, rel=1e-7)
    assert alpha == pytest.approx(0.05)
    u = np.sort(rng.random((4_000, size + 7)), axis=1)
    w = np.sort(rng.random((4_000, size)), axis=1)
    grow = np.exp(epsilon)
    v = np.maximum(np.maximum((w - delta) / grow, 1 - delta - grow * (1 - w)), 0)
    happened = (v[:, x - 1] < u[:, k - 1]).any(axis=1)
    assert happened.mean() == pytest.approx(alpha, abs=0.018)
