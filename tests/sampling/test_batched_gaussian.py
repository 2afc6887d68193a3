"""The batched Gaussian mechanism: its law, its normals, its stream, and its engines."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from epsilometer.core.scores import ScoreCounts
from epsilometer.errors import InvalidArgument, MissingExtra
from epsilometer.sampling.batched_gaussian import BatchedGaussian, standard_normals
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.sampling.stream import Arrays, Draw, philox, tail_unit, words
from tests import printed_ratios as ratios
from tests.conftest import cases
from tests.oracles import FLAKE

ENGINES = ["numpy", "numba", "torch"]
SAMPLERS: list[Sampler] = [
    Shuffle(),
    PartialShuffle(12),
    BatchThenShuffle(drop_last=True),
    BallsInBins(),
    Sequential(),
    Poisson(),
    Poisson(rate=0.3),
    Poisson(rate=1.0),
    WithoutReplacement(),
]
SHUFFLED = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=100)


def compute_by(engine: str) -> property:
    """Take this engine where it has kernels for the sampler."""
    plain = {"numba": "numpy", "triton": "torch"}
    return property(lambda self: engine if self.law.rate is None else plain.get(engine, engine))


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Computes with this engine, on the CPU."""
    if request.param != "numpy":
        pytest.importorskip(request.param)
    monkeypatch.setattr(BatchedGaussian, "engine", compute_by(request.param))
    return str(request.param)


on_engines = pytest.mark.parametrize("engine", ["numpy", "numba"], indirect=True)
on_fast_engines = pytest.mark.parametrize("engine", ["numba"], indirect=True)


def name(value: object) -> str:
    return repr(value).replace("drop_last=False", "").replace("sliding=False", "")


def within(mean: float, truth: float, n: int) -> bool:
    """Whether n numbers in [0, 1] of expectation ``truth`` may have this mean (Hoeffding 1963)."""
    far = n * (scipy.special.rel_entr(mean, truth) + scipy.special.rel_entr(1 - mean, 1 - truth))
    return float(far) < math.log(2 / FLAKE)


def expected(sample: np.ndarray, truth: float) -> bool:
    z = (sample.mean() - truth) / (sample.std() / math.sqrt(sample.size))
    return abs(float(z)) < -scipy.special.ndtri(FLAKE / 2)


# The law


@on_fast_engines
@pytest.mark.parametrize(("inputs", "truth"), cases("c07", "bgm-1epoch"))
@pytest.mark.in_turn(3)
def test_the_law_has_the_exact_epsilon(
    inputs: dict[str, Any], truth: dict[str, float], engine: str, rng: np.random.Generator
) -> None:
    """δ(ε) = E_P[(1 − e^{ε−L})₊], and the same with the two sides swapped, at both exact ε."""
    runs = 200_000_000 // inputs["T"] // (1 if inputs["T"] == 100 else 2)
    plays = BatchedGaussian(sampler=Shuffle(), noise_multiplier=inputs["sigma"], steps=inputs["T"])
    scores = plays.play(runs, rng)
    there = np.maximum(-np.expm1(truth["eps_PQ"] - scores.inside), 0)
    back = np.maximum(-np.expm1(truth["eps_QP"] + scores.outside), 0)
    assert within(there.mean(), inputs["delta"], runs)
    assert within(back.mean(), inputs["delta"], runs)


@on_fast_engines
@pytest.mark.parametrize(("inputs", "truth"), cases("c07", "bgm-table1-SST-2"))
def test_epochs_add(
    inputs: dict[str, Any], truth: dict[str, float], engine: str, rng: np.random.Generator
) -> None:
    plays = BatchedGaussian(
        sampler=Shuffle(),
        noise_multiplier=inputs["sigma"],
        steps=inputs["T"],
        epochs=inputs["epochs"],
    )
    inside = plays.play(100_000, rng).inside
    assert expected(inside / inputs["epochs"], truth["mean_L_per_epoch_under_D"])


