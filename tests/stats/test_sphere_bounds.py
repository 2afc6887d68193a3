import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, sphere, sphere_estimates
from epsilometer.stats.gaussians import gaussian_sigma
from tests.calibration.rounds import mean_bounds
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
@pytest.mark.in_turn(3)
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


@pytest.mark.slow
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
    monkeypatch.setattr(sphere, "_find_error", lambda alpha, dimension: 0.0)
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
        mean - sphere.tied_bound(mean + around, dimension=d, delta=0.1, orthonormal=True).threshold
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


def _sphere_sums(
    mu: float, d: int, k: int, audits: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of sums of k random directions, and mean cosines with them in noise of σ = 1/μ."""
    squares = np.ones(audits)
    for _ in range(k - 1):  # the next direction has a random cosine with the sum so far
        normal = rng.normal(size=audits)
        cosine = normal / np.sqrt(normal**2 + rng.chisquare(d - 1, audits))
        squares = squares + 1 + 2 * np.sqrt(squares) * cosine
    along = mu * np.sqrt(squares) + rng.normal(size=audits)
    cosine = along / np.sqrt(along**2 + rng.chisquare(d - 1, audits))
    return np.sqrt(squares), np.sqrt(squares) * cosine / k


def _wrong_mean(
    mu: float, d: int, k: int, confidence: float, audits: int, *, orthonormal: bool
) -> int:
    """Audits of canaries drawn on the sphere whose bound on μ exceeds μ."""
    rng = np.random.default_rng([d, k, int(100 * mu)])
    _, means = _sphere_sums(mu, d, k, audits, rng)
    around = np.linspace(-1e-9, 1e-9, k)
    asked = {"dimension": d, "delta": 0.1, "confidence": confidence, "orthonormal": orthonormal}
    # The bound is linear in the mean: two of its values say when it exceeds μ.
    at = np.array([0.9, 0.99])
    low, high = (sphere.tied_bound(mean + around, **asked).threshold for mean in at)
    slope = (high - low) / (at[1] - at[0])
    return int(np.sum(low + slope * (means - at[0]) > mu / math.sqrt(d)))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.95, 0.99, 0.999])
@pytest.mark.parametrize(("d", "k"), [(10, 8), (30, 20), (1000, 100)])
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.5])
def test_the_mean_holds_for_canaries_drawn_on_the_sphere(
    d: int, k: int, mu: float, confidence: float
) -> None:
    audits = 100_000
    wrong = _wrong_mean(mu, d, k, confidence, audits, orthonormal=False)
    assert not too_often(wrong, audits, 1 - confidence)


@pytest.mark.parametrize(("d", "k", "confidence"), [(10, 8, 0.99), (10, 8, 0.999)])
def test_taking_them_for_orthonormal_is_caught(d: int, k: int, confidence: float) -> None:
    """The quantile of one cosine, as if √k times the mean were one: measured 1.46 % at 99 %."""
    means = _sphere_sums(0.0, d, k, 100_000, np.random.default_rng(1))[1]
    limit = -float(em.cosine_quantile(1 - confidence, d)) / math.sqrt(k)
    assert too_often(int(np.sum(means > limit)), 100_000, 1 - confidence)


@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_the_mean_holds_for_orthonormal_canaries_of_different_rounds(
    mu: float, confidence: float, rng: np.random.Generator
) -> None:
    d, each, rounds, audits = 30, 4, 5, 100_000
    k = each * rounds
    means = np.zeros(audits)
    for _ in range(rounds):
        along = mu * math.sqrt(each) + rng.normal(size=audits)
        means += math.sqrt(each) * along / np.sqrt(along**2 + rng.chisquare(d - 1, audits)) / k
    error = sphere._find_error(1 - confidence, d) / math.sqrt(k)
    assert not too_often(int(np.sum(means - error > mu / math.sqrt(d))), audits, 1 - confidence)


@pytest.mark.parametrize(("k", "d"), [(5, 10), (50, 100), (300, 1000)])
def test_sums_of_directions_are_longer_no_more_often_than_said(k: int, d: int) -> None:
    lengths, _ = _sphere_sums(0.0, d, k, 100_000, np.random.default_rng(0))
    for alpha in (0.05, 0.001):
        longer = int(np.sum(lengths > sphere.limit_sum(k, d, alpha=alpha)))
        assert not too_often(longer, 100_000, alpha)
    assert sphere.limit_sum(2, 10**6, alpha=1e-300) <= 2.0
    assert sphere.limit_sum(k, d, alpha=0.001) < np.quantile(lengths, 0.999) * 1.3


# The largest of several rounds.


def _largest(
    shift: float, k: int, rounds: int, resemblance: float, rng: np.random.Generator
) -> np.ndarray:
    """Largest cosines; all took part in the first round, and rounds resemble each other."""
    common = math.sqrt(resemblance) * rng.normal(size=(k, 1))
    cosines = common + math.sqrt(1 - resemblance) * rng.normal(size=(k, rounds))
    cosines[:, 0] += shift
    return cosines.max(axis=1) / math.sqrt(DIMENSION)


def _wrong_largest(
    epsilon: float, rounds: int, resemblance: float, audits: int, *, told: int | None = None
) -> int:
    rng = np.random.default_rng([rounds, int(10 * resemblance), int(10 * epsilon)])
    mu = 1 / gaussian_sigma(epsilon, DELTA) if epsilon else 0.0
    asked = {"dimension": DIMENSION, "delta": DELTA, "rounds": told or rounds}
    return sum(
        sphere.cosine_bound(_largest(mu, 200, rounds, resemblance, rng), **asked).refutes(epsilon)
        for _ in range(audits)
    )


@pytest.mark.parametrize("resemblance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.0, 2), (0.0, 30), (2.7, 10)])
@pytest.mark.simulation
@pytest.mark.in_turn(3)
def test_the_largest_of_rounds_is_rarely_wrong(
    epsilon: float, rounds: int, resemblance: float
) -> None:
    assert not too_often(_wrong_largest(epsilon, rounds, resemblance, 300), 300)


@pytest.mark.slow
@pytest.mark.parametrize("resemblance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rounds", [2, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 0.87, 8.0])
def test_the_largest_of_rounds_holds(epsilon: float, rounds: int, resemblance: float) -> None:
    assert not too_often(_wrong_largest(epsilon, rounds, resemblance, 2_000), 2_000)


def test_taking_the_largest_of_rounds_for_one_is_caught() -> None:
    assert too_often(_wrong_largest(0.0, 10, 0.0, 20, told=1), 20)


@pytest.mark.parametrize(
    ("epsilon", "two_samples", "union", "known"), [(8.0, 1.7, 2.3, 4.5), (20.0, 4.6, 11.4, 13.7)]
)
def test_known_laws_prove_more_than_a_second_sample(
    epsilon: float, two_samples: float, union: float, known: float
) -> None:
    second, largest, own, mean = mean_bounds(epsilon, 10)
    assert second < two_samples < union < largest < known < own < mean < epsilon


# Canaries that depend on each other.


def _exposed_together(k: int, delta: float) -> float:
    """The largest chance with which a (0, δ)-DP mechanism is said to have some ε.

    It exposes r of k canaries with chance δ·k/r, and otherwise shows nothing.
    """
    chances, nothing = [0.0], np.random.default_rng(0).permutation(_even(0.0, k))
    for r in range(1, k + 1):
        cosines = np.where(np.arange(k) < r, 1.0, nothing)
        if sphere.cosine_bound(cosines, dimension=DIMENSION, delta=delta).epsilon > 0:
            chances.append(min(1.0, delta * k / r))
    return max(chances)


@pytest.mark.parametrize(
    ("low", "chance", "delta", "above"),
    [(0.5, 0.1, 0.01, True), (1.0, 0.2, 0.05, True), (0.5, 0.1, 1e-5, False)],
)
def test_a_noise_level_drawn_once_per_run_breaks_the_bound_unless_delta_is_small(
    low: float, chance: float, delta: float, above: bool, rng: np.random.Generator
) -> None:
    """Runs at the low level say too much where δ excuses them, which k canaries notice."""

    def excess(epsilon: float) -> float:
        spent = chance * em.gaussian_delta(low, epsilon)
        return spent + (1 - chance) * em.gaussian_delta(20.0, epsilon) - delta

    truth = scipy.optimize.brentq(excess, 0.0, 60.0)
    found = [
        sphere.cosine_bound(_shifted(1 / low, 1000, rng), dimension=DIMENSION, delta=delta).epsilon
        for _ in range(5)
    ]
    assert (min(found) > truth) == (max(found) > truth) == above


def test_where_delta_is_far_below_one_canary_dependence_hardly_matters() -> None:
    k = 100
    assert _exposed_together(k, 0.01 / k) <= 0.005
    assert _exposed_together(k, 0.001 / k) <= 0.001
    assert _exposed_together(k, 1.0 / k) > 0.08  # here it more than doubles the errors


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
        "ranks": "ranks 1, 4, 16, … from either end, FPR from the exact null distribution",
        "quantiles": "every 0.5 null standard deviations, FPR from the exact null distribution",
        "mean": "none: the mean of all cosines, spread tied to the null's",
        "paper": "Best(), FPR from the exact null distribution",
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
