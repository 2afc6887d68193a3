"""Upper bounds on ε: against exact values, quadrature, other people's accountants, and mistakes."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.accounting import allocation, clones
from epsilometer.accounting.allocation import allocation_epsilon
from epsilometer.accounting.clones import clones_epsilon
from epsilometer.accounting.loss_distribution import LossDistribution
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import shuffle_epsilon, shuffle_noise
from epsilometer.accounting.shuffle_upper import shuffle_upper, sufficient_noise
from epsilometer.errors import InvalidArgument
from epsilometer.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.sampling import BatchSampler, FixedSize
from epsilometer.sampling.samplers import expected_rate, find_law
from epsilometer.stats.gaussians import gaussian_delta, gaussian_epsilon

# (noise, steps, epochs, δ)
SETTINGS = [
    (1.0, 100, 1, 1e-5),
    (0.6, 20, 1, 1e-4),
    (1.5, 1000, 1, 1e-5),
    (0.79, 117, 10, 1e-5),
    (3.0, 11, 168, 1e-5),
    (1.0, 2, 1, 1e-3),
]


def bins_delta(epsilon: float, noise: float, *, reach: float = 9.0, points: int = 1501) -> float:
    """δ of two bins by quadrature over both sums: the definition, nothing of ours."""
    z = np.linspace(-reach * noise, 1 + reach * noise, points)
    step = z[1] - z[0]
    one, other = np.exp(-(z**2) / (2 * noise**2)), np.exp(-((z - 1) ** 2) / (2 * noise**2))
    scale = step / (noise * math.sqrt(2 * math.pi))
    absent = np.outer(one, one) * scale**2
    present = (np.outer(one, other) + np.outer(other, one)) / 2 * scale**2
    grown = math.exp(epsilon)
    return max(
        float(np.maximum(present - grown * absent, 0).sum()),
        float(np.maximum(absent - grown * present, 0).sum()),
    )


# --- random allocation
@pytest.mark.parametrize(("noise", "steps", "epochs", "delta"), SETTINGS)
@pytest.mark.in_turn(2)
def test_allocation_is_at_least_exact_and_close(
    noise: float, steps: int, epochs: int, delta: float
) -> None:
    setting = {"noise_multiplier": noise, "steps": steps, "epochs": epochs, "delta": delta}
    exact = shuffle_epsilon(**setting, sampler=BallsInBins())
    found = allocation_epsilon(**setting)
    assert exact.low <= found <= exact.high * 1.005 + 1e-4
    assert found <= gaussian_epsilon(noise / math.sqrt(epochs), delta)


@pytest.mark.parametrize(("noise", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (2.0, 1e-4)])
def test_allocation_of_two_bins_is_that_of_quadrature(noise: float, delta: float) -> None:
    found = allocation_epsilon(noise_multiplier=noise, steps=2, delta=delta)
    assert bins_delta(found, noise) <= delta * (1 + 1e-6)  # an upper bound
    assert bins_delta(found * 0.998, noise) > delta  # and a tight one


@pytest.mark.parametrize(("noise", "delta"), [(5.0, 1e-7), (20.0, 1e-7), (5.0, 1e-5)])
def test_both_ends_of_two_bins_hold_the_truth(noise: float, delta: float) -> None:
    """Rounding of an FFT once put the lower end above the truth here, and above the upper end."""
    training = {"noise_multiplier": noise, "steps": 2, "delta": delta, "sampler": BallsInBins()}
    lower, upper = shuffle_epsilon(**training), shuffle_upper(**training)
    assert lower.low < upper.high
    assert bins_delta(lower.low, noise) > delta > bins_delta(upper.high, noise)


def test_allocation_of_one_bin_is_the_gaussian_mechanism() -> None:
    found = allocation_epsilon(noise_multiplier=1.0, steps=1, epochs=4, delta=1e-5)
    assert found == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-8)


def test_allocation_of_many_bins_is_nearly_normal() -> None:
    """A mean of 10⁵ terms of variance e^{1/σ²} − 1 is nearly normal; its δ is in closed form."""
    spread = math.sqrt(math.expm1(1 / 25) / 1e5)
    found = allocation_epsilon(noise_multiplier=5.0, steps=100_000, delta=1e-6)
    assert gaussian_delta(1 / spread, found) == pytest.approx(1e-6, rel=0.05)


def test_allocation_moves_as_it_must() -> None:
    base = {"noise_multiplier": 1.0, "steps": 50, "epochs": 3, "delta": 1e-5}
    epsilon = allocation_epsilon(**base)
    assert allocation_epsilon(**{**base, "noise_multiplier": 1.02}) < epsilon
    assert allocation_epsilon(**{**base, "epochs": 4}) > epsilon
    assert allocation_epsilon(**{**base, "delta": 1e-6}) > epsilon
    assert allocation_epsilon(**{**base, "steps": 55}) < epsilon


def test_allocation_gives_up_where_delta_drowns() -> None:
    assert allocation_epsilon(noise_multiplier=1.0, steps=100, epochs=10, delta=1e-15) == math.inf
    found = shuffle_upper(
        noise_multiplier=1.0, steps=100, epochs=10, delta=1e-15, sampler=BallsInBins()
    )
    assert found.method == "known batches"


@pytest.mark.parametrize("mistake", ["one cell too low", "without the record", "tail forgotten"])
def test_mistakes_of_allocation_are_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes that once could be made all fall below the exact value."""
    setting = {"noise_multiplier": 1.0, "steps": 100, "delta": 1e-5}
    if mistake == "one cell too low":
        make = LossDistribution.from_cells

        def lower(start: float, step: float, *cells: object, **options: object) -> LossDistribution:
            return make(start - step, step, *cells, **{**options, "rounding": "nearest"})

        monkeypatch.setattr(LossDistribution, "from_cells", lower)
    elif mistake == "without the record":
        convolve = allocation.convolve
        monkeypatch.setattr(allocation, "convolve", lambda parts: convolve([(parts[-1][0], 100)]))
    else:
        monkeypatch.setattr(allocation, "ndtr", lambda _: 0.0)
        monkeypatch.setattr(allocation, "_BEYOND", 2e3)
    exact = shuffle_epsilon(**setting, sampler=BallsInBins())
    assert allocation_epsilon(**setting) < exact.low


