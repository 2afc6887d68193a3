"""CPU seconds and peak memory of one call, taken inside the process that makes it.

Runs in every environment of the benchmark, so it needs the standard library and NumPy only.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

_SEED = 0
_REPEATS_ON_SCORES = 3
_REPEATS_ON_TABLES = 1  # the peer needs many seconds for each, and the ratio is in the hundreds


def answer(calls: Mapping[str, Callable[..., float]], *, tool: str) -> None:
    """Measures the call that the command line asks for and prints one line of JSON.

    Args:
        calls: Question → the call that answers it, from ``arguments(size)`` to ε.
        tool: Name of the installed package, for its version.
    """
    question, size = sys.argv[1:]
    call = calls[question]
    call(*arguments(_tiny(size)))  # imports and compilation are not what is measured
    before = _peak_bytes()
    asked = arguments(size)
    with_scores = _peak_bytes()
    repeats = _REPEATS_ON_TABLES if _is_table(size) else _REPEATS_ON_SCORES
    timed = [_time(call, asked) for _ in range(repeats)]
    measured = {
        "version": metadata.version(tool),
        "epsilon": float(timed[0][1]),
        "cpu_seconds": statistics.median(seconds for seconds, _ in timed),
        "scores_bytes": sum(getattr(argument, "nbytes", 0) for argument in asked),
        "peak_before_scores": before,
        "peak_with_scores": with_scores,
        "peak_at_end": _peak_bytes(),
    }
    sys.stdout.write(json.dumps(measured) + "\n")


def arguments(size: str) -> tuple[Any, ...]:
    """What a call is made on: inside and outside scores, or the counts FN, FP, TN, TP.

    Args:
        size: "1000" for so many scores a side, "12,58,200,200" for a table.
    """
    if _is_table(size):
        return tuple(int(count) for count in size.split(","))
    rng = np.random.default_rng(_SEED)
    return rng.normal(1, 1, int(size)), rng.normal(0, 1, int(size))


def _is_table(size: str) -> bool:
    return "," in size


def _tiny(size: str) -> str:
    return "1,1,1,1" if _is_table(size) else "100"


def _time(call: Callable[..., float], asked: tuple[Any, ...]) -> tuple[float, float]:
    start = time.process_time()  # of all threads
    epsilon = call(*asked)
    return time.process_time() - start, epsilon


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
