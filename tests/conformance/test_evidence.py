"""Evidence against right programs has expectation 1 at most, by integration and not by luck."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.conformance import evidence
from epsilometer.types import FloatArray
from tests.conftest import run_often

SCALES = [1.0, 1.001, 1.1, 1.5, 3.0]
GRID = np.linspace(-60, 60, 240_001)


def largest_expectation(ratios: Callable[[float], FloatArray], scale: float) -> float:
    """The largest expectation of e to the ratios of one residual, by Simpson's rule."""
    x = GRID[::40] * scale / 3
    values = np.array([np.exp(ratios(float(each))) for each in x])
    weights = scipy.stats.norm.pdf(x, scale=scale)[:, None]
    return float(scipy.integrate.simpson(values * weights, x=x, axis=0).max())


@pytest.mark.parametrize("scale", SCALES)
def test_scale_has_expectation_one_at_most(scale: float) -> None:
    assert largest_expectation(lambda x: evidence.scale_ratios(1, x * x), scale) <= 1 + 1e-9


@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_scale_holds_under_every_mean(shift: float) -> None:
    assert largest_expectation(lambda x: evidence.scale_ratios(1, (x + shift) ** 2), 1.0) < 1


@pytest.mark.parametrize("spacing", [1 / 16, 1 / 17.3, 1 / 64])
def test_scale_holds_on_the_lattices_that_are_allowed(spacing: float) -> None:
    x = np.arange(-400, 401) * spacing
    weights = np.diff(scipy.stats.norm.cdf(np.append(x, x[-1] + spacing) - spacing / 2))
    expected = weights @ np.exp(evidence.scale_ratios(np.ones(x.size), x**2))
    assert expected.max() <= 1.01  # rounding adds h²/12 to the variance, and only helps
    assert weights[x == 0].max() <= evidence.SMALL_SHARE
    assert weights @ weights <= evidence.TIE_SHARE


@pytest.mark.parametrize("scale", [1.0, 0.9, 0.5])
def test_more_noise_is_remarked_on_only_where_there_is_more(scale: float) -> None:
    def ratios(x: float) -> FloatArray:
        return evidence.scale_ratios(1, x * x, evidence.LARGER)

    x = np.linspace(-12, 12, 48_001) * scale
    values = np.exp(
        np.array([ratios(each) for each in x]) + scipy.stats.norm.logpdf(x, scale=scale)[:, None]
    )
    assert scipy.integrate.simpson(values, x=x, axis=0).max() <= 1 + 1e-6


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.in_turn(3)
def test_flat_shapes_have_expectation_one_at_most(scale: float) -> None:
    assert largest_expectation(lambda x: evidence.flat_ratios(np.array([x])), scale) <= 1 + 1e-6


@pytest.mark.parametrize("scale", SCALES)
def test_truncation_has_expectation_one_at_most(scale: float) -> None:
    cuts = evidence._CUTS
    inside = scipy.stats.norm.cdf(cuts / scale) - scipy.stats.norm.cdf(-cuts / scale)
    ratios = evidence.truncation_ratios(0.0, 1)
    assert (inside * np.exp(ratios)).max() <= 1 + 1e-12


@pytest.mark.parametrize("scale", SCALES)
def test_blurred_truncation_has_expectation_one_at_most(scale: float) -> None:
    largest = largest_expectation(lambda x: evidence.blurred_ratios(np.array([x])), scale)
    assert largest <= 1 + 1e-9
    if scale == 1:
        assert largest == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("spacing", [1 / 16, 1 / 17.3, 1 / 64])
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_truncation_holds_on_the_lattices_that_are_allowed(spacing: float, offset: float) -> None:
    x = (np.arange(-400, 400) + offset) * spacing
    weights = np.diff(scipy.stats.norm.cdf(np.append(x, x[-1] + spacing) - spacing / 2))
    blurred = np.exp([evidence.blurred_ratios(np.array([each])) for each in x])
    sharp = np.exp([evidence.truncation_ratios(abs(float(each)), 1) for each in x])
    assert (weights @ blurred).max() <= 1 + 1e-9
    assert (weights @ sharp).max() <= 1 + 1e-9


def test_blurred_truncation_is_the_law_that_it_says(rng: np.random.Generator) -> None:
    """Ratios are those of the density of truncated noise plus a Gaussian, by simulation."""
    cut, blur = 2.0, float(evidence._BLURS[1])
    drawn = scipy.stats.truncnorm.rvs(-cut, cut, size=200_000, random_state=rng)
    blurred = math.sqrt(1 - blur) * drawn + math.sqrt(blur) * rng.normal(size=drawn.size)
    for low, high in ((0.0, 0.5), (1.5, 2.0), (2.2, 2.6)):
        x = np.linspace(low, high, 101)
        ratios = [math.exp(evidence.blurred_ratios(np.array([each]))[1]) for each in x]
        expected = scipy.integrate.simpson(np.array(ratios) * scipy.stats.norm.pdf(x), x=x)
        share = float(np.mean((blurred > low) & (blurred < high)))
        assert share == pytest.approx(expected, abs=6 * math.sqrt(share / drawn.size))


@pytest.mark.parametrize("n", run_often([1, 2, 5], [2]))
@pytest.mark.parametrize("scale", [1.0, 1.4])
def test_heavy_tails_have_expectation_one_at_most(
    n: int, scale: float, rng: np.random.Generator
) -> None:
    draws = rng.normal(0, scale, (20_000, n))
    values = np.exp([evidence.peaked_ratios(row) for row in draws])
    spread = values.std(axis=0) / math.sqrt(len(draws))
    assert (values.mean(axis=0) <= 1 + 6 * spread).all()


