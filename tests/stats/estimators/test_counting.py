import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.rules import Best, Bonferroni, Fixed, HoldOut, Published, RankGrid
from epsilometer.stats import binomial, thresholds, tradeoff
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.estimators.counting import DP_FRONTIER, finder, two_rates
from epsilometer.stats.estimators.gdp import mu_of_rates
from epsilometer.stats.estimators.method import Find, Found
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import Looks, ThresholdRule
from tests import oracles
from tests.conftest import cases, peer_values, run_often


def _scores(inputs: dict) -> Scores:
    if inputs.get("seed") == 120:
        rng = np.random.default_rng(120)
        return Scores(rng.normal(1, 1, 300), rng.normal(0, 1, 700))
    if "seed" not in inputs:  # the ceiling: perfect separation
        return Scores(np.ones(inputs["R"]), np.zeros(inputs["R"]))
    rng = np.random.default_rng(inputs["seed"])
    inside, outside = rng.normal(inputs["shift"], 1, inputs["R"]), rng.normal(0, 1, inputs["R"])
    if inputs["decimals"] is not None:
        inside, outside = (
            np.round(inside, inputs["decimals"]),
            np.round(outside, inputs["decimals"]),
        )
    return Scores(inside, outside)


@pytest.mark.parametrize(("inputs", "expected"), cases("c06", "estimate-eps"))
@pytest.mark.in_turn(3)
def test_published_is_algorithm_1_of_the_shuffling_paper(inputs: dict, expected: dict) -> None:
    """One-sided, α is on each rate; two-sided, as some read it, half of that."""
    scores, knobs = _scores(inputs), {"delta": inputs["delta"], "rule": Published()}
    one_sided = expected.get("cp_one_sided_grouped", expected.get("one_sided"))
    found = em.epsilon_lower_bound(scores, confidence=1 - inputs["alpha"], **knobs)
    assert found.epsilon == pytest.approx(one_sided, rel=1e-8, abs=1e-9)
    two_sided = expected.get("cp_two_sided_grouped", expected.get("two_sided"))
    if two_sided is not None:
        found = em.epsilon_lower_bound(scores, confidence=1 - inputs["alpha"] / 2, **knobs)
        assert found.epsilon == pytest.approx(two_sided, rel=1e-8, abs=1e-9)
    if "jeffreys_one_sided_grouped" in expected:
        found = em.epsilon_lower_bound(
            scores, confidence=1 - inputs["alpha"], method="jeffreys", **knobs
        )
        assert found.epsilon == pytest.approx(
            expected["jeffreys_one_sided_grouped"], rel=1e-8, abs=1e-9
        )


@pytest.mark.parametrize(("inputs", "expected"), cases("c05", "eps-lo-two-sample"))
def test_two_sample_epsilon_lo_of_the_one_shot_paper(inputs: dict, expected: dict) -> None:
    rng = np.random.default_rng(inputs["seed"])
    outside = rng.normal(inputs["m0"], inputs["s0"], inputs["k"])
    scores = Scores(rng.normal(inputs["m1"], inputs["s1"], inputs["k"]), outside)
    for confidence, name in ((0.95, "one_sided"), (0.975, "two_sided")):
        found = em.epsilon_lower_bound(
            scores,
            delta=inputs["delta"],
            confidence=confidence,
            method="jeffreys",
            rule=Published(),
        )
        assert found.epsilon == pytest.approx(expected[name], rel=1e-7)


tied = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=40)


@settings(deadline=None)
@given(tied, tied, st.sampled_from([0.0, 1e-5, 0.1]))
def test_published_equals_trying_every_threshold(inside: list, outside: list, delta: float) -> None:
    scores = Scores(inside, outside)
    found = em.epsilon_lower_bound(scores, delta=delta, confidence=0.975, rule=Published())
    assert found.epsilon == pytest.approx(oracles.best_by_trying_all(scores, delta, 0.05), abs=1e-9)