@on_engines
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
@pytest.mark.in_turn(3)
def test_one_world_reweighted_is_the_other(
    sampler: Sampler, engine: str, rng: np.random.Generator
) -> None:
    """Q(L > τ) = E_P[e^{−L}; L > τ] and P(L < τ) = E_Q[e^L; L < τ], whatever the law is."""
    plays = BatchedGaussian(sampler=sampler, noise_multiplier=0.8, steps=10, epochs=3, batch_size=4)
    scores = plays.play(20_000, rng)
    for cut in (-0.5, 0.0, 0.7):
        weighed = np.exp(-scores.inside) * (scores.inside > cut) * math.exp(cut)
        counted = (scores.outside > cut) * math.exp(cut)
        assert agree(weighed, counted)
        weighed = np.exp(scores.outside) * (scores.outside < cut) * math.exp(-cut)
        counted = (scores.inside < cut) * math.exp(-cut)
        assert agree(weighed, counted)


def agree(a: np.ndarray, b: np.ndarray) -> bool:
    deviation = math.sqrt(a.var() / a.size + b.var() / b.size)
    return bool(abs(a.mean() - b.mean()) < -scipy.special.ndtri(FLAKE / 2) * deviation)


def simulated(
    sampler: Sampler, present: bool, runs: int, sigma: float, rng: np.random.Generator
) -> np.ndarray:
    """Real batches of real records: 20 of them, by four; target 0 is +1, or 0."""
    size, records = 4, 20
    worst = not isinstance(sampler, (Poisson, BallsInBins))
    values = np.full(records, -1.0 if worst else 0.0)
    if isinstance(sampler, BatchThenShuffle):
        values[:size] = 1.0
    values[0] = 1.0 if present else 0.0
    sums = [
        [values[batch].sum() for batch in sampler.batches(records, size, rng=rng)]
        for _ in range(2 * runs)
    ]
    seen = np.array(sums).reshape(runs, 2, 5)
    seen += rng.normal(0.0, sigma, seen.shape)
    match sampler:
        case Shuffle():
            return ratios.worst_case(seen, sigma=sigma, batch_size=size)
        case PartialShuffle():
            return ratios.worst_case(seen[..., :3], sigma=sigma, batch_size=size)
        case Sequential():
            return ratios.worst_case(seen[..., :1], sigma=sigma, batch_size=size)
        case BatchThenShuffle():
            return ratios.batch_then_shuffle(seen, sigma=sigma, batch_size=size)
        case BallsInBins():
            return ratios.balls_in_bins(seen, sigma=sigma)
        case Poisson():
            return ratios.poisson(seen, sigma=sigma, rate=sampler.rate)
        case _:
            return ratios.without_replacement(seen, sigma=sigma, batch_size=size)


@pytest.mark.slow
@on_fast_engines
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_batches_of_records_have_this_law(
    sampler: Sampler, engine: str, rng: np.random.Generator
) -> None:
    plays = BatchedGaussian(sampler=sampler, noise_multiplier=0.7, steps=5, epochs=2, batch_size=4)
    scores = plays.play(50_000, rng)
    for present, played in ((True, scores.inside), (False, scores.outside)):
        real = simulated(sampler, present, 4_000, 0.7, rng)
        assert scipy.stats.ks_2samp(real, played).pvalue > FLAKE


@on_engines
@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
def test_one_step_is_the_gaussian_mechanism(
    sigma: float, engine: str, rng: np.random.Generator
) -> None:
    """L ~ N(±μ²/2, μ²) with μ = √epochs / σ, for every sampler (Dong et al. 2022)."""
    mu = math.sqrt(3) / sigma
    for sampler in SAMPLERS[:1] + SAMPLERS[3:6] + SAMPLERS[7:]:
        plays = BatchedGaussian(sampler=sampler, noise_multiplier=sigma, steps=1, epochs=3)
        scores = plays.play(5_000, rng)
        assert scipy.stats.kstest(scores.inside / mu - mu / 2, "norm").pvalue > FLAKE
        assert scipy.stats.kstest(scores.outside / mu + mu / 2, "norm").pvalue > FLAKE


def test_only_who_keeps_batches_together_depends_on_their_size() -> None:
    small, large = (replace(SHUFFLED, batch_size=size) for size in (1, 1000))
    assert small.law == large.law
    plays = replace(SHUFFLED, sampler=BatchThenShuffle(drop_last=True), batch_size=50)
    assert (plays.law.present, plays.law.absent) == (100, 99)
    plays = replace(SHUFFLED, sampler=PartialShuffle(1000), batch_size=30)
    assert plays.law.steps == 34
    assert replace(plays, batch_size=1).law.steps == 100


