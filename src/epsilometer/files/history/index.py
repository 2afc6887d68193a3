"""Index the audits of a folder. The index is never the truth: the files are.

The index is an SQLite file among the user's own caches, where nobody who writes results can write.
Of files that did not change since, it knows what they say, with a sum by which damage shows;
missing, damaged, of another version or thrown away, it is made again. Where it cannot be written it
is made in memory, and nothing else is different.
"""

import os
import sqlite3
import time
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from epsilometer._files import read_head, read_plain
from epsilometer.core import judge
from epsilometer.core.chain import RESULT, describe_break
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.history.cache import find_index
from epsilometer.files.history.entries import Entry, list_entries, looks_like_audit

_COLUMNS = tuple(column.name for column in fields(Entry))
_VERSION = zlib.crc32(" ".join(("4", *_COLUMNS)).encode()) & 0x7FFFFFFF
_TABLES = {
    "files": "CREATE TABLE files (path PRIMARY KEY, size, changed, touched, node, reason, sum)",
    "entries": f"CREATE TABLE entries ({', '.join(_COLUMNS)}, PRIMARY KEY (path, part))",
}
_PATIENCE = 30.0  # seconds to wait for another process that writes the index
_UNSETTLED = 2.0  # seconds within which a file may change again and look the same
_HEAD = 256  # bytes by which an audit shows
_OF_A_RUN = ("shards", "failures", "quarantine")
_INTEGER = 2**63 - 1  # the largest that SQLite holds; larger ones are kept as text
_WHOLE = ("observations", "seed", "failed")


@dataclass(frozen=True)
class _File:
    """A file that may be an audit, as it was when looked at."""

    path: str
    size: int
    changed: int
    touched: int  # which nobody can set, as they can ``changed``
    node: int


@dataclass
class _Folder:
    """Files that lie in a folder and below it."""

    files: list[_File] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


_Seen: TypeAlias = tuple[_File, list[Entry], str]  # a file, what it holds, why it cannot be read


class History:
    """The audits in a folder and below it, as they are now.

    Guarantee: the same files give the same entries, whatever the index says or whether there is
        one. A file that cannot be read is named in ``unreadable`` and hides nothing else; so is
        the result of a run that was changed since. Several processes may do this at once. Only
        new and changed files are read.
    Assumption: a file that changes gets another size, time or place on the disk.

    Attributes:
        entries: One per view of an audit, oldest first.
        unreadable: (path, reason) pairs.
        unfinished: Directories of runs that have no result yet.
        read: How many files had to be read.

    Example:
        >>> import tempfile
        >>> History(tempfile.mkdtemp()).entries
        ()
    """

    def __init__(self, folder: Path | str, *, rebuild: bool = False) -> None:
        """Look at all files; ``rebuild`` forgets the index first."""
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UnreadableFile(f"Expected a folder of results, found none at {str(folder)!r}.")
        found = _look(self.folder)
        index = find_index(self.folder)
        if rebuild and index is not None:
            _forget(index)
        rows, reasons, self.read = _indexed(self.folder, index, found.files)
        self.entries = tuple(
            sorted(rows, key=lambda entry: (entry.written, entry.path, entry.part))
        )
        self.unreadable = tuple(sorted([*reasons, *found.closed]))
        self.unfinished = tuple(sorted(found.unfinished))

    def select(
        self,
        *,
        kind: str = "",
        subject: str = "",
        refuted: bool = False,
        since: float = -float("inf"),
    ) -> tuple[Entry, ...]:
        """Return entries of a kind, whose subject or path has a text, from a time on.

        Args:
            kind: Name of the audited subject, as ``Scores`` or ``dpsgd``, in letters of any size.
            subject: Part of the subject or of the path, in letters of any size.
            refuted: Only where a claim is false, or a classifier should not be released.
            since: Seconds since 1970.
        """
        wanted = subject.casefold()
        return tuple(
            entry
            for entry in self.entries
            if (not kind or kind.casefold() == entry.kind.casefold())
            and (wanted in entry.subject.casefold() or wanted in entry.path.casefold())
            and (not refuted or entry.verdict in judge.BAD)
            and entry.written >= since
        )


def _look(top: Path) -> _Folder:
    """List all files that may be audits. Links to folders are not followed: some form rings."""
    found, todo = _Folder(), [""]
    while todo:
        inner = todo.pop()
        try:
            with os.scandir(top / inner) as listed:
                items = sorted(listed, key=lambda item: item.name)
        except OSError as error:
            found.closed.append((inner or ".", f"the folder cannot be read: {error.strerror}"))
            continue
        names = {item.name for item in items}
        is_run = "plan.json" in names
        if is_run and "result.json" not in names:
            found.unfinished.append(inner or ".")
        for item in items:
            path = f"{inner}/{item.name}" if inner else item.name
            if item.is_dir(follow_symlinks=False):
                if not item.name.startswith(".") and not (is_run and item.name in _OF_A_RUN):
                    todo.append(path)
            elif item.name == "result.json" or (item.name.endswith(".json") and not is_run):
                _add(found, path, item)
    return found


def _add(found: _Folder, path: str, item: "os.DirEntry[str]") -> None:
    try:
        path.encode("utf-8")
        if item.is_file():
            state = item.stat()
            node = state.st_ino & _INTEGER
            times = state.st_mtime_ns, state.st_ctime_ns
            found.files.append(_File(path, state.st_size, *times, node))
    except UnicodeEncodeError:
        found.closed.append((ascii(path), "its name is no text"))
    except OSError as error:  # a link to nowhere, or gone since
        found.closed.append((path, f"it cannot be looked at: {error.strerror}"))