@pytest.mark.parametrize("mu", run_often([0.0, 0.3, 2.0], [0.3]))
def test_published_skips_no_winner_in_a_large_sample(mu: float, rng: np.random.Generator) -> None:
    n = 30_000
    scores = Scores(rng.normal(mu, 1, n), rng.normal(0, 1, 2 * n))
    curve = em.tradeoff_curve(scores)
    limits = [
        binomial.upper_limit(counts, size, alpha=0.025, kind="clopper_pearson")
        for counts, size in (
            (curve.false_positives, curve.n_out),
            (curve.false_negatives, curve.n_in),
        )
    ]
    truth = tradeoff.epsilon_of_limits(limits[0], limits[1], 1e-5).max()
    found = em.epsilon_lower_bound(scores, delta=1e-5, confidence=0.975, rule=Published())
    assert found.epsilon == pytest.approx(truth, rel=1e-10)
    fp, fn = scores.errors_at(found.threshold)
    fpr = binomial.clopper_pearson_upper(fp, 2 * n, alpha=0.025)
    fnr = binomial.clopper_pearson_upper(fn, n, alpha=0.025)
    assert tradeoff.epsilon_of_rates(fpr, fnr, 1e-5).max() == pytest.approx(found.epsilon)


SHAPES = ("same", "apart", "atoms", "rounded")


def _draw(shape: str, n_in: int, n_out: int, rng: np.random.Generator) -> Scores:
    if shape == "atoms":
        return Scores(1.0 * (rng.random(n_in) < 0.8), 1.0 * (rng.random(n_out) < 0.2))
    inside, outside = rng.normal(0 if shape == "same" else 2, 1, n_in), rng.normal(0, 1, n_out)
    return (
        Scores(inside.round(), outside.round()) if shape == "rounded" else Scores(inside, outside)
    )


