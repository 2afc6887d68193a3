"""Compares shards with SQLite in WAL mode for a million units; writes ``benchmarks/store.md``."""

import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from results import machine
from sizes import choose_size, write_page

from epsilometer.core.audit import Audit
from epsilometer.core.scores import Scores
from epsilometer.engine.leases import Call, Outcome, Outcomes
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, run
from epsilometer.engine.shards import Arrays, pack, unpack
from epsilometer.engine.store import Store
from epsilometer.files.history.index import History
from epsilometer.stats.score_finding import measure_scores

_PAGE = Path(__file__).resolve().parent / "store.md"
_UNITS = choose_size(1_000_000, 1_000)
_SINGLE = choose_size(1_000, 50)
_BATCH = 500  # units that arrive within 50 ms
_TEXT = """# A store for a million units

Written by `python benchmarks/store.py`; do not edit. {units:,} units of 10 + 10 scores (160 bytes).
Shards: files of the units of a moment, checksummed, fsynced and renamed; small ones are folded.
SQLite: one row per unit with the same bytes and checksum, WAL mode, `synchronous=FULL`, a
transaction for the same {batch} units. Both acknowledge what survives a power cut. Seconds of
CPU of one process, so that other work on the machine does not count.

Measured on {machine}.

| | shards | SQLite |
| --- | --- | --- |
| write {units:,} units, {batch} at a time | {shard_write:.1f} s | {sql_write:.1f} s |
| write {single:,} units one by one | {shard_single:.1f} s | {sql_single:.1f} s |
| look at a finished store and check every checksum | {shard_look:.1f} s | {sql_look:.1f} s |
| read all units in order | {shard_read:.1f} s | {sql_read:.1f} s |
| size on the disk | {shard_size:.0f} MB in {files:,} files | {sql_size:.0f} MB |
| one byte of the file is overwritten | {shard_lost:,} units lost | {sql_lost} |

A whole run of {units:,} units, on shards:

| | seconds | target |
| --- | --- | --- |
| begin: until the first unit is asked for | {begin:.1f} | < 60 |
| list: `epsilometer runs list` of its folder | {listed:.1f} | < 60 |
| status: `epsilometer runs status` | {status:.1f} | < 60 |
| resume when a file of units was lost: until the first of them is asked for | {resume:.1f} | < 60 |
| finish: compute those, read all units, write the result | {finish:.1f} | |

The process held {memory:.0f} MB at most.
"""


@dataclass(frozen=True)
class Many:
    """A job of many units that take no time."""

    plan: Plan

    def unit(self, index: int) -> Arrays:
        """Return a few scores."""
        return {"inside": np.full(10, 1.0 + index), "outside": np.zeros(10)}

    def missing(self, index: int) -> Arrays:
        """None fails."""
        raise NotImplementedError

    def watch(self) -> Unwatched:
        """There is nothing to watch."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Read every unit, as a real audit does."""
        last = first = next(iter(units))
        for last in units:  # noqa: B007
            pass
        scores = Scores(first["inside"], last["outside"])
        finding = measure_scores(scores, claim=None, seed=0, delta=1e-5, confidence=0.95)
        return Audit(subject="many", claim=None, findings=(finding,), provenance=done.provenance)


class Asked(Exception):
    """The first unit was asked for."""


