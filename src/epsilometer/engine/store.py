"""Store a run in its directory: every file is whole or absent, at every moment.

plan.json      everything that determines the result, with its hash
secret         with which digests of data in the plan are keyed
shards/        finished units, checksummed, a file for those of a moment
failures/      one file per unit that raised, with its traceback
quarantine/    shards that are not what they should be, for inspection
chain.json     that plan, shards and result belong together
result.json    the result
log.jsonl      what happened, one event per line
leases.json    which units are under way, while a process works on the run
lock           held while a process works on the run

All of it is for the owner alone, and nothing is written through a link.
"""

import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from filelock import FileLock, Timeout

from epsilometer._files import LARGEST_TEXT, OWNER_FILE, Folder, make_private_folder
from epsilometer.core.chain import make_secret, read_secret, write_chain
from epsilometer.core.printing import name_error
from epsilometer.engine.events import read_events
from epsilometer.engine.heartbeat import LEASES
from epsilometer.engine.plan import (
    Accepted,
    Plan,
    accepts_changes,
    describe_difference,
    list_code_changes,
    refuse_changes,
)
from epsilometer.engine.shards import (
    LARGEST_SHARD,
    MEMORY,
    Arrays,
    DamagedShard,
    count_bytes,
    pack,
    scan,
    unpack,
)
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

_T = TypeVar("_T")
_HELD = MEMORY // 8  # bytes of units that wait to be written; as many are being written
_RECENT = MEMORY // 8  # bytes of units that were read from shards and may be needed next
_SMALL, _MANY = 64 * 2**10, 256  # bytes of a small shard, and the largest number of them
_MOMENT = 0.05  # seconds; units that finish within one share a file and its trip to the disk
_PATIENCE = 1.0  # seconds: a status request holds the lock for an instant
_SHARDS, _FAILURES, _QUARANTINE = "shards", "failures", "quarantine"


class CannotRead(EpsilometerError):
    """Raised when the directory of a run cannot be read."""


