import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import tradeoff
from tests import oracles
from tests.conftest import cases, peer_values

few = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20)


@pytest.mark.parametrize(("inputs", "expected"), cases("c06", "eq2"))
def test_epsilon_of_rates_of_reference(inputs: dict, expected: dict) -> None:
    found = tradeoff.epsilon_of_rates(inputs["fpr"], inputs["fnr"], inputs["delta"]).max()
    assert found == pytest.approx(float(expected["eps"]), rel=1e-12)


@given(few, few)
def test_curve_counts_what_brute_force_counts(inside: list, outside: list) -> None:
    scores = Scores(inside, outside)
    curve = em.tradeoff_curve(scores)
    assert set(curve.thresholds) == {np.inf, *inside, *outside}
    for threshold, fp, fn in zip(
        curve.thresholds, curve.false_positives, curve.false_negatives, strict=True
    ):
        assert (fp, fn) == scores.errors_at(threshold)
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert curve.auc == pytest.approx(np.mean(pairs))


@given(few, few)
def test_hull_is_below_the_curve_and_convex(inside: list, outside: list) -> None:
    curve = em.tradeoff_curve(Scores(inside, outside))
    x, y = curve.hull()
    keep = np.append(np.diff(x) > 0, True)
    assert np.all(np.interp(curve.fpr, x[keep], y[keep]) <= curve.fnr + 1e-12)
    slopes = np.diff(y[keep]) / np.diff(x[keep])
    assert np.all(np.diff(slopes) >= -1e-12)


@pytest.mark.parametrize(("inputs", "value"), peer_values("tpr_at_fpr"))
def test_randomised_tpr_of_jax_privacy(inputs: dict, value: list) -> None:
    curve = em.tradeoff_curve(Scores(inputs["in_"], inputs["out"]))
    np.testing.assert_allclose(curve.tpr_at(inputs["fpr"], randomised=True), value)


@pytest.mark.parametrize(("inputs", "value"), peer_values("auroc(hull)"))
def test_hull_area_of_jax_privacy(inputs: dict, value: float) -> None:
    curve = em.tradeoff_curve(Scores(inputs["in_"], inputs["out"]))
    x, y = curve.hull()
    assert np.trapezoid(1 - y, x) == pytest.approx(value)
    assert curve.auc == pytest.approx(11 / 16)


def test_doctest_of_jax_privacy() -> None:
    curve = em.tradeoff_curve(Scores(np.arange(100) + 9.5, np.arange(100)))
    assert curve.tpr_at(0.01, randomised=True) == pytest.approx(0.11)
    x, y = curve.hull()
    assert np.trapezoid(1 - y, x) == pytest.approx(0.595)


@pytest.mark.parametrize(("inputs", "value"), peer_values("raw_counts"))
def test_raw_counts_of_jax_privacy(inputs: dict, value: float) -> None:
    """Their estimate from thresholds with at least so many false positives, or between two."""
    tp, fp, delta = np.array(inputs["tp"]), np.array(inputs["fp"]), inputs["delta"]
    counts = ScoreCounts(
        np.arange(1.0, tp.size),
        np.diff(tp, prepend=0)[::-1],
        np.diff(fp, prepend=0)[::-1],
    )
    curve = em.tradeoff_curve(counts)
    least = inputs["min_count"] / curve.n_out
    rates = [(least, float(curve.tpr_at(least, randomised=True)))]
    rates += [(x, 1 - y) for x, y in zip(*curve.hull(), strict=True) if x >= least]
    found = max(tradeoff.epsilon_of_rates(x, 1 - t, delta)[0] for x, t in rates)
    assert found == pytest.approx(value, abs=1e-12)