# Engines


@pytest.mark.parametrize("other", ["numba", "torch"])
@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
@pytest.mark.in_turn(3)
def test_engines_agree_up_to_rounding(
    sampler: Sampler, sigma: float, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 holds z to 1e-6, on which a score depends by 1/σ, and each of its terms to 5e-8."""
    pytest.importorskip(other)
    for steps, epochs in ((1, 2), (2, 1), (5, 3), (101, 1)):
        plays = BatchedGaussian(
            sampler=sampler, noise_multiplier=sigma, steps=steps, epochs=epochs, batch_size=4
        )
        monkeypatch.setattr(BatchedGaussian, "engine", compute_by("numpy"))
        plain = plays.play(70, np.random.default_rng(1))
        monkeypatch.setattr(BatchedGaussian, "engine", compute_by(other))
        fast = plays.play(70, np.random.default_rng(1))
        close = {"rtol": 2e-6, "atol": 1e-6 * (1 + epochs / sigma + steps / 20)}
        if other == "torch":
            close = {"rtol": 1e-11, "atol": 1e-11}
        np.testing.assert_allclose(fast.inside, plain.inside, **close)
        np.testing.assert_allclose(fast.outside, plain.outside, **close)


@on_engines
@pytest.mark.parametrize("sampler", [Shuffle(), Poisson()], ids=name)
def test_same_seed_same_bytes_however_split(sampler: Sampler, engine: str) -> None:
    plays = BatchedGaussian(sampler=sampler, noise_multiplier=1.0, steps=9, epochs=2)
    runs = 999
    whole = plays._scores(5, 1, 0, runs)
    for size in (1, 31, 32, 500):
        parts = [
            plays._scores(5, 1, at, min(size, runs - at))
            for at in range(0, runs if size > 1 else 40, size)
        ]
        together = np.concatenate([np.asarray(part) for part in parts])
        np.testing.assert_array_equal(together, np.asarray(whole)[: together.size])
    few, many = (
        replace(plays, threads=threads).play(runs, np.random.default_rng(3)) for threads in (1, 5)
    )
    np.testing.assert_array_equal(few.inside, many.inside)
    np.testing.assert_array_equal(few.outside, many.outside)


@on_engines
def test_counted_scores_are_those_that_are_played(engine: str) -> None:
    cuts = np.linspace(-2, 4, 50)
    plays = replace(SHUFFLED, steps=7)
    counts = plays.count(3_000, np.random.default_rng(2), thresholds=cuts)
    scores = plays.play(3_000, np.random.default_rng(2))
    counted = ScoreCounts.at(cuts).add(inside=scores.inside, outside=scores.outside)
    np.testing.assert_array_equal(counts.inside_bins, counted.inside_bins)
    np.testing.assert_array_equal(counts.outside_bins, counted.outside_bins)


def test_without_numba_numpy_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = SHUFFLED.play(50, np.random.default_rng(0))
    monkeypatch.setitem(sys.modules, "numba", None)
    assert SHUFFLED.engine == "numpy"
    plain = SHUFFLED.play(50, np.random.default_rng(0))
    np.testing.assert_allclose(plain.inside, fast.inside, atol=1e-5)


def test_a_broken_numba_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    for module in [m for m in sys.modules if m.partition(".")[0] in ("numba", "llvmlite")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(ModuleNotFoundError, match="llvmlite"):
        _ = SHUFFLED.engine


def test_frameworks_are_loaded_only_when_played() -> None:
    program = (
        "import sys; from epsilometer.sampling.batched_gaussian import BatchedGaussian; "
        "print(*({'numba', 'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


# The stream


def python_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 from its paper (Salmon et al. 2011), in whole numbers."""
    low, (k0, k1), (c0, c1, c2, c3) = 2**32 - 1, key, counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & low, p0 >> 32 ^ c3 ^ k1, p0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return [c0, c1, c2, c3]


def normals_by_definition(key: int, world: int, run: int, block: int) -> list[float]:
    """What the stream's definition says, from all the bits."""
    low = 2**32 - 1

    def words(purpose: int) -> list[int]:
        second = block >> 32 | (purpose + world) << 29
        counter = [block & low, second, run & low, run >> 32]
        return python_philox(counter, [key & low, key >> 32])

    first, more = words(0), words(2)
    radii = []
    for word, extra in zip(first[:2], more[:2], strict=True):
        unit = (word + 0.5) / 2**32 if word >= 2**16 else (word * 2**32 + extra + 0.5) / 2**64
        radii.append(math.sqrt(-2 * math.log(unit)))
    angles = [2 * math.pi * word / 2**32 for word in first[2:]]
    return [
        radii[0] * math.cos(angles[0]),
        radii[1] * math.cos(angles[1]),
        radii[0] * math.sin(angles[0]),
        radii[1] * math.sin(angles[1]),
    ]


def drawn(engine: str, draw: Draw, steps: int) -> np.ndarray:
    if engine == "numpy":
        return np.asarray(standard_normals(draw, steps))
    if engine == "torch":
        return np.asarray(standard_normals(draw, steps, xp=pytest.importorskip("torch")))
    pytest.importorskip("numba")
    from epsilometer.sampling import _normals_cpu

    where = (draw.world, draw.first, draw.runs, draw.epochs, steps)
    return np.asarray(_normals_cpu.standard_normals(np.uint64(draw.key), *where))


KNOWN = [  # Random123's known answers: counter, key, words
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_has_its_known_answers(counter: list[int], key: list[int], words: str) -> None:
    answer = [int(word, 16) for word in words.split()]
    assert python_philox(counter, key) == answer
    arrays = [np.array([word], np.uint64) for word in counter]
    assert [int(word[0]) for word in philox(tuple(arrays), tuple(key))] == answer  # type: ignore[arg-type]
    pytest.importorskip("numba")
    from epsilometer.sampling import _normals_cpu

    assert list(_normals_cpu.philox(*map(np.uint64, counter + key))) == answer


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", [0, 2**32 - 2, 2**32 + 7, 2**61])
def test_draws_are_those_that_the_stream_defines(engine: str, first: int) -> None:
    key = 0x123456789ABCDEF0
    for world in (0, 1):
        got = drawn(engine, Draw(key=key, world=world, first=first, runs=5, epochs=2), 7)
        for run in range(5):
            rows = [normals_by_definition(key, world, first + run, block) for block in range(4)]
            truth = [rows[0] + rows[1][:3], rows[2] + rows[3][:3]]
            np.testing.assert_allclose(got[run], truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_number_comes_twice(engine: str) -> None:
    """Runs below and above 2³², worlds, epochs, steps and neighbouring keys: all are different."""
    parts = []
    for key in (0, 1, 2**32):
        for world in (0, 1):
            for first in (0, 2**31, 2**32, 2**32 + 2**31, 2**33, 2**62):
                draw = Draw(key=key, world=world, first=first, runs=40, epochs=3)
                parts.append(drawn(engine, draw, 6).astype(np.float64).reshape(-1, 6))
    # The first four of an epoch are two points of the plane with 64 bits each.
    points = np.concatenate(parts)[:, [0, 2]]
    assert len({tuple(point) for point in points}) == len(points)
    flat = np.concatenate(parts).ravel()
    pairs = flat.size**2 / 2
    twins = flat.size - np.unique(flat).size
    same_float = 2.0**-24 if engine == "numba" else 2.0**-40  # a chance of equality, generously
    assert twins <= scipy.stats.poisson.isf(FLAKE, pairs * same_float)


@on_fast_engines
def test_streams_of_the_worlds_are_independent(engine: str, rng: np.random.Generator) -> None:
    """Played without the mean that parts them, the worlds would show the same noise."""
    plays = replace(SHUFFLED, steps=1)
    scores = plays.play(100_000, rng)
    noise = scores.inside - 0.5, scores.outside + 0.5
    assert abs(np.corrcoef(*noise)[0, 1]) < -scipy.special.ndtri(FLAKE / 2) / math.sqrt(100_000)


def test_another_seed_is_another_stream_and_the_same_is_the_same() -> None:
    one, again, other = (SHUFFLED.play(20, np.random.default_rng(s)).inside for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.intersect1d(one, other).size
    rng = np.random.default_rng(0)
    first, second = SHUFFLED.play(20, rng).inside, SHUFFLED.play(20, rng).inside
    assert not np.intersect1d(first, second).size


# Tails


def radius_of(engine: str, word: int, more: int) -> float:
    if engine == "numpy":
        return math.sqrt(-2 * math.log(tail_unit(float(word), float(more))))
    pytest.importorskip("numba")
    from epsilometer.sampling import _normals_cpu

    return float(_normals_cpu.tail_radius(np.uint32(word), np.uint64(more)))


@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_radii_reach_beyond_eight_with_the_right_chance(engine: str) -> None:
    """Pr(radius ≥ r) = e^{−r²/2}; of 2⁶⁴ pairs of words, those up to this one have it."""
    for word, more in [(0, 0), (0, 1), (0, 12345), (0, 2**17), (0, 2**31), (1, 0), (65535, 7)]:
        radius = radius_of(engine, word, more)
        chance = (word * 2**32 + more + 0.5) / 2**64
        assert math.exp(-(radius**2) / 2) == pytest.approx(chance, rel=1e-6)
    assert radius_of(engine, 0, 0) > 9.4
    assert radius_of(engine, 0, 2**17) > 8.0


@pytest.mark.parametrize("engine", ENGINES)
def test_tails_take_their_further_bits(engine: str) -> None:
    """Runs are looked for whose first radius word is below 2¹⁶, one in 65,536 by chance."""
    key = 77
    found = words(Arrays(np), key, 1, runs=range(2**20), blocks=range(1))
    for place, word in enumerate(found[:2]):
        runs = np.flatnonzero(word[:, 0] < 2**16)
        assert 1 <= runs.size <= 60
        for run in runs.tolist():
            got = drawn(engine, Draw(key=key, world=1, first=run, runs=1, epochs=1), 4)[0, 0]
            truth = normals_by_definition(key, 1, run, 0)
            np.testing.assert_allclose(got, truth, rtol=3e-7, atol=1e-7)
            assert math.hypot(got[place], got[place + 2]) > 4.7


def beyond(normals: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    size = np.abs(normals[np.abs(normals) > cuts[0]])
    return np.array([(size > cut).sum() for cut in cuts])


def check_tails(count: int, key: int) -> None:
    cuts = np.array([3.0, 4.0, 4.5, 4.7, 4.75, 5.0, 5.4, 5.68, 6.0, 6.7])
    found, at_once, total = np.zeros(cuts.size, np.int64), 100_000, 0
    for first in range(0, count // 100, at_once):
        draw = Draw(key=key, world=0, first=first, runs=at_once, epochs=1)
        found += beyond(drawn("numba", draw, 100), cuts)
        total += 100 * at_once
    chance = 2 * scipy.special.ndtr(-cuts)
    low = scipy.stats.binom.cdf(found, total, chance)
    high = scipy.stats.binom.sf(found - 1, total, chance)
    assert np.all(np.minimum(low, high) > FLAKE), list(
        zip(cuts, found, total * chance, strict=True)
    )


def test_tails_are_as_long_as_they_should_be(rng: np.random.Generator) -> None:
    check_tails(100_000_000, int(rng.integers(2**63)))


@pytest.mark.slow
def test_tails_of_ten_billion_normals(rng: np.random.Generator) -> None:
    check_tails(10_000_000_000, int(rng.integers(2**63)))


@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_draws_are_standard_normal(engine: str, rng: np.random.Generator) -> None:
    draw = Draw(key=int(rng.integers(2**63)), world=1, first=0, runs=50_000, epochs=1)
    normals = drawn(engine, draw, 8)[:, 0].astype(np.float64)
    assert scipy.stats.kstest(normals.ravel(), "norm").pvalue > FLAKE
    for power in (1, 2):  # neighbours of a block share their radius or their counter
        together = np.corrcoef((normals**power).T) - np.eye(8)
        assert np.abs(together).max() < -scipy.special.ndtri(FLAKE / 100) / math.sqrt(draw.runs)


# Bad input


def test_bad_arguments_are_refused() -> None:
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match="noise_multiplier"):
            replace(SHUFFLED, noise_multiplier=sigma)
    for field in ("steps", "epochs", "batch_size", "threads"):
        for value in (0, -3, 1.5):
            with pytest.raises(InvalidArgument, match=field):
                replace(SHUFFLED, **{field: value})
    for runs in (0, 2.5):
        with pytest.raises(InvalidArgument, match="runs"):
            SHUFFLED.play(runs, np.random.default_rng(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="2⁶² draws"):
        replace(SHUFFLED, steps=2**31, epochs=2**20).play(2**11, np.random.default_rng(0))
    with pytest.raises(InvalidArgument, match="increasing"):
        SHUFFLED.count(10, np.random.default_rng(0), thresholds=[1.0, 0.0])


def test_unknown_samplers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="Expected a sampler"):
        replace(SHUFFLED, sampler="shuffle")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="sliding"):
        replace(SHUFFLED, sampler=PartialShuffle(10, sliding=True))
    with pytest.raises(InvalidArgument, match="steps to be 100, got 50"):
        replace(SHUFFLED, sampler=BallsInBins(steps=50))


def test_missing_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="'cpu' or 'cuda', got 'tpu'"):
        replace(SHUFFLED, device="tpu")
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidArgument, match="torch sees none"):
        replace(SHUFFLED, device="cuda")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"epsilometer\[torch\]"):
        replace(SHUFFLED, device="cuda")


# CUDA: where there is a card


@pytest.fixture
def cuda() -> str:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no CUDA device")
    return "cuda"


@pytest.mark.parametrize("kernel", ["triton", "torch"])
@pytest.mark.parametrize("sigma", [0.05, 1.0])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_cuda_agrees_with_the_cpu(
    sampler: Sampler, sigma: float, kernel: str, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps, epochs in ((1, 2), (5, 3), (101, 1)):
        plays = BatchedGaussian(
            sampler=sampler, noise_multiplier=sigma, steps=steps, epochs=epochs, batch_size=4
        )
        with monkeypatch.context() as patched:
            patched.setattr(BatchedGaussian, "engine", compute_by("numpy"))
            plain = plays.play(3_000, np.random.default_rng(1))
            patched.setattr(BatchedGaussian, "engine", compute_by(kernel))
            fast = replace(plays, device=cuda).play(3_000, np.random.default_rng(1))
        close = {"rtol": 2e-6, "atol": 1e-6 * (1 + epochs / sigma + steps / 20)}
        np.testing.assert_allclose(fast.inside, plain.inside, **close)
        np.testing.assert_allclose(fast.outside, plain.outside, **close)


def test_cuda_gives_the_same_bytes_however_split(cuda: str) -> None:
    plays = replace(SHUFFLED, device=cuda)
    whole = plays._scores(5, 1, 2**32 - 100, 1_000).cpu().numpy()
    parts = [plays._scores(5, 1, 2**32 - 100 + at, 50).cpu().numpy() for at in range(0, 1_000, 50)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert np.unique(whole).size == whole.size


def test_tails_on_cuda(cuda: str) -> None:
    """One step, where the score is the normal itself less a half."""
    cuts, runs = np.array([4.0, 4.7, 5.0, 5.68, 6.0, 6.5]), 10_000_000_000
    plays = replace(SHUFFLED, steps=1, device=cuda)
    counts = plays.count(
        runs, np.random.default_rng(4), thresholds=[*(-cuts[::-1] + 0.5), *(cuts + 0.5)]
    )
    above = counts.inside_bins[::-1].cumsum()[: cuts.size][::-1]
    below = counts.inside_bins.cumsum()[: cuts.size][::-1]
    chance = scipy.special.ndtr(-cuts)
    for found in (above, below):
        assert np.all(scipy.stats.binom.cdf(found, runs, chance) > FLAKE)
        assert np.all(scipy.stats.binom.sf(found - 1, runs, chance) > FLAKE)


def test_the_game_leaves_the_record_out_too(rng: np.random.Generator) -> None:
    """One batch, in half of the epochs: scores are the losses of two mixtures."""
    plays = BatchedGaussian(sampler=Shuffle(drop_last=True), noise_multiplier=0.7, steps=1)
    assert plays.engine == "numpy"
    scores = plays.play(4_000, rng)
    for mean, played in ((2, scores.inside), (1, scores.outside)):
        x = 0.7 * rng.standard_normal(4_000) + mean * (rng.random(4_000) < 0.5)
        above, below = (1 + np.exp((2 * m * x - m * m) / (2 * 0.7**2)) for m in (2, 1))
        assert scipy.stats.ks_2samp(np.log(above / below), played).pvalue > FLAKE