@pytest.mark.parametrize(
    ("noise", "steps", "epochs"),
    [
        (1.0, 100, 1),
        pytest.param(0.5, 100, 1, marks=pytest.mark.slow),
        pytest.param(1.5, 1000, 1, marks=pytest.mark.slow),
        pytest.param(1.0, 50, 5, marks=pytest.mark.slow),
    ],
)
def test_allocation_lies_between_the_ends_of_pld_accounting(
    noise: float, steps: int, epochs: int
) -> None:
    oracle = pytest.importorskip("PLD_accounting")
    above, below = oracle.gaussian_allocation_epsilon_range(
        delta=1e-5, sigma=noise, num_steps=steps, num_epochs=epochs
    )
    found = allocation_epsilon(noise_multiplier=noise, steps=steps, epochs=epochs, delta=1e-5)
    assert below <= found <= above


# (noise, steps, lower end, upper end) of random-allocation 1.0.5 at δ = 1e-5, to its 0.001 of ε.
RANDOM_ALLOCATION = [
    (1.0, 100, 0.5810, 1.0298),
    (0.5, 100, 5.3975, 7.2179),
    (0.8, 20, 2.7472, 3.9614),
    (1.5, 1000, 0.0155, 0.1197),
]


@pytest.mark.parametrize(("noise", "steps", "low", "high"), RANDOM_ALLOCATION)
def test_allocation_lies_between_the_ends_of_random_allocation(
    noise: float, steps: int, low: float, high: float
) -> None:
    found = allocation_epsilon(noise_multiplier=noise, steps=steps, delta=1e-5)
    assert low - 1e-3 < found < high + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "steps", "low", "high"), RANDOM_ALLOCATION)
def test_those_are_the_ends_of_random_allocation(
    noise: float, steps: int, low: float, high: float
) -> None:
    """It asks for an older NumPy, and works with ours: pip install --no-deps random-allocation."""
    oracle = pytest.importorskip("random_allocation")
    scheme = pytest.importorskip("random_allocation.random_allocation_scheme")
    asked = oracle.PrivacyParams(sigma=noise, num_steps=steps, delta=1e-5)
    ends = (scheme.allocation_epsilon_lower_bound, scheme.allocation_epsilon_decomposition)
    found = [end(asked, oracle.SchemeConfig()) for end in ends]
    assert found == pytest.approx([low, high], abs=1e-4)