class Store:
    """Access the directory of one run and its plan. Hold its ``lock`` to write."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        """Take the directory of a run and its plan; read and write nothing yet."""
        self.directory, self.plan, self._hash = directory, plan, plan.hash
        self._counted = {self._hash, *(each.plan for each in plan.accepted)}
        self._home: dict[int, str] = {}  # finished unit → its file
        self._small: dict[str, None] = {}  # files that are worth merging
        self._recent: dict[str, dict[int, Arrays]] = {}
        self._sizes: dict[str, int] = {}  # bytes of files that were read
        self._reading = threading.RLock()  # while files are merged, none is read

    @classmethod
    def create(cls, directory: Path, plan: Plan) -> "Store":
        """Create a run, or return the existing one if it has the same plan.

        Raises:
            CodeChanged: The code has changed since the run began, and that is not accepted.
            InvalidArgument: There is a run with other settings or other data.
        """
        with explain_write_errors(directory), Folder.hold(directory) as home:
            if home.look("plan.json") is not None:
                return cls.open(directory)._compare(plan.seal(read_secret(home)))
            store = cls(directory, plan.seal(make_secret(home)))
        store.write("plan.json", store.plan.to_json() + "\n")
        return store

    @classmethod
    def open(cls, directory: Path) -> "Store":
        """Return the run in this directory."""
        try:
            with Folder.hold(directory) as home:
                text = home.read("plan.json", largest=LARGEST_TEXT).decode("utf-8")
        except (OSError, UnicodeDecodeError, UnreadableFile) as error:
            raise InvalidArgument(
                f"Expected a run in {str(directory)!r}, found no plan.json to read: "
                f"{getattr(error, 'strerror', None) or error}."
            ) from error
        try:
            return cls(directory, Plan.from_json(text))
        except InvalidArgument as error:
            raise InvalidArgument(f"{directory / 'plan.json'}: {error}") from error

    def _compare(self, wanted: Plan) -> "Store":
        """Return the existing run if it has the wanted plan; record changed code."""
        difference = describe_difference(self.plan, wanted)
        if difference:
            raise InvalidArgument(
                f"Expected no other run in {str(self.directory)!r}, found one by the plan "
                f"{self.plan.public_hash[:12]}…: {difference}. "
                "Name another directory, or delete that one."
            )
        changes = list_code_changes(self.plan, wanted)
        if not changes:
            return self
        if not accepts_changes():
            raise refuse_changes(str(self.directory), changes)
        before = Accepted(plan=self.plan.hash, changes=tuple(changes))
        now = Store(self.directory, replace(wanted, accepted=(*self.plan.accepted, before)))
        now.write("plan.json", now.plan.to_json() + "\n")
        return now

    def prepare(self) -> dict[str, str]:
        """Make the directories and check the shards; quarantine torn or foreign files.

        Returns:
            File name → what is wrong with it. Its units are computed again.
        """
        with (
            explain_write_errors(self.directory),
            Folder.hold(self.directory) as home,
            home.hold_inner(_SHARDS, make=True) as shards,
            home.hold_inner(_FAILURES, make=True) as failures,
        ):
            for folder, ours in ((home, ".json.tmp"), (shards, ".shard.tmp"), (failures, ".tmp")):
                for torn in folder.names():  # by a crash
                    if torn.endswith(ours):
                        _clear_away(home, folder, torn)
            with suppress(FileNotFoundError):
                home.remove(LEASES)
            damaged = self._look(shards)
            for name in damaged:
                _set_aside(home, shards, name)
            for name in self._spare:
                shards.remove(name)
            for unit in _list_noted(failures):  # a crash came between its shard and its note
                if unit in self._home:
                    failures.remove(_failure_name(unit))
        self._fold()
        return damaged

    def look(self) -> dict[str, str]:
        """Check every shard, index the units, and return damaged files."""
        with self._open_to_read(_SHARDS) as shards:
            if shards is not None:
                return self._look(shards)
        self._home.clear()
        return {}

    def _look(self, shards: Folder) -> dict[str, str]:
        damaged = {}
        self._home.clear()
        self._small.clear()
        self._recent.clear()
        self._spare: list[str] = []  # left by a crash in folding
        for name in shards.names():
            if not name.endswith(".shard"):
                continue
            try:
                units = self._check(name, _read_shard(shards, name, self._scan))
            except DamagedShard as error:
                damaged[name] = str(error)
                continue
            if all(unit in self._home for unit in units):
                self._spare.append(name)
                continue
            self._home.update(dict.fromkeys(units, name))
            found = shards.look(name)
            if found is not None and found.st_size < _SMALL:
                self._small[name] = None
        return damaged

    @property
    def finished(self) -> Set[int]:
        """Units whose shards were whole at the last check."""
        return self._home.keys()

    def read(self, unit: int) -> Arrays:
        """Return the arrays of a finished unit; units in order are read fast."""
        with self._reading:
            name = self._home[unit]
            if name in self._recent:
                return self._recent[name][unit]
            try:
                with self._open_to_read(_SHARDS) as shards:
                    if shards is None:
                        raise DamagedShard("it is gone")
                    return self._read_units(shards, name)[unit]
            except DamagedShard as error:
                where = self.directory / _SHARDS / name
                raise DamagedShard(f"{where} was whole a moment ago; now {error}") from error

    def write_shard(self, units: Mapping[int, Arrays]) -> None:
        """Write the arrays of units into one file, and remove notes of earlier failures."""
        name = _shard_name(units)
        with self._open_to_write(_SHARDS) as shards:
            shards.write(name, pack(units, plan=self._hash))
        self._home.update(dict.fromkeys(units, name))
        with self._open_to_write(_FAILURES) as failures:
            for unit in units:
                with suppress(FileNotFoundError):
                    failures.remove(_failure_name(unit))
        if sum(map(count_bytes, units.values())) < _SMALL:
            self._small[name] = None
            self._fold()

    def _fold(self) -> None:
        """Merge many small shards into one, so that a run never has too many files.

        The merged shard is written first, under the lowest name. A crash before the others are
        removed leaves identical copies of units.
        """
        while len(self._small) >= _MANY:
            with self._reading, self._open_to_write(_SHARDS) as shards:
                names = list(self._small)[:_MANY]
                units: dict[int, Arrays] = {}
                for name in names:
                    units.update(_read_shard(shards, name, self._unpack))
                whole = _shard_name(units)
                shards.write(whole, pack(dict(sorted(units.items())), plan=self._hash))
                for name in names:
                    self._small.pop(name)
                    self._recent.pop(name, None)
                    if name != whole:
                        shards.remove(name)
                self._home.update(dict.fromkeys(units, whole))
                found = shards.look(whole)
                if found is not None and found.st_size < _SMALL:
                    self._small[whole] = None

    def write_failure(self, unit: int, error: str) -> None:
        """Write why a unit failed."""
        text = json.dumps({"unit": unit, "error": error}, indent=2, ensure_ascii=False)
        with self._open_to_write(_FAILURES) as failures:
            failures.write(_failure_name(unit), text.encode("utf-8", "backslashreplace"))

    def failures(self) -> dict[int, str]:
        """Return the traceback of each unit that failed and has not finished since."""
        found: dict[int, str] = {}
        with self._open_to_read(_FAILURES) as failures:
            for unit in [] if failures is None else _list_noted(failures):
                # A torn note is no evidence.
                with suppress(OSError, UnreadableFile, ValueError, LookupError, TypeError):
                    assert failures is not None
                    note = json.loads(failures.read(_failure_name(unit), largest=LARGEST_TEXT))
                    if unit not in self._home:
                        found[unit] = str(note["error"])
        return found

    def forget_failures(self, first: int) -> None:
        """Remove notes of failed units from ``first`` on, which are no longer needed."""
        with self._open_to_write(_FAILURES) as failures:
            for unit in _list_noted(failures):
                if unit >= first:
                    failures.remove(_failure_name(unit))

    def write(self, name: str, text: str) -> None:
        """Write a JSON file of the run atomically."""
        with self._open_to_write() as home:
            home.write(name, text.encode("utf-8", "backslashreplace"))

    def write_result(self, text: str) -> None:
        """Write the result, after the chain that ties it to the plan and the shards."""
        with self._open_to_write() as home:
            write_chain(home, text.encode("utf-8"))
            home.write("result.json", text.encode("utf-8"))

    def text(self, name: str) -> str | None:
        """Return a file of the run as text, or None if there is none to read."""
        try:
            with Folder.hold(self.directory) as home:
                return home.read(name, largest=LARGEST_TEXT).decode("utf-8", "replace")
        except (OSError, UnreadableFile):
            return None

    @contextmanager
    def _open_to_write(self, name: str = "") -> Iterator[Folder]:
        """Open the directory, or a folder in it, for writing."""
        with explain_write_errors(self.directory), Folder.hold(self.directory) as home:
            if not name:
                yield home
                return
            with home.hold_inner(name) as inner:
                yield inner

    @contextmanager
    def _open_to_read(self, name: str) -> Iterator[Folder | None]:
        """Open a folder for reading; None if there is none. One without permission raises."""
        try:
            with Folder.hold(self.directory) as home:
                if home.look(name) is None:
                    yield None
                    return
                with home.hold_inner(name) as inner:
                    yield inner
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else name
            raise CannotRead(
                f"Expected to be able to read {str(self.directory / where)!r}: {error.strerror}."
            ) from error

    def _read_units(self, shards: Folder, name: str) -> dict[int, Arrays]:
        units = _read_shard(shards, name, self._unpack)
        self._check(name, units)
        found = shards.look(name)
        self._recent[name] = units
        self._sizes[name] = 0 if found is None else found.st_size
        for each in list(self._recent)[:-1]:
            if sum(self._sizes[kept] for kept in self._recent) > _RECENT:
                del self._recent[each]
        return units

    def _scan(self, file: BinaryIO) -> list[int]:
        return scan(file, plans=self._counted)

    def _unpack(self, file: BinaryIO) -> dict[int, Arrays]:
        return unpack(file, plans=self._counted)

    def _check(self, name: str, units: Collection[int]) -> Collection[int]:
        if not units or not all(0 <= unit < self.plan.units for unit in units):
            raise DamagedShard("it holds units that the plan does not have")
        if name != _shard_name(units):  # the next one of that name would replace it
            raise DamagedShard("it was renamed, or is a copy")
        return units


def group_causes(failures: Mapping[int, str]) -> dict[str, list[int]]:
    """Group failed units by cause, the most frequent first.

    Example:
        >>> group_causes({3: "Traceback (most recent call last):\\nValueError: x", 5: "?"})
        {'ValueError': [3], 'an error': [5]}
    """
    found: dict[str, list[int]] = {}
    for unit in sorted(failures):
        found.setdefault(name_error(failures[unit]), []).append(unit)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _read_shard(shards: Folder, name: str, read: Callable[[BinaryIO], _T]) -> _T:
    try:
        with shards.open(name) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_SHARD:
                raise DamagedShard(f"it has more than {LARGEST_SHARD:,} bytes")
            return read(file)
    except UnreadableFile as error:
        raise DamagedShard("it is not a regular file") from error
    except OSError as error:
        raise DamagedShard(f"it cannot be read: {error.strerror}") from error


def _clear_away(home: Folder, folder: Folder, name: str) -> None:
    """Remove a partial file; never delete a folder."""
    found = folder.look(name)
    if found is not None and stat.S_ISDIR(found.st_mode):
        _set_aside(home, folder, name)
    else:
        folder.remove(name)


def _set_aside(home: Folder, folder: Folder, name: str) -> None:
    """Quarantine an invalid file; for a link, the link itself."""
    with home.hold_inner(_QUARANTINE, make=True) as aside:
        free, count = name, 1
        while aside.look(free) is not None:
            count += 1
            free = f"{name}.{count}"
        folder.move(name, aside, free)


def _list_noted(failures: Folder) -> list[int]:
    """Return the units with a note of failure, by the names of the notes."""
    stems = {Path(name).stem for name in failures.names() if name.endswith(".json")}
    units = sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())
    return [unit for unit in units if _failure_name(unit).removesuffix(".json") in stems]


def _failure_name(unit: int) -> str:
    return f"{unit:08d}.json"


def _shard_name(units: Iterable[int]) -> str:
    """Return a file name from the lowest unit, which no other file holds."""
    return f"{min(units):08d}.shard"


class Shelf(Protocol):
    """Define storage for finished units."""

    def write_shard(self, units: Mapping[int, Arrays]) -> None:
        """Store the arrays of units."""
        ...

    def read(self, unit: int) -> Arrays:
        """Return the arrays of a unit."""
        ...


class Writer:
    """Write shards in a thread; its error is raised by the next call."""

    def __init__(self, shelf: Shelf) -> None:
        """Take the storage of finished units, such as a ``Store``."""
        self._shelf = shelf
        self._units: dict[int, Arrays] = {}
        self._writing: dict[int, Arrays] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="epsilometer-writer", daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until everything is on disk."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def add(self, unit: int, arrays: Arrays) -> None:
        """Queue a unit to write; wait if too much is queued."""
        with self._changed:
            while self._bytes > _HELD and self._error is None:
                self._changed.wait()
            self._raise()
            if not self._units:
                self._changed.notify_all()
            self._units[unit] = arrays
            self._bytes += count_bytes(arrays)

    def read(self, unit: int) -> Arrays:
        """Return the arrays of a unit, whether or not it is on disk yet."""
        with self._changed:
            for held in (self._units, self._writing):
                if unit in held:
                    return held[unit]
            self._raise()
        return self._shelf.read(unit)

    def _work(self) -> None:
        try:
            while self._wait_for_units():
                with self._changed:
                    self._writing = dict(sorted(self._units.items()))
                    self._units, self._bytes = {}, 0
                    self._changed.notify_all()
                self._shelf.write_shard(self._writing)
        except BaseException as error:  # handed to whoever adds next
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_units(self) -> bool:
        """Wait for a unit and a moment more; return False when no more will come."""
        with self._changed:
            self._writing = {}
            self._changed.wait_for(lambda: self._units or self._closed)
            self._changed.wait_for(lambda: self._closed or self._bytes > _HELD, timeout=_MOMENT)
            return bool(self._units)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class RunBusy(EpsilometerError):
    """Raised when another process is working on this run."""


class CannotWrite(EpsilometerError):
    """Raised when the directory cannot be written: full, read-only, gone. Finished units stay."""


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Lock a run. The kernel releases the lock when the process ends, however it ends."""
    held = FileLock(directory / "lock", mode=OWNER_FILE)
    try:
        with explain_write_errors(directory):
            make_private_folder(directory)
            held.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise RunBusy(
            f"Expected a run that no other process is working on; {_find_holder(directory)} "
            f"works on {str(directory)!r}. Wait for it, or follow it with: "
            f"epsilometer runs status {directory}"
        ) from error
    try:
        yield
    finally:
        held.release()


def is_busy(directory: Path) -> bool:
    """Tell whether a process is working on the run now. Writes nothing, not even a lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return (directory / "lock").is_file() and not _can_lock(directory)
    try:
        handle = os.open(directory / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # no process ever worked there, or no permission
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def explain_write_errors(directory: Path) -> Iterator[None]:
    """Turn disk errors into sentences that a user can act on."""
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
            f"Everything finished before is safe. {advice}, then resume with: "
            f"epsilometer runs resume {directory}"
        ) from error


def _can_lock(directory: Path) -> bool:
    held = FileLock(directory / "lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:
        return True
    held.release()
    return True


def _find_holder(directory: Path) -> str:
    """Return which process started last according to the log, which may be torn."""
    for event in reversed([*read_events(directory / "log.jsonl")]):
        if event.get("event") == "started" and {"process", "host"} <= event.keys():
            return f"process {event['process']} on {event['host']}"
    return "another process"
