import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial
from tests.conftest import cases, peer_values, run_often

counts = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
jeffreys = partial(binomial.upper_limit, kind="jeffreys")
LIMITS = {
    "cp_upper": binomial.clopper_pearson_upper,
    "cp_lower": binomial.clopper_pearson_lower,
    "jeffreys_upper": lambda k, n, alpha: jeffreys(k, n, alpha=alpha)[0],
    "jeffreys_lower": lambda k, n, alpha: jeffreys(n - k, n, alpha=alpha)[1],
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(("inputs", "expected"), cases("c06", "binom"))
def test_limits_of_reference(inputs: dict, expected: dict, limit: str) -> None:
    found = LIMITS[limit](inputs["k"], inputs["n"], alpha=inputs["tail_alpha"])
    np.testing.assert_allclose(found, expected[limit], rtol=1e-9)


@pytest.mark.parametrize(("inputs", "value"), peer_values("cp_upper"))
def test_upper_limit_of_jax_privacy(inputs: dict, value: float) -> None:
    found = binomial.clopper_pearson_upper(inputs["k"], inputs["n"], alpha=inputs["significance"])
    np.testing.assert_allclose(found, value, rtol=1e-9)


@given(counts, st.floats(1e-12, 0.5))
def test_upper_limit_solves_its_defining_equation(count: tuple[int, int], alpha: float) -> None:
    k, n = count
    limit = float(binomial.clopper_pearson_upper(k, n, alpha=alpha))
    if k == n:
        assert limit == 1.0
    elif limit < 1 - 1e-9:  # nearer to 1 the limit itself has too few digits for the equation
        np.testing.assert_allclose(scipy.stats.binom.cdf(k, n, limit), alpha, rtol=1e-6)


@given(counts, st.floats(1e-9, 0.5))
def test_lower_limit_mirrors_the_upper_one(count: tuple[int, int], alpha: float) -> None:
    k, n = count
    lower = binomial.clopper_pearson_lower(k, n, alpha=alpha)
    upper = binomial.clopper_pearson_upper(n - k, n, alpha=alpha)
    np.testing.assert_allclose(lower, 1 - upper, atol=1e-12)


@pytest.mark.parametrize("k", [0, 3, 1000, 10**6, 499_999_000])
def test_huge_samples_agree_with_the_poisson_limit(k: int) -> None:
    n, alpha = 5 * 10**8, 0.025
    upper = float(binomial.clopper_pearson_upper(k, n, alpha=alpha))
    if k < n / 2:
        poisson = scipy.stats.gamma.isf(alpha, k + 1) / n
        assert upper == pytest.approx(poisson, rel=2e-6 + k / n)
    else:  # the complement is the small one
        poisson = scipy.stats.gamma.ppf(alpha, n - k) / n
        assert 1 - upper == pytest.approx(poisson, rel=2e-6)


def test_quantiles_at_normal_scores_are_those_of_scipy() -> None:
    scores = np.linspace(-6, 6, 25)
    for a, b in [(1, 1), (1, 1000), (1000, 1), (37, 5000), (5000, 37), (400, 400)]:
        expected = np.where(
            scores < 0,
            scipy.stats.beta.ppf(scipy.stats.norm.cdf(scores), a, b),
            scipy.stats.beta.isf(scipy.stats.norm.sf(scores), a, b),
        )
        np.testing.assert_allclose(binomial.beta_at(a, b, scores), expected, rtol=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_alpha_must_be_open_unit(alpha: float) -> None:
    with pytest.raises(InvalidArgument, match="alpha"):
        binomial.clopper_pearson_upper(1, 2, alpha=alpha)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 1), (2, 30), (30, 2), (400, 700), (3, 1e6)])
def test_quantiles_of_beta_are_scipys_in_both_tails(a: float, b: float) -> None:
    scores = np.array([-7.0, -3.0, -0.5, 0.0, 0.8, 2.5, 3.5])
    found = binomial.beta_at(a, b, scores)
    law = scipy.stats.beta(a, b)
    lower, upper = scores <= 0, scores > 0
    np.testing.assert_allclose(law.cdf(found[lower]), scipy.special.ndtr(scores[lower]), rtol=1e-9)
    np.testing.assert_allclose(law.sf(found[upper]), scipy.special.ndtr(-scores[upper]), rtol=1e-8)
    low, high = sorted((a, b))
    for alpha in (1e-12, 0.01, 0.4):
        below, above = binomial.beta_quantile(low, high, alpha, from_above=np.array([False, True]))
        law = scipy.stats.beta(low, high)
        assert law.cdf(below) == pytest.approx(alpha, rel=1e-9)
        assert law.sf(above) == pytest.approx(alpha, rel=1e-9)
    assert float(binomial.beta_quantile(low, high, 0.3, from_above=True)) == pytest.approx(
        law.isf(0.3), rel=1e-9
    )


