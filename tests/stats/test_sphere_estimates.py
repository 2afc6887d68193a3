import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import gaussians, sphere, sphere_estimates
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
        below = sphere.tied_bound(_even(mu), dimension=DIMENSION, delta=DELTA)
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
            lambda c: sphere.cosine_bound(c, dimension=100, delta=1e-6, rule="all"),
            "'ranks' or",
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
        (lambda c: sphere.cosine_bound(c, dimension=1, delta=1e-6), "dimension ≥ 2"),
    ],
)
def test_bad_calls_are_refused(call: Callable[[np.ndarray], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call(np.linspace(-0.1, 0.2, 20))


ASKED = {"dimension": DIMENSION, "delta": DELTA}


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_ends_of_intervals_are_percentiles_of_how_estimates_scatter(confidence: float) -> None:
    """Of a tied spread ε depends on the mean alone, whose law is normal."""
    cosines, ends = _even(2.0, 400), []
    for seed in range(6):
        found = sphere_estimates.cosine_estimate(
            cosines, spread="tied", confidence=confidence, rng=np.random.default_rng(seed), **ASKED
        )
        ends.append((found.low, found.high))
    z = scipy.stats.norm.isf((1 - confidence) / 2)
    for end, side in zip(np.mean(ends, axis=0), (-1, 1), strict=True):
        # Six times 400 resamples place these percentiles to 0.03 (0.04) deviations of the mean.
        near = [2.0 + (side * z + off) * cosines.std() * 1e3 / 20 for off in (-0.15, 0.15)]
        low, high = (em.gaussian_epsilon(1 / mu, DELTA) for mu in near)
        assert low < end < high


@pytest.mark.parametrize("estimate", ["fitted", "two samples"])
def test_wider_confidence_is_a_wider_interval(estimate: str) -> None:
    widths = []
    for confidence in (0.5, 0.9):
        rng = np.random.default_rng(1)
        if estimate == "fitted":
            found = sphere_estimates.cosine_estimate(
                1.3 * _even(2.0, 300), confidence=confidence, rng=rng, **ASKED
            )
        else:
            found = sphere_estimates.two_sample_estimate(
                2 + 1.3 * even_normals(300),
                even_normals(300),
                delta=DELTA,
                confidence=confidence,
                rng=rng,
            )
        widths.append((found.epsilon - found.low, found.high - found.epsilon))
    # Of a normal law: 0.674 and 1.645 deviations; 400 resamples scatter by a tenth.
    for narrow, wide in np.transpose(widths):
        assert wide / narrow == pytest.approx(1.645 / 0.674, rel=0.3)


def test_estimates_say_what_they_are() -> None:
    rng = np.random.default_rng(0)
    wide = sphere_estimates.cosine_estimate(1.2 * _even(1.0, 400), rng=rng, **ASKED)
    assert wide.method == "normal distribution of 400 cosines, fitted spread, exact rule"
    assert wide.direction == "present→absent"  # the tails of the wider
    assert wide.subject == "cosines of canaries"
    assert any("Too large where" in caveat for caveat in wide.caveats)
    assert (wide.delta, wide.confidence, wide.cites) == (DELTA, 0.95, ("andrew2024",))
    narrow = sphere_estimates.cosine_estimate(
        0.8 * _even(1.0, 400), rng=rng, subject="mine", **ASKED
    )
    assert (narrow.direction, narrow.subject) == ("absent→present", "mine")
    tied = sphere_estimates.cosine_estimate(_even(1.0, 400), spread="tied", rng=rng, **ASKED)
    assert tied.caveats == ("Correct only if all canaries take part equally often.",)
    assert "tied" in tied.method
    two = sphere_estimates.two_sample_estimate(
        1.3 * even_normals(310) + 1, even_normals(320), delta=DELTA, rng=rng
    )
    assert two.method == (
        "normal distributions of 310 observed and 320 unobserved canaries, exact rule"
    )
    assert (two.direction, two.subject) == ("present→absent", "largest cosines of canaries")
    assert two.cites == ("andrew2024",)
    assert any("times the other" in caveat for caveat in two.caveats)
    few = sphere_estimates.two_sample_estimate(
        even_normals(20) + 1, 1.3 * even_normals(30), delta=DELTA, subject="mine", rng=rng
    )
    assert (few.direction, few.subject) == ("absent→present", "mine")
    assert sum("are few" in caveat for caveat in few.caveats) == 2


def test_the_rule_is_that_of_thresholds_where_it_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    asked = {"delta": DELTA, "rule": "threshold"}
    observed, unobserved = 0.7 * even_normals(400) + 1, 1.2 * even_normals(400)
    fits = [float(f()) for s in (unobserved, observed) for f in (s.mean, s.std)]
    found = sphere_estimates.two_sample_estimate(observed, unobserved, rng=rng, **asked)
    assert found.epsilon == em.two_gaussians_epsilon(*fits, DELTA, "threshold")
    assert found.epsilon < em.two_gaussians_epsilon(*fits, DELTA)
    cosines = 1.3 * _even(0.1, 400)
    found = sphere_estimates.cosine_estimate(cosines, dimension=DIMENSION, rng=rng, **asked)
    fits = [0.0, 1e-3, float(cosines.mean()), float(cosines.std())]
    assert found.epsilon == em.two_gaussians_epsilon(*fits, DELTA, "threshold")
    exact = sphere_estimates.cosine_epsilon(cosines, dimension=DIMENSION, delta=DELTA)
    assert found.epsilon < exact == em.two_gaussians_epsilon(*fits, DELTA)


def test_fits_are_with_the_papers_divisor_and_of_two_values_or_more() -> None:
    fit = sphere_estimates.fit_cosines([0.1, 0.3], dimension=100)
    assert fit == pytest.approx((0.2, 0.1))
    assert sphere_estimates.fit_cosines([0.1, 0.3], dimension=100, spread="tied").std == 0.1
    rng = np.random.default_rng(0)
    found = sphere_estimates.two_sample_estimate([1.0, 2.0], [0.0, 1.0], delta=0.1, rng=rng)
    assert found.epsilon == em.two_gaussians_epsilon(0.5, 0.5, 1.5, 0.5, 0.1)


@pytest.mark.parametrize(("size", "limit"), [(10, 0.9496), (20, 0.9599), (100, 1.0525)])
def test_limits_of_anderson_and_darling_are_stephens(size: int, limit: float) -> None:
    """1.092 of Stephens (1974), less the more the smaller the sample."""
    assert sphere_estimates.anderson_darling_limit(size) == pytest.approx(limit, abs=5e-4)


def test_caveats_begin_where_they_say() -> None:
    few, enough = (sphere_estimates._warn_of_sample(even_normals(n)) for n in (299, 300))
    assert ["are few" in caveat for caveat in few] == [True]
    assert not enough
    odd = np.append(np.zeros(7), 50.0) + 0.01 * np.arange(8)
    shapes = [sphere_estimates._warn_of_sample(sample) for sample in (odd, odd[1:])]
    assert ["not normal" in caveats[-1] for caveats in shapes] == [True, False]


@pytest.mark.parametrize("rule", ["exact", "threshold"])
@pytest.mark.parametrize("relative", [0.0, 1e-4])
def test_many_pairs_at_once_have_the_epsilon_of_each_alone(
    rule: str, relative: float, rng: np.random.Generator
) -> None:
    """Wider, narrower and equal laws in one array; the end is the one where δ is not exceeded."""
    gaps, absent, present = rng.normal(1, 2, 60), *np.exp(rng.normal(0, 0.4, (2, 60)))
    present[::3] = absent[::3]
    asked = {"delta": 1e-4, "rule": rule, "relative": relative}
    many = gaussians.solve_two_gaussians(gaps, absent, present, **asked)
    shown = sphere_estimates._compute_epsilon(gaps, absent, present, **asked)
    assert (gaps <= 0).any()
    for i, (gap, *stds) in enumerate(zip(gaps, absent, present, strict=True)):
        one = gaussians.two_gaussians_directions(0.0, stds[0], gap, stds[1], **asked)
        assert many[:, i] == pytest.approx(one, rel=1e-12)
        assert shown[i] == (many[:, i].max() if gap > 0 else 0.0)
        if rule == "exact" and relative:
            deltas = [gaussians.two_gaussians_delta(0.0, stds[0], gap, stds[1], e) for e in one]
            assert max(deltas[0][0], deltas[1][1]) <= 1e-4


@pytest.mark.parametrize("laws", [(0, 1, 1e200, 1), (0, 1, math.inf, 1), (0, 1, 1, 1e-100)])
def test_laws_too_far_apart_for_numbers_are_refused_and_do_not_show_nothing(laws: tuple) -> None:
    with pytest.raises(InvalidArgument, match="standard deviations"):
        em.two_gaussians_epsilon(*laws, DELTA)
    assert em.two_gaussians_epsilon(0, 1, 1e70, 1, DELTA) == pytest.approx(5e139)


@pytest.mark.parametrize("name", ["observed", "unobserved", "sample"])
def test_what_is_no_number_is_named(name: str) -> None:
    nan, rng = [math.nan, 1.0], np.random.default_rng(0)
    call = {
        "observed": lambda: sphere_estimates.two_sample_estimate(nan, [1, 2], delta=0.1, rng=rng),
        "unobserved": lambda: sphere_estimates.two_sample_estimate([1, 2], nan, delta=0.1, rng=rng),
        "sample": lambda: sphere_estimates.anderson_darling(nan),
    }[name]
    with pytest.raises(InvalidArgument, match=f" {name},"):
        call()
