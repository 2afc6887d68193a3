"""Programs that are started to be killed, and everything they start."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from epsilometer.engine.store import Store, lock
from tests.engine.jobs import ROOT
from tests.engine.test_shards import unpack

MARK = "EPSILOMETER_TEST_MARK"  # a variable that descendants inherit, however they were left
_PATIENCE = 120.0  # seconds until a test gives up; nothing is measured by it


def until(happened: Callable[[], object], what: str) -> None:
    """Waits, and fails where it would wait for ever."""
    start = time.monotonic()
    while not happened():
        if time.monotonic() - start > _PATIENCE:
            raise AssertionError(f"waited in vain until {what}")
        time.sleep(0.005)


@dataclass
class Family:
    """A process and all that descend from it, also those it has left behind."""

    process: subprocess.Popen[str]
    mark: str

    def alive(self) -> list[int]:
        return marked(self.mark)


def marked(mark: str) -> list[int]:
    """Processes that were started under a mark and are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def kill_marked(mark: str) -> None:
    """Until none is left: a nanny may have begun another."""
    while pids := marked(mark):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(0.01)


@contextmanager
def started(*arguments: object) -> Iterator[Family]:
    """``python arguments`` in a session of its own, as a terminal would."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    family = Family(process, mark)
    try:
        yield family
    finally:
        for pid in family.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.communicate()


def works(directory: Path, process: subprocess.Popen[str]) -> bool:
    """Whether this very process has said that it began."""
    with suppress(OSError):
        for line in (directory / "log.jsonl").read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "started" and event["process"] == process.pid:
                    return True
    return False


@dataclass
class Keeper:
    """Looks at a run after each crash: nothing damaged, nothing lost, nobody's lock."""

    directory: Path
    finished: frozenset[int] = field(default_factory=frozenset)

    def look(self) -> None:
        with lock(self.directory):
            if not (self.directory / "plan.json").exists():
                return  # it came before the plan was whole
            store = Store.open(self.directory)
            assert store.look() == {}
            assert store.finished >= self.finished
            self.finished = store.finished
            held = [
                unit
                for path in (self.directory / "shards").glob("*.shard")
                for unit in unpack(path.read_bytes(), plans={store.plan.hash})
            ]
            assert len(held) == len(set(held))  # none double
