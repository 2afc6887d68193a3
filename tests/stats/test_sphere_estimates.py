import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import sphere_bounds, sphere_estimates
from tests.conftest import cases
from tests.oracles import even_normals, too_often

DIMENSION, DELTA = 10**6, 1e-6


def _shifted(mu: float, k: int, rng: np.random.Generator) -> np.ndarray:
    """Cosines of the Gaussian mechanism with σ = 1/μ."""
    return rng.normal(mu, 1, k) / math.sqrt(DIMENSION)


def _even(mu: float, k: int = 1000) -> np.ndarray:
    return (even_normals(k) + mu) / math.sqrt(DIMENSION)


@pytest.mark.parametrize(("inputs", "expected"), cases("c04"))
def test_estimates_of_the_gaussian_mechanism_are_those_of_the_reference(
    inputs: dict, expected: dict, rng: np.random.Generator
) -> None:
    sims, sigma = 60, inputs["sigma"]
    rows = [_shifted(1 / sigma, inputs["k"], rng) for _ in range(sims)]
    for name, spread, rule in (
        ("exact", "fitted", "exact"),
        ("v1_threshold", "fitted", "threshold"),
        ("known_variance", "tied", "exact"),
    ):
        found = [
            sphere_estimates.cosine_epsilon(
                row, dimension=inputs["d"], delta=inputs["delta"], spread=spread, rule=rule
            )
            for row in rows
        ]
        scatter = expected[f"std_eps_{name}"] * math.sqrt(1 / sims + 1 / inputs["sims"])
        assert np.mean(found) == pytest.approx(expected[f"mean_eps_{name}"], abs=5 * scatter)


def test_fitted_spread_errs_upwards_and_the_tied_one_does_not(rng: np.random.Generator) -> None:
    truth, rows = (
        em.gaussian_epsilon(4.22, DELTA),
        [_shifted(1 / 4.22, 1000, rng) for _ in range(60)],
    )
    fitted, tied = (
        np.array(
            [
                sphere_estimates.cosine_epsilon(
                    row, dimension=DIMENSION, delta=DELTA, spread=spread
                )
                for row in rows
            ]
        )
        for spread in ("fitted", "tied")
    )
    assert fitted.mean() > truth + 5 * fitted.std() / math.sqrt(60)
    assert abs(tied.mean() - truth) < 5 * tied.std() / math.sqrt(60)


def test_no_shift_or_a_negative_one_is_no_leakage() -> None:
    for mu in (0.0, -3.0):
        for spread in ("fitted", "tied"):
            cosines = 2 * _even(mu) + (0 if mu else -1e-9)  # twice as wide: two tails of leakage
            asked = {"dimension": DIMENSION, "delta": DELTA, "spread": spread}
            assert sphere_estimates.cosine_epsilon(cosines, **asked) == 0.0
            estimate = sphere_estimates.cosine_estimate(
                cosines, rng=np.random.default_rng(0), **asked
            )
            assert estimate.epsilon == 0.0
        below = sphere_bounds.tied_bound(_even(mu), dimension=DIMENSION, delta=DELTA)
        assert below.epsilon == 0.0


@pytest.mark.simulation
def test_intervals_of_estimates_hold_what_they_say(rng: np.random.Generator) -> None:
    audits, truth = 60, em.gaussian_epsilon(1 / 1.5, DELTA)
    missed = 0
    for _ in range(audits):
        estimate = sphere_estimates.cosine_estimate(
            _shifted(1.5, 500, rng), dimension=DIMENSION, delta=DELTA, spread="tied", rng=rng
        )
        assert estimate.low <= estimate.epsilon <= estimate.high
        missed += not estimate.low <= truth <= estimate.high
    assert not too_often(missed, audits, rate=0.06)  # a bootstrap is right in the limit only


@pytest.mark.simulation
def test_interval_of_the_fitted_spread_covers_how_it_scatters(rng: np.random.Generator) -> None:
    asked = {"dimension": DIMENSION, "delta": DELTA}
    found = [sphere_estimates.cosine_epsilon(_shifted(1.5, 1000, rng), **asked) for _ in range(100)]
    estimate = sphere_estimates.cosine_estimate(_even(1.5), rng=rng, **asked)
    width = estimate.high - estimate.low
    assert width == pytest.approx(2 * 1.96 * np.std(found), rel=0.5)  # 100 and 400 draws


def test_two_samples_are_compared_with_each_other(rng: np.random.Generator) -> None:
    observed, unobserved = 3 + 1.1 * even_normals(2000), 2 + 0.9 * even_normals(2000)
    estimate = sphere_estimates.two_sample_estimate(observed, unobserved, delta=1e-5, rng=rng)
    truth = em.two_gaussians_epsilon(2, 0.9, 3, 1.1, 1e-5)
    assert estimate.epsilon == pytest.approx(truth, rel=0.02)  # of even quantiles' spread
    assert estimate.low < truth < estimate.high
    swapped = sphere_estimates.two_sample_estimate(unobserved, observed, delta=1e-5, rng=rng)
    assert swapped.epsilon == 0.0