def test_thresholds_of_tf_privacy() -> None:
    """Counts published in TF-Privacy's tests of its lower bound."""
    scores = Scores([9, 4, 5, 0.0], [3, 8, 6, 1, 2, 7])
    found = [scores.errors_at(t) for t in (9.5, 8.5, 5.5, 3.5, 0.5, -1)]
    tp, fp = [4 - fn for _, fn in found], [fp for fp, _ in found]
    assert (tp, fp) == ([0, 1, 1, 3, 3, 4], [0, 0, 3, 3, 6, 6])


def test_curves_of_guarantees() -> None:
    fpr = np.linspace(0, 1, 101)
    gdp = em.gdp_curve(fpr, mu=1.0)
    for delta in (1e-5, 0.01, 0.1, 0.3):
        dp = em.dp_curve(fpr, epsilon=em.gaussian_epsilon(1.0, delta), delta=delta)
        assert np.all(dp <= gdp + 1e-9)  # every (ε, δ) of a Gaussian allows at least its curve
    epsilons = np.linspace(0, 8, 400)
    deltas = [em.gaussian_delta(1.0, epsilon) for epsilon in epsilons]
    whole = tradeoff.envelope_curve(fpr, epsilons=epsilons, deltas=deltas)
    np.testing.assert_allclose(whole, gdp, atol=2e-3)


@pytest.mark.simulation
def test_band_holds_everywhere_at_once(rng: np.random.Generator) -> None:
    audits, wrong = 1000, 0
    for _ in range(audits):
        curve = em.tradeoff_curve(Scores(rng.random(60), rng.random(40)))
        low_p, high_p, low_n, high_n = curve.band()
        t = np.clip(curve.thresholds, 0, 1)
        inside_p = np.all((low_p <= 1 - t + 1e-12) & (1 - t <= high_p + 1e-12))
        wrong += not (inside_p and np.all((low_n <= t + 1e-12) & (t <= high_n + 1e-12)))
    assert not oracles.too_often(wrong, audits)


