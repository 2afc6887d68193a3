"""CPU seconds and peak memory of a call, taken inside the process that makes it.

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
BoolArray: TypeAlias = NDArray[np.bool_]

_SEED = 0
_REPEATS_ON_SCORES = 3
_REPEATS_ON_TABLES = 1  # the peer needs many seconds for each, and the ratio is in the hundreds


def answer(calls: Mapping[str, Callable[..., Any]], *, tool: str) -> None:
    """Makes the call that the command line asks for and prints one line of JSON.

        python peers/TOOL.py QUESTION GIVEN

    What is given is a size of scores or a table (``arguments``), which is timed; or ``FILE:N``, the
    first N audits of an ``.npz`` file whose arrays have an axis of audits, the first of which are
    timed; or any other text, which the call understands and answers by a dictionary.

    Args:
        calls: Question → the call that answers it.
        tool: Name of the installed package, for its version.
    """
    question, given = sys.argv[1:]
    if ".npz:" in given:
        told = _of_audits(calls[question], given)
    elif given.replace(",", "").isdigit():
        told = _of_size(calls[question], given)
    else:
        told = calls[question](given)
    sys.stdout.write(json.dumps({"version": metadata.version(tool), **told}) + "\n")


def arguments(size: str) -> tuple[Any, ...]:
    """What a call is made on: inside and outside scores, or the counts FN, FP, TN, TP.

    Args:
        size: "1000" for so many scores a side, "12,58,200,200" for a table.
    """
    if _is_table(size):
        return tuple(int(count) for count in size.split(","))
    rng = np.random.default_rng(_SEED)
    return rng.normal(1, 1, int(size)), rng.normal(0, 1, int(size))


def peak_bytes() -> int:
    """Peak resident memory of this process up to now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _of_size(call: Callable[..., float], size: str) -> dict[str, Any]:
    call(*arguments(_tiny(size)))  # imports and compilation are not what is measured
    before = peak_bytes()
    asked = arguments(size)
    with_scores = peak_bytes()
    repeats = _REPEATS_ON_TABLES if _is_table(size) else _REPEATS_ON_SCORES
    timed = [_time(call, asked) for _ in range(repeats)]
    return {
        "epsilon": float(timed[0][1]),
        "cpu_seconds": statistics.median(seconds for seconds, _ in timed),
        "scores_bytes": sum(getattr(argument, "nbytes", 0) for argument in asked),
        "peak_before_scores": before,
        "peak_with_scores": with_scores,
        "peak_at_end": peak_bytes(),
    }


def _of_audits(call: Callable[..., Any], given: str) -> dict[str, Any]:
    file, _, count = given.rpartition(":")
    with np.load(file) as held:
        arrays = [held[name] for name in held.files]
    audits = [tuple(array[i] for array in arrays) for i in range(int(count))]
    call(*audits[-1])  # imports and compilation, on scores that are not those that are timed
    start = time.perf_counter()
    timed = [_time(call, audit) for audit in audits[:_REPEATS_ON_SCORES]]
    wall = (time.perf_counter() - start) / len(timed)
    peak = peak_bytes()
    return {
        "answers": [found for _, found in timed] + [call(*audit) for audit in audits[len(timed) :]],
        "cpu_seconds": statistics.median(seconds for seconds, _ in timed),
        "wall_seconds": wall,
        "peak_bytes": peak,
    }


def _is_table(size: str) -> bool:
    return "," in size


def _tiny(size: str) -> str:
    return "1,1,1,1" if _is_table(size) else "100"


def _time(call: Callable[..., Any], asked: tuple[Any, ...]) -> tuple[float, Any]:
    start = time.process_time()  # of all threads
    found = call(*asked)
    return time.process_time() - start, found