def test_split_is_not_biased_by_choosing(rng: np.random.Generator) -> None:
    asked = {"dimension": DIMENSION, "delta": DELTA}
    truth = em.gaussian_epsilon(1 / 1.5, DELTA)
    rows = [_shifted(1.5, 1000, rng) for _ in range(80)]
    split = np.array(
        [sphere_estimates.split_epsilon(row, spread="tied", rng=rng, **asked) for row in rows]
    )
    # A threshold that is not the best of the law it is used on gives less, on average.
    assert split.mean() < truth + 4 * split.std() / math.sqrt(80)
    assert split.mean() > truth - 0.5
    even = sphere_estimates.split_epsilon(_even(1.5, 10_000), rng=rng, **asked)
    assert even == pytest.approx(truth, abs=1.0)  # halves of even quantiles are not quite even
    assert sphere_estimates.split_epsilon(_even(-1.0), rng=rng, **asked) == 0.0


def test_split_chooses_on_one_half_and_looks_at_the_other() -> None:
    places = np.random.default_rng(5).permutation(1000)
    cosines = np.empty(1000)
    cosines[places[:500]], cosines[places[500:]] = _even(3.0, 500), _even(1.0, 500)
    found = sphere_estimates.split_epsilon(
        cosines, dimension=DIMENSION, delta=DELTA, spread="tied", rng=np.random.default_rng(5)
    )
    t = np.linspace(3, 12, 100_001)

    def epsilons(mu: float) -> np.ndarray:
        return np.log(scipy.stats.norm.sf(t - mu) - DELTA) - scipy.stats.norm.logsf(t)

    with np.errstate(invalid="ignore"):
        best = int(np.nanargmax(epsilons(3.0)))
        expected = epsilons(1.0)[best]  # nothing where even δ is not reached
    assert found == pytest.approx(np.nan_to_num(expected).clip(min=0), abs=1e-3)
    assert found < em.gaussian_epsilon(1.0, DELTA)


def test_anderson_darling_is_scipys(rng: np.random.Generator) -> None:
    for n in (20, 1000):
        sample = rng.standard_t(5, n)
        with warnings.catch_warnings():  # of an argument that SciPy will want some day
            warnings.simplefilter("ignore")
            theirs = scipy.stats.anderson(sample, "norm")
        assert sphere_estimates.anderson_darling(sample) == pytest.approx(
            theirs.statistic, rel=1e-9
        )


def test_normal_samples_seldom_pass_the_limit_of_anderson_and_darling(
    rng: np.random.Generator,
) -> None:
    limit = sphere_estimates.anderson_darling_limit(100)
    rejected = sum(
        sphere_estimates.anderson_darling(rng.normal(size=100)) > limit for _ in range(2_000)
    )
    assert not too_often(rejected, 2_000, rate=0.01)


def test_cosines_that_are_not_normal_are_told(rng: np.random.Generator) -> None:
    half = np.concatenate([_even(0.0, 500), _even(6.0, 500)])
    estimate = sphere_estimates.cosine_estimate(half, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert any("not normal" in caveat for caveat in estimate.caveats)
    fine = sphere_estimates.cosine_estimate(_even(2.0), dimension=DIMENSION, delta=DELTA, rng=rng)
    assert not any("not normal" in caveat or "few" in caveat for caveat in fine.caveats)
    few = sphere_estimates.cosine_estimate(
        _even(2.0, 299), dimension=DIMENSION, delta=DELTA, rng=rng
    )
    assert any("few" in caveat for caveat in few.caveats)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda c: sphere_estimates.cosine_epsilon([0.1], dimension=100, delta=1e-6),
            "One shows no spread",
        ),
        (
            lambda c: sphere_estimates.cosine_epsilon([0.1] * 9, dimension=100, delta=1e-6),
            "that differ",
        ),
        (
            lambda c: sphere_estimates.cosine_epsilon(c, dimension=100, delta=1e-6, spread="free"),
            "'fitted' or 'tied'",
        ),
        (
            lambda c: sphere_bounds.cosine_bound(c, dimension=100, delta=1e-6, rule="all"),
            "'ranks' or",
        ),
        (
            lambda c: sphere_estimates.split_epsilon(
                c[:3], dimension=100, delta=1e-6, rng=np.random.default_rng(0)
            ),
            "four cosines",
        ),
        (
            lambda c: sphere_estimates.two_sample_estimate(
                c, [1.0] * 5, delta=1e-6, rng=np.random.default_rng(0)
            ),
            "that differ",
        ),
        (
            lambda c: sphere_estimates.two_sample_estimate(
                c, [1.0], delta=1e-6, rng=np.random.default_rng(0)
            ),
            "two values or more",
        ),
        (lambda c: sphere_estimates.anderson_darling_limit(7), "size ≥ 8"),
        (lambda c: sphere_bounds.cosine_bound(c, dimension=1, delta=1e-6), "dimension ≥ 2"),
    ],
)
def test_bad_calls_are_refused(call: Callable[[np.ndarray], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call(np.linspace(-0.1, 0.2, 20))
