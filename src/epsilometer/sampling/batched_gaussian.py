"""Simulate the batched Gaussian mechanism: what an epoch of DP-SGD reveals about one record.

Neighbours are (+1, −1, …, −1) and (0, −1, …, −1), the target zeroed out. After a shift that takes
batches without the target to mean 0, its batch has mean a with it and b without it
(:mod:`epsilometer.stats.likelihood_ratio` has the table), the noise has standard deviation σ, and a
trial's score is the log-likelihood ratio of everything observed.

A trial is run ``r`` with or without the target. Its draws are those of
:mod:`epsilometer.sampling.stream`, so its score does not depend on how runs were split among blocks
and threads. The engines (numba, NumPy, Triton, torch) share the stream and agree up to rounding.
They use float32 for the bulk, float64 for the tails beyond 4.7 and for all logarithms of sums. That
leaves a score of length l an error of about 10⁻⁶ (l + 1/σ). Each engine gives the same bytes
for the same seed on the same device.

The target is always in the first batch, or in the first few: the ratio does not know their order.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from joblib import cpu_count
from numpy.typing import ArrayLike
from scipy.special import bdtrc

from epsilometer import _validate
from epsilometer._extras import has, needs
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Law, Sampler, find_law
from epsilometer.sampling.stream import LOW, PLACES, Arrays, Draw, four_normals, words
from epsilometer.stats.likelihood_ratio import each_with, one_of
from epsilometer.types import FloatArray

Engine: TypeAlias = Literal["numba", "numpy", "triton", "torch"]
_DRAWS_AT_MOST = 2**62
_DRAWS_A_BLOCK = 2**22  # of the CPU: a hundredth of a second
_DRAWS_AN_ARRAY = 2**16  # of NumPy: stays in cache
_DRAWS_ON_CUDA = 2**26  # of torch without Triton: a few gigabytes of intermediate arrays
_RUNS_A_LAUNCH = 2**24


@dataclass(frozen=True, kw_only=True)
class BatchedGaussian:
    """Noisy sums of all batches, epoch for epoch, scored by their log-likelihood ratio.

    Attributes:
        sampler: How batches are drawn. Blocks of ``PartialShuffle`` are assumed to fill whole
            batches; a sliding buffer has no known distribution.
        noise_multiplier: σ, in units of the clipping norm.
        steps: Batches per epoch, T.
        epochs: E; they are independent, and the log-likelihood ratios add.
        batch_size: B: only partial shuffling and batch-then-shuffle depend on it.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:0"``, …; CUDA needs the extra ``torch``, and the
            CPU is several times faster with the extra ``numba``.
        threads: CPU threads; by default all that this process may use.

    Example:
        >>> from epsilometer.samplers import Shuffle
        >>> plays = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=100)
        >>> scores = plays.play(1000, np.random.default_rng(0))
        >>> scores.inside.mean() > scores.outside.mean()
        np.True_
    """

    sampler: Sampler
    noise_multiplier: float
    steps: int
    epochs: int = 1
    batch_size: int = 1
    device: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.whole(
            1,
            steps=self.steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            threads=1 if self.threads is None else self.threads,
        )
        if self.device != "cpu":
            _cuda(self.device)
        _ = self.law

    @cached_property
    def law(self) -> Law:
        """The distribution of the record's effect on a trial."""
        return find_law(self.sampler, self.steps, self.batch_size)

    @property
    def engine(self) -> Engine:
        """Name of the engine that computes the trials here."""
        # Kernels are for samplers that commands can ask for
        fused = self.law.rate is None and not self.law.left_out
        if self.device == "cpu":
            return "numba" if fused and has("numba") else "numpy"
        return "triton" if fused and has("triton") else "torch"

    def play(self, runs: int, rng: np.random.Generator) -> Scores:
        """Run ``runs`` trials with the target and as many without; same ``rng``, same scores.

        Args:
            runs: Trials per side.
            rng: Generator that is only used to draw the key of the stream.
        """
        key = self._key(runs, rng)
        inside, outside = (
            np.concatenate([_on_cpu(block) for block in self._blocks(key, world, 0, runs)])
            for world in (1, 0)
        )
        return Scores(inside=inside, outside=outside)

    def count(self, runs: int, rng: np.random.Generator, *, thresholds: ArrayLike) -> ScoreCounts:
        """Run trials and count scores at thresholds: memory does not grow with the runs.

        Args:
            runs: Trials per side.
            rng: Generator that is only used to draw the key of the stream.
            thresholds: Strictly increasing; chosen before looking at the scores.
        """
        key = self._key(runs, rng)
        counts = ScoreCounts.at(thresholds)
        binned = self._bin_scores(counts.thresholds)
        bins = [
            sum(self._blocks(key, world, 0, runs, binned), start=np.zeros_like(counts.inside_bins))
            for world in (1, 0)
        ]
        return ScoreCounts(counts.thresholds, bins[0], bins[1])

    def _key(self, runs: int, rng: np.random.Generator) -> int:
        _validate.whole(1, runs=runs)
        if 2 * runs * self.epochs * self.steps > _DRAWS_AT_MOST:
            raise InvalidArgument(
                f"Expected at most 2⁶² draws, got 2 · {runs} runs · {self.epochs} epochs "
                f"· {self.steps} steps."
            )
        return int(rng.integers(2**64, dtype=np.uint64))

    def _blocks(
        self,
        key: int,
        world: int,
        first: int,
        runs: int,
        then: Callable[[Any], Any] = lambda scores: scores,
    ) -> Iterator[Any]:
        """Yield scores of the runs from ``first``, block by block, each handed to ``then``."""
        threads = 1 if self.device != "cpu" else self.threads or _threads()
        size = self._runs_a_block(-(-runs // threads))
        starts = range(first, first + runs, size)
        score = self._scorer()

        def one(start: int) -> Any:
            size_here = min(size, first + runs - start)
            return then(score(Draw(key, world, start, size_here, self.epochs)))

        if threads == 1 or len(starts) == 1:
            yield from map(one, starts)
            return
        under_way: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for start in starts:
                under_way.append(pool.submit(one, start))
                if len(under_way) > 2 * threads:  # never more than these in memory
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()

    def _runs_a_block(self, fair: int) -> int:
        draws = self.epochs * (self.law.steps + 3)
        match self.engine:
            case "triton":
                return _RUNS_A_LAUNCH
            case "torch":
                return max(1, _DRAWS_ON_CUDA // draws)
            case _:
                return max(1, min(fair, _DRAWS_A_BLOCK // draws))

    def _scores(self, key: int, world: int, first: int, runs: int) -> Any:
        """Return scores of consecutive runs of one side: an array, or a tensor on the device."""
        draw = Draw(key=key, world=world, first=first, runs=runs, epochs=self.epochs)
        return self._scorer()(draw)

    def _scorer(self) -> Callable[[Draw], Any]:
        """Return the function from draws to scores, fully loaded, so that threads can share it."""
        law, sigma = self.law, self.noise_multiplier
        match self.engine:
            case "numba":
                with needs("numba", extra="numba"):
                    from epsilometer.sampling import _normals_cpu
                return partial(_one_of_fused, _normals_cpu, law=law, sigma=sigma)
            case "numpy":
                return partial(_in_parts, law=law, sigma=sigma)
            case "triton":
                from epsilometer.sampling import _normals_cuda

                return partial(_normals_cuda.scores, law=law, sigma=sigma, device=self.device)
            case "torch":
                with needs("torch", extra="torch"):
                    import torch
                return partial(_score, Arrays(torch, self.device), law=law, sigma=sigma)

    def _bin_scores(self, thresholds: FloatArray) -> Callable[[Any], Any]:
        if self.device == "cpu":
            empty = ScoreCounts.at(thresholds)
            return lambda scores: empty.add(inside=scores).inside_bins
        with needs("torch", extra="torch"):
            import torch
        cuts = torch.as_tensor(np.array(thresholds), device=self.device)

        def bins(scores: Any) -> Any:
            at = torch.bucketize(scores, cuts, right=True, out_int32=True)
            return torch.bincount(at, minlength=cuts.numel() + 1).cpu().numpy()

        return bins


def standard_normals(draw: Draw, steps: int, *, xp: Any = np, device: str = "cpu") -> Any:
    """Return the draws as the stream defines them, in float64, shape ``(runs, epochs, steps)``."""
    blocks = (steps + 3) // 4
    four = four_normals(
        Arrays(xp, device),
        draw.key,
        world=draw.world,
        runs=draw.every,
        blocks=range(draw.epochs * blocks),
    )
    drawn = xp.stack(four, -1).reshape(draw.runs, draw.epochs, 4 * blocks)
    return drawn[..., :steps]


def _score(arrays: Arrays, draw: Draw, law: Law, sigma: float) -> Any:
    """Return scores as the table defines them; the reference for the faster engines."""
    x = standard_normals(draw, law.steps, xp=arrays.xp, device=arrays.device) * sigma
    mean = _mean(law, draw.world)
    if law.rate is None:
        x[..., 0] += mean * _count_taken(arrays, draw, law) if law.left_out else mean
        return one_of(
            x,
            sigma=sigma,
            present=law.present,
            absent=law.absent,
            left_out=law.left_out,
            xp=arrays.xp,
        )
    taken = _count_taken(arrays, draw, law)
    x = x + mean * (arrays.whole(range(law.steps)) < taken[..., None])
    return each_with(
        x, sigma=sigma, present=law.present, absent=law.absent, rate=law.rate, xp=arrays.xp
    )


def _count_taken(arrays: Arrays, draw: Draw, law: Law) -> Any:
    """Return the number of batches of each epoch with the target, shape ``(runs, epochs)``."""
    w0, w1, *_ = words(
        arrays, draw.key, PLACES + draw.world, runs=draw.every, blocks=range(draw.epochs)
    )
    taken = w0 * 0
    for chance in _chances(law):
        high, low = chance >> 32, chance & LOW
        taken = taken + ((w1 < high) | ((w1 == high) & (w0 < low)))
    return taken


def _in_parts(draw: Draw, law: Law, sigma: float) -> FloatArray:
    """Score with NumPy, as many runs at once as stay in cache."""
    at_once = max(1, _DRAWS_AN_ARRAY // (draw.epochs * (law.steps + 3)))
    parts = [draw.part(start, at_once) for start in range(0, draw.runs, at_once)]
    return np.concatenate([_score(Arrays(np), part, law, sigma) for part in parts])


def _one_of_fused(kernels: ModuleType, draw: Draw, law: Law, sigma: float) -> FloatArray:
    padded = -(-draw.runs // kernels.LANES) * kernels.LANES
    target, most, above, below = np.empty((4, draw.epochs, padded), np.float32)
    a, b, mean = law.present / sigma, law.absent / sigma, _mean(law, draw.world) / sigma
    kernels.one_of_sums(
        np.uint64(draw.key), draw.world, draw.first, draw.epochs, law.steps, a, b,
        target, most, above, below,
    )  # fmt: skip
    x = target[:, : draw.runs].astype(np.float64) + mean
    ratio = (a - b) * x
    if law.steps > 1:
        others = most[:, : draw.runs].astype(np.float64)
        ratio = _log_add(a * x, a * others + np.log(above[:, : draw.runs], dtype=np.float64))
        if b == 0:
            ratio -= math.log(law.steps)
        else:
            ratio -= _log_add(b * x, b * others + np.log(below[:, : draw.runs], dtype=np.float64))
    return np.asarray(ratio.sum(0) - draw.epochs * (a - b) * (a + b) / 2)


def _log_add(x: FloatArray, y: FloatArray) -> FloatArray:
    """Compute ln(e^x + e^y) several times faster than NumPy."""
    return np.asarray(np.maximum(x, y) + np.log(1 + np.exp(-np.abs(x - y))))


def _mean(law: Law, world: int) -> int:
    return law.present if world else law.absent


def _chances(law: Law) -> list[int]:
    """Return the probabilities of more than 0, 1, … batches with the target, in units of 2⁻⁶⁴."""
    if law.rate is None:
        return [int((1 - law.left_out) * 2.0**64)]
    chances = []
    for taken in range(law.steps):
        chance = min(int(bdtrc(taken, law.steps, law.rate) * 2.0**64), 2**64 - 1)
        if chance == 0:
            break
        chances.append(chance)
    return chances


def _threads() -> int:
    """Return the number of threads to use; joblib's workers find theirs in the environment."""
    return int(os.environ.get("NUMBA_NUM_THREADS", "0")) or int(cpu_count())


def _cuda(device: str) -> None:
    if device.partition(":")[0] != "cuda":
        raise InvalidArgument(f"Expected device 'cpu' or 'cuda', got {device!r}.")
    with needs("torch", extra="torch"):
        import torch
    if not torch.cuda.is_available():
        raise InvalidArgument(f"Expected a CUDA device for {device!r}, torch sees none here.")


def _on_cpu(block: Any) -> FloatArray:
    return np.asarray(block if isinstance(block, np.ndarray) else block.cpu())
