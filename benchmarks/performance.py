"""Times every job at four sizes or more, beside peers and limits; writes two pages.

``docs/performance.md`` has the largest sizes, ``benchmarks/performance.md`` everything.

    python benchmarks/performance.py              # all jobs: make bench
    python benchmarks/performance.py bound csv    # these jobs; others stay as they were measured
    python benchmarks/performance.py --page       # the page again, from benchmarks/history.csv
    python benchmarks/performance.py --tiny       # prints a page of tiny sizes

A job has one line of ``history.csv`` for each size and measurement. Seconds of different machines
cannot be compared; so the page compares ratios to a peer, to a limit or to a yardstick, all of
which are measured in the same run.
"""

import csv
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from jobs import JOBS, Job
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, fit_power, write_page

_HERE = Path(__file__).resolve().parent
_HISTORY = _HERE / "history.csv"
_PAGE, _DETAILS = _HERE.parent / "docs" / "performance.md", _HERE / "performance.md"
_WORSE = 1.2  # a ratio that grew by more is marked
_TAKES = choose_size(3, 1)
_HEAD = ("job", "ours, s", "peer, s", "times", "limit, s", "share", "growth", "target", "since")
_SHORT = 1.0  # seconds: what takes longer is measured once
_TEXT = """# How fast

CPU seconds of one thread at the largest size, written by `make bench`: the least of {takes}
calls, or one above {short:g} s. *Limit*: work that no program can leave out, in the same run as
the peer; *share*: limit over ours. *Growth*: exponent of the time in the size. Which peers, limits
and sizes, and changes: [details](../benchmarks/performance.md). **Slower** than at the last run by
more than {worse:.0%} on the same machine: {slower}.

Measured on {machine}.

{table}

## On other pages

Many models at once on one H200: [training](../benchmarks/gpu.md),
[canaries](../benchmarks/canaries.md), [trials](../benchmarks/batched_gaussian.md),
[audited steps](../benchmarks/conformance.md). Targets:

- MLP, LeNet-5, CNN and small transformers on a GPU: [GPU](../benchmarks/gpu.md)
- small transformers on a CPU, 8 times `torch.func`: [transformers](../benchmarks/transformer.md)
- from one core to two, 1.8 times: [training](../benchmarks/training.md)
- federated rounds, 20 times Flower, up to 10⁵ clients: [at scale](../benchmarks/federated_scale.md)
- audited steps, 1.3 times plain ones, 1.5 on a GPU: [conformance](../benchmarks/conformance.md)
- memory of LiRA and RMIA: [membership](../benchmarks/membership.md)
- shuffling up to 10³ epochs, its memory; Poisson sampling in 50 ms; start; reports:
  [accounting](../benchmarks/accounting.md)
"""
_FULL = """# How fast: details

Written by `make bench` from `benchmarks/history.csv`; do not edit. In short:
[how fast](../docs/performance.md). CPU seconds of
one thread at the largest size: the least of {takes} calls, or one call where it takes more than
{short:g} s. *Peer* and *limit* are measured in the same run. The limit is work that no program
can leave out; the share is limit over ours. *Growth* is the exponent of the time in the size,
fitted to the sizes shown. *Since* compares ours ÷ peer (÷ limit without a peer, ÷ a fixed piece of
work without either) with the measurement before; **slower** means more than {worse:.0%} on the
same machine. Where the fixed piece of work takes {worse:.0%} more or less, the machine is another.

Measured on {machine}.

{table}

## Peers and limits

| job | peer and limit |
|---|---|
{notes}

## Sizes

| job | sizes: seconds |
|---|---|
{sizes}
"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One size of one job, as it was measured once; what was not measured is nan.

    Attributes:
        date: Of the measurement.
        machine: In words.
        job: Its name.
        size: Of what was asked.
        ours: CPU seconds.
        peer: CPU seconds of the peer.
        limit: CPU seconds of what cannot be left out.
        yardstick: CPU seconds of a fixed piece of work.
    """

    date: str
    machine: str
    job: str
    size: int
    ours: float
    peer: float
    limit: float
    yardstick: float

    @property
    def ratio(self) -> float:
        """Return what is compared from one measurement to the next."""
        beside = (each for each in (self.peer, self.limit) if not math.isnan(each))
        return self.ours / next(beside, self.yardstick)


def main() -> None:
    """Measure the jobs that are asked for, and write the page."""
    warnings.simplefilter("ignore")  # of frameworks, about themselves
    torch.set_num_threads(1)
    asked = [word for word in ARGUMENTS if word != "--page"]
    unknown = set(asked) - {job.name for job in JOBS}
    if unknown:
        raise SystemExit(f"Expected jobs among {[job.name for job in JOBS]}, got {unknown}.")
    lines = [] if TINY else read_history()
    if "--page" not in ARGUMENTS:
        chosen = [job for job in JOBS if not asked or job.name in asked]
        lines += measure_jobs(chosen)
        if not TINY:
            write_history(lines)
            lines = read_history()  # as rounded there: the page can be made again from it
    write_page(_PAGE, make_page(lines))
    write_page(_DETAILS, make_details(lines))


def measure_jobs(jobs: Iterable[Job]) -> list[Line]:
    """Return the lines of all sizes of these jobs."""
    date, where = f"{datetime.now(UTC):%Y-%m-%d}", machine()
    found = []
    for job in jobs:
        yardstick = _time(_make_yardstick)
        for size in job.sizes:
            sys.stderr.write(f"{job.name} {size:,}\n")
            found.append(
                Line(
                    date=date,
                    machine=where,
                    job=job.name,
                    size=size,
                    ours=_time(lambda job=job, size=size: job.ours(size)),
                    peer=math.nan if job.peer is None else job.peer(size),
                    limit=_time(lambda job=job, size=size: job.limit(size))
                    if job.limit
                    else math.nan,
                    yardstick=yardstick,
                )
            )
    return found


