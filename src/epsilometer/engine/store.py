"""A run's directory. Whatever is written there is whole or absent, at every moment.

plan.json      everything that determines the result, with its hash
shards/        one file a finished unit
failures/      one file a unit that raised, with its traceback
result.json    the result
log.jsonl      what happened, one event a line
lock           held while somebody works on the run
"""

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from epsilometer.engine.plan import Plan
from epsilometer.engine.shards import Arrays, DamagedShard, pack, unpack
from epsilometer.errors import EpsilometerError, InvalidArgument

_MOMENT = 0.05  # seconds; units that finish within one share a file and its trip to the disk
_HELD = 64 * 2**20  # bytes that may wait for the disk before the run waits for it
_RECENT = 4  # files of shards kept in memory while units are read in order
_NAMED = 8  # differences of two plans that a message names
_PATIENCE = 1.0  # seconds: somebody who only asks for the status holds the lock for an instant


class RunBusy(EpsilometerError):
    """Another process works on this run."""


class CannotRead(EpsilometerError):
    """The directory of a run cannot be looked into."""


class CannotWrite(EpsilometerError):
    """The directory cannot be written: full, read-only, gone. What is finished stays finished."""


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds a run. The kernel lets go when the process ends, however it ends."""
    held = FileLock(directory / "lock")
    try:
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            held.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise RunBusy(
            f"Expected a run that nobody works on; {_holder(directory)} works on "
            f"{str(directory)!r}. Wait for it, or follow it with: "
            f"epsilometer runs status {directory}"
        ) from error
    try:
        yield
    finally:
        held.release()


def busy(directory: Path) -> bool:
    """Whether somebody works on the run now."""
    held = FileLock(directory / "lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # a directory we may only read
        return False
    held.release()
    return False


class Store:
    """The directory of one run and its plan. Hold its ``lock`` to write."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        """Knows where things are; reads and writes nothing yet."""
        self.directory, self.plan, self._hash = directory, plan, plan.hash
        self._shards, self._failures = directory / "shards", directory / "failures"
        self._home: dict[int, Path] = {}  # finished unit → its file
        self._recent: dict[Path, dict[int, Arrays]] = {}

    @classmethod
    def create(cls, directory: Path, plan: Plan) -> "Store":
        """A new run, or the one that is already there if it has the same plan."""
        if (directory / "plan.json").exists():
            there = cls.open(directory)
            if there.plan.hash != plan.hash:  # 1 and 1.0 are equal, and another text
                raise InvalidArgument(
                    f"Expected no other run in {str(directory)!r}, found one by the plan "
                    f"{there.plan.hash[:12]}…: {_difference(there.plan, plan)}. "
                    "Name another directory, or delete that one."
                )
            return there
        store = cls(directory, plan)
        store.write("plan.json", plan.to_json() + "\n")
        return store

    @classmethod
    def open(cls, directory: Path) -> "Store":
        """The run in this directory."""
        try:
            text = (directory / "plan.json").read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"Expected a run in {str(directory)!r}, found no plan.json to read ({error})."
            ) from error
        try:
            return cls(directory, Plan.from_json(text))
        except InvalidArgument as error:
            raise InvalidArgument(f"{directory / 'plan.json'}: {error}") from error

    def prepare(self) -> dict[str, str]:
        """Makes the directories and looks at the shards; what is torn or foreign is taken away.

        Returns:
            File name → what was wrong with it. Its units are computed again.
        """
        with _writing(self.directory):
            self._shards.mkdir(exist_ok=True)
            self._failures.mkdir(exist_ok=True)
            for folder, ours in (
                (self.directory, "*.json.tmp"),
                (self._shards, "*.shard.tmp"),
                (self._failures, "*.json.tmp"),
            ):
                for torn in folder.glob(ours):  # by a crash
                    _take_away(torn)
            damaged = self.look()
            for name in damaged:
                _take_away(self._shards / name)
            for unit in self._noted():  # a crash came between its shard and its note
                if unit in self._home:
                    self._failure(unit).unlink()
        return damaged

    def look(self) -> dict[str, str]:
        """Reads and checks every shard, and remembers where units are; returns what is damaged."""
        damaged = {}
        self._home.clear()
        self._recent.clear()
        for path in self._listed(self._shards, ".shard"):
            try:
                for unit in self._unpacked(path):
                    self._home[unit] = path
            except DamagedShard as error:
                damaged[path.name] = str(error)
        return damaged

    @property
    def finished(self) -> frozenset[int]:
        """Units whose shards are whole, as last looked at."""
        return frozenset(self._home)

    def read(self, unit: int) -> Arrays:
        """What a finished unit returned; units in order are read fast."""
        try:
            return self._unpacked(self._home[unit])[unit]
        except DamagedShard as error:
            raise DamagedShard(f"{self._home[unit]} was whole a moment ago; now {error}") from error

    def write_shard(self, units: Mapping[int, Arrays]) -> None:
        """Keeps what units returned in one file, and forgets that they had failed before."""
        path = self._shards / _shard_name(units)
        self._replace(path, pack(units, plan=self._hash))
        self.sync(self._shards)
        for unit in units:
            self._home[unit] = path
            with _writing(self.directory), suppress(FileNotFoundError):
                self._failure(unit).unlink()

    def write_failure(self, unit: int, error: str) -> None:
        """Keeps why a unit failed."""
        text = json.dumps({"unit": unit, "error": error}, indent=2, ensure_ascii=False)
        self._replace(self._failure(unit), text.encode("utf-8", "backslashreplace"))

    def failures(self) -> dict[int, str]:
        """Unit → traceback of each that failed and was not finished since."""
        found = {}
        for unit in self._noted():
            # A torn note is no evidence.
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                note = json.loads(self._failure(unit).read_text("utf-8"))
                if unit not in self._home:
                    found[unit] = str(note["error"])
        return found

    def forget_failures(self, first: int) -> None:
        """Takes away why units from ``first`` on failed: nobody needs them any more."""
        with _writing(self.directory):
            for unit in self._noted():
                if unit >= first:
                    self._failure(unit).unlink()

    def write(self, name: str, text: str) -> None:
        """Writes a JSON file of the run, whole or not at all."""
        self._replace(self.directory / name, text.encode("utf-8", "backslashreplace"))
        self.sync(self.directory)

    def text(self, name: str) -> str | None:
        """A file of the run, or None where there is none to read."""
        try:
            return (self.directory / name).read_text("utf-8", "replace")
        except OSError:
            return None

    def sync(self, folder: Path) -> None:
        """Makes renamed files survive a power cut."""
        if os.name == "posix":
            with _writing(self.directory):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def _unpacked(self, path: Path) -> dict[int, Arrays]:
        if path in self._recent:
            return self._recent[path]
        if path.is_symlink() or not path.is_file():
            raise DamagedShard("it is no plain file")
        try:
            units = unpack(path.read_bytes(), plan=self._hash)
        except OSError as error:
            raise DamagedShard(f"it cannot be read: {error.strerror}") from error
        if not units or not all(0 <= unit < self.plan.units for unit in units):
            raise DamagedShard("it holds units that the plan does not have")
        if path.name != _shard_name(units):  # the next one of that name would replace it
            raise DamagedShard("it was renamed, or is a copy")
        while len(self._recent) >= _RECENT:
            self._recent.pop(next(iter(self._recent)))
        self._recent[path] = units
        return units

    def _listed(self, folder: Path, suffix: str) -> list[Path]:
        """Files of a folder in order; ``glob`` would take a closed door for an empty room."""
        try:
            return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CannotRead(
                f"Expected to be able to read {str(folder)!r}: {error.strerror}."
            ) from error

    def _noted(self) -> list[int]:
        stems = [path.stem for path in self._listed(self._failures, ".json")]
        units = [int(stem) for stem in stems if stem.isdecimal()]
        return [unit for unit in units if self._failure(unit).stem in stems]

    def _failure(self, unit: int) -> Path:
        return self._failures / f"{unit:08d}.json"

    def _replace(self, path: Path, data: bytes) -> None:
        with _writing(self.directory):
            write_whole(path, data)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that at every moment the old one is there, or the new one, whole."""
    half = Path(f"{path}.tmp")
    half.unlink(missing_ok=True)  # left by a crash, or a link to somewhere else
    try:
        with half.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):  # a full disk has use for the room
            half.unlink()
        raise
    half.replace(path)