@dataclass(frozen=True)
class UntilAsked:
    """An engine that executes units up to one, and then says that it was asked for it."""

    stop: int

    workers = 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes of units below ``stop``."""
        for unit in units:
            if unit >= self.stop:
                raise Asked
            yield Outcome(unit=unit, arrays=call(unit), error="", seconds=1e-6)


class Rows:
    """Units in SQLite, each with its bytes and a checksum over them."""

    def __init__(self, path: Path) -> None:
        """Open or make the database."""
        self.base = sqlite3.connect(path, isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.execute(
            "CREATE TABLE IF NOT EXISTS units (unit INTEGER PRIMARY KEY, data BLOB NOT NULL)"
        )

    def write(self, units: dict[int, Arrays]) -> None:
        """Keep units in one transaction."""
        rows = ((unit, b"".join(pack({unit: arrays}, plan="p"))) for unit, arrays in units.items())
        self.base.execute("BEGIN")
        self.base.executemany("INSERT OR REPLACE INTO units VALUES (?, ?)", rows)
        self.base.execute("COMMIT")

    def read(self) -> Iterator[dict[int, Arrays]]:
        """Yield units in their order, checked."""
        from io import BytesIO

        for (data,) in self.base.execute("SELECT data FROM units ORDER BY unit"):
            yield unpack(BytesIO(data), plans={"p"})

    def look(self) -> int:
        """Check every row and return how many there are."""
        import hashlib

        found = 0
        for (data,) in self.base.execute("SELECT data FROM units ORDER BY unit"):
            found += hashlib.sha256(data[65:]).hexdigest().encode() == data[:64]
        return found


def make_job(units: int) -> Many:
    """Return a job of so many units."""
    asked = {"settings": {}, "delta": 1e-5, "confidence": 0.95, "until": None}
    return Many(Plan(audit="many", parameters=asked, units=units, seed=0))


def main() -> None:
    """Measures and writes the page."""
    found: dict[str, object] = {"units": _UNITS, "batch": _BATCH, "single": _SINGLE}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2) as pool:
        parts = [pool.submit(part, Path(folder)) for part in (_measure_shards, _measure_rows)]
        for part in parts:
            found |= part.result()
    write_page(_PAGE, _TEXT.format(**found, machine=machine()))


def _measure_shards(folder: Path) -> dict[str, object]:
    """Fill a store, look, read; then lose a file, and resume, finish and list the run."""
    job, single, directory = make_job(_UNITS), make_job(_SINGLE), folder / "runs" / "many"
    directory.parent.mkdir()
    begin = _time(lambda: _run_until_asked(job, directory))
    store = Store.open(directory)
    store.prepare()

    def write() -> None:
        for batch in _batches(job):
            store.write_shard(batch)

    found: dict[str, object] = {"begin": begin, "shard_write": _time(write)}
    again = Store.open(directory)
    found["shard_look"] = _time(again.look)
    found["shard_read"] = _time(lambda: sum(len(again.read(unit)) for unit in range(_UNITS)))
    files = sorted((directory / "shards").iterdir())
    found["files"] = len(files)
    found["shard_size"] = _measure_size(files)
    _overwrite(files[len(files) // 2])
    again.look()
    found["shard_lost"] = _UNITS - len(again.finished)
    found["resume"] = _time(lambda: _run_until_asked(job, directory))
    found["finish"] = _time(lambda: run(job, directory, engine=UntilAsked(_UNITS)))
    found["status"] = _time(lambda: _ask_status(directory))
    found["listed"] = _time(lambda: History(directory.parent, rebuild=True))
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (folder / "single").mkdir()
    alone = Store.create(folder / "single", single.plan)
    alone.prepare()
    found["shard_single"] = _time(
        lambda: [alone.write_shard({unit: single.unit(unit)}) for unit in range(_SINGLE)]
    )
    return found


def _run_until_asked(job: Many, directory: Path) -> None:
    with suppress(Asked):
        run(job, directory, engine=UntilAsked(0))


def _ask_status(directory: Path) -> None:
    from click.testing import CliRunner

    from epsilometer.cli.main import main as command

    CliRunner().invoke(command, ["runs", "status", str(directory)])


def _measure_rows(folder: Path) -> dict[str, object]:
    job, single = make_job(_UNITS), make_job(_SINGLE)
    rows = Rows(folder / "units.db")

    def write() -> None:
        for batch in _batches(job):
            rows.write(batch)

    found: dict[str, object] = {"sql_write": _time(write)}
    rows.base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    found["sql_look"] = _time(rows.look)
    found["sql_read"] = _time(lambda: sum(1 for _ in rows.read()))
    rows.base.close()
    found["sql_size"] = _measure_size([folder / "units.db"])
    _overwrite(folder / "units.db")
    found["sql_lost"] = _count_lost(folder / "units.db")
    alone = Rows(folder / "single.db")
    found["sql_single"] = _time(
        lambda: [alone.write({unit: single.unit(unit)}) for unit in range(_SINGLE)]
    )
    alone.base.close()
    return found


def _batches(job: Many) -> Iterator[dict[int, Arrays]]:
    for start in range(0, job.plan.units, _BATCH):
        stop = min(start + _BATCH, job.plan.units)
        yield {unit: job.unit(unit) for unit in range(start, stop)}


def _overwrite(path: Path) -> None:
    """Overwrite a byte in the middle."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _count_lost(path: Path) -> str:
    try:
        return f"{_UNITS - Rows(path).look():,} units lost"
    except sqlite3.DatabaseError as error:
        return f"refused: {error}"


def _measure_size(files: Iterable[Path]) -> float:
    return sum(os.stat(path).st_blocks * 512 for path in files) / 1e6


def _time(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main()
