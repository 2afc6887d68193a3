"""Choose the size of a benchmark: ``--tiny`` runs it in seconds, prints the page and writes none.

The tests run every script so, that none rots. Peers in environments of their own are not asked.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

TINY = "--tiny" in sys.argv
ARGUMENTS = [word for word in sys.argv[1:] if word != "--tiny"]
_T = TypeVar("_T")


def choose_size(full: _T, tiny: _T) -> _T:
    """Return the size to measure at."""
    return tiny if TINY else full


def write_page(path: Path, text: str) -> None:
    """Write the page, or print it where it was measured at a tiny size."""
    if TINY:
        sys.stdout.write(text)
    else:
        path.write_text(text, "utf-8")


def repeat_arguments() -> list[str]:
    """Return what a further process of a benchmark is called with, to have the same size."""
    return ["--tiny"] if TINY else []


def fit_power(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the exponent of the time in the size: the slope of the line through logarithms."""
    logs = [math.log(each) for each in sizes], [math.log(max(each, 1e-6)) for each in seconds]
    return statistics.linear_regression(*logs).slope