def _indexed(
    folder: Path, index: Path | None, files: list[_File]
) -> tuple[list[Entry], list[tuple[str, str]], int]:
    """Return entries, unreadable files and how many were read; by the index where it can be."""
    for place in () if index is None else (index, index):
        try:
            with closing(sqlite3.connect(place, timeout=_PATIENCE, isolation_level=None)) as base:
                return _updated(base, folder, files)
        except sqlite3.OperationalError:  # read-only, full, or held for too long
            break
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # not an index, or damaged
            _forget(place)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as base:
        return _updated(base, folder, files)


def _forget(index: Path) -> None:
    for ending in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):
            Path(f"{index}{ending}").unlink()


def _updated(
    base: sqlite3.Connection, folder: Path, files: list[_File]
) -> tuple[list[Entry], list[tuple[str, str]], int]:
    _prepare(base)
    known, listed = _known(base)
    new = [file for file in files if file.path not in known or known[file.path][0] != file]
    seen = [(file, *_read(folder, file)) for file in new]
    gone = listed - {file.path for file in files}
    if seen or gone:
        base.execute("BEGIN IMMEDIATE")
        _write(base, seen, gone)
        base.execute("COMMIT")
    fresh = {file.path for file in new}
    old = [known[file.path] for file in files if file.path not in fresh]
    every = [*old, *seen]
    reasons = [(file.path, reason) for file, _, reason in every if reason]
    return [entry for _, entries, _ in every for entry in entries], reasons, len(new)


def _known(base: sqlite3.Connection) -> tuple[dict[str, _Seen], set[str]]:
    """Return what the index says of files, where its sum fits, and the paths of all it lists."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for row in base.execute(f"SELECT {', '.join(_COLUMNS)} FROM entries ORDER BY rowid"):
        rows.setdefault(row[0], []).append(row)
    known, listed = {}, set()
    columns = "path, size, changed, touched, node, reason, sum"
    for *state, kept in base.execute(f"SELECT {columns} FROM files"):
        path, *_, reason = state
        listed.add(path)
        if kept == _sum(state, rows.get(path, [])):
            entries = [_restored(row) for row in rows.get(path, [])]
            known[path] = (_File(*state[:5]), entries, reason)
    return known, listed


def _sum(state: Iterable[Any], rows: Iterable[tuple[Any, ...]]) -> int:
    """Return a checksum of all that is kept of a file: damage that is still a database shows."""
    return zlib.crc32(repr((*state, *rows)).encode("utf-8", "surrogatepass"))


def _prepare(base: sqlite3.Connection) -> None:
    """Make the tables where they are not there, or are another version's."""
    if base.execute("PRAGMA quick_check").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("damaged")
    if base.execute("PRAGMA user_version").fetchone() != (_VERSION,):
        _make(base)
    # A view or a trigger of somebody else's would run as soon as the tables are asked.
    if {made for (made,) in base.execute("SELECT sql FROM sqlite_master WHERE sql != ''")} != {
        *_TABLES.values()
    }:
        raise sqlite3.DatabaseError("not an index of ours")


def _make(base: sqlite3.Connection) -> None:
    base.execute("BEGIN IMMEDIATE")
    if base.execute("PRAGMA user_version").fetchone() != (_VERSION,):  # nobody was faster
        for name, made in _TABLES.items():
            base.execute(f"DROP TABLE IF EXISTS {name}")
            base.execute(made)
        base.execute(f"PRAGMA user_version = {_VERSION}")
    base.execute("COMMIT")


def _write(
    base: sqlite3.Connection,
    seen: Iterable[_Seen],
    gone: Iterable[str],
) -> None:
    marks = ", ".join("?" * len(_COLUMNS))
    now = time.time_ns()
    for path in gone:
        base.execute("DELETE FROM files WHERE path = ?", (path,))
        base.execute("DELETE FROM entries WHERE path = ?", (path,))
    for file, entries, reason in seen:
        settled = now - file.changed > _UNSETTLED * 1e9
        changed = file.changed if settled else 0
        state = (file.path, file.size, changed, file.touched, file.node, reason)
        rows = [tuple(_kept(getattr(entry, name)) for name in _COLUMNS) for entry in entries]
        base.execute("DELETE FROM entries WHERE path = ?", (file.path,))
        base.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", (*state, _sum(state, rows))
        )
        base.executemany(f"INSERT INTO entries VALUES ({marks})", rows)


def _read(folder: Path, file: _File) -> tuple[list[Entry], str]:
    """Return the entries of a file, or why there are none; neither where it is no audit."""
    path = folder / file.path
    try:
        if path.name == RESULT:
            if broken := describe_break(path.parent):
                return [], f"{broken}; epsilometer runs resume makes the result again"
        elif not looks_like_audit(read_head(path, _HEAD)):
            return [], ""
        found = from_json(read_plain(path))
        return list_entries(found, path=file.path, written=file.changed / 1e9), ""
    except OSError as error:
        return [], f"it cannot be read: {error.strerror}"
    except (InvalidArgument, UnreadableFile) as error:
        return [], str(error)


def _kept(value: Any) -> Any:
    """Return a value as SQLite gives it back."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return value + 0.0  # no -0.0
    return str(value) if isinstance(value, int) and abs(value) > _INTEGER else value


def _restored(row: tuple[Any, ...]) -> Entry:
    values = dict(zip(_COLUMNS, row, strict=True))
    whole = {name: None if values[name] is None else int(values[name]) for name in _WHOLE}
    return Entry(**{**values, **whole, "valid": bool(values["valid"])})
