"""StatDP as packaged by PyStatDP: half of the runs choose the event, the others test it.

It tests pure DP. The ε that it is asked about follows from the claim for events of 5 % or more,
which those that it looks at have on a right program.
"""

from multiprocessing.pool import ThreadPool
from typing import Any

import zoo_answers
from pystatdp.hypotest import hypothesis_test
from pystatdp.selectors import select_event
from zoo_answers import FloatArray

_FLOOR, _LEVEL = 0.05, 0.05


class _Replay:
    """A mechanism that releases numbers drawn before: those of the database it is given."""

    def __init__(self, inside: FloatArray, outside: FloatArray) -> None:
        self._left = {"inside": iter(inside), "outside": iter(outside)}

    def __call__(self, database: str) -> Any:
        return next(self._left[database])


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    limit = zoo_answers.pure_limit(epsilon, delta, _FLOOR)
    mechanism, half = _Replay(inside, outside), len(inside) // 2 - 1  # one call finds the type
    with ThreadPool(1) as pool:
        first, second, _, event = select_event(
            mechanism, [("inside", "outside", {})], limit, half, process_pool=pool, quiet=True
        )
        p = hypothesis_test(
            mechanism, first, second, {}, event, limit, half, process_pool=pool, report_p2=False
        )
    return float(p) < _LEVEL, float(p)


if __name__ == "__main__":
    zoo_answers.answer(judge, tool="pystatdp")
