"""What a server sees of real clients is taken out before canaries are looked for."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.federated.directions import HadamardCanaries
from epsilometer.audits.federated.iterates import (
    KEPT,
    CosineWatch,
    IterateSummary,
    MatchedFilter,
    OtherUpdates,
    remove_known,
    weigh_arrays,
)
from epsilometer.audits.federated.subject import measure_iterates
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.request import Request
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.stats.sphere import cosine_bound, cosine_cdf, tied_bound

DELTA, SIZES, CLIENTS, CANARIES = 1e-5, (10, 3000, 700, 290), 50, 100
FLAKE = 1e-6  # chance that a correct program fails a test here
SCALE = 1.0 / CLIENTS


def watch_run(
    rng: np.random.Generator,
    *,
    noise: float,
    rounds: int = 1,
    shares: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
    tell: bool = True,
) -> IterateSummary:
    """Run a server whose clients pull one way, and return what was seen of its canaries."""
    dimension = sum(SIZES)
    canaries = HadamardCanaries(
        count=2 * CANARIES, dimension=dimension, key=int(rng.integers(2**62))
    )
    spread = np.repeat(shares, SIZES)
    weights = np.zeros(dimension)
    watch = CosineWatch(canaries, weights, sizes=SIZES, memory=KEPT)
    common = rng.normal(size=dimension) / np.sqrt(dimension)
    for _ in range(rounds):
        others = OtherUpdates(clip_norm=1.0)
        total = canaries.inject(np.arange(CANARIES), 1.0).astype(np.float64)
        for _ in range(CLIENTS):
            update = 2 * common + 0.2 * rng.normal(size=dimension) / np.sqrt(dimension)
            others.add(update)
            total += update / np.linalg.norm(update)
        total += noise * spread * rng.normal(size=dimension)
        weights = weights + SCALE * total
        watch.next_round()
        watch.take_part(np.arange(CANARIES))
        watch.see(weights, known=others.list_sums() if tell else ())
    return watch.summarise()


def measure(summary: IterateSummary) -> EpsilonFinding:
    """Return what is proved by who sees most."""
    request = Request(delta=DELTA, confidence=0.95, seed=0)
    return measure_iterates(summary, request, dimension=sum(SIZES), participation="known")[-1]


@pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")
def test_known_updates_blur_no_canary(rng: np.random.Generator) -> None:
    """A server with 3 % of the noise: proved though clients' updates are longer than it."""
    noise = 0.03 * 0.6  # ε = 8 needs about 0.6
    blurred = measure(watch_run(rng, noise=noise, tell=False))
    told = measure(watch_run(rng, noise=noise))
    assert blurred.bound.epsilon < 4
    assert told.bound.epsilon > 8
    assert "knows the clients' updates" in told.bound.adversary
    assert "knows the clients' updates" not in blurred.bound.adversary


@pytest.mark.parametrize("rounds", [1, 4])
def test_an_array_without_noise_shows_itself(rounds: int, rng: np.random.Generator) -> None:
    noise, quiet = 1.0 * np.sqrt(rounds), (1.0, 0.0, 1.0, 1.0)
    right = measure(watch_run(rng, noise=noise, rounds=rounds))
    wrong = measure(watch_run(rng, noise=noise, rounds=rounds, shares=quiet))
    assert right.bound.epsilon < gaussian_epsilon(1.0, DELTA)
    assert wrong.bound.epsilon > 2 * gaussian_epsilon(1.0, DELTA)


def _count_wrong(rng: np.random.Generator, *, audits: int, rounds: int, noise: float) -> list[int]:
    truth = gaussian_epsilon(noise / np.sqrt(rounds), DELTA)
    wrong = [0, 0]
    for _ in range(audits):
        seen = watch_run(rng, noise=noise, rounds=rounds)
        cosines = seen.final[:CANARIES] if rounds == 1 else seen.matched
        assert cosines is not None
        space: dict[str, Any] = {"dimension": sum(SIZES), "delta": DELTA}
        wrong[0] += cosine_bound(cosines, **space).epsilon > truth
        wrong[1] += tied_bound(cosines, **space, orthonormal=True).epsilon > truth
    return wrong