@pytest.mark.parametrize("kind", ["clopper_pearson", "jeffreys"])
def test_limits_and_what_they_leave_have_all_their_digits(kind: str) -> None:
    more, rest = {"clopper_pearson": (1, 0), "jeffreys": (0.5, 0.5)}[kind]
    k, n = np.array([0, 1, 5, 9, 10, 999_999]), np.array([10, 10, 10, 10, 10, 10**6])
    limit, left = binomial.upper_limit(k, n, alpha=0.03, kind=kind)
    for at in range(6):
        if k[at] == n[at]:
            assert (limit[at], left[at]) == (1.0, 0.0)
            continue
        a, b = k[at] + more, n[at] - k[at] + rest
        assert limit[at] == pytest.approx(scipy.stats.beta.isf(0.03, a, b), rel=1e-10)
        assert left[at] == pytest.approx(scipy.stats.beta.ppf(0.03, b, a), rel=1e-10)


def test_deep_quantiles_are_mended_where_scipys_start_is_far_off() -> None:
    """Beta(1000, 499999001) of the docstring; its law is a gamma's to eight digits."""
    for alpha, above in ((1e-9, True), (0.5, True), (1e-9, False)):
        found = float(binomial.beta_quantile(1000, 499_999_001, alpha, from_above=above))
        gamma = scipy.stats.gamma(1000)
        expected = (gamma.isf(alpha) if above else gamma.ppf(alpha)) / 5e8
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.4, 1e-12, 1e-100, 1e-200, 1e-307])
@pytest.mark.parametrize("above", [True, False])
def test_quantiles_have_their_tails_however_deep(alpha: float, above: bool) -> None:
    shapes = np.array([0.5, 1, 2, 3, 10, 50, 95, 1000, 1e6, 5e8])
    a, b = (each.ravel() for each in np.meshgrid(shapes, shapes))
    a, b = a[a <= b], b[a <= b]
    found = binomial.beta_quantile(a, b, alpha, from_above=above)
    assert np.all((found >= 0) & (found <= 1))
    tails = (scipy.special.betaincc if above else scipy.special.betainc)(a, b, found)
    told = (found > 1e-300) & (found < 1 - 1e-9)  # nearer to the ends x itself has too few digits
    assert told.any()
    np.testing.assert_allclose(np.log(tails[told]), np.log(alpha), rtol=1e-8)


EXACT = [(0, 100, 300), (3, 50, 100), (10, 1000, 200), (400, 900, 250)]


@pytest.mark.parametrize(
    ("successes", "trials", "digits"),
    run_often(EXACT, EXACT[:3]),
)
def test_limits_are_exact_however_small_alpha_is(successes: int, trials: int, digits: int) -> None:
    """By fractions, beside what a digit in the ninth place would give."""
    limit = float(binomial.clopper_pearson_upper(successes, trials, alpha=10.0**-digits))

    def tail(p: Fraction) -> Fraction:
        return sum(
            (math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes + 1)),
            Fraction(0),
        )

    rest = 1 - limit
    assert tail(Fraction(1 - rest * (1 + 1e-9))) > Fraction(1, 10**digits)
    assert tail(Fraction(1 - rest * (1 - 1e-9))) < Fraction(1, 10**digits)


def test_no_limit_is_beyond_1_or_unknown() -> None:
    for alpha in (1e-20, 1e-300, 1e-320, 5e-324):
        for n in (1, 2, 10, 100):
            limit, left = binomial.upper_limit(
                np.arange(n + 1), n, alpha=alpha, kind="clopper_pearson"
            )
            assert np.all((limit >= 0.99 * (1 - alpha ** (1 / n))) & (limit <= 1)), (alpha, n)
            assert np.all((left >= 0) & (left <= 1))


def test_tails_beyond_all_numbers_are_no_crash() -> None:
    found = binomial.beta_quantile(1.0, 5.0, 1e-320, from_above=np.array([True, False]))
    assert 0 <= found[1] < 1e-300
    assert found[0] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(("a", "b"), [(0.5, 3.0), (1.0, 1.0), (7.0, 40.0), (1000.0, 499_999_001.0)])
def test_quantiles_are_mended_from_far_off(a: float, b: float, above: bool) -> None:
    """Whatever SciPy's inverse says: by a factor of 2, or of 100."""
    alpha = np.array([1e-9, 0.01, 0.5])
    a, b, above = (np.full(3, of) for of in (a, b, above))
    truth = binomial.beta_quantile(a, b, alpha, from_above=above)
    for factor in (0.01, 0.5, 2, 100):
        start = np.minimum(factor * truth, (1 + truth) / 2)
        found = binomial._refine(start, a, b, alpha, above)
        np.testing.assert_allclose(found, truth, rtol=1e-9)