@given(st.integers(1, 60), st.sampled_from(["small", "tie", "many", "few"]))
def test_counts_have_expectation_one(n: int, kind: str) -> None:
    signs = evidence._SIGN_SHARES.size
    ratios, null = {
        "small": (evidence.small_ratios, evidence.SMALL_SHARE),
        "tie": (evidence.tie_ratios, evidence.TIE_SHARE),
        "many": (lambda k, n: evidence.sign_ratios(k, n)[:signs], 0.5),
        "few": (lambda k, n: evidence.sign_ratios(k, n)[signs:], evidence.LEAST_POSITIVE),
    }[kind]
    hits = np.arange(n + 1)
    values = np.exp([ratios(int(k), n) for k in hits])
    np.testing.assert_allclose(scipy.stats.binom.pmf(hits, n, null) @ values, 1, rtol=1e-9)
    allowed = null * 1.02 if kind == "few" else null * 0.98
    assert (scipy.stats.binom.pmf(hits, n, allowed) @ values <= 1).all()


@pytest.mark.parametrize("spacing", [1 / 16, 1 / 19, 1 / 64])
def test_signs_are_fair_enough_on_the_lattices_that_are_allowed(spacing: float) -> None:
    positive = scipy.stats.norm.sf(spacing / 2)  # zeros are not
    missed, hit = np.exp([evidence.sign_ratios(0, 1), evidence.sign_ratios(1, 1)])
    assert (positive * hit + (1 - positive) * missed).max() <= 1 + 1e-12


def test_p_values_become_e_values() -> None:
    """The calibrator integrates to 1 over [0, 1]; its antiderivative is −1/ln p·(1 − p)."""
    total, _ = scipy.integrate.quad(lambda t: math.exp(evidence.calibrate(-t) - t), 0, 2000)
    rest = 1 / 2000  # of the integral of 1/t² beyond
    assert total + rest == pytest.approx(1, abs=1e-3)
    assert evidence.calibrate(-math.inf) == math.inf


@pytest.mark.parametrize("dimension", [8, 30, 1000])
def test_stakes_on_cosines_have_expectation_one_at_most(dimension: int) -> None:
    x = np.linspace(-1, 1, 20_001)
    density = scipy.stats.beta.pdf((1 + x) / 2, (dimension - 1) / 2, (dimension - 1) / 2) / 2
    values = np.exp([evidence.stake_ratios(float(each), dimension) for each in x])
    assert scipy.integrate.simpson(values * density[:, None], x=x, axis=0).max() <= 1 + 1e-9


def test_the_p_value_of_a_cosine_is_uniform(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(2, 5000, 8))
    cosines = np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    p = np.exp([evidence.cosine_log_p(float(cosine), 8) for cosine in cosines])
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-6


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8))
def test_an_average_lies_between_its_parts(logs: list[float]) -> None:
    value = evidence.average(logs)
    assert min(logs) - 1e-9 <= value <= max(logs) + 1e-9
    assert value == pytest.approx(math.log(np.mean(np.exp(logs))), abs=1e-9)


# The laws above must notice mistakes.


def test_a_lost_term_would_be_noticed() -> None:
    """Without −n ln s the ratio is below 1 always, and accuses nobody; without the −1 all."""
    lost = largest_expectation(
        lambda x: -(evidence.SMALLER**-2.0) * x * x / 2 - np.log(evidence.SMALLER), 1.0
    )
    assert lost != pytest.approx(1, abs=1e-3)
    silent = evidence.scale_ratios(100, 25.0) + 100 * np.log(evidence.SMALLER)
    assert silent.max() < 0 < evidence.scale_ratios(100, 25.0).max()


def test_the_law_of_another_cut_would_be_noticed() -> None:
    """As if the probability of staying within a cut were that of a cut which is 1 % closer."""
    right, closer = (
        np.log(scipy.special.erf(share * evidence._BLURRED_CUTS / math.sqrt(2)))
        for share in (1.0, 0.99)
    )
    excess = np.repeat((right - closer).ravel(), evidence._BLURS.size)
    largest = largest_expectation(lambda x: evidence.blurred_ratios(np.array([x])) + excess, 1.0)
    assert largest > 1 + 1e-5


def test_forgetting_that_rounding_is_allowed_would_be_noticed() -> None:
    """A lattice with a point just below a cut rounds values from beyond it to within."""
    cut, spacing = 3.0, 1 / 16
    within = scipy.stats.norm.cdf(cut - 1e-9 + spacing / 2)
    within -= scipy.stats.norm.cdf(-cut + 1e-9 - spacing / 2)
    place = int(np.flatnonzero(cut == evidence._CUTS)[0])
    assert within * math.exp(evidence.truncation_ratios(0.0, 1)[place]) <= 1
    assert within / scipy.special.erf(cut / math.sqrt(2)) > 1 + 1e-4


def test_a_maximum_over_the_grid_would_be_noticed(rng: np.random.Generator) -> None:
    draws = rng.chisquare(20, 40_000)
    ratios = evidence.scale_ratios(np.full(draws.size, 20), draws)
    chosen, averaged = np.exp(ratios.max(axis=1)), np.exp(ratios).mean(axis=1)
    assert averaged.mean() <= 1 + 6 * averaged.std() / 200
    assert chosen.mean() > 1 + 6 * chosen.std() / 200
