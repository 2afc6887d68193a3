import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import scipy.stats

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, sphere, sphere_estimates
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


def _shifted(mu: float, k: int, rng: np.random.Generator) -> np.ndarray:
    """Cosines of the Gaussian mechanism with σ = 1/μ."""
    return rng.normal(mu, 1, k) / math.sqrt(DIMENSION)


def _even(mu: float, k: int = 1000) -> np.ndarray:
    return (even_normals(k) + mu) / math.sqrt(DIMENSION)


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


@pytest.mark.simulation
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
@pytest.mark.simulation
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
@pytest.mark.simulation
def test_counting_holds_where_every_threshold_has_the_full_ratio(
    bound: str, rng: np.random.Generator
) -> None:
    assert not too_often(_wrong_at_its_tightest(bound, 500, rng), 500)


@pytest.mark.simulation
def test_looks_that_do_not_share_are_caught(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    limit = sphere._limit_rate_below
    monkeypatch.setattr(
        sphere,
        "_limit_rate_below",
        lambda hits, k, alpha: limit(hits, k, np.full_like(alpha, 0.05)),
    )
    for bound in ("ranks", "quantiles"):
        assert too_often(_wrong_at_its_tightest(bound, 300, rng), 300)


def test_a_mean_without_its_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(sphere, "cosine_quantile", lambda q, dimension: 0.0)
    assert too_often(_wrong("mean", 1.5, 100, 100, rng), 100)


def _mean_of_a_noisy_sum(
    mu: float, d: int, k: int, audits: int, rng: np.random.Generator
) -> np.ndarray:
    """Means of the cosines of k orthonormal canaries with their sum in noise of σ = 1/μ."""
    along = math.sqrt(k) * mu + rng.normal(size=audits)
    return along / np.sqrt(k * (along**2 + rng.chisquare(d - 1, audits)))


@pytest.mark.parametrize("mu", [0.0, 0.05, 1.5])
def test_the_mean_holds_in_a_hundred_thousand_sums_with_noise(
    mu: float, rng: np.random.Generator
) -> None:
    d, k, audits = 300, 100, 100_000  # few dimensions: where the normal law would be farthest off
    around = np.linspace(-1e-6, 1e-6, k)  # the bound looks at nothing but the mean
    taken_off = [
        mean - sphere.tied_bound(mean + around, dimension=d, delta=0.1).threshold
        for mean in (0.05, 0.2)
    ]
    assert taken_off[0] == pytest.approx(taken_off[1], rel=1e-9)  # the same of every mean
    exact = -float(em.cosine_quantile(0.05, d)) / math.sqrt(k)  # the normal one is 2e-4 off
    assert taken_off[0] == pytest.approx(exact, rel=1e-7)
    means = _mean_of_a_noisy_sum(mu, d, k, audits, rng)
    wrong = int((means - taken_off[0] > mu / math.sqrt(d)).sum())
    assert not too_often(wrong, audits)
    if mu == 0:  # and no seldomer than it says: 100,000 audits scatter by 0.07 points
        assert wrong / audits == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("d", [10, 100, 10**4, 10**6])
def test_the_mean_is_right_as_often_as_it_says_by_the_exact_law(d: int) -> None:
    quantile = -math.sqrt(d) * float(em.cosine_quantile(0.05, d))
    shift = np.array([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 10.0, 100.0])  # √k/σ
    cosine = np.minimum((shift + quantile) / math.sqrt(d), 1 - 1e-12)
    tangent = cosine / np.sqrt(1 - cosine**2)
    covered = scipy.special.nctdtr(d - 1, shift, math.sqrt(d - 1) * tangent)
    assert covered[0] == pytest.approx(0.95, abs=1e-9)
    assert (covered > 0.95 - 1e-9).all()
    [normal] = scipy.special.nctdtr(
        d - 1, [0.0], math.sqrt(d - 1) / math.sqrt(d / scipy.special.ndtri(0.95) ** 2 - 1)
    )
    assert normal < 0.95  # which the limit of many dimensions would have, by a hair


@pytest.mark.simulation
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
    np.testing.assert_allclose(sphere._limit_rate_below(hits, k, alpha), lower, rtol=1e-9)
    upper = binomial.clopper_pearson_upper(hits, k, alpha=0.01)
    np.testing.assert_allclose(sphere._limit_rate_above(hits, k, alpha), upper, rtol=1e-9)


def test_one_hit_allows_for_canaries_of_unequal_rates() -> None:
    [rate] = sphere._limit_rate_below(np.array([1]), 100, np.array([0.01]))
    # All may be one canary's: then it hits with probability 100 · rate.
    assert 100 * rate <= 0.01
    none, every = np.array([0]), np.array([100])
    assert sphere._limit_rate_below(none, 100, np.array([0.01])) == 0.0
    assert sphere._limit_rate_above(every, 100, np.array([0.01])) == 1.0


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
        lambda: sphere_estimates.cosine_epsilon(cosines, dimension=100, delta=1e-6),
    ):
        with pytest.raises(InvalidArgument, match=told):
            call()