@pytest.mark.parametrize("method", ["clopper_pearson", "jeffreys", "gdp"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.in_turn(3)
def test_no_rule_that_chooses_a_threshold_proves_more_than_best(
    shape: str, method: str, rng: np.random.Generator
) -> None:
    """A rank grid, which tests both rates at once, exceeded it in a quarter of small samples."""
    rules = (RankGrid(), RankGrid(2), HoldOut(), Bonferroni(), Fixed(0.5), Fixed(1.0))
    for n_in, n_out in ((4, 5), (10, 10), (10, 50), (50, 20)):
        scores = _draw(shape, n_in, n_out, rng)

        def bound(rule: ThresholdRule, scores: Scores = scores) -> float:
            return em.epsilon_lower_bound(scores, delta=1e-5, method=method, rule=rule).epsilon

        assert max(map(bound, rules)) <= bound(Best()) * (1 + 1e-8)


def test_best_is_not_below_what_papers_print(rng: np.random.Generator) -> None:
    for shape in SHAPES:
        scores = _draw(shape, 40, 40, rng)
        best, printed = (
            em.epsilon_lower_bound(scores, delta=1e-5, rule=rule) for rule in (Best(), Published())
        )
        assert printed.epsilon <= best.epsilon + 1e-9
        assert not best.valid
        assert not printed.valid


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [12, 300])
@pytest.mark.in_turn(3)
def test_best_is_where_the_best_of_all_tests_has_all_of_alpha(
    shape: str, size: int, rng: np.random.Generator
) -> None:
    """Every threshold in both directions, by the midpoint rule over quantiles of the rate."""
    scores = _draw(shape, size, 2 * size, rng)
    found = em.epsilon_lower_bound(scores, delta=1e-5, confidence=0.9, rule=Best()).epsilon
    curve = em.tradeoff_curve(scores)
    looks = np.unique([curve.false_positives, curve.false_negatives], axis=1)
    grid = (np.arange(400) + 0.5) / 400
    least = 1.0
    for (fp, fn), (n, m) in ((looks, (2 * size, size)), (looks[::-1], (size, 2 * size))):
        able = (fp < n) & (fn < m)
        k, x = fp[able, None] + 1, m - fn[able, None]
        rate = scipy.stats.beta.ppf(grid, k, n - k + 1)
        most = np.minimum(np.exp(found) * rate + 1e-5, 1)
        least = min(least, float(scipy.stats.beta.cdf(most, x, m - x + 1).mean(axis=1).min()))
    if found > 0:
        assert least == pytest.approx(0.1, rel=0.03)
    else:
        assert least > 0.1 * 0.97


@pytest.mark.parametrize(("inputs", "value"), peer_values("cp explicit"))
def test_fixed_threshold_of_jax_privacy(inputs: dict, value: float) -> None:
    inside = oracles.even_normals(inputs["n_in"]) + inputs["mu"]
    scores = Scores(inside, oracles.even_normals(inputs["n_out"]))
    fp, fn = scores.errors_at(inputs["threshold"])
    alpha = inputs["significance"] / 2
    fpr = binomial.clopper_pearson_upper(fp, scores.n_out, alpha=alpha)
    fnr = binomial.clopper_pearson_upper(fn, scores.n_in, alpha=alpha)
    one_sided = tradeoff.epsilon_of_rates(fpr, fnr, inputs["delta"])[0]
    assert one_sided == pytest.approx(value, rel=1e-9)  # theirs has one direction
    found = em.epsilon_lower_bound(
        scores,
        delta=inputs["delta"],
        confidence=1 - inputs["significance"],
        rule=Fixed(inputs["threshold"]),
    )
    assert found.epsilon >= value - 1e-12


def _hull_counts(inputs: dict) -> tuple[np.ndarray, np.ndarray, int]:
    n = inputs["deterministic_normal_n"]
    spread = oracles.even_normals(n)
    curve = em.tradeoff_curve(Scores(spread + inputs["shift"], spread))
    x, y = curve.hull()
    return np.round(x * n), np.round(y * n), n


@pytest.mark.parametrize(("inputs", "value"), peer_values("scores cp bonf"))
def test_hull_thresholds_of_jax_privacy(inputs: dict, value: list) -> None:
    fp, fn, n = _hull_counts(inputs)
    assert fp.size == value[1]
    alpha = inputs["significance"] / fp.size / 2
    fpr = binomial.clopper_pearson_upper(fp, n, alpha=alpha)
    fnr = binomial.clopper_pearson_upper(fn, n, alpha=alpha)
    found = tradeoff.epsilon_of_rates(fpr, fnr, inputs["delta"])[0].max()
    assert found == pytest.approx(value[0], rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("inputs", "value"), peer_values("scores gdp"))
def test_gdp_of_jax_privacy(inputs: dict, value: float) -> None:
    fp, fn, n = _hull_counts(inputs)
    alpha = inputs["significance"] / fp.size / 2
    fpr = binomial.clopper_pearson_upper(fp, n, alpha=alpha)
    fnr = binomial.clopper_pearson_upper(fn, n, alpha=alpha)
    found = gdp_epsilon(float(mu_of_rates(fpr, fnr).max()), inputs["delta"])
    assert found == pytest.approx(value, abs=2e-6)  # their tolerance is 1e-6


@pytest.mark.parametrize(("inputs", "value"), peer_values("scores raw50"))
def test_raw_estimate_of_jax_privacy(inputs: dict, value: float) -> None:
    fp, fn, n = _hull_counts(inputs)
    least = inputs["min_count"] / n
    rates = [(x / n, y / n) for x, y in zip(fp, fn, strict=True) if x >= inputs["min_count"]]
    keep = np.append(np.diff(fp) > 0, True)
    rates.append((least, float(np.interp(least, fp[keep] / n, fn[keep] / n))))
    found = max(tradeoff.epsilon_of_rates(x, y, inputs["delta"])[0] for x, y in rates)
    assert found == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("c11", "gdp-mu"))
