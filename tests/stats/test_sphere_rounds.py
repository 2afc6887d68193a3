import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.stats import sphere_estimates
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.sphere_estimates import largest_estimate, rounds_epsilon, two_sample_estimate
from tests.oracles import discrete_epsilon, even_normals, too_often

DIMENSION, DELTA = 10**6, 1e-5


def _largest(mu: float, rounds: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """The largest cosine of canaries that took part once, in some round; of none with μ = 0."""
    elsewhere = rng.normal(size=(k, rounds - 1)).max(axis=1)
    return np.maximum(elsewhere, rng.normal(mu, 1, k)) / math.sqrt(DIMENSION)


def _estimate(mu: float, rounds: int, k: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    samples = [_largest(shift, rounds, k, rng) for shift in (mu, 0.0)]
    return largest_estimate(*samples, dimension=DIMENSION, delta=DELTA, rng=rng)


@pytest.mark.parametrize(
    ("mu", "rounds", "delta"), [(0.5, 3, 0.01), (2.0, 10, 1e-5), (5.0, 477, 1e-5), (3.0, 1.5, 0.2)]
)
def test_epsilon_is_that_of_both_laws_on_a_fine_grid(
    mu: float, rounds: float, delta: float
) -> None:
    grid = np.linspace(-12, mu + 12, 60_001)
    log_cdf, log_shifted = (scipy.stats.norm.logcdf(grid - shift) for shift in (0.0, mu))
    absent = np.diff(np.expm1(rounds * log_cdf))  # less 1, for the sake of the upper tail
    present = np.diff(np.expm1(log_shifted + (rounds - 1) * log_cdf))
    truth = discrete_epsilon(present, absent, delta)
    assert rounds_epsilon(mu, rounds, delta) == pytest.approx(truth, rel=1e-3)  # bins of 4e-4


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 40.0, 300.0])
def test_more_rounds_show_less_and_one_round_is_the_gaussian_mechanism(mu: float) -> None:
    found = [rounds_epsilon(mu, rounds, DELTA) for rounds in (1, 1.001, 2, 50, 5_000, 10**6)]
    assert found[0] == gdp_epsilon(mu, DELTA)
    assert found[1] == pytest.approx(found[0], rel=0.01)
    assert all(more >= fewer for more, fewer in itertools.pairwise(found))
    assert rounds_epsilon(0.0, 50, DELTA) == 0.0


@pytest.mark.simulation
def test_estimate_is_right_on_average_and_its_interval_holds(rng: np.random.Generator) -> None:
    truth, audits = rounds_epsilon(4.0, 100, DELTA), 30
    found = [_estimate(4.0, 100, 500, rng) for _ in range(audits)]
    values = np.array([estimate.epsilon for estimate in found])
    assert values.mean() == pytest.approx(truth, abs=5 * values.std() / math.sqrt(audits))
    assert values.mean() < 0.9 * gdp_epsilon(4.0, DELTA)  # which forgetting the others would give
    missed = sum(not estimate.low <= truth <= estimate.high for estimate in found)
    assert not too_often(missed, audits, rate=0.06)  # a bootstrap is right in the limit only