def test_bad_arguments_are_told() -> None:
    curve = em.tradeoff_curve(Scores([1.0], [0.0]))
    for call in (
        lambda: curve.tpr_at(1.5),
        lambda: curve.band(1.0),
        lambda: em.dp_curve([0.1], epsilon=-1.0, delta=0.0),
        lambda: em.gdp_curve([0.1], mu=-1.0),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()


@pytest.mark.parametrize("confidence", [0.95, 0.6])
def test_band_is_clopper_and_pearsons_at_a_quarter_of_the_error_a_count(confidence: float) -> None:
    curve = em.tradeoff_curve(Scores(oracles.even_normals(7) + 1, oracles.even_normals(9)))
    band = curve.band() if confidence == 0.95 else curve.band(confidence)
    both = ((curve.false_positives, 9), (curve.false_negatives, 7))
    for (counts, n), (low, high) in zip(both, (band[:2], band[2:]), strict=True):
        alpha = (1 - confidence) / (4 * n)
        for k, least, most in zip(counts.tolist(), low, high, strict=True):
            assert least == pytest.approx(scipy.stats.beta.ppf(alpha, k, n - k + 1) if k else 0)
            assert most == pytest.approx(scipy.stats.beta.isf(alpha, k + 1, n - k) if k < n else 1)


@pytest.mark.parametrize(("n_in", "n_out", "points"), [(300, 500, 6), (40, 3, 2), (2, 900, 50)])
def test_thinned_curve_keeps_the_corners_about_each_share(
    n_in: int, n_out: int, points: int, rng: np.random.Generator
) -> None:
    inside, outside = (rng.normal(shift, 1, n).round(1) for shift, n in ((1, n_in), (0, n_out)))
    curve = em.tradeoff_curve(Scores(inside, outside))
    fp, fn = curve.false_positives, curve.false_negatives
    kept = set()
    for n, rising in ((n_out, fp), (n_in, -fn)):
        for level in (*(np.linspace(0, 1, points) * n), *np.geomspace(1, n, points)):
            at = level if rising is fp else -level
            kept |= {np.flatnonzero(rising >= at)[0], np.flatnonzero(rising <= at)[-1]}
    thin = curve.thin() if points == 50 else curve.thin(points)
    assert set(thin.thresholds) == set(curve.thresholds[sorted(kept)])
    assert (thin.n_in, thin.n_out) == (n_in, n_out)
    assert thin.thresholds[0] == np.inf
    assert (thin.fpr[-1], thin.fnr[-1]) == (1, 0)
    for threshold, *counts in zip(
        thin.thresholds, thin.false_positives, thin.false_negatives, strict=True
    ):
        assert tuple(counts) == Scores(inside, outside).errors_at(threshold)


def test_curve_of_counts_goes_from_nobody_to_everybody() -> None:
    curve = em.tradeoff_curve(ScoreCounts([1.0, 2.0], [3, 0, 4], [1, 5, 2]))
    assert curve.thresholds.tolist() == [np.inf, 2.0, 1.0, -np.inf]
    assert curve.false_positives.tolist() == [0, 2, 7, 8]
    assert curve.false_negatives.tolist() == [7, 3, 3, 0]
    assert (curve.n_in, curve.n_out) == (7, 8)


@given(few, few)
def test_tpr_is_that_of_the_best_threshold_allowed(inside: list, outside: list) -> None:
    curve = em.tradeoff_curve(Scores(inside, outside))
    n = len(outside)
    for k in range(n + 1):
        best = max(1 - fn for fp, fn in zip(curve.fpr, curve.fnr, strict=True) if fp <= k / n)
        assert curve.tpr_at(k / n) == best
        assert curve.tpr_at(k / n, randomised=True) >= best - 1e-12
        if k:
            before = 1 - curve.fnr[curve.fpr < (k - 0.5) / n].min()
            assert curve.tpr_at((k - 1e-9) / n) == before
    assert curve.tpr_at(1.0, randomised=True) == 1.0


def test_randomised_tpr_at_a_wall_is_its_end() -> None:
    curve = em.tradeoff_curve(Scores([3.0, 2.0, 0.0, 0.0], [2.5, 1.0, 0.5, -1.0]))
    assert curve.tpr_at([0.0, 0.125, 0.25], randomised=True).tolist() == [0.25, 0.375, 0.5]


def test_guarantees_at_nothing_and_between() -> None:
    fpr = np.array([0.0, 0.3, 1.0])
    np.testing.assert_allclose(em.gdp_curve(fpr, mu=0.0), 1 - fpr)
    assert em.gdp_curve(0.3, mu=0.5) == pytest.approx(
        scipy.stats.norm.cdf(scipy.stats.norm.isf(0.3) - 0.5)
    )
    np.testing.assert_allclose(em.dp_curve(fpr, epsilon=0.0, delta=0.0), 1 - fpr)
    assert em.dp_curve(0.2, epsilon=1.0, delta=1.0) == 0


def test_rates_are_computed_in_double_precision() -> None:
    rates = np.array([0.1, 0.3], np.float32)
    curve = em.tradeoff_curve(Scores([1.0, 2.0], [0.0, 1.5]))
    for call in (
        lambda x: tradeoff.epsilon_of_rates(x, 0.2 * x.astype(np.float64), 1e-5),
        lambda x: tradeoff.epsilon_of_rates(0.2 * x.astype(np.float64), x, 1e-5),
        lambda x: em.dp_curve(x, epsilon=0.1, delta=1e-5),
        lambda x: em.gdp_curve(x, mu=0.1),
        lambda x: tradeoff.envelope_curve(x, epsilons=[0.1], deltas=[1e-5]),
        lambda x: curve.tpr_at(x, randomised=True),
    ):
        assert call(rates).tolist() == call(rates.astype(np.float64)).tolist()


def test_profiles_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        tradeoff.envelope_curve([0.1], epsilons=[0.1, 0.2], deltas=[1e-5])