def test_rounding_beyond_one_is_forgiven() -> None:
    found = sphere.cosine_bound([1 + 1e-7, 0.9, 0.8], dimension=10, delta=1e-6)
    assert found.valid


def test_looks_at_ranks_know_how_many_are_beyond() -> None:
    known, k, alpha = np.arange(100.0), 100, 0.05
    above, below = sphere._look_at_ranks(known, alpha)
    ranks, share = [1, 4, 16, 64], alpha / 8
    assert [int((known >= t).sum()) for t in above.thresholds] == ranks
    assert [int((known < t).sum()) for t in below.thresholds] == [rank - 1 for rank in ranks]
    lower = binomial.clopper_pearson_lower(ranks, k, alpha=share)
    np.testing.assert_allclose(above.rates[1:], lower[1:], rtol=1e-9)
    upper = binomial.clopper_pearson_upper(np.array(ranks) - 1, k, alpha=share)
    np.testing.assert_allclose(below.rates, upper, rtol=1e-9)


def test_looks_at_quantiles_know_how_many_are_beyond() -> None:
    known = np.sort(_even(1.0, 200))
    above, below = sphere._look_at_quantiles(known, DIMENSION, 0.05)
    np.testing.assert_allclose(np.diff(above.thresholds), 0.0005, rtol=1e-9)
    for i in (0, 3, 6):
        share = 0.05 / (2 * (i + 1) * (i + 2))
        hits = int((known >= above.thresholds[i]).sum())
        lower = binomial.clopper_pearson_lower(hits, 200, alpha=share)
        assert above.rates[i] == pytest.approx(float(lower) if hits > 1 else share / 200, rel=1e-9)
        upper = binomial.clopper_pearson_upper(200 - hits, 200, alpha=share)
        assert below.rates[i] == pytest.approx(float(upper), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.95, 0.7])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_counting_is_by_its_definition(
    delta: float, confidence: float, rng: np.random.Generator
) -> None:
    """Every look at a rank, by SciPy's laws."""
    k, d = 70, 400
    known = np.sort(rng.normal(2.5, 1, k)) / math.sqrt(d)
    alpha, best = (1 - confidence) / 8, []
    for rank in (1, 4, 16, 64):
        above, below = known[k - rank], known[rank - 1]
        tpr = scipy.stats.beta.ppf(alpha, rank, k - rank + 1) if rank > 1 else alpha / k
        fnr = scipy.stats.beta.isf(alpha, rank, k - rank + 1)
        best.append((math.log(max((tpr - delta), 1e-300) / _null(above, d)), above, 0))
        best.append((math.log(max((_null(-below, d) - delta), 1e-300) / fnr), below, 1))
    epsilon, threshold, row = max(best)
    asked = {"dimension": d, "delta": delta}
    found = sphere.cosine_bound(
        known, **asked, **({} if confidence == 0.95 else {"confidence": confidence})
    )
    assert found.epsilon == pytest.approx(epsilon, rel=1e-7)
    assert found.threshold == threshold
    assert found.direction == ("present→absent", "absent→present")[row]


def _null(x: float, d: int) -> float:
    """Chance that a random direction's cosine exceeds x."""
    half = scipy.stats.beta.sf(x * x, 0.5, (d - 1) / 2) / 2
    return float(half if x > 0 else 1 - half)


