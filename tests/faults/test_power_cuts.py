"""The power fails after any call to the disk: nothing that was acknowledged is lost.

After every recorded call the disk is left in several ways: with the least that it may keep, with
all, and with random parts of what was not fsynced. All of these are crash points.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer._files import CACHE_FOLDER, Folder
from epsilometer.engine import store as storing
from epsilometer.engine.engines import InProcess
from epsilometer.engine.run import run
from epsilometer.engine.service import _Journal
from epsilometer.engine.store import Store, Writer, lock
from epsilometer.errors import EpsilometerError
from epsilometer.files.history.index import History
from tests.engine.jobs import Digest, a_plan, in_order
from tests.engine.test_run import Raising
from tests.faults.counting import faults
from tests.faults.disk import Choice, Disk

UNITS = 8
RANDOM = 5  # random states after each call


def acknowledging(plain: Callable[..., Any], disk: Disk, name: Callable[..., Any]) -> Any:
    """Notes what a call said to be safe when it returned."""

    def call(*args: Any, **kwargs: Any) -> Any:
        done = plain(*args, **kwargs)
        disk.acknowledge(name(*args))
        return done

    return call


def record_run(top: Path) -> Disk:
    """A run of which units fail, its second call, and shards that are folded."""
    top.mkdir()
    disk = Disk(top)
    with disk.recorded(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(storing, "_MANY", 3)
        patch.setattr(
            Writer, "add", lambda self, unit, arrays: self._shelf.write_shard({unit: arrays})
        )
        for name, said in (
            ("write_shard", lambda store, units: ("finished", tuple(units))),
            ("write_failure", lambda store, unit, error: ("failed", unit)),
            ("write_result", lambda store, text: ("result", text)),
        ):
            patch.setattr(Store, name, acknowledging(getattr(Store, name), disk, said))
        for broken in ({1, 3}, set()):
            job = Digest(plan=a_plan(UNITS), act=Raising(frozenset(broken)))
            run(job, top / "deep" / "run", engine=InProcess())
    return disk


def cuts(disk: Disk, where: Path, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Path]]:
    """States after every call, each in a folder of its own that is removed again."""
    choices: list[Choice] = ["least", "most", *["random"] * RANDOM]  # type: ignore[list-item]
    for moment in range(len(disk.events) + 1):
        for number, choice in enumerate(choices):
            if wanted(moment * len(choices) + number):
                place = where / f"{moment}-{number}"
                disk.cut(moment, choice, random.Random(moment * 1000 + number), place)
                yield moment, place
                shutil.rmtree(place)


def check_run(disk: Disk, moment: int, place: Path) -> None:
    """What was acknowledged is there, and nothing is damaged."""
    said, directory = disk.acknowledged(moment), place / "deep" / "run"
    if not said and not (directory / "plan.json").exists():
        return
    with lock(directory):
        store = Store.open(directory)
        assert store.look() == {}
        finished = {unit for kind, units in said if kind == "finished" for unit in units}
        assert store.finished >= finished
        failed = {unit for kind, unit in said if kind == "failed"}
        assert set(store.failures()) | set(store.finished) >= failed
    results = [text for kind, text in said if kind == "result"]
    if results:
        assert (directory / "result.json").exists()


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(8, id="some")]
)
def test_no_power_cut_loses_what_a_run_acknowledged(every: int, tmp_path: Path) -> None:
    expected = in_order(tmp_path / "expected", plan=a_plan(UNITS))
    disk = record_run(tmp_path / "top")
    assert (tmp_path / "top" / "deep" / "run" / "result.json").read_bytes() == expected
    points = 0
    for moment, place in cuts(disk, tmp_path, lambda number: number % every == 0):
        points += 1
        with faults("power cut, a run and its store"):
            check_run(disk, moment, place)
            directory = place / "deep" / "run"
            run(Digest(plan=a_plan(UNITS)), directory, engine=InProcess())
            assert (directory / "result.json").read_bytes() == expected
    assert points >= 500 // every


@pytest.mark.parametrize("made", [("deep",), ("deep", "deep/run")])
def test_folders_of_a_run_that_was_killed_before_it_synced_them_last(
    made: tuple[str, ...], tmp_path: Path
) -> None:
    disk = Disk(tmp_path / "top")
    disk.top.mkdir()
    with disk.recorded():
        for name in made:
            os.mkdir(disk.top / name)
        run(Digest(plan=a_plan(2)), disk.top / "deep" / "run", engine=InProcess())
    with faults("power cut, a run and its store"):
        disk.cut(len(disk.events), "least", random.Random(0), tmp_path / "left")
        assert (tmp_path / "left" / "deep" / "run" / "result.json").exists()


def record_journal(top: Path) -> Disk:
    """Answers of a service, kept one by one, by two objects in turn."""
    top.mkdir()
    disk = Disk(top)
    with disk.recorded():
        for start in (0, 6):
            journal = _Journal(top / "deep" / "journal")
            with journal.hold():
                for number in range(start, start + 6):
                    journal.add(f"{number:064x}", [[0.5, 0.5]])
                    disk.acknowledge(f"{number:064x}")
    return disk


def test_no_power_cut_loses_what_a_journal_acknowledged(tmp_path: Path) -> None:
    disk = record_journal(tmp_path / "top")
    points = 0
    for moment, place in cuts(disk, tmp_path, lambda number: True):
        points += 1
        journal = _Journal(place / "deep" / "journal")
        with faults("power cut, the journal of a service"), journal.hold():
            assert set(journal.answers) >= set(disk.acknowledged(moment))
    assert points >= 200


def test_no_power_cut_makes_an_index_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is a cache: torn, it is made again; it never hides or invents a result."""
    results = tmp_path / "results"
    for seed in range(3):
        in_order(results / str(seed), plan=a_plan(2, seed=seed))
    (tmp_path / "top").mkdir()
    disk = Disk(tmp_path / "top")
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "top" / "cache"))
    with disk.recorded():
        for last in range(3, 0, -1):
            expected = History(results).entries
            shutil.move(results / str(last - 1), tmp_path / f"gone{last}")
    expected = History(results, rebuild=True).entries
    points = 0
    for _, place in cuts(disk, tmp_path, lambda number: True):
        points += 1
        monkeypatch.setenv(CACHE_FOLDER, str(place / "cache"))
        with faults("power cut, the index of results"):
            assert History(results).entries == expected
    assert points >= 50


# The recording layer itself


def test_the_layer_drops_what_was_not_fsynced(tmp_path: Path) -> None:
    """Without an fsync of the folder a file may be gone, and without its own be empty."""
    (tmp_path / "top").mkdir()
    disk = Disk(tmp_path / "top")
    with disk.recorded():
        handle = os.open(tmp_path / "top" / "a", os.O_WRONLY | os.O_CREAT)
        os.write(handle, b"text")
        os.close(handle)
    states = set()
    for number in range(60):
        place = tmp_path / f"state{number}"
        disk.cut(len(disk.events), "random", random.Random(number), place)
        states.add((place / "a").read_bytes() if (place / "a").exists() else None)
    assert {None, b"", b"text"} < states
    assert np.any([state is not None and 0 < len(state.rstrip(b"\0")) < 4 for state in states])


def test_a_store_that_forgets_to_sync_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake that was there: new folders were never fsynced in the one above."""
    monkeypatch.setattr(Folder, "sync", lambda self: None)
    disk = record_run(tmp_path / "top")
    lost = 0
    for moment, place in cuts(disk, tmp_path, lambda number: number % 9 == 0):
        try:
            check_run(disk, moment, place)
        except (AssertionError, EpsilometerError):
            lost += 1
    assert lost > 10
