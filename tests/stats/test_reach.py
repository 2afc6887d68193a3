"""Reach and power say what an audit could have found: checked by attacks that find all or most."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.errors import EpsilometerWarning
from epsilometer.rules import AllRanks, Best, Bonferroni, Fixed, HoldOut, RankGrid
from epsilometer.stats import reach as module
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.reach import (
    Outside,
    compute_power,
    compute_reach,
    describe_outside,
    separate_scores,
)
from tests import oracles

DELTA = 1e-5
SIZES = [(40, 40), (300, 300), (500, 80), (80, 500)]
METHODS = [
    (method, rule)
    for method, row in REGISTRY.items()
    for rule in (AllRanks(), RankGrid(), HoldOut(), Fixed(0.5))
    if isinstance(rule, row.rules) and not (method == "joint_beta" and rule != Fixed(0.5))  # slow
]


def bound_of(scores: Any, method: str, rule: Any, delta: float = DELTA) -> em.EpsilonLowerBound:
    if "coins" in REGISTRY[method].designs:
        chance = scores.n_in / (scores.n_in + scores.n_out)
        scores = replace(scores, design="coins", inclusion=chance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpsilometerWarning)  # few canaries, unequal sides
        return em.epsilon_lower_bound(scores, delta=delta, method=method, rule=rule)


# Reach


@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
@pytest.mark.parametrize(("method", "rule"), METHODS, ids=str)
@pytest.mark.in_turn(3)
def test_a_perfect_attack_refutes_claims_below_the_reach_and_none_above(
    method: str, rule: Any, n_in: int, n_out: int, rng: np.random.Generator
) -> None:
    """Reach follows from an audit that found nothing; perfect attacks are others."""
    if "coins" in REGISTRY[method].designs and rule != AllRanks() and n_in != n_out:
        pytest.skip("these rules are for fair coins")
    blind = Scores(rng.normal(size=n_in), rng.normal(size=n_out))
    reach = compute_reach(lambda part: bound_of(part, method, rule).epsilon, blind)
    attacks = [
        Scores([7.0] * n_in, [-7.0] * n_out),
        *(Scores(90 + rng.normal(size=n_in), rng.normal(size=n_out) - 90) for _ in range(4)),
    ]
    found = [bound_of(attack, method, rule).epsilon for attack in attacks]
    assert reach > 0.5
    assert 0.999 * reach < max(found) < 1.001 * reach


@pytest.mark.parametrize("rule", [RankGrid(), HoldOut(), Fixed(0.5)], ids=str)
def test_claims_below_the_reach_are_judged_and_others_are_not(
    rule: Any, rng: np.random.Generator
) -> None:
    blind = Scores(rng.normal(size=300), rng.normal(size=300), rule=rule)
    reach = em.audit(blind, 1.0, delta=DELTA).reach
    assert reach is not None
    perfect = Scores([9.0] * 150 + [8.0] * 150, [-9.0] * 300, rule=rule)
    for claim, spared, found in [
        (0.99 * reach, "not refuted", "refuted"),
        (1.01 * reach, "cannot judge", "cannot judge"),
    ]:
        assert em.audit(blind, claim, delta=DELTA).verdict == spared
        assert em.audit(perfect, claim, delta=DELTA).verdict == found


@settings(max_examples=40)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=60),
    st.lists(st.floats(-3, 3), min_size=2, max_size=60),
    st.floats(0, 6),
)
def test_no_attack_proves_more_than_the_perfect_one(
    inside: list[float], outside: list[float], shift: float
) -> None:
    scores = Scores(np.array(inside) + shift, outside)
    for rule in (RankGrid(), Bonferroni(), Fixed(0.5)):

        def prove(part: Any, rule: Any = rule) -> float:
            return em.epsilon_lower_bound(part, delta=DELTA, rule=rule).epsilon

        assert prove(scores) <= compute_reach(prove, scores) * (1 + 1e-9)


def test_reach_of_counts_is_that_of_scores_in_the_outermost_bins(rng: np.random.Generator) -> None:
    counts = ScoreCounts.at([-1.0, 0.0, 1.0]).add(
        inside=rng.normal(size=300), outside=rng.normal(size=200)
    )

    def prove(part: Any) -> float:
        return em.epsilon_lower_bound(part, delta=DELTA).epsilon

    perfect = ScoreCounts.at([-1.0, 0.0, 1.0]).add(inside=[5.0] * 300, outside=[-5.0] * 200)
    assert compute_reach(prove, counts) == prove(perfect)
    assert prove(separate_scores(300, 200)) == pytest.approx(prove(perfect), rel=1e-9)


def test_a_threshold_that_was_fixed_far_out_has_its_reach_all_the_same(
    rng: np.random.Generator,
) -> None:
    """A loss of thousands, say: the perfect attack errs nowhere, whatever its scale."""
    near = em.audit(Scores(rng.normal(size=90), rng.normal(size=90), rule=Fixed(0.5)), delta=DELTA)
    far = em.audit(
        Scores(1e6 + rng.normal(size=90), 1e6 + rng.normal(size=90), rule=Fixed(1e6 + 0.5)),
        delta=DELTA,
    )
    assert near.views[0].reach == far.views[0].reach


# Power


def share_refuted(
    epsilon: float, *, claim: float, delta: float, n: int, audits: int, rng: np.random.Generator
) -> float:
    """Share of audits of a Gaussian (Laplace, δ = 0) mechanism of this ε that refute the claim."""
    draw, mu = rng.laplace, epsilon
    if delta > 0:
        draw, mu = rng.normal, shift_of(epsilon, delta)
    return (
        sum(
            em.epsilon_lower_bound(Scores(draw(size=n) + mu, draw(size=n)), delta=delta).refutes(
                claim
            )
            for _ in range(audits)
        )
        / audits
    )


def shift_of(epsilon: float, delta: float) -> float:
    return float(
        scipy.optimize.brentq(lambda mu: em.gaussian_epsilon(1 / mu, delta) - epsilon, 0.05, 30)
    )


AUDITS = 80
# Power is a quantile of 24 simulated audits: what it is said to be, 0.8, is between 0.65 and 0.93.
LEAST = scipy.stats.binom.ppf(oracles.FLAKE, AUDITS, 0.65) / AUDITS
MOST = scipy.stats.binom.isf(oracles.FLAKE, AUDITS, 0.93) / AUDITS


@pytest.mark.simulation
@pytest.mark.parametrize("claim", [1.0, pytest.param(2.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("delta", [DELTA, 0.0])
@pytest.mark.parametrize("n", [300, pytest.param(2_000, marks=pytest.mark.slow)])
def test_at_its_power_an_audit_refutes_the_claim_about_four_times_in_five(
    n: int, delta: float, claim: float, rng: np.random.Generator
) -> None:
    found = em.audit(Scores(rng.normal(size=n), rng.normal(size=n)), claim, delta=delta)
    assert found.power is not None
    truth: dict[str, Any] = {"claim": claim, "delta": delta, "n": n, "rng": rng, "audits": AUDITS}
    share = share_refuted(found.power, **truth)
    assert LEAST <= share <= MOST
    assert share_refuted(0.75 * found.power, **truth) < share  # and the smallest such ε
    assert found.power > claim


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gdp", "one_run", "one_run_fdp", "anytime"])
@pytest.mark.parametrize("claim", [1.0, 2.0])
def test_power_is_that_of_the_method_that_was_used(
    method: str, claim: float, rng: np.random.Generator
) -> None:
    n = 500
    design = REGISTRY[method].designs[0]
    scores = Scores(rng.normal(size=n), rng.normal(size=n), method=method, design=design)
    power = em.audit(scores, claim, delta=DELTA).power
    assert power is not None
    mu = shift_of(power, DELTA)
    refuted = sum(
        bound_of(Scores(rng.normal(mu, 1, n), rng.normal(size=n)), method, RankGrid()).refutes(
            claim
        )
        for _ in range(AUDITS)
    )
    assert LEAST <= refuted / AUDITS <= MOST


def power(claim: float, n: int = 300, delta: float = DELTA, **options: Any) -> float:
    """Power of the default bound."""
    given = {"n_in": n, "n_out": n, **options}
    return compute_power(
        lambda part: em.epsilon_lower_bound(part, delta=delta).epsilon,
        claim=claim,
        delta=delta,
        **given,
    )


def test_more_scores_notice_less_and_larger_claims_need_more() -> None:
    assert power(1.0, 100) > power(1.0, 300) > power(1.0, 2_000) > power(1.0, 20_000) > 1.0
    assert power(0.5) < power(1.0) < power(2.0) < power(3.5)


def test_what_was_observed_and_its_seed_do_not_change_the_power(rng: np.random.Generator) -> None:
    found = {
        em.audit(
            Scores(rng.normal(mu, 1, 200), rng.normal(0, 3, 200)), 1.0, delta=DELTA, seed=seed
        ).power
        for mu, seed in ((0.0, 0), (3.0, 0), (0.0, 1))
    }
    assert len(found) == 1


def test_what_no_epsilon_is_large_enough_for_has_no_power() -> None:
    """The reach of 300 scores is 5.29; a perfect attack is the limit of large shifts."""
    assert math.isfinite(power(5.2))
    assert power(5.3) == math.inf
    assert power(100.0) == math.inf


def test_a_claim_beyond_reach_and_a_bound_that_is_not_valid_have_no_power(
    rng: np.random.Generator,
) -> None:
    scores = [rng.normal(size=300), rng.normal(size=300)]
    assert em.audit(Scores(*scores), 5.3, delta=DELTA).power == math.inf
    assert em.audit(Scores(*scores, rule=Best()), 1.0, delta=DELTA).power == math.inf
    assert em.audit(Scores(*scores, method="jeffreys"), 1.0, delta=DELTA).power == math.inf
    assert em.audit(Scores(*scores), delta=DELTA).power is None


@pytest.mark.parametrize("rule", [Fixed(1.5), HoldOut(), RankGrid()], ids=str)
def test_power_does_not_depend_on_the_unit_of_scores(rule: Any, rng: np.random.Generator) -> None:
    inside, outside = rng.normal(size=300), rng.normal(size=300)
    plain = em.audit(Scores(inside, outside, rule=rule), 1.0, delta=DELTA).power
    other = Fixed(1000 * 1.5 - 77) if isinstance(rule, Fixed) else rule
    scaled = Scores(1000 * inside - 77, 1000 * outside - 77, rule=other)
    assert em.audit(scaled, 1.0, delta=DELTA).power == pytest.approx(plain, rel=1e-9)


def test_a_fixed_threshold_amid_the_scores_never_proves_much(rng: np.random.Generator) -> None:
    """One score in six without the record passes it, more than 1 − δ: no shift proves anything."""
    scores = Scores(rng.normal(size=2_000), rng.normal(size=2_000), rule=Fixed(1.0))
    found = em.audit(scores, 1.0, delta=0.9)
    assert (found.verdict, found.power) == ("not refuted", math.inf)
    assert math.isfinite(em.audit(scores, 1.0, delta=0.1).power or 0)


@pytest.mark.parametrize("delta", [0.1, pytest.param(0.0, marks=pytest.mark.slow)])
def test_many_scores_are_counted_and_give_the_same_power(delta: float) -> None:
    one_by_one = power(1.0, 210_000, delta, counted=False)
    assert power(1.0, 210_000, delta) == pytest.approx(one_by_one, rel=0.1)


@pytest.mark.parametrize(
    "choice",
    [
        *({"rule": Fixed(1.5)}, {"rule": HoldOut()}),
        pytest.param({"rule": Bonferroni()}, marks=pytest.mark.slow),
        {"method": "anytime"},
    ],
    ids=str,
)
def test_what_needs_every_score_is_not_given_counts(
    choice: dict[str, Any], rng: np.random.Generator
) -> None:
    scores = Scores(rng.normal(size=210_000), rng.normal(size=210_000), **choice)
    assert (em.audit(scores, 1.0, delta=DELTA).power or 0) > 1


def test_a_billion_counted_scores_take_no_longer(rng: np.random.Generator) -> None:
    thresholds = np.linspace(-5, 6, 40)
    share = np.diff(np.concatenate([[0.0], scipy.stats.norm.cdf(thresholds), [1.0]]))
    counts = ScoreCounts(thresholds, *(rng.multinomial(10**9, share) for _ in range(2)))
    found = em.audit(counts, 1.0, delta=DELTA)
    assert found.verdict == "not refuted"
    assert found.power is not None
    assert 1.0 < found.power < 2.0


def test_counts_at_few_thresholds_have_the_power_of_these(rng: np.random.Generator) -> None:
    sides = {"inside": rng.normal(size=2_000), "outside": rng.normal(size=2_000)}
    fine, coarse = (
        em.audit(ScoreCounts.at(thresholds).add(**sides), 1.0, delta=DELTA).power or 0
        for thresholds in (np.linspace(-5, 8, 100), [0.0])
    )
    raw = em.audit(Scores(**sides), 1.0, delta=DELTA).power
    assert fine == pytest.approx(raw, rel=0.15)
    assert coarse > 1.3 * fine


@pytest.mark.parametrize(
    ("outside", "expected"),
    [
        ([3.0] * 50, (3.0, 1.0)),
        ([np.inf] * 50, (0.0, 1.0)),
        ([-np.inf] * 49 + [0.0], (0.0, 1.0)),
        ([-np.inf, *np.arange(1.0, 50.0)], (25.0, 17.0)),
    ],
)
def test_scores_without_a_scale_are_described_all_the_same(
    outside: list[float], expected: tuple[float, float]
) -> None:
    found = describe_outside(Scores([0.0], outside))
    assert (found.centre, found.spread) == pytest.approx(expected, abs=1.5)
    assert describe_outside(ScoreCounts.at([0.0, 1.0]).add(inside=[0.0], outside=[0.5] * 9)) == (
        Outside(1.0, 1.0, (0.0, 1.0))
    )


def test_simulated_scores_have_their_law(rng: np.random.Generator) -> None:
    """Each audit by itself is a sample; across audits the strata are even."""
    uniform = module._stratify(24, 2_000)
    assert uniform.shape == (24, 2_000)
    for audit in uniform:
        assert scipy.stats.kstest(audit, "uniform").pvalue > oracles.FLAKE / 24
    np.testing.assert_array_equal(
        np.sort(np.floor(24 * uniform), axis=0), np.tile(np.arange(24.0)[:, None], 2_000)
    )
    laplace = module._laplace_quantile(uniform[0])
    assert scipy.stats.kstest(laplace, "laplace").pvalue > oracles.FLAKE
    np.testing.assert_allclose(module._laplace_cdf(laplace), uniform[0], rtol=1e-9)