class Writer:
    """A thread that writes shards; an error of its is raised by the next call."""

    def __init__(self, store: Store) -> None:
        """Starts with nothing to write."""
        self._store = store
        self._units: dict[int, Arrays] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="epsilometer-writer", daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until everything is on the disk."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def add(self, unit: int, arrays: Arrays) -> None:
        """Takes a unit to write; waits where too much does."""
        with self._changed:
            while self._bytes > _HELD and self._error is None:
                self._changed.wait()
            self._raise()
            if not self._units:
                self._changed.notify_all()
            self._units[unit] = arrays
            self._bytes += sum(array.nbytes for array in arrays.values())

    def _work(self) -> None:
        try:
            while self._wait_for_units():
                with self._changed:
                    units, self._units, self._bytes = self._units, {}, 0
                    self._changed.notify_all()
                self._store.write_shard(dict(sorted(units.items())))
        except BaseException as error:  # handed to whoever adds next
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_units(self) -> bool:
        """Waits for a unit and a moment more; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._units or self._closed)
            self._changed.wait_for(lambda: self._closed or self._bytes > _HELD, timeout=_MOMENT)
            return bool(self._units)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Errors of the disk in words a user can act on."""
    try:
        yield
    except OSError as error:
        if isinstance(error, Timeout):
            raise
        advice = {
            errno.ENOSPC: "Free some space",
            errno.EDQUOT: "Free some space",
            errno.EROFS: "Make it writable",
            errno.EACCES: "Make it writable",
            errno.EPERM: "Make it writable",
        }.get(error.errno or 0, "Put that right")
        raise CannotWrite(
            f"Expected to be able to write in {str(directory)!r}: {error.strerror or error}. "
            f"Everything finished before is safe. {advice}, then go on with: "
            f"epsilometer runs resume {directory}"
        ) from error


def _holder(directory: Path) -> str:
    """Who said last that they began; the log may be torn, and then it is somebody."""
    with suppress(OSError):
        for line in reversed((directory / "log.jsonl").read_text("utf-8", "replace").splitlines()):
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                event = json.loads(line)
                if event["event"] == "started":
                    return f"process {event['process']} on {event['host']}"
    return "another process"


def _shard_name(units: Iterable[int]) -> str:
    """After its lowest unit, which no other file holds."""
    return f"{min(units):08d}.shard"


def _take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rename(f"{path}.aside")  # not ours, so not ours to delete
    else:
        path.unlink()


def _difference(there: Plan, wanted: Plan) -> str:
    old, new = (json.loads(plan.to_json()) for plan in (there, wanted))
    del old["hash"], new["hash"]
    parts = [
        f"{name} {_short(a)} there, {_short(b)} here" for name, a, b in _list_changes("", old, new)
    ]
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _list_changes(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs between two plans, by dotted names, each with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**new, **old}:
            inner = f"{name}.{key}" if name else key
            yield from _list_changes(inner, old.get(key), new.get(key))
    elif json.dumps(old) != json.dumps(new):  # 1 and 1.0 are equal, and another text
        yield name, old, new


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