def test_mu_of_reference(inputs: dict, expected: dict) -> None:
    mu = float(mu_of_rates(np.array(inputs["fpr"]), np.array(inputs["fnr"])))
    assert mu == pytest.approx(expected["mu"], rel=1e-9, abs=1e-12)
    for delta in ("1e-5", "1e-6"):
        assert gdp_epsilon(mu, float(delta)) == pytest.approx(expected[f"eps_at_{delta}"], rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c11", "gdp-audit"))
def test_gdp_audit_of_reference(inputs: dict, expected: dict) -> None:
    fp, fn, n = inputs["fp"], inputs["fn"], inputs["n"]
    counts = ScoreCounts([0.0], [fn, n - fn], [n - fp, fp])
    for confidence, side in ((0.9, "one"), (0.95, "two")):
        found = em.epsilon_lower_bound(
            counts,
            delta=inputs["delta"],
            confidence=confidence,
            method="gdp",
            rule=Fixed(0.0),
        )
        assert found.epsilon == pytest.approx(expected[f"eps_{side}_sided"], rel=1e-8, abs=1e-12)


def test_clopper_pearson_of_tf_privacy() -> None:
    """500 right of 500 on both sides at α = 0.01 prove 4.54 (their test, from Jagielski et al.)."""
    found = em.epsilon_lower_bound(
        Scores(np.ones(500), np.zeros(500)), delta=0.0, confidence=0.99, rule=Fixed(0.5)
    )
    assert found.epsilon == pytest.approx(4.54, abs=0.005)


# 95 % lower limits of TPR/FPR that R's asbio::ci.prat gives, as TF-Privacy's tests print them:
# (tp, fn, fp, tn) → Katz, adjusted log, Bailey, inverse hyperbolic sine.
R_VALUES = {
    (473, 511, 755, 950): (1.01166194, 1.01189079, 1.01148934, 1.01167669),
    (2, 697, 213, 313): (0.00220470, 0.00310880, 0.00162322, 0.00233503),
    (1000, 10, 10, 10000): (589.27335593, 568.32659563, 613.58766147, 592.63264572),
}


@pytest.mark.parametrize(("table", "values"), R_VALUES.items())
def test_exact_bound_is_below_the_approximate_ones_of_r(
    table: tuple[int, int, int, int], values: tuple[float, ...]
) -> None:
    tp, fn, fp, tn = table
    counts = ScoreCounts([0.0], [fn, tp], [tn, fp])
    found = em.epsilon_lower_bound(counts, delta=0.0, rule=Fixed(0.0))
    forward = tradeoff.epsilon_of_rates(
        binomial.clopper_pearson_upper(fp, fp + tn, alpha=0.025),
        binomial.clopper_pearson_upper(fn, fn + tp, alpha=0.025),
        0.0,
    )[0]
    assert forward <= max(0.0, np.log(min(values))) + 1e-9
    assert forward >= np.log(min(values)) - 0.3
    assert found.epsilon >= forward


@pytest.mark.parametrize("mu", run_often([0.5, 1.0, 2.0, 4.0], [1.0, 4.0]))
@pytest.mark.parametrize("n", run_often([100, 1_000, 10_000], [1_000]))
def test_rank_grid_proves_more_than_other_valid_rules(
    mu: float, n: int, rng: np.random.Generator
) -> None:
    rules = (RankGrid(), HoldOut(), Bonferroni(), Best())
    found = np.zeros((20, len(rules)))
    for row in found:
        scores = Scores(rng.normal(mu, 1, n), rng.normal(0, 1, n))
        row[:] = [em.epsilon_lower_bound(scores, delta=1e-5, rule=rule).epsilon for rule in rules]
    grid, hold_out, bonferroni, best = found.mean(axis=0)
    assert grid > max(hold_out, bonferroni)
    assert grid < em.gaussian_epsilon(1 / mu, 1e-5)
    if n == 10_000:
        assert grid >= 0.8 * best


def _find(find: Find, scores: Scores | ScoreCounts, rule: ThresholdRule) -> Found:
    return find(scores, delta=1e-3, alpha=0.1, rule=rule, rng=np.random.default_rng(4))


@pytest.mark.parametrize("rule", [RankGrid(), HoldOut(), Bonferroni(), Fixed(1.0), Best()])
@pytest.mark.parametrize("kind", ["clopper_pearson", "jeffreys"])
def test_a_finder_made_anew_is_that_of_the_registry(kind: str, rule: ThresholdRule) -> None:
    scores = Scores(oracles.even_normals(70) + 2, oracles.even_normals(90))
    made = _find(finder(two_rates(kind)), scores, rule)
    assert made == _find(REGISTRY[kind].find, scores, rule)
    assert made.epsilon > 0
    assert made.basis


def test_a_finder_of_another_merit_says_so() -> None:
    scores = Scores(oracles.even_normals(70) + 2, oracles.even_normals(90))
    plain = _find(finder(two_rates("jeffreys")), scores, Best())
    find = finder(
        two_rates("jeffreys"),
        directions=("both", "both"),
        epsilon_of=lambda merit, delta: 2 * merit + delta,
        merit="μ",
    )
    made = _find(find, scores, Best())
    assert made.epsilon == 2 * plain.epsilon + 1e-3
    assert made.direction == "both"
    assert dict(made.basis)["μ"] == plain.epsilon
    assert "μ" not in dict(plain.basis)
    assert "ε" not in dict(plain.basis)


def test_only_exact_limits_are_judged_by_ranks() -> None:
    assert two_rates("clopper_pearson").frontier is DP_FRONTIER
    assert two_rates("jeffreys").frontier is None


@pytest.mark.parametrize("kind", ["clopper_pearson", "jeffreys"])
def test_merits_are_those_of_both_limits(kind: str) -> None:
    looks = Looks(
        thresholds=np.array([0.0, 1.0]),
        false_positives=np.array([3, 1]),
        false_negatives=np.array([2, 9]),
        n_in=30,
        n_out=40,
        alpha_fpr=0.02,
        alpha_fnr=0.05,
    )
    judge = two_rates(kind)
    more, rest = {"clopper_pearson": (1, 0), "jeffreys": (0.5, 0.5)}[kind]
    fpr = scipy.stats.beta.isf(0.02, [3 + more, 1 + more], [37 + rest, 39 + rest])
    fnr = scipy.stats.beta.isf(0.05, [2 + more, 9 + more], [28 + rest, 21 + rest])
    expected = np.log([(1 - fnr - 0.01) / fpr, (1 - fpr - 0.01) / fnr])
    np.testing.assert_allclose(judge.merit(looks, 0.01), expected)
    best = expected.max(axis=0)
    assert judge.beats(looks, 0.01, best.mean()).tolist() == (best > best.mean()).tolist()
    assert not judge.beats(looks, 0.01, float(best.max())).all()


def test_bonferroni_pays_for_every_score() -> None:
    scores = Scores(oracles.even_normals(60) + 3, oracles.even_normals(60))
    paid = em.epsilon_lower_bound(scores, delta=0.0, rule=Bonferroni(), confidence=0.4)
    free = em.epsilon_lower_bound(scores, delta=0.0, rule=Published(), confidence=1 - 0.3 / 60)
    assert paid.epsilon == pytest.approx(free.epsilon)


def test_hold_out_is_fixed_at_what_the_part_chose() -> None:
    scores = Scores(oracles.even_normals(80) + 2, oracles.even_normals(80))
    found = em.epsilon_lower_bound(scores, delta=0.0, rule=HoldOut(0.4), seed=6)
    part, rest = thresholds.split(scores, 0.4, np.random.default_rng(6))
    chosen = em.epsilon_lower_bound(part, delta=0.0, confidence=0.975, rule=Published()).threshold
    expected = em.epsilon_lower_bound(rest, delta=0.0, rule=Fixed(chosen))
    assert (found.epsilon, found.threshold) == (expected.epsilon, chosen)


def test_rates_of_nothing_and_of_everything_show_nothing() -> None:
    fpr, fnr = np.array([0.0, 1.0, 0.5]), np.array([1.0, 0.0, 0.5])
    assert mu_of_rates(fpr, fnr).tolist() == [0.0, 0.0, 0.0]