def test_normal_laws_are_far_above_what_accounting_allows_and_say_so(
    rng: np.random.Generator,
) -> None:
    observed, unobserved = (_largest(mu, 477, 1000, rng) for mu in (5.0, 0.0))
    allowed = gdp_epsilon(5.0, DELTA)
    papers = two_sample_estimate(observed, unobserved, delta=DELTA, rng=rng)
    assert papers.low > 2 * allowed
    assert any("times the other" in caveat for caveat in papers.caveats)
    ours = largest_estimate(observed, unobserved, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert 0.5 * allowed < ours.epsilon < allowed
    assert ours.caveats == ()
    even = two_sample_estimate(rng.normal(5, 1, 1000), rng.normal(0, 1, 1000), delta=DELTA, rng=rng)
    assert not any("times the other" in caveat for caveat in even.caveats)


def test_samples_of_another_law_are_told(rng: np.random.Generator) -> None:
    mixed = np.concatenate([_largest(mu, 50, 500, rng) for mu in (0.0, 9.0)])
    null = _largest(0.0, 50, 1000, rng)
    half = largest_estimate(mixed, null, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert [caveat for caveat in half.caveats if "that took part" in caveat]
    wide = rng.normal(2, 1, 1000) / math.sqrt(DIMENSION)
    other = largest_estimate(null, wide, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert [caveat for caveat in other.caveats if "did not take part" in caveat]


def test_nothing_shown_is_next_to_nothing_estimated(rng: np.random.Generator) -> None:
    below = largest_estimate(
        _largest(0.0, 20, 500, rng),
        _largest(3.0, 20, 500, rng),
        dimension=DIMENSION,
        delta=DELTA,
        rng=rng,
    )
    assert below.epsilon == below.low == 0.0


def test_cosines_beyond_every_law_are_told_and_not_a_crash(rng: np.random.Generator) -> None:
    far, farther = (mean + 0.01 * rng.random(300) for mean in (0.5, 0.9))  # 500 and 900 deviations
    found = largest_estimate(farther, far, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert math.isfinite(found.epsilon)
    assert any("did not take part" in caveat for caveat in found.caveats)


def test_same_rng_same_estimate() -> None:
    first, second = (_estimate(2.0, 30, 300, np.random.default_rng(3)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("mu", "rounds", "delta", "told"),
    [(-1.0, 2, DELTA, "mu"), (1.0, 0.5, DELTA, "rounds"), (1.0, 2, 0.0, "delta")],
)
def test_bad_calls_are_refused(mu: float, rounds: float, delta: float, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        rounds_epsilon(mu, rounds, delta)


def test_the_highest_point_is_a_parabolas_vertex_and_stays_on_the_grid() -> None:
    at = np.linspace(0.5, 4.5, 9)
    vertices = np.array([0.9, 2.0, 2.6, 3.3])
    found = sphere_estimates._find_peak(at, -((at - vertices[:, None]) ** 2))
    np.testing.assert_allclose(found, vertices)
    ends = sphere_estimates._find_peak(at, np.stack([at, -at, np.zeros(9)]))
    assert ends.tolist() == [4.5, 0.5, 0.5]


@pytest.mark.parametrize("rounds", [1.0, 2.0, 30.0])
def test_likelihood_is_that_of_the_density(rounds: float) -> None:
    """Up to what does not depend on the shift: ratios to the likelihood of no shift."""
    x, shifts = np.array([-0.5, 1.0, 3.0]), np.array([0.0, 0.7, 2.0])
    norm = scipy.stats.norm

    def density(shift: float) -> np.ndarray:
        one = norm.pdf(x - shift) * norm.cdf(x) ** (rounds - 1)
        return one + (rounds - 1) * norm.cdf(x - shift) * norm.pdf(x) * norm.cdf(x) ** (rounds - 2)

    found = sphere_estimates._log_likelihood(x, shifts[:, None], rounds)
    expected = [np.log(density(shift) / density(0.0)) for shift in shifts]
    np.testing.assert_allclose(found - found[0], expected, atol=1e-12)


def test_chances_to_exceed_do_not_underflow() -> None:
    for t, rounds in ((-2.0, 3.0), (1.0, 1.5), (5.0, 100.0), (7.0, 10.0), (30.0, 1e6)):
        with mpmath.workdps(400):
            truth = float(mpmath.log(1 - mpmath.ncdf(t) ** rounds))
        assert sphere_estimates._log_exceeded(t, rounds) == pytest.approx(truth, rel=1e-9)


def test_an_estimate_says_what_it_is_and_finds_what_was_put_in() -> None:
    """Even quantiles of both laws, without noise: 40 rounds, a shift of 6."""
    shares, rounds, mu = (np.arange(600) + 0.5) / 600, 40, 6.0
    outside = scipy.stats.norm.ppf(shares ** (1 / rounds))
    grid = np.linspace(-5, 15, 200_001)
    law = scipy.stats.norm.cdf(grid - mu) * scipy.stats.norm.cdf(grid) ** (rounds - 1)
    inside = np.interp(shares, law, grid)
    ends = {}
    for confidence in (0.5, 0.95):
        found = largest_estimate(
            inside / 1e3,
            outside / 1e3,
            dimension=DIMENSION,
            delta=DELTA,
            confidence=confidence,
            rng=np.random.default_rng(0),
        )
        ends[confidence] = found.low, found.high
    basis = dict(found.basis)
    assert basis["rounds"] == pytest.approx(rounds, rel=0.01)
    assert basis["shift"] == pytest.approx(mu, abs=0.01)
    assert found.epsilon == pytest.approx(rounds_epsilon(mu, rounds, DELTA), rel=0.01)
    assert found.method == ("distribution of the largest of 40 rounds, one shifted by 6/√d")
    assert (found.direction, found.subject) == ("both", "largest cosines of canaries")
    assert (found.delta, found.confidence, found.cites) == (DELTA, 0.95, ("andrew2024",))
    assert found.caveats == ()
    # Far from the maxima of the other rounds the shift is found as a mean: normal, 1/√k.
    for confidence, (low, high) in ends.items():
        z = scipy.stats.norm.isf((1 - confidence) / 2) / math.sqrt(600)
        for end, side in ((low, -1), (high, 1)):
            near = [rounds_epsilon(mu + side * z * by, rounds, DELTA) for by in (0.7, 1.3)]
            assert min(near) < end < max(near)


def test_one_round_is_seen_as_one() -> None:
    spread = even_normals(500)
    found = largest_estimate(
        (spread + 2) / 1e3,
        (spread - 1) / 1e3,
        dimension=DIMENSION,
        delta=DELTA,
        rng=np.random.default_rng(0),
        subject="mine",
    )
    assert dict(found.basis)["rounds"] == 1.0
    assert found.epsilon == pytest.approx(gdp_epsilon(2.0, DELTA), rel=1e-3)
    assert found.subject == "mine"


def test_a_law_fits_up_to_kolmogorovs_limit() -> None:
    """Shares of a uniform law, shifted until the largest distance passes 1.63/√k."""
    k, rounds = 400, 10.0
    even = (np.arange(k) + 0.5) / k

    def told(off: float) -> tuple[str, ...]:
        shares = np.clip(even + off, 1e-9, 1 - 1e-9)
        x = scipy.stats.norm.ppf(shares ** (1 / rounds))
        return sphere_estimates._warn_of_misfit(x, x, 0.0, rounds)

    limit = sphere_estimates._STRAY / math.sqrt(k) - 0.5 / k
    for side in (-1, 1):
        assert told(side * 0.98 * limit) == ()
        assert len(told(side * 1.02 * limit)) == 2


@pytest.mark.parametrize("knob", ["confidence", "delta"])
def test_bad_knobs_are_refused(knob: str) -> None:
    asked = {"dimension": 100, "delta": 0.1, "rng": np.random.default_rng(0), knob: 1.0}
    with pytest.raises(InvalidArgument, match=knob):
        largest_estimate([0.1, 0.2], [0.0, 0.1], **asked)
