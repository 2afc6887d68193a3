"""Times cosines of canaries, and their sums; writes ``benchmarks/canaries.md``.

On a machine with a card, ``python benchmarks/canaries.py cuda`` prints the end of the page, which
a later run elsewhere keeps as it is.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from results import machine
from sizes import ARGUMENTS, choose_size, repeat_arguments, write_page

from epsilometer.audits.federated.directions import HadamardCanaries, SphereCanaries

_PAGE = Path(__file__).resolve().parent / "canaries.md"
_CARD = "## On a card"
_COUNT, _DIMENSION, _REPEATS = choose_size((1_000, 4_100_000, 5), (10, 1_000, 1))
_LARGEST = choose_size((10_000, 10**8), (20, 2_000))
_TEXT = """# Canaries

Written by `python benchmarks/canaries.py`; do not edit. CPU seconds of all threads for {count:,}
canaries in {dimension:,} dimensions and one vector; Hadamard: medians of {repeats} calls after the
first, one by one: of one call.

Measured on {machine}.

| | Hadamard, first call | later calls | drawn one by one | ratio |
| --- | --- | --- | --- | --- |
| all cosines of a vector | {first:.3f} | {later:.3f}{met} | {sphere:.1f} | {ratio:.0f}{ratio_met} |
| sum of all canaries | | {injected:.3f} | {sphere_injected:.1f} | {injected_ratio:.0f} |

The first call also makes signs and places, which later ones find in memory; beside it the ratio
is {first_ratio:.0f}. Directions drawn one by one are {sphere_gb:.1f} GB, redrawn for every call.

{large_count:,} canaries in {large_dimension:,} dimensions: all cosines take {large:.1f} s of CPU,
their sum {large_injected:.1f} s. The process had {large_gib:.1f} GiB of memory at most, of which
the vector is {vector_gib:.1f}; all directions would be {all_tb:.0f} TB.

"""
_CUDA = """{title}

Printed by `PYTHONPATH=src python3 benchmarks/canaries.py cuda` on one {card}: milliseconds on the
clock, medians of {repeats}, {count:,} canaries in {dimension:,} dimensions, vector on the card.

| | Hadamard | drawn one by one |
| --- | --- | --- |
| all cosines of one vector | {hadamard[0]:.1f}{met[0]} | {sphere[0]:.1f}{met[1]} |
| sum of all canaries | {hadamard[1]:.1f} | {sphere[1]:.1f} |

{large_count:,} canaries in {large_dimension:,} dimensions: all cosines take {large:.0f} ms and
{large_sphere:.0f} ms, with {peak:.1f} GiB of the card's memory at most, of which the vector is
{vector_gib:.1f}.
"""


def main() -> None:
    """Measures and writes the page, or prints the part for the card."""
    if ARGUMENTS == ["cuda"]:
        sys.stdout.write(_cuda())
        return
    if ARGUMENTS == ["large"]:
        sys.stdout.write(" ".join(map(str, _large())))
        return
    vector = np.random.default_rng(0).standard_normal(_DIMENSION, dtype=np.float32)
    every = np.arange(_COUNT)
    HadamardCanaries(count=2, dimension=100, key=0).cosines(np.ones(100))  # imports
    hadamard = HadamardCanaries(count=_COUNT, dimension=_DIMENSION, key=1)
    sphere = SphereCanaries(count=_COUNT, dimension=_DIMENSION, key=1)
    first = _seconds(lambda: hadamard.cosines(vector))
    later = statistics.median(_seconds(lambda: hadamard.cosines(vector)) for _ in range(_REPEATS))
    injected = statistics.median(
        _seconds(lambda: hadamard.inject(every, 1.0)) for _ in range(_REPEATS)
    )
    drawn = _seconds(lambda: sphere.cosines(vector))
    drawn_injected = _seconds(lambda: sphere.inject(every, 1.0))
    large, large_injected, peak = map(float, _in_its_own_process())
    text = _TEXT.format(
        count=_COUNT,
        dimension=_DIMENSION,
        repeats=_REPEATS,
        machine=machine(),
        first=first,
        later=later,
        met=f" (target: ≤ 1, {_met(later <= 1)})",
        sphere=drawn,
        first_ratio=drawn / first,
        ratio=drawn / later,
        ratio_met=f" (target: ≥ 25, {_met(drawn / later >= 25)})",
        injected=injected,
        sphere_injected=drawn_injected,
        injected_ratio=drawn_injected / injected,
        sphere_gb=4e-9 * _COUNT * _DIMENSION,
        large_count=_LARGEST[0],
        large_dimension=_LARGEST[1],
        large=large,
        large_injected=large_injected,
        large_gib=peak / 2**30,
        vector_gib=4 * _LARGEST[1] / 2**30,
        all_tb=4e-12 * _LARGEST[0] * _LARGEST[1],
    )
    write_page(_PAGE, text + _kept_card())


def _large() -> tuple[float, float, int]:
    count, dimension = _LARGEST
    canaries = HadamardCanaries(count=count, dimension=dimension, key=1)
    planted: list[np.ndarray] = []
    injected = _seconds(lambda: planted.append(canaries.inject(np.arange(count), 1.0)))
    vector = planted.pop()
    cosines = _seconds(lambda: canaries.cosines(vector))
    return cosines, injected, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _in_its_own_process() -> list[str]:
    """So that its memory is its own."""
    run = subprocess.run(
        [sys.executable, __file__, "large", *repeat_arguments()],
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.split()


def _kept_card() -> str:
    if not _PAGE.exists():
        return ""
    _, found, rest = _PAGE.read_text("utf-8").partition(_CARD)
    return found + rest


def _cuda() -> str:
    import torch

    vector = torch.randn(_DIMENSION, device="cuda")
    every = np.arange(_COUNT)

    def timed(call: Callable[[], object], repeats: int = _REPEATS) -> float:
        call()
        each = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            each.append(time.perf_counter() - start)
        return 1e3 * statistics.median(each)

    def both(kind: type[HadamardCanaries] | type[SphereCanaries]) -> tuple[float, float]:
        canaries = kind(count=_COUNT, dimension=_DIMENSION, key=1)
        return (
            timed(lambda: canaries.cosines(vector)),
            timed(lambda: canaries.inject_tensor(every, 1.0, device="cuda")),
        )

    hadamard, sphere = both(HadamardCanaries), both(SphereCanaries)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    count, dimension = _LARGEST
    vector = torch.randn(dimension, device="cuda")
    families = [
        kind(count=count, dimension=dimension, key=1) for kind in (HadamardCanaries, SphereCanaries)
    ]
    large, large_sphere = (timed(partial(family.cosines, vector), 1) for family in families)
    return _CUDA.format(
        title=_CARD,
        card=torch.cuda.get_device_name(),
        repeats=_REPEATS,
        count=_COUNT,
        dimension=_DIMENSION,
        hadamard=hadamard,
        sphere=sphere,
        met=[f" (target: ≤ 20, {_met(each[0] <= 20)})" for each in (hadamard, sphere)],
        large_count=count,
        large_dimension=dimension,
        large=large,
        large_sphere=large_sphere,
        peak=torch.cuda.max_memory_allocated() / 2**30,
        vector_gib=4 * dimension / 2**30,
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _met(target: bool) -> str:
    return "met" if target else "missed"


if __name__ == "__main__":
    main()
