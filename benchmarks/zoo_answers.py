"""Answers of one tool to all programs of the zoo, in the process of the environment that has it.

Needs the standard library and NumPy only. A tool is one function of ``(inside, outside, epsilon,
delta)``: numbers that were released with a record and without it, and the claim. It returns whether
the claim is refuted, and the number that it went by.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Judge: TypeAlias = Callable[[FloatArray, FloatArray, float, float], tuple[bool, float]]


def answer(judge: Judge, *, tool: str) -> None:
    """Judge every pair of an ``.npz`` file, and print one line of JSON.

        python peers/zoo/ask_TOOL.py FILE.npz

    Args:
        judge: The tool.
        tool: Name of the installed package, for its version.
    """
    with np.load(sys.argv[1]) as held:
        given = {name: held[name] for name in held.files}
    pairs = list(zip(given["inside"], given["outside"], given["epsilon"], strict=True))
    delta = float(given["delta"])
    judge(*pairs[0], delta)  # imports and compilation are not what is measured
    answers, start = [], time.process_time()
    for inside, outside, epsilon in pairs:
        accused, value = judge(inside, outside, float(epsilon), delta)
        shown = round(float(value), 4) if np.isfinite(value) else None
        answers.append({"accused": bool(accused), "value": shown})
    seconds = (time.process_time() - start) / len(pairs)
    told: dict[str, Any] = {"version": _version(tool), "cpu_seconds": seconds, "answers": answers}
    sys.stdout.write(json.dumps(told) + "\n")


def pure_limit(epsilon: float, delta: float, floor: float) -> float:
    """Return the ε of pure DP that (ε, δ)-DP implies for events of at least a probability.

    Under (ε, δ)-DP, P ≤ e^ε Q + δ ≤ (e^ε + δ/q) Q for every event with Q ≥ q.
    """
    return float(np.log(np.exp(epsilon) + delta / floor))


def _version(tool: str) -> str:
    try:
        return metadata.version(tool)
    except metadata.PackageNotFoundError:  # imported from a checkout
        return "of its repository"
