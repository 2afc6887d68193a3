"""Times PDTP beside a loop of refits; writes ``benchmarks/leave_one_out.md``.

IBM's Adversarial Robustness Toolbox is timed too, in an environment of its own, unless
``python benchmarks/leave_one_out.py alone`` is asked for.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measurement import ask
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, repeat_arguments, write_page
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.trees import RandomDecisionTrees

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE / "leave_one_out.md"
_PEER = "adversarial_robustness_toolbox"
_REPEATS, _REFITS, _ASKED = (
    *choose_size((5, 100), (1, 3)),
    10,
)  # calls of ours; records of the loop, and of the toolbox
_RECORDS = choose_size(1000, 100)
_ROWS_OF_A_CENSUS, _VALUES = (
    choose_size(10**6, 1000),
    (97, 6, 9, 2),
)  # age, marital status, race, sex
_TEXT = """# Leave-one-out

Written by `python benchmarks/leave_one_out.py`; do not edit. CPU seconds (all threads, of which
there is one) for PDTP of all records. Ours: median of {repeats} calls after the first (of one,
where it takes longer than a second). Refits: `clone(estimator).fit` without a record and
`predict_proba` at it, {refits} records, scaled to all. Toolbox: PDTP of the Adversarial
Robustness Toolbox {version}, `num_iter=1`, {asked} records, scaled to all; it also asks every
model about all rows.

Measured on {machine}.

| | data | ours | refits | refits / ours | toolbox / ours |
| --- | --- | --- | --- | --- | --- |
{rows}

The largest difference of a probability from the refits was {apart:.1e}, logistic regression left
aside: its solvers stop earlier than ours (see the tests for tight ones).

Categorical naive Bayes on {census:,} rows of 4 columns: PDTP of every record in {seconds:.2f} s
of CPU (target: ≤ 10, {met}). The process grew by {times:.1f} times the size of the data, the data
included (target: ≤ 4, {memory_met}).
"""


@dataclass(frozen=True)
class Row:
    """An estimator on data, the ratio to reach, and what the toolbox calls it."""

    name: str
    estimator: Any
    data: str
    target: float | None = None
    peer: str | None = None
    exact: bool = True


_TABLE = (
    Row("Gaussian naive Bayes", GaussianNB(), "digits", 200, "gaussian"),
    Row("Bernoulli naive Bayes", BernoulliNB(), "digits"),
    Row("multinomial naive Bayes", MultinomialNB(), "digits, counts"),
    Row("complement naive Bayes", ComplementNB(), "digits, counts"),
    Row("categorical naive Bayes", CategoricalNB(min_categories=17), "digits, counts"),
    Row("5 nearest neighbours", KNeighborsClassifier(), "digits", 100, "neighbours"),
    Row("linear discriminant analysis", LinearDiscriminantAnalysis(), "digits"),
    Row("quadratic discriminants", QuadraticDiscriminantAnalysis(reg_param=0.1), "digits"),
    Row("30 random decision trees", RandomDecisionTrees(bounds=(0, 16)), "digits, counts"),
    Row(
        "logistic regression, 2 classes",
        LogisticRegression(tol=1e-8, max_iter=1000),
        "cancer",
        40,
        "logistic",
        exact=False,
    ),
    Row(
        "logistic regression, 10 classes",
        LogisticRegression(tol=1e-8, max_iter=1000),
        "digits",
        4,
        "logistic",
        exact=False,
    ),
)


def main() -> None:
    """Measures and writes the page."""
    if ARGUMENTS == ["census"]:
        sys.stdout.write(json.dumps(_census()))
        return
    alone = TINY or ARGUMENTS == ["alone"]
    lines, apart, version = [], [], "(not measured)"
    with threadpool_limits(1):
        for row in choose_size(_TABLE, _TABLE[:6]):
            ours, refits, gap = _measured(row)
            apart += [gap] if row.exact else []
            peer = None if alone or not row.peer else _peer(row)
            version = version if peer is None else peer["version"]
            lines.append(_line(row, ours, refits, peer))
    census = _in_its_own_process()
    write_page(
        _PAGE,
        _TEXT.format(
            repeats=_REPEATS,
            refits=_REFITS,
            asked=_ASKED,
            version=version,
            machine=machine(),
            rows="\n".join(lines),
            apart=max(apart),
            census=_ROWS_OF_A_CENSUS,
            seconds=census["seconds"],
            met=_met(census["seconds"] <= 10),
            times=census["times"],
            memory_met=_met(census["times"] <= 4),
        ),
    )


def records(data: str) -> tuple[Any, Any]:
    """Features and labels of up to 1,000 records; standardised unless they are to be counts."""
    name, _, counts = data.partition(", ")
    x, y = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    x, y = x[:_RECORDS], y[:_RECORDS]
    spread = x.std(axis=0)
    return (x, y) if counts else ((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), y)


def _measured(row: Row) -> tuple[float, float, float]:
    x, y = records(row.data)
    start = time.process_time()
    found = pdtp(row.estimator, x, y)  # and imports
    repeats = _REPEATS if time.process_time() - start < 1 else 1
    ours = statistics.median(_seconds(lambda: pdtp(row.estimator, x, y)) for _ in range(repeats))
    removed = np.linspace(0, len(y) - 1, _REFITS).astype(int)
    refitted = np.empty((_REFITS, found.classes.size))

    def loop() -> None:
        for place, record in enumerate(removed):
            kept = np.arange(len(y)) != record
            model = clone(row.estimator).fit(x[kept], y[kept])
            refitted[place] = model.predict_proba(x[[record]])[0]

    refits = _seconds(loop) * len(y) / _REFITS
    return ours, refits, float(np.abs(np.exp(found.without[removed]) - refitted).max())


def _peer(row: Row) -> dict[str, Any]:
    said = ask(_PEER, "pdtp", f"{row.peer} {row.data} {_ASKED}")
    said["cpu_seconds"] *= len(records(row.data)[1]) / _ASKED
    return said


def _line(row: Row, ours: float, refits: float, peer: dict[str, Any] | None) -> str:
    target = ""
    if row.target is not None:
        target = f" (target: ≥ {row.target:g}, {_met(refits / ours >= row.target)})"
    toolbox = "" if peer is None else f"{peer['cpu_seconds'] / ours:,.0f}"
    count = len(records(row.data)[1])
    return (
        f"| {row.name} | {row.data}, {count:,} | {ours:.4f} | {refits:.2f} "
        f"| {refits / ours:,.0f}{target} | {toolbox} |"
    )


def _census() -> dict[str, float]:
    pdtp(CategoricalNB(), np.arange(8).reshape(4, 2) % 2, np.arange(4) % 2)  # imports
    rng = np.random.default_rng(0)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    x = np.stack([rng.integers(0, size, _ROWS_OF_A_CENSUS) for size in _VALUES], axis=1)
    y = rng.integers(0, 2, _ROWS_OF_A_CENSUS)
    seconds = _seconds(lambda: pdtp(CategoricalNB(), x, y))
    return {"seconds": seconds, "times": (_peak_bytes() - before) / (x.nbytes + y.nbytes)}


def _in_its_own_process() -> dict[str, float]:
    """So that its memory is its own."""
    call = [sys.executable, __file__, "census", *repeat_arguments()]
    run = subprocess.run(call, check=True, capture_output=True, text=True)
    said: dict[str, float] = json.loads(run.stdout)
    return said


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _met(target: bool) -> str:
    return "met" if target else "missed"


if __name__ == "__main__":
    main()