# --- clones
@pytest.mark.parametrize("sigma", [0.8, 3.0])
@pytest.mark.parametrize(
    ("z", "g"), [(-1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (-1.0, -0.4), (0.3, 0.8)]
)
def test_a_step_of_another_record_contains_clones(sigma: float, z: float, g: float) -> None:
    """The split of the proof, point by point, and what it leaves out, by quadrature."""
    limit, chance = 0.5 / sigma**2 + 3 / sigma, math.exp(-2 / sigma**2 - 4 / sigma)
    y = np.linspace(-3 - 12 * sigma, 3 + 12 * sigma, 200_001)
    step = y[1] - y[0]
    other, with_it, without = (scipy.stats.norm.pdf(y, mean, sigma) for mean in (z, g, 0.0))
    near_with, near_without = with_it <= other / chance, without <= other / chance
    half = np.abs(np.log(with_it) - np.log(without)) <= limit
    clone = chance / 2 * (with_it * (near_with & half) + without * (near_without & half))
    assert (clone <= other * (1 + 1e-12)).all()
    missed = clones._miss_clones(sigma, chance)
    assert (with_it * ~near_with).sum() * step <= missed * (1 + 1e-3)
    assert (without * ~near_without).sum() * step <= missed * (1 + 1e-3)
    outside = clones._miss_halves(sigma, limit)
    assert (with_it * ~half).sum() * step <= outside * (1 + 1e-3)
    assert (without * ~half).sum() * step <= outside * (1 + 1e-3)
    if (z, g) == (-1.0, 1.0):  # the worst: nothing is given away
        assert (with_it * ~near_with).sum() * step == pytest.approx(missed, rel=1e-3)
        assert (with_it * ~half).sum() * step == pytest.approx(outside, rel=1e-3)


def test_counts_of_clones_are_those_of_their_definition() -> None:
    """δ of the pair of counts, summed over all outcomes, beside that of the tabulated law."""
    others, chance, limit = 60, 0.5, 1.0
    law = clones._tabulate(others, chance, limit, 1e-12)
    assert law is not None
    up = 1 / (1 + math.exp(-limit))
    present: dict[tuple[int, int], float] = {}
    absent: dict[tuple[int, int], float] = {}
    for c in range(others + 1):
        weight = scipy.stats.binom.pmf(c, others, chance)
        for a in range(c + 1):
            mass = weight * scipy.stats.binom.pmf(a, c, 0.5)
            for both, share in (((a + 1, c - a), up), ((a, c - a + 1), 1 - up)):
                present[both] = present.get(both, 0.0) + mass * share
                absent[both] = absent.get(both, 0.0) + mass * (1 - share)
    for epsilon in (0.1, 0.3, 0.6):
        true = sum(max(0.0, p - math.exp(epsilon) * absent[both]) for both, p in present.items())
        assert true <= float(law.delta(epsilon)) <= true * 1.25 + 1e-9


@pytest.mark.parametrize(
    ("noise", "steps", "epochs"), [(5.0, 1000, 1), (10.0, 300, 4), (3.0, 2000, 1)]
)
def test_clones_lie_between_the_pair_and_known_batches(
    noise: float, steps: int, epochs: int
) -> None:
    setting = {"noise_multiplier": noise, "steps": steps, "epochs": epochs, "delta": 1e-5}
    found = clones_epsilon(**setting)
    assert shuffle_epsilon(**setting).high < found
    assert found < gaussian_epsilon(noise / math.sqrt(epochs), 1e-5)
    assert clones_epsilon(**{**setting, "epochs": epochs + 1}) > found
    assert clones_epsilon(**{**setting, "noise_multiplier": 1.1 * noise}) < found
    assert clones_epsilon(**{**setting, "steps": 2 * steps}) < found


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_clones_say_nothing_where_there_are_too_few(steps: int) -> None:
    assert clones_epsilon(noise_multiplier=0.7, steps=steps, delta=1e-5) == math.inf


# --- the smallest wins
def test_little_noise_settles_shuffling() -> None:
    """With σ = 0.5 both ends are 9.997."""
    setting = {"noise_multiplier": 0.5, "steps": 100, "delta": 1e-5}
    upper, lower = shuffle_upper(**setting), shuffle_epsilon(**setting)
    assert lower.low <= upper.high
    assert upper.high == pytest.approx(lower.epsilon, abs=1e-3)
    assert upper.method == "known batches"


@pytest.mark.parametrize(
    ("noise", "steps", "epochs", "ends"),
    [(0.79, 117, 10, (17.75, 24.41)), (0.73, 781, 50, (35.30, 87.40))],
    ids=["SST-2", "MNLI"],
)
def test_published_models(noise: float, steps: int, epochs: int, ends: tuple) -> None:
    setting = {"noise_multiplier": noise, "steps": steps, "epochs": epochs, "delta": 1e-5}
    assert shuffle_epsilon(**setting).low == pytest.approx(ends[0], abs=0.01)
    assert shuffle_upper(**setting).high == pytest.approx(ends[1], abs=0.01)


@pytest.mark.parametrize(
    ("sampler", "method"),
    [
        (Shuffle(), "clones"),
        (BallsInBins(), "random allocation"),
        (Poisson(), "PLD"),
        (Sequential(), "known batches"),
        (PartialShuffle(100), "known batches"),
        (BatchThenShuffle(), "known batches"),
        (WithoutReplacement(), "none"),
    ],
    ids=lambda each: getattr(each, "label", str(each)),
)
def test_each_sampler_has_its_bound(sampler: object, method: str) -> None:
    found = shuffle_upper(
        noise_multiplier=5.0, steps=1000, delta=1e-5, sampler=sampler, batch_size=10
    )
    assert found.method == method
    assert (found.high == math.inf) == (method == "none")
    assert found.role == "upper"
    assert bool(found.cites) == (method != "none")


@pytest.mark.parametrize(("records", "batch_size"), [(30, 20), (1050, 100), (60, 20)])
def test_poisson_batches_have_the_rate_that_is_accounted_for(records: int, batch_size: int) -> None:
    """Of 30 records in batches of 20 two steps were drawn at 2/3, and booked at 1/2."""
    steps = -(-records // batch_size)
    assert expected_rate(Poisson(), records, batch_size) == find_law(Poisson(), steps).rate
    drawn = BatchSampler(Poisson(), records=records, batch_size=batch_size, seed=0)
    taken = [sum(map(len, drawn)) for _ in range(200)]
    spread = math.sqrt(records * (1 - 1 / steps) / 200)
    assert np.mean(taken) == pytest.approx(records, abs=5 * spread)
    with pytest.raises(InvalidArgument, match="a sampler with a rate"):
        shuffle_upper(noise_multiplier=1, steps=7, delta=1e-5, sampler=Poisson(steps=7))


def test_a_sampler_of_others_gets_no_more_than_it_promises() -> None:
    """A law without secrecy says nothing about the other records: batches count as known."""

    class Own:
        def batches(self, records: int, batch_size: int, *, rng: object) -> object:
            raise NotImplementedError

        def law(self, steps: int, batch_size: int | None) -> em.samplers.Law:
            return em.samplers.Law(steps=steps, absent=0)

    found = shuffle_upper(noise_multiplier=1.0, steps=100, delta=1e-5, sampler=Own())
    assert found.method == "known batches"


# --- noise
@pytest.mark.parametrize("sampler", [Shuffle(), BallsInBins(), Poisson(), Sequential()], ids=str)
def test_sufficient_noise_keeps_the_claim_and_is_not_far_above(sampler: object) -> None:
    wanted = {"delta": 1e-5, "steps": 100, "epochs": 2, "sampler": sampler}
    noise = sufficient_noise(epsilon=2.0, **wanted)
    assert shuffle_upper(noise_multiplier=noise, **wanted).high <= 2.0
    assert shuffle_upper(noise_multiplier=noise * 0.998, **wanted).high > 2.0
    assert sufficient_noise(epsilon=2.0, **wanted, near=3.0) == pytest.approx(noise, rel=1e-3)


def test_sufficient_noise_is_at_least_necessary() -> None:
    wanted = {"epsilon": 1.0, "delta": 1e-5, "steps": 20}
    assert shuffle_noise(**wanted) <= sufficient_noise(**wanted)


@pytest.mark.slow
def test_noise_of_balls_in_bins_is_necessary_and_sufficient() -> None:
    wanted = {"epsilon": 1.0, "delta": 1e-5, "steps": 100, "sampler": BallsInBins()}
    assert shuffle_noise(**wanted) == pytest.approx(sufficient_noise(**wanted), rel=2e-3)


def test_sufficient_noise_at_the_ends() -> None:
    wanted = {"delta": 1e-5, "steps": 10}
    assert sufficient_noise(epsilon=math.inf, **wanted) == 0
    assert sufficient_noise(epsilon=1.0, **wanted, sampler=WithoutReplacement()) == math.inf
    noise = sufficient_noise(epsilon=0.0, delta=0.1, steps=10)
    assert gaussian_delta(noise, 0.0) <= 0.1


# --- truncation
def truncated_delta(epsilon: float, noise: float, size: int) -> float:
    """δ of one Poisson step at rate 1/2 over the target (+1 or 0) and two others (−1), truncated.

    By enumeration of who is drawn and who is kept: the definition.
    """
    y = np.linspace(-3 - 10 * noise, 3 + 10 * noise, 20_001)

    def density(target: float) -> np.ndarray:
        total = np.zeros(y.size)
        for drawn in itertools.product((0, 1), repeat=3):
            chosen = [
                value for value, taken in zip((target, -1.0, -1.0), drawn, strict=True) if taken
            ]
            kept = [chosen] if len(chosen) <= size else list(itertools.combinations(chosen, size))
            for subset in kept:
                total += scipy.stats.norm.pdf(y, sum(subset), noise) / 8 / len(kept)
        return total * (y[1] - y[0])

    with_it, without = density(1.0), density(0.0)
    grown = math.exp(epsilon)
    return max(
        float(np.maximum(with_it - grown * without, 0).sum()),
        float(np.maximum(without - grown * with_it, 0).sum()),
    )


@pytest.mark.parametrize("size", [2, 3])
def test_truncation_is_paid_for(size: int) -> None:
    delta, noise = 0.6, 1.0
    chance = scipy.stats.binom.sf(size, 3, 0.5)
    sampler = FixedSize(Poisson(rate=0.5, steps=1), size)
    assert sampler.overflow(1, 3) == pytest.approx(chance)
    found = shuffle_upper(
        noise_multiplier=noise, steps=1, delta=delta, sampler=sampler, batch_size=3
    )
    assert truncated_delta(found.high, noise, size) <= delta


def test_fixed_sizes_cost_next_to_nothing_or_too_much() -> None:
    setting = {"noise_multiplier": 1.0, "steps": 100, "epochs": 3, "delta": 1e-5, "batch_size": 50}
    for inner in (Poisson(), BallsInBins()):
        free = shuffle_upper(**setting, sampler=inner).high
        fitted = FixedSize.fit(inner, records=5000, batch_size=50, delta=1e-5, epochs=3)
        cut = shuffle_upper(**setting, sampler=fitted).high
        assert free <= cut <= free * 1.002
        assert 50 < fitted.size < 150
        tight = FixedSize(inner, 60)
        assert shuffle_upper(**setting, sampler=tight).high == math.inf
    # More records than the bound counts on are not drawn.
    many = FixedSize.fit(BallsInBins(steps=10), records=1000, batch_size=100, delta=1e-5)
    assert many.size > 100
    with pytest.raises(InvalidArgument, match="batch_size ≥ 100"):
        list(BatchSampler(many, records=1000, batch_size=20))
    free = poisson_epsilon(
        noise_multiplier=1.0, sampling_rate=0.01, steps=300, delta=1e-5, adjacency="zero_out"
    )
    assert shuffle_upper(**setting, sampler=Poisson()).high == free


def test_fixed_sizes_are_of_independent_records_only() -> None:
    for wrong in (Shuffle(), Sequential(), FixedSize(Poisson(), 10)):
        with pytest.raises(InvalidArgument, match="drawn independently"):
            FixedSize(wrong, 10)
    with pytest.raises(InvalidArgument, match="batch_size"):
        shuffle_upper(noise_multiplier=1, steps=9, delta=1e-5, sampler=FixedSize(Poisson(), 9))
