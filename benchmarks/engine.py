"""Times the engine beside the same loop in plain joblib and writes ``benchmarks/engine.md``."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from results import machine
from sizes import choose_size, write_page

from epsilometer.core.audit import Audit
from epsilometer.core.scores import Scores
from epsilometer.engine.engines import Local
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, run
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store, Writer
from epsilometer.stats.score_finding import measure_scores

_PAGE = Path(__file__).resolve().parent / "engine.md"
_UNITS, _SECONDS, _SCORES = choose_size(10_000, 100), choose_size(1e-3, 1e-4), 10
_REPEATS = choose_size(5, 1)
_DELTA, _CONFIDENCE = 1e-5, 0.95
_TEXT = """# What the engine costs

Written by `make speed`; do not edit. {units:,} units of {milliseconds:g} ms, each of which returns
{scores} + {scores} scores, on two processes, wall-clock seconds, medians of {repeats} turns that
alternate: a list of results from plain joblib, and a run with its plan, shards on the disk, log and
result.

Measured on {machine}.

| | seconds | ratio | target |
| --- | --- | --- | --- |
| the same loop in plain joblib | {plain:.2f} | 1 | |
| a run | {ours:.2f} | {ratio:.3f} | ≤ 1.15, {met} |
| calling it again when it is finished | {again:.3f} | | |
| reading and checking every shard of it | {look:.3f} | | |

The store alone, from one process, takes {stored:,.0f} units per second (target: ≥ 2,000,
{stored_met}): units that finish within the same 50 ms share a file, so the {units:,} units of a run
lie in {files:.0f} files. Written one per file, each fsynced and renamed, it takes {single:,.0f}
per second.
"""


@dataclass(frozen=True)
class Idle:
    """A job whose units take a given time and return a few scores."""

    plan: Plan

    def unit(self, index: int) -> Arrays:
        """Busy for a while."""
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            pass
        return {"inside": np.full(_SCORES, 1.0 + index), "outside": np.zeros(_SCORES)}

    def missing(self, index: int) -> Arrays:
        """None fails."""
        raise NotImplementedError

    def watch(self) -> "Idle":
        """Itself: there is nothing to watch."""
        return self

    def see(self, arrays: Arrays) -> None:
        """Not of interest."""

    def epsilon(self) -> None:
        """Not of interest."""

    def enough(self) -> str:
        """Never."""
        return ""

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Read every unit, as a real audit does."""
        parts = list(units)
        scores = Scores(parts[0]["inside"], parts[-1]["outside"])
        finding = measure_scores(scores, claim=None, seed=0, delta=_DELTA, confidence=_CONFIDENCE)
        provenance = done.provenance
        return Audit(subject="idle", claim=None, findings=(finding,), provenance=provenance)


def main() -> None:
    """Measures and writes the page."""
    asked = {"settings": {}, "delta": _DELTA, "confidence": _CONFIDENCE, "until": None}
    job = Idle(Plan(audit="idle", parameters=asked, units=_UNITS, seed=0))
    Parallel(n_jobs=2)(delayed(job.unit)(i) for i in range(100))  # starts the processes
    list(Local(count=2).outcomes(job.unit, range(100)))
    plain, ours, again, look, files = [], [], [], [], []
    for _ in range(_REPEATS):
        plain.append(
            _timed(lambda: Parallel(n_jobs=2)(delayed(job.unit)(i) for i in range(_UNITS)))
        )
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder, "run")
            ours.append(_timed(lambda: run(job, directory, engine=Local(count=2))))  # noqa: B023
            again.append(_timed(lambda: run(job, directory, engine=Local(count=2))))  # noqa: B023
            look.append(_timed(lambda: Store.open(directory).look()))  # noqa: B023
            files.append(len(list((directory / "shards").iterdir())))
    ratio = statistics.median(ours) / statistics.median(plain)
    stored = _stored(job)
    text = _TEXT.format(
        units=_UNITS,
        milliseconds=1000 * _SECONDS,
        scores=_SCORES,
        repeats=_REPEATS,
        machine=machine(),
        plain=statistics.median(plain),
        ours=statistics.median(ours),
        ratio=ratio,
        met=_yes(ratio <= 1.15),
        again=statistics.median(again),
        look=statistics.median(look),
        files=statistics.median(files),
        stored=stored,
        stored_met=_yes(stored >= 2000),
        single=_stored_singly(job),
    )
    write_page(_PAGE, text)


def _stored(job: Idle) -> float:
    arrays = job.unit(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder), job.plan)
        store.prepare()
        start = time.perf_counter()
        with Writer(store) as writer:
            for unit in range(_UNITS):
                writer.add(unit, arrays)
        return _UNITS / (time.perf_counter() - start)


def _stored_singly(job: Idle) -> float:
    arrays, units = job.unit(0), min(_UNITS, 2_000)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder), job.plan)
        store.prepare()
        seconds = _timed(lambda: [store.write_shard({unit: arrays}) for unit in range(units)])
        return units / seconds


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _yes(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