def _time(prepare: Callable[[], Callable[[], object]]) -> float:
    """Return CPU seconds of the call that is prepared; each call is prepared anew."""
    seconds = math.inf
    for _ in range(_TAKES):
        call = prepare()
        start = time.process_time()
        call()
        seconds = min(seconds, time.process_time() - start)
        if seconds > _SHORT:
            break
    return max(seconds, 1e-7)


def _make_yardstick() -> Callable[[], object]:
    """Sort a million numbers, and count as many in Python."""
    values = np.random.default_rng(0).random(10**6)
    return lambda: (np.sort(values), sum(i & 1 for i in range(10**6)))


def read_history() -> list[Line]:
    """Return all that was measured, in order."""
    if not _HISTORY.exists():
        return []
    kinds = {field.name: field.type for field in fields(Line)}
    with _HISTORY.open(encoding="utf-8", newline="") as file:
        return [
            Line(**{name: kinds[name](cell) for name, cell in row.items()})
            for row in csv.DictReader(file)
        ]


def write_history(lines: Sequence[Line]) -> None:
    """Write all that was measured."""
    with _HISTORY.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow(
                {
                    name: f"{value:.4g}" if isinstance(value, float) else value
                    for name, value in asdict(line).items()
                }
            )


def make_page(lines: Sequence[Line]) -> str:
    """Return the page of the documentation: the newest measurement of each job, in short."""
    newest = _list_newest(lines)
    rows = [
        (*row[:3], *row[4:8])  # without times, which the target has, and what changed
        for row in map(_describe_job, newest)
    ]
    slower = [job.name for job, runs in newest if "**slower**" in _compare_runs(runs)]
    return _TEXT.format(
        takes=_TAKES,
        short=_SHORT,
        worse=_WORSE - 1,
        slower=", ".join(slower) or "none",
        machine=_name_machines(lines),
        table=_tabulate((*_HEAD[:3], *_HEAD[4:8]), rows),
    )


def make_details(lines: Sequence[Line]) -> str:
    """Return the page of everything that was measured newly of each job."""
    newest = _list_newest(lines)
    sizes = [
        f"| {job.name}, {job.unit} | "
        f"{', '.join(f'{each.size:,}: {each.ours:.3g}' for each in runs[-1])} |"
        for job, runs in newest
    ]
    return _FULL.format(
        takes=_TAKES,
        short=_SHORT,
        worse=_WORSE - 1,
        machine=_name_machines(lines),
        table=_tabulate(_HEAD, map(_describe_job, newest)),
        notes="\n".join(f"| {job.name} | {job.note} |" for job, _ in newest),
        sizes="\n".join(sizes),
    )


def _list_newest(lines: Sequence[Line]) -> list[tuple[Job, list[list[Line]]]]:
    """Return the jobs that were measured, each with its measurements."""
    runs = ((job, _split_runs([line for line in lines if line.job == job.name])) for job in JOBS)
    return [(job, found) for job, found in runs if found]


def _describe_job(newest: tuple[Job, list[list[Line]]]) -> tuple[str, ...]:
    """Return the row of a job, under ``_HEAD``; a dash where there is nothing."""
    job, runs = newest
    curve, last = runs[-1], runs[-1][-1]
    cells = (
        f"{last.ours:.3g}",
        f"{last.peer:.3g}",
        f"{last.peer / last.ours:.1f}",
        f"{last.limit:.3g}",
        f"{last.limit / last.ours:.0%}",
        f"{fit_power([each.size for each in curve], [each.ours for each in curve]):.2f}",
    )
    return (
        job.title.format(size=f"{last.size:,}"),
        *("–" if cell.startswith("nan") else cell for cell in cells),
        _judge_target(job, last),
        _compare_runs(runs),
    )


def _tabulate(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _name_machines(lines: Sequence[Line]) -> str:
    """Return the machines of the newest measurements; jobs of others than most by name."""
    newest = {line.job: line.machine for line in lines if line.job in {job.name for job in JOBS}}
    most = Counter(newest.values()).most_common()
    others = [
        f"{', '.join(job for job, own in newest.items() if own == name)} on {name}"
        for name, _ in most[1:]
    ]
    return "; ".join([most[0][0], *others])


def _split_runs(lines: Sequence[Line]) -> list[list[Line]]:
    """Divide the lines of a job into measurements: each begins at the smallest size."""
    runs: list[list[Line]] = []
    for line in lines:
        if not runs or line.size <= runs[-1][-1].size:
            runs.append([])
        runs[-1].append(line)
    return runs


def _compare_runs(runs: Sequence[Sequence[Line]]) -> str:
    if len(runs) < 2 or runs[-2][-1].size != runs[-1][-1].size:
        return "first"
    before, now = runs[-2][-1], runs[-1][-1]
    change, pace = now.ratio / before.ratio, now.yardstick / before.yardstick
    found = f"{change:.2f} × {before.date}"
    if now.machine != before.machine or not 1 / _WORSE <= pace <= _WORSE:
        return f"{found}, another machine"
    return found + (" **slower**" if change > _WORSE else "")


def _judge_target(job: Job, last: Line) -> str:
    if job.target is None:
        return "–"
    reached = last.peer / last.ours if job.beside else last.ours
    if math.isnan(reached):
        return "not measured"
    met = reached >= job.target if job.beside else reached <= job.target
    sign = "≥" if job.beside else "≤"
    found = f", {'met' if met else 'missed'}" + (f" ({reached:.1f})" if job.beside else "")
    return f"{sign} {job.target:g}{' times' if job.beside else ' s'}{found}"


if __name__ == "__main__":
    main()