def test_bounds_are_wrong_no_more_often_than_they_say(rng: np.random.Generator) -> None:
    wrong = _count_wrong(rng, audits=100, rounds=2, noise=2.0)
    assert max(wrong) <= scipy.stats.binom.isf(FLAKE, 100, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("cell", range(8))
@pytest.mark.parametrize(("rounds", "noise"), [(1, 0.6), (1, 8.0), (4, 1.2), (4, 20.0)])
def test_bounds_cover(rounds: int, noise: float, cell: int) -> None:
    rng = np.random.default_rng([cell, rounds, int(10 * noise)])
    wrong = _count_wrong(rng, audits=500, rounds=rounds, noise=noise)
    assert max(wrong) <= scipy.stats.binom.isf(FLAKE, 500, 0.05)


def test_the_law_of_canaries_that_took_no_part_is_exact(rng: np.random.Generator) -> None:
    """Whatever is known, however unequal arrays are: their cosines have the null law."""
    dimension = sum(SIZES)
    found = []
    for key in range(20):
        canaries = HadamardCanaries(count=200, dimension=dimension, key=key)
        watch = CosineWatch(canaries, np.zeros(dimension), sizes=SIZES)
        step = rng.standard_cauchy(size=dimension) * np.repeat([1e-6, 1.0, 1e3, 0.0], SIZES)
        watch.see(step, known=[step**3, np.sign(step), np.zeros(dimension)])
        found.append(watch.summarise().final)
    every = cosine_cdf(np.concatenate(found), dimension)
    assert scipy.stats.kstest(every, "uniform").pvalue > FLAKE


def test_known_vectors_are_taken_out_however_alike_they_are(rng: np.random.Generator) -> None:
    one, noise = rng.normal(size=(2, 1000))
    known = [one, one.copy(), one * (1 + 1e-13), np.zeros(1000)]
    left = remove_known(5 * one + noise, known)
    np.testing.assert_allclose(left @ one, 0, atol=1e-8)
    np.testing.assert_allclose(left, remove_known(noise, [one]), atol=1e-8)


def test_small_arrays_are_weighted_with_others_and_quiet_ones_little(
    rng: np.random.Generator,
) -> None:
    step = np.concatenate([np.full(1, 1e-9), rng.normal(size=999), 1e-7 * rng.normal(size=1000)])
    weighed = weigh_arrays(step, [1, 999, 1000])
    assert abs(weighed[0]) < 1e-8  # not 1e9: it is weighted with the numbers after it
    quiet, loud = np.linalg.norm(weighed[1000:]), np.linalg.norm(weighed[:1000])
    assert quiet < loud  # rounding alone must not decide
    assert not weigh_arrays(np.zeros(600), [300, 300]).any()


def test_rounds_of_the_same_canaries_share_a_vector(rng: np.random.Generator) -> None:
    steps, cosines = rng.normal(size=(30, 100)), rng.normal(size=(30, 4)) / 10
    roomy, tight = MatchedFilter(4, memory=10**6), MatchedFilter(4, memory=400)
    for step, cosine in zip(steps, cosines, strict=True):
        tight.see(step, cosine, [0, 1, 3])
        roomy.see(step, cosine, [0, 1, 3])
    units = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    expected = cosines.sum(axis=0) / np.linalg.norm(units.sum(axis=0))
    expected[2] = np.nan
    np.testing.assert_allclose(tight.summarise(), expected, rtol=1e-5)
    np.testing.assert_allclose(roomy.summarise(), expected, rtol=1e-5)


def test_a_watch_that_goes_on_counts_no_round_twice(rng: np.random.Generator) -> None:
    canaries = HadamardCanaries(count=4, dimension=512, key=1)
    first, second = (CosineWatch(canaries, np.zeros(512), memory=KEPT) for _ in range(2))
    first.take_part([0])
    first.see(rng.normal(size=512))
    second.restore(first.export())
    before = second.summarise().matched
    second.take_part([0, 1])
    second.see(rng.normal(size=512))
    after = second.summarise().matched
    assert before is not None
    assert after is not None
    assert after[0] == before[0]  # its first round is lost, so that a sum could not be compared
    assert np.isnan(before[1])
    assert not np.isnan(after[1])
