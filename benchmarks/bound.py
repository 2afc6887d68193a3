"""Times the default bound as scores become more, and writes ``benchmarks/bound.md``."""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measurement import command_seconds
from results import machine
from sizes import choose_size, write_page

from epsilometer.core.scores import Scores
from epsilometer.stats.estimators import epsilon_lower_bound

_PAGE = Path(__file__).resolve().parent / "bound.md"
_SIZES = choose_size((100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000), (50, 100))
_REPEATS, _AUDITS = choose_size((9, 200), (2, 3))
_AGAIN = 100_000  # scores up to which a series of audits is timed
_START = (
    "import numpy as np, epsilometer as em; x = np.arange(1000.0); "
    "em.epsilon_lower_bound(em.Scores(x + 300, x), delta=1e-5)"
)
_TEXT = """# Speed of the default bound

Written by `make speed`; do not edit. `epsilon_lower_bound(scores, delta=1e-5)` of scores N(1, 1)
inside and N(0, 1) outside, n of each; CPU milliseconds in one thread, medians of {repeats}.

- *fresh*: sizes that this process has not asked for.
- *other scores*: the same sizes, for the second time. The ε of a mark (how far the scores reach) is
  kept, and computed where this mark is new.
- *series*: the mean of {audits} audits of the same sizes, each with scores of its own.
- *same mark*: scores that reach a mark whose ε is kept.

Measured on {machine}.

| n | fresh | other scores | series | same mark | time of n ÷ time of n/10, fresh |
| --- | --- | --- | --- | --- | --- |
{rows}

Targets: fresh at 1,000 scores ≤ 8 ms, {fresh}; a series at 1,000 scores ≤ 2 ms, {series}.
`import epsilometer` and one bound take {start:.2f} s of CPU from the start of Python to its end
with compiled modules, {import_numpy:.2f} s of which are Python's and NumPy's (target: ≤ 0.3 s,
{started}).
Ten and more times as fast as jax-privacy: [speed, side by side](results.md).
"""


def main() -> None:
    """Measure and write the page."""
    _time_bound(_draw(30, 0))  # loads what there is to load
    rows, found = [], {}
    for n in _SIZES:
        fresh, other, same = [], [], []
        for i in range(_REPEATS):
            first, second = _draw(n - i, 2 * i), _draw(n - i, 2 * i + 1)
            fresh.append(_time_bound(first))
            other.append(_time_bound(second))
            same.append(_time_bound(first))
        if n <= _AGAIN:
            series = statistics.mean(_time_bound(_draw(n, 100 + i)) for i in range(_AUDITS))
        else:
            series = float("nan")
        found[n] = [statistics.median(fresh), statistics.median(other), series]
        cells = [*found[n], statistics.median(same)]
        growth = found[n][0] / found[n // 10][0] if n // 10 in found else float("nan")
        texts = [f"{value:.3g}" if math.isfinite(value) else "–" for value in (*cells, growth)]
        rows.append(f"| {n:,} | " + " | ".join(texts) + " |")
    at = found[choose_size(1_000, 100)]
    start, numpy = _time_start(_START), _time_start("import numpy")
    text = _TEXT.format(
        repeats=_REPEATS,
        audits=_AUDITS,
        machine=machine(),
        rows="\n".join(rows),
        fresh=_say(at[0] <= 8),
        series=_say(at[2] <= 2),
        start=start,
        import_numpy=numpy,
        started=_say(start <= 0.3),
    )
    write_page(_PAGE, text)


def _draw(n: int, seed: int) -> Scores:
    rng = np.random.default_rng([n, seed])
    return Scores(rng.normal(1, 1, n), rng.normal(0, 1, n))


def _time_bound(scores: Scores) -> float:
    start = time.process_time()
    epsilon_lower_bound(scores, delta=1e-5)
    return 1e3 * (time.process_time() - start)


def _time_start(program: str) -> float:
    """Median of several starts after the first, which compiles the modules for the others."""
    with tempfile.TemporaryDirectory() as kept:
        compiling = ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPYCACHEPREFIX={kept}"]
        command = [*compiling, sys.executable, "-c", program]
        timed = [command_seconds(command) for _ in range(choose_size(6, 2))]
    seconds = [value for value in timed[1:] if value is not None]
    if len(seconds) < len(timed) - 1:
        raise subprocess.SubprocessError(f"Expected {program!r} to run.")
    return statistics.median(seconds)


def _say(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
