import numpy as np
import pytest
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