def test_bounds_say_what_they_are() -> None:
    cosines = _even(3.0, 256)
    asked = {"dimension": DIMENSION, "delta": 1e-5, "confidence": 0.9}
    found = {
        "ranks": sphere.cosine_bound(cosines, **asked),
        "quantiles": sphere.cosine_bound(cosines, rule="quantiles", **asked),
        "mean": sphere.tied_bound(cosines, **asked),
        "paper": sphere.one_shot_epsilon_lo(cosines, **asked),
    }
    for bound in found.values():
        assert (bound.delta, bound.confidence, bound.n_in, bound.n_out) == (1e-5, 0.9, 256, 0)
        assert "andrew2024" in bound.cites
    assert {name: bound.method for name, bound in found.items()} == {
        "ranks": "cosines",
        "quantiles": "cosines",
        "mean": "mean_cosine",
        "paper": "jeffreys",
    }
    assert {name: bound.threshold_rule for name, bound in found.items()} == {
        "ranks": "ranks 1, 4, 16, … from either end, FPR from the exact null law",
        "quantiles": "every 0.5 null standard deviations, FPR from the exact null law",
        "mean": "none: the mean of all cosines, spread tied to the null's",
        "paper": "Best(), FPR from the exact null law",
    }
    assert found["mean"].direction == "both"
    assert found["mean"].caveats
    assert found["paper"].caveats
    assert [bound.valid for bound in found.values()] == [True, True, True, False]


def test_the_papers_direction_is_that_of_the_larger_ratio() -> None:
    asked = {"dimension": DIMENSION, "delta": 0.3}
    few_below = np.concatenate([[0.0], np.full(999, 0.0015)])
    found = sphere.one_shot_epsilon_lo(few_below, **asked)
    assert found.direction == "absent→present"
    far = sphere.one_shot_epsilon_lo(_even(9.0), **asked)
    assert far.direction == "present→absent"
    assert far.threshold in _even(9.0)


def test_nothing_is_proved_where_delta_is_large_or_cosines_are_low() -> None:
    for cosines in (_even(0.5, 20), -_even(3.0, 20)):
        for rule in ("ranks", "quantiles"):
            found = sphere.cosine_bound(cosines, dimension=DIMENSION, delta=0.99, rule=rule)
            assert found.epsilon == 0.0
        assert sphere.one_shot_epsilon_lo(cosines, dimension=DIMENSION, delta=0.99).epsilon == 0


def test_looks_at_quantiles_end_with_the_highest_cosine() -> None:
    for highest, looks in ((0.00249, 5), (0.0026, 6), (-0.001, 1)):
        known = np.array([-0.002, highest]) if highest > -0.002 else np.array([highest])
        above, below = sphere._look_at_quantiles(np.sort(known), DIMENSION, 0.05)
        assert above.thresholds.size == below.thresholds.size == looks
    far, _ = sphere._look_at_quantiles(np.array([0.5, 1.0]), 10, 0.05)
    assert far.thresholds.max() <= 1.0
    beyond, _ = sphere._look_at_quantiles(np.array([1.0]), 5, 0.05)
    assert beyond.thresholds[-1] <= 1.0


def test_looks_at_ranks_include_the_last_of_all() -> None:
    above, below = sphere._look_at_ranks(np.arange(16.0), 0.06)
    assert above.thresholds.tolist() == [15.0, 12.0, 0.0]
    assert below.thresholds.tolist() == [0.0, 3.0, 15.0]
    assert above.levels.tolist() == pytest.approx([0.01] * 3)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: sphere.tied_bound(c, dimension=9, delta=0.0), "delta"),
        (lambda c: sphere.tied_bound(c, dimension=9, delta=0.1, confidence=1), "confidence"),
        (lambda c: sphere.cosine_bound(c, dimension=9, delta=2.0), "delta"),
        (
            lambda c: sphere.cosine_bound(c, dimension=9, delta=0.1, confidence=1.0),
            "confidence",
        ),
        (lambda c: sphere.one_shot_epsilon_lo(c, dimension=9, delta=-1.0), "delta"),
        (
            lambda c: sphere.one_shot_epsilon_lo(c, dimension=9, delta=0.1, confidence=0.0),
            "confidence",
        ),
        (
            lambda c: sphere.one_shot_epsilon_lo([math.nan], dimension=9, delta=0.1),
            " cosines,",
        ),
    ],
)
def test_bad_calls_are_refused(call: Callable[[np.ndarray], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call(np.array([0.1, 0.2, 0.3]))
