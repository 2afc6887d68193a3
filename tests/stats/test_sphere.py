import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, sphere
from epsilometer.stats.gaussians import gaussian_sigma
from tests.conftest import cases
from tests.oracles import even_normals, too_often

DIMENSION, DELTA = 10**6, 1e-6
EPSILONS = [0.87, 2.7, 8.0, 19.0]
BOUNDS: dict[str, Callable[[np.ndarray], em.EpsilonLowerBound]] = {
    "ranks": lambda c: sphere.cosine_bound(c, dimension=DIMENSION, delta=DELTA),
    "quantiles": lambda c: sphere.cosine_bound(
        c, dimension=DIMENSION, delta=DELTA, rule="quantiles"
    ),
    "mean": lambda c: sphere.tied_bound(c, dimension=DIMENSION, delta=DELTA),
}


@pytest.mark.parametrize(("inputs", "expected"), cases("c03", "cosine-d"))
def test_null_law_of_reference(inputs: dict, expected: dict) -> None:
    t, d = inputs["t"], inputs["d"]
    assert em.cosine_cdf(t, d) == pytest.approx(expected["cdf"], rel=1e-9)
    assert sphere.cosine_sf(t, d) == pytest.approx(expected["sf"], rel=1e-9)
    assert sphere.cosine_logsf(t, d) == pytest.approx(expected["log_sf"], rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c03", "cosine-isf"))
def test_quantiles_of_reference(inputs: dict, expected: dict) -> None:
    found = -em.cosine_quantile(inputs["q"], inputs["d"])
    assert found == pytest.approx(expected["isf"], rel=1e-8)


def test_law_of_random_directions(rng: np.random.Generator) -> None:
    for d in (2, 3, 17):
        vectors = rng.normal(size=(200_000, d))
        cosines = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
        for x in (-0.7, 0.0, 0.2, 0.9):
            share, truth = np.mean(cosines <= x), float(em.cosine_cdf(x, d))
            assert share == pytest.approx(truth, abs=6 * math.sqrt(truth * (1 - truth) / 200_000))


def test_quantile_inverts_the_law() -> None:
    q = np.array([1e-12, 1e-3, 0.2, 0.5, 0.9])
    for d in (5, 100, 10**7, 10**9):
        np.testing.assert_allclose(em.cosine_cdf(em.cosine_quantile(q, d), d), q, rtol=1e-7)


def _cosines(inputs: dict) -> np.ndarray:
    rng = np.random.default_rng(inputs["seed"])
    cosines = rng.normal(inputs["m"], inputs["s"], inputs["k"]) / math.sqrt(inputs["d"])
    if inputs["decimals"] is not None:
        root = math.sqrt(inputs["d"])
        cosines = np.round(cosines * root, inputs["decimals"]) / root
    return cosines


@pytest.mark.parametrize(
    ("inputs", "expected"), [c for c in cases("c05", "eps-lo") if "first" in str(c.values[0])]
)
def test_epsilon_lo_of_the_one_shot_paper(inputs: dict, expected: dict) -> None:
    cosines = _cosines(inputs)
    for confidence, name in ((0.95, "exact_one_sided_ge"), (0.975, "exact_two_sided_ge")):
        found = sphere.one_shot_epsilon_lo(
            cosines, dimension=inputs["d"], delta=inputs["delta"], confidence=confidence
        )
        assert found.epsilon == pytest.approx(expected[name], rel=1e-7, abs=1e-9)
        assert not found.valid


def test_epsilon_lo_of_the_one_shot_paper_is_wrong_as_often_as_the_reference_says() -> None:
    [case] = cases("c05", "eps-lo-exceeds")
    inputs, expected = case.values
    rng = np.random.default_rng(99)
    rows = rng.normal(1 / inputs["sigma"], 1, size=(inputs["sims"], 1000)) / 1e3
    wrong = sum(
        sphere.one_shot_epsilon_lo(row, dimension=inputs["d"], delta=inputs["delta"]).epsilon
        > inputs["true_eps"]
        for row in rows[:300]
    )
    # The reference has a normal null and 2,000 rows; the first 300 of them scatter around it.
    assert wrong / 300 == pytest.approx(expected["one_sided_ge"], abs=0.08)


def test_bad_arguments_are_told() -> None:
    for call in (
        lambda: em.cosine_cdf(1.5, 10),
        lambda: em.cosine_cdf(0.0, 1),
        lambda: em.cosine_quantile(-0.1, 10),
        lambda: em.cosine_cdf(float("nan"), 10),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()


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
            sphere.cosine_epsilon(
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
                sphere.cosine_epsilon(row, dimension=DIMENSION, delta=DELTA, spread=spread)
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
            assert sphere.cosine_epsilon(cosines, **asked) == 0.0
            estimate = sphere.cosine_estimate(cosines, rng=np.random.default_rng(0), **asked)
            assert estimate.epsilon == 0.0
        below = sphere.tied_bound(_even(mu), dimension=DIMENSION, delta=DELTA)
        assert below.epsilon == 0.0


def test_intervals_of_estimates_hold_what_they_say(rng: np.random.Generator) -> None:
    audits, truth = 60, em.gaussian_epsilon(1 / 1.5, DELTA)
    missed = 0
    for _ in range(audits):
        estimate = sphere.cosine_estimate(
            _shifted(1.5, 500, rng), dimension=DIMENSION, delta=DELTA, spread="tied", rng=rng
        )
        assert estimate.low <= estimate.epsilon <= estimate.high
        missed += not estimate.low <= truth <= estimate.high
    assert not too_often(missed, audits, rate=0.06)  # a bootstrap is right in the limit only


def test_interval_of_the_fitted_spread_covers_how_it_scatters(rng: np.random.Generator) -> None:
    asked = {"dimension": DIMENSION, "delta": DELTA}
    found = [sphere.cosine_epsilon(_shifted(1.5, 1000, rng), **asked) for _ in range(100)]
    estimate = sphere.cosine_estimate(_even(1.5), rng=rng, **asked)
    width = estimate.high - estimate.low
    assert width == pytest.approx(2 * 1.96 * np.std(found), rel=0.5)  # 100 and 400 draws


def test_two_samples_are_compared_with_each_other(rng: np.random.Generator) -> None:
    observed, unobserved = 3 + 1.1 * even_normals(2000), 2 + 0.9 * even_normals(2000)
    estimate = sphere.two_sample_estimate(observed, unobserved, delta=1e-5, rng=rng)
    truth = em.two_gaussians_epsilon(2, 0.9, 3, 1.1, 1e-5)
    assert estimate.epsilon == pytest.approx(truth, rel=0.02)  # of even quantiles' spread
    assert estimate.low < truth < estimate.high
    swapped = sphere.two_sample_estimate(unobserved, observed, delta=1e-5, rng=rng)
    assert swapped.epsilon == 0.0


def test_split_is_not_biased_by_choosing(rng: np.random.Generator) -> None:
    asked = {"dimension": DIMENSION, "delta": DELTA}
    truth = em.gaussian_epsilon(1 / 1.5, DELTA)
    rows = [_shifted(1.5, 1000, rng) for _ in range(80)]
    split = np.array([sphere.split_epsilon(row, spread="tied", rng=rng, **asked) for row in rows])
    # A threshold that is not the best of the law it is used on gives less, on average.
    assert split.mean() < truth + 4 * split.std() / math.sqrt(80)
    assert split.mean() > truth - 0.5
    even = sphere.split_epsilon(_even(1.5, 10_000), rng=rng, **asked)
    assert even == pytest.approx(truth, abs=1.0)  # halves of even quantiles are not quite even
    assert sphere.split_epsilon(_even(-1.0), rng=rng, **asked) == 0.0


def test_anderson_darling_is_scipys(rng: np.random.Generator) -> None:
    for n in (20, 1000):
        sample = rng.standard_t(5, n)
        with warnings.catch_warnings():  # of an argument that SciPy will want some day
            warnings.simplefilter("ignore")
            theirs = scipy.stats.anderson(sample, "norm")
        assert sphere.anderson_darling(sample) == pytest.approx(theirs.statistic, rel=1e-9)


def test_normal_samples_seldom_pass_the_limit_of_anderson_and_darling(
    rng: np.random.Generator,
) -> None:
    limit = sphere.anderson_darling_limit(100)
    rejected = sum(sphere.anderson_darling(rng.normal(size=100)) > limit for _ in range(2_000))
    assert not too_often(rejected, 2_000, rate=0.01)


def test_cosines_that_are_not_normal_are_told(rng: np.random.Generator) -> None:
    half = np.concatenate([_even(0.0, 500), _even(6.0, 500)])
    estimate = sphere.cosine_estimate(half, dimension=DIMENSION, delta=DELTA, rng=rng)
    assert any("not normal" in caveat for caveat in estimate.caveats)
    fine = sphere.cosine_estimate(_even(2.0), dimension=DIMENSION, delta=DELTA, rng=rng)
    assert not any("not normal" in caveat or "few" in caveat for caveat in fine.caveats)
    few = sphere.cosine_estimate(_even(2.0, 299), dimension=DIMENSION, delta=DELTA, rng=rng)
    assert any("few" in caveat for caveat in few.caveats)


def _wrong(bound: str, mu: float, k: int, audits: int, rng: np.random.Generator) -> int:
    truth = em.gaussian_epsilon(1 / mu, DELTA) if mu else 0.0
    return sum(BOUNDS[bound](_shifted(mu, k, rng)).refutes(truth) for _ in range(audits))


@pytest.mark.slow
@pytest.mark.parametrize("k", [100, 1000])
@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS])
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_exceed_the_truth_no_oftener_than_they_say(
    bound: str, epsilon: float, k: int, rng: np.random.Generator
) -> None:
    mu = 1 / gaussian_sigma(epsilon, DELTA) if epsilon else 0.0
    assert not too_often(_wrong(bound, mu, k, 2_000, rng), 2_000)


@pytest.mark.parametrize("epsilon", [0.0, 2.7, 19.0])
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_are_rarely_wrong(bound: str, epsilon: float, rng: np.random.Generator) -> None:
    mu = 1 / gaussian_sigma(epsilon, DELTA) if epsilon else 0.0
    assert not too_often(_wrong(bound, mu, 100, 250, rng), 250)


def _stepped(k: int, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Cosines whose law has densities e^ε and e^-ε of the null's above and below a point.

    Every threshold above it has the full ratio, so that counting errs as often as it may.
    """
    top = 1 / (1 + math.exp(epsilon))  # null's share above, which is e^ε of it inside
    above = rng.random(k) < math.exp(epsilon) * top
    share = np.where(above, top * rng.random(k), top + (1 - top) * rng.random(k))
    return -em.cosine_quantile(share, DIMENSION)


def _wrong_at_its_tightest(bound: str, audits: int, rng: np.random.Generator) -> int:
    found = (BOUNDS[bound](_stepped(300, 1.5, rng)) for _ in range(audits))
    return sum(b.epsilon > 1.5 for b in found)


@pytest.mark.parametrize("bound", ["ranks", "quantiles"])
def test_counting_holds_where_every_threshold_has_the_full_ratio(
    bound: str, rng: np.random.Generator
) -> None:
    assert not too_often(_wrong_at_its_tightest(bound, 500, rng), 500)


def test_looks_that_do_not_share_are_caught(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    limit = sphere._least_rate
    monkeypatch.setattr(
        sphere, "_least_rate", lambda hits, k, alpha: limit(hits, k, np.full_like(alpha, 0.05))
    )
    for bound in ("ranks", "quantiles"):
        assert too_often(_wrong_at_its_tightest(bound, 300, rng), 300)


def test_a_mean_without_its_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(sphere.special, "ndtri", lambda p: 0.0 * p)
    assert too_often(_wrong("mean", 1.5, 100, 100, rng), 100)


def test_the_papers_bound_is_caught(rng: np.random.Generator) -> None:
    found = (
        sphere.one_shot_epsilon_lo(_stepped(300, 1.5, rng), dimension=DIMENSION, delta=DELTA)
        for _ in range(150)
    )
    assert too_often(sum(b.epsilon > 1.5 for b in found), 150)


def test_limits_at_ranks_are_clopper_pearsons() -> None:
    hits, k = np.array([2, 16, 64]), 100
    alpha = np.full(3, 0.01)
    lower = binomial.clopper_pearson_lower(hits, k, alpha=0.01)
    np.testing.assert_allclose(sphere._least_rate(hits, k, alpha), lower, rtol=1e-9)
    upper = binomial.clopper_pearson_upper(hits, k, alpha=0.01)
    np.testing.assert_allclose(sphere._largest_rate(hits, k, alpha), upper, rtol=1e-9)


def test_one_hit_allows_for_canaries_of_unequal_rates() -> None:
    [rate] = sphere._least_rate(np.array([1]), 100, np.array([0.01]))
    # All may be one canary's: then it hits with probability 100 · rate.
    assert 100 * rate <= 0.01
    none, every = np.array([0]), np.array([100])
    assert sphere._least_rate(none, 100, np.array([0.01])) == 0.0
    assert sphere._largest_rate(every, 100, np.array([0.01])) == 1.0


@pytest.mark.parametrize(
    ("bound", "least"), [("ranks", (0.9, 4.2, 12.2)), ("mean", (2.3, 7.5, 18.3))]
)
def test_bounds_come_near_the_truth(bound: str, least: tuple[float, ...]) -> None:
    for epsilon, expected in zip(EPSILONS[1:], least, strict=True):
        found = BOUNDS[bound](_even(1 / gaussian_sigma(epsilon, DELTA)))
        assert expected < found.epsilon < epsilon
        assert found.valid
        assert found.n_out == 0


def test_ranks_prove_more_than_quantiles() -> None:
    for epsilon in EPSILONS:
        cosines = _even(1 / gaussian_sigma(epsilon, DELTA))
        ranks, quantiles = (BOUNDS[name](cosines).epsilon for name in ("ranks", "quantiles"))
        assert ranks >= quantiles


def test_far_cosines_have_large_bounds_in_every_dimension() -> None:
    for rule in ("ranks", "quantiles"):
        for d in (1000, 10**6):
            cosines = 0.5 + 0.01 * even_normals(500)
            found = sphere.cosine_bound(cosines, dimension=d, delta=1e-5, rule=rule)
            assert found.epsilon > 0.1 * d  # ln FPR is some d/2 · ln(1 − cos²)
            assert math.isfinite(found.epsilon)


def test_the_other_direction_counts_too() -> None:
    cosines = np.concatenate([[0.0], np.full(999, 0.0015)])  # hardly any below
    found = sphere.cosine_bound(cosines, dimension=DIMENSION, delta=0.3)
    assert found.direction == "absent→present"
    assert found.epsilon > 2


def test_equal_cosines_prove_no_more_than_one_threshold(rng: np.random.Generator) -> None:
    # Rounded down they are still the null's where a threshold can be: at whole numbers.
    null = (np.floor(rng.normal(0, 1, 1000)) / 1e3 for _ in range(200))
    found = (sphere.cosine_bound(row, dimension=DIMENSION, delta=0.0).epsilon for row in null)
    assert not too_often(sum(epsilon > 0 for epsilon in found), 200)


@pytest.mark.parametrize(
    ("cosines", "told"),
    [
        ([], "nothing was audited"),
        ([[0.1, 0.2]], "one cosine for each"),
        ([0.1, float("nan")], "1 nan of 2"),
        ([0.0, 0.0, 0.0], "update is zero"),
        ([0.1, 1.5], "Divide by the norm"),
        (np.linspace(0, 0.1, 101), "as many canaries as dimensions"),
    ],
)
def test_cosines_that_cannot_be_are_told(cosines: object, told: str) -> None:
    for call in (
        lambda: sphere.cosine_bound(cosines, dimension=100, delta=1e-6),
        lambda: sphere.tied_bound(cosines, dimension=100, delta=1e-6),
        lambda: sphere.cosine_epsilon(cosines, dimension=100, delta=1e-6),
    ):
        with pytest.raises(InvalidArgument, match=told):
            call()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: sphere.cosine_epsilon([0.1], dimension=100, delta=1e-6), "One shows no spread"),
        (lambda c: sphere.cosine_epsilon([0.1] * 9, dimension=100, delta=1e-6), "that differ"),
        (
            lambda c: sphere.cosine_epsilon(c, dimension=100, delta=1e-6, spread="free"),
            "'fitted' or 'tied'",
        ),
        (lambda c: sphere.cosine_bound(c, dimension=100, delta=1e-6, rule="all"), "'ranks' or"),
        (
            lambda c: sphere.split_epsilon(
                c[:3], dimension=100, delta=1e-6, rng=np.random.default_rng(0)
            ),
            "four cosines",
        ),
        (
            lambda c: sphere.two_sample_estimate(
                c, [1.0] * 5, delta=1e-6, rng=np.random.default_rng(0)
            ),
            "that differ",
        ),
        (
            lambda c: sphere.two_sample_estimate(
                c, [1.0], delta=1e-6, rng=np.random.default_rng(0)
            ),
            "two values or more",
        ),
        (lambda c: sphere.anderson_darling_limit(7), "size ≥ 8"),
        (lambda c: sphere.cosine_bound(c, dimension=1, delta=1e-6), "dimension ≥ 2"),
    ],
)
def test_bad_calls_are_refused(call: Callable[[np.ndarray], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call(np.linspace(-0.1, 0.2, 20))


def test_rounding_beyond_one_is_forgiven() -> None:
    found = sphere.cosine_bound([1 + 1e-7, 0.9, 0.8], dimension=10, delta=1e-6)
    assert found.valid


def test_looks_at_ranks_know_how_many_are_beyond() -> None:
    known, k, alpha = np.arange(100.0), 100, 0.05
    above, below = sphere._at_ranks(known, alpha)
    ranks, share = [1, 4, 16, 64], alpha / 8
    assert [int((known >= t).sum()) for t in above.thresholds] == ranks
    assert [int((known < t).sum()) for t in below.thresholds] == [rank - 1 for rank in ranks]
    lower = binomial.clopper_pearson_lower(ranks, k, alpha=share)
    np.testing.assert_allclose(above.rates[1:], lower[1:], rtol=1e-9)
    upper = binomial.clopper_pearson_upper(np.array(ranks) - 1, k, alpha=share)
    np.testing.assert_allclose(below.rates, upper, rtol=1e-9)


def test_looks_at_quantiles_know_how_many_are_beyond() -> None:
    known = np.sort(_even(1.0, 200))
    above, below = sphere._at_quantiles(known, DIMENSION, 0.05)
    np.testing.assert_allclose(np.diff(above.thresholds), 0.0005, rtol=1e-9)
    for i in (0, 3, 6):
        share = 0.05 / (2 * (i + 1) * (i + 2))
        hits = int((known >= above.thresholds[i]).sum())
        lower = binomial.clopper_pearson_lower(hits, 200, alpha=share)
        assert above.rates[i] == pytest.approx(float(lower) if hits > 1 else share / 200, rel=1e-9)
        upper = binomial.clopper_pearson_upper(200 - hits, 200, alpha=share)
        assert below.rates[i] == pytest.approx(float(upper), rel=1e-9)


def test_split_chooses_on_one_half_and_looks_at_the_other() -> None:
    places = np.random.default_rng(5).permutation(1000)
    cosines = np.empty(1000)
    cosines[places[:500]], cosines[places[500:]] = _even(3.0, 500), _even(1.0, 500)
    found = sphere.split_epsilon(
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
