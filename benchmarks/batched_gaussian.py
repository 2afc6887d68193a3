"""Times trials of the batched Gaussian mechanism and writes ``benchmarks/batched_gaussian.md``.

On a machine with a card, ``python benchmarks/batched_gaussian.py cuda`` prints the end of the page,
which a later run elsewhere keeps as it is.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from results import machine
from sizes import ARGUMENTS, choose_size, write_page

from epsilometer.sampling.batched_gaussian import BatchedGaussian, Engine
from epsilometer.sampling.samplers import Shuffle

_PAGE = Path(__file__).resolve().parent / "batched_gaussian.md"
_CARD = "## On a card"
_STEPS, _SIGMA, _REPEATS = 100, 1.0, choose_size(5, 1)
_RUNS = choose_size(100_000, 1_000)  # of either kind
_AT_ONCE = 1_000  # of NumPy and torch: what fits their caches best, tried from 100 to 100,000
_THRESHOLDS = np.linspace(-5, 8, 400)
_TEXT = """# Trials of the batched Gaussian mechanism

Written by `python benchmarks/batched_gaussian.py`; do not edit. Shuffling, T = {steps},
σ = {sigma:g}, one epoch: {steps} normals, and the log-likelihood ratio of what they make. Trials
per second of CPU time, of all threads, in millions; medians of {repeats} turns that alternate,
{runs:,} trials with the record and as many without it a turn. Compilation is not counted: it
takes a few seconds, once on a machine.

Measured on {machine}.

| | million trials per CPU second | ratio |
| --- | --- | --- |
| NumPy as one would write it: `standard_normal`, float64, log-sum-exp | {plain:.2f} | 1 |
| torch likewise, float32 | {torch:.2f} | {torch_ratio:.1f} |
| ours without numba: the same stream in NumPy | {fallback:.2f} | {fallback_ratio:.1f} |
| ours with numba | {ours:.2f} | {ratio:.1f} (target: ≥ 3, {met}) |
| ours with numba, counted at 400 thresholds | {counted:.2f} | {counted_ratio:.1f} |

The fallback draws from the same counters as the fast engines, so that scores agree up to rounding;
whoever has no numba pays for that.

"""
_CUDA = """{title}

Printed by `PYTHONPATH=src python3 benchmarks/batched_gaussian.py cuda` on one {card},
torch {torch}, Triton {triton}: wall-clock seconds, medians of {repeats}, for 10⁹ trials (half with
the record, half without it) at T = {steps}, scored and counted at 400 thresholds. Compilation is
not counted.

| | seconds for 10⁹ trials | target |
| --- | --- | --- |
| one fused Triton kernel | {fused:.3f} | ≤ 3, {met} |
| torch operations in blocks, where there is no Triton (2²² trials, scaled) | {plain:.1f} | |

Memory on the card: {memory:.0f} MiB at most with the kernel, whatever the number of trials.
"""


@dataclass(frozen=True, kw_only=True)
class _WithoutNumba(BatchedGaussian):
    """As it runs where numba is not installed."""

    @property
    def engine(self) -> Engine:
        return "numpy"


@dataclass(frozen=True, kw_only=True)
class _WithoutTriton(BatchedGaussian):
    """As it runs on a card where Triton is not installed."""

    @property
    def engine(self) -> Engine:
        return "torch"


def main() -> None:
    """Measure and write the page, or print the part for the card."""
    if ARGUMENTS == ["cuda"]:
        sys.stdout.write(_cuda())
        return
    plays = BatchedGaussian(sampler=Shuffle(), noise_multiplier=_SIGMA, steps=_STEPS)
    without = _WithoutNumba(sampler=Shuffle(), noise_multiplier=_SIGMA, steps=_STEPS)
    rng = np.random.default_rng(0)
    plays.play(100, rng)  # compiles
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: _plain(rng),
        "torch": _torch,
        "fallback": lambda: without.play(_RUNS, rng),
        "ours": lambda: plays.play(_RUNS, rng),
        "counted": lambda: plays.count(_RUNS, rng, thresholds=_THRESHOLDS),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_REPEATS):
        for way, call in ways.items():
            start = time.process_time()
            call()
            speeds[way].append(2 * _RUNS / (time.process_time() - start) / 1e6)
    found = {way: statistics.median(values) for way, values in speeds.items()}
    ratios = {f"{way}_ratio": value / found["plain"] for way, value in found.items()}
    text = _TEXT.format(
        steps=_STEPS,
        sigma=_SIGMA,
        repeats=_REPEATS,
        runs=_RUNS,
        machine=machine(),
        ratio=ratios["ours_ratio"],
        met=_yes(ratios["ours_ratio"] >= 3),
        **found,
        **ratios,
    )
    old = _PAGE.read_text("utf-8") if _PAGE.exists() else ""
    text += old[old.find(_CARD) :] if _CARD in old else ""  # needs a card: kept as it was measured
    write_page(_PAGE, text)


def _plain(rng: np.random.Generator) -> list[np.ndarray]:
    scores = []
    for mean in (2.0, 1.0):
        for _ in range(_RUNS // _AT_ONCE):
            x = rng.standard_normal((_AT_ONCE, _STEPS)) * _SIGMA
            x[:, 0] += mean
            x /= _SIGMA**2
            most = x.max(axis=1)
            x -= most[:, None]
            grown = np.exp(x)
            below, above = grown.sum(axis=1), np.einsum("rt,rt->r", grown, grown)
            scores.append(most + np.log(above) - np.log(below) - 1.5 / _SIGMA**2)
    return scores


def _torch() -> list[object]:
    import torch

    torch.set_num_threads(1)  # threads that wait for work would be counted as working
    scores: list[object] = []
    for mean in (2.0, 1.0):
        for _ in range(_RUNS // _AT_ONCE):
            x = torch.randn(_AT_ONCE, _STEPS) * _SIGMA
            x[:, 0] += mean
            x /= _SIGMA**2
            ratio = torch.logsumexp(2 * x, 1) - torch.logsumexp(x, 1)
            scores.append(ratio - 1.5 / _SIGMA**2)
    return scores


def _cuda() -> str:
    import torch
    import triton

    fused = time_trials(500_000_000, device="cuda")
    memory = torch.cuda.max_memory_allocated() / 2**20
    without = _WithoutTriton(
        sampler=Shuffle(), noise_multiplier=_SIGMA, steps=_STEPS, device="cuda"
    )
    plain = _seconds(without, 2**21) * 1e9 / 2**22
    return _CUDA.format(
        title=_CARD,
        card=torch.cuda.get_device_name(0),
        torch=torch.__version__,
        triton=triton.__version__,
        repeats=_REPEATS,
        steps=_STEPS,
        fused=fused,
        met=_yes(fused <= 3),
        plain=plain,
        memory=memory,
    )


def time_trials(runs: int, *, device: str) -> float:
    """Return the seconds of as many trials with the record and as many without it."""
    plays = BatchedGaussian(sampler=Shuffle(), noise_multiplier=_SIGMA, steps=_STEPS, device=device)
    return _seconds(plays, runs)


def _seconds(plays: BatchedGaussian, runs: int) -> float:
    rng = np.random.default_rng(0)
    plays.count(choose_size(100_000, 1_000), rng, thresholds=_THRESHOLDS)
    found = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        plays.count(runs, rng, thresholds=_THRESHOLDS)  # hands counts back, so all work is done
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _yes(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
