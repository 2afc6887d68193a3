"""Index the audits of a folder. The files, not the index, are authoritative.

The index is a file in the user's cache folder, where no one else who writes results can write. It
stores the entries of files that have not changed since. If it is missing, damaged or of another
version, it is rebuilt. If it cannot be written, nothing else changes.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

from epsilometer._files import find_cached, read_head, read_plain, write_whole
from epsilometer.core import judge
from epsilometer.core.chain import RESULT, describe_break
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.history.entries import Entry, list_entries, looks_like_audit

_VERSION = zlib.crc32(" ".join(("7", *(column.name for column in fields(Entry)))).encode())
_LARGEST = 2**28  # bytes of an index, of half a million results
_UNSETTLED = 2.0  # seconds within which a file may change again and look the same
_HEAD = 256  # bytes by which an audit shows
_OF_A_RUN = ("shards", "failures", "quarantine")


class _File(msgspec.Struct, frozen=True, array_like=True):
    """Hold a file that may be an audit, as it was when checked."""

    path: str
    size: int
    changed: int
    touched: int  # which nobody can set, as they can ``changed``
    node: int


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """Hold the entries of a file, or why it cannot be read."""

    file: _File
    entries: tuple[Entry, ...]
    reason: str


_DECODER = msgspec.json.Decoder(list[_Record], strict=False)  # not strict: "inf" is a number


@dataclass
class _Folder:
    """List the files in a folder and below it."""

    files: list[_File] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


class History:
    """List the current audits in a folder and its subfolders.

    Guarantee: the same files give the same entries, with or without an index. A file that cannot be
        read is listed in ``unreadable`` and does not hide others; so is the result of a run that
        was changed since. Several processes may do this at once. Only new and changed files are
        read.
    Assumption: a file that changes gets another size, time or inode.

    Attributes:
        entries: One per view of an audit, oldest first.
        unreadable: (path, reason) pairs.
        unfinished: Directories of runs that have no result yet.
        read: Number of files that had to be read.

    Example:
        >>> import tempfile
        >>> History(tempfile.mkdtemp()).entries
        ()
    """

    def __init__(self, folder: Path | str, *, rebuild: bool = False) -> None:
        """List all files; ``rebuild`` discards the index first."""
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UnreadableFile(f"Expected a folder of results, found none at {str(folder)!r}.")
        found, index = _look(self.folder), find_index(self.folder)
        known = {} if rebuild or index is None else _load_index(index)
        records = [
            known[file.path]
            if file.path in known and known[file.path].file == file
            else _Record(file, *_read(self.folder, file))
            for file in found.files
        ]
        self.read = sum(record is not known.get(record.file.path) for record in records)
        if index is not None and (self.read or len(known) != len(records)):
            _save_index(index, records)
        rows = (entry for record in records for entry in record.entries)
        self.entries = tuple(
            sorted(rows, key=lambda entry: (entry.written, entry.path, entry.part))
        )
        reasons = [(record.file.path, record.reason) for record in records if record.reason]
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
        """Return entries of a kind, whose subject or path contains a text, from a time on.

        Args:
            kind: Name of the audited subject, such as ``Scores`` or ``dpsgd``, in upper or lower
                case.
            subject: Part of the subject or of the path, in upper or lower case.
            refuted: Only entries with a false claim, or a classifier that should not be released.
            since: Earliest time, in seconds since 1970.
        """
        wanted = subject.casefold()
        return tuple(
            entry
            for entry in self.entries
            if (not kind or kind.casefold() == entry.kind.casefold())
            and (wanted in entry.subject.casefold() or wanted in entry.path.casefold())
            and (not refuted or entry.view_verdict in judge.BAD)
            and entry.written >= since
        )


def _look(top: Path) -> _Folder:
    """List all files that may be audits. Links to folders are not followed: some form rings.

    A run inside another, such as the shadow models of a classifier, is a part of it.
    """
    found, todo = _Folder(), [("", False)]
    while todo:
        inner, is_part = todo.pop()
        try:
            with os.scandir(top / inner) as listed:
                items = sorted(listed, key=lambda item: item.name)
        except OSError as error:
            found.closed.append((inner or ".", f"the folder cannot be read: {error.strerror}"))
            continue
        names = {item.name for item in items}
        is_run = "plan.json" in names
        if is_run and not is_part and "result.json" not in names:
            found.unfinished.append(inner or ".")
        for item in items:
            path = f"{inner}/{item.name}" if inner else item.name
            if item.is_dir(follow_symlinks=False):
                if not item.name.startswith(".") and not (is_run and item.name in _OF_A_RUN):
                    todo.append((path, is_part or is_run))
            elif item.name == "result.json" or (item.name.endswith(".json") and not is_run):
                _add(found, path, item)
    return found


def _add(found: _Folder, path: str, item: "os.DirEntry[str]") -> None:
    try:
        path.encode("utf-8")
        if item.is_file():
            state = item.stat()
            times = state.st_mtime_ns, state.st_ctime_ns
            found.files.append(_File(path, state.st_size, *times, state.st_ino))
    except UnicodeEncodeError:
        found.closed.append((ascii(path), "its name is not text"))
    except OSError as error:  # a link to nowhere, or gone since
        found.closed.append((path, f"it cannot be read: {error.strerror}"))


def _load_index(index: Path) -> dict[str, _Record]:
    """Return the stored entries; none if the index is damaged or of another version."""
    try:
        head, _, body = read_plain(index, largest=_LARGEST).partition(b"\n")
        records = _DECODER.decode(body) if head == _sign(body) else []
    except (OSError, UnreadableFile, msgspec.MsgspecError, RecursionError):
        records = []
    return {record.file.path: record for record in records}


def _save_index(index: Path, records: Sequence[_Record]) -> None:
    now = time.time_ns()
    rows = []
    for record in records:
        file, entries = record.file, [entry.to_dict() for entry in record.entries]
        settled = now - file.changed > _UNSETTLED * 1e9  # else the next call reads it again
        known = file if settled else msgspec.structs.replace(file, changed=0)
        rows.append((known, entries, record.reason))
    body = msgspec.json.encode(rows)
    with suppress(OSError, UnreadableFile):  # read-only, or full
        write_whole(index, _sign(body) + b"\n" + body)


def _sign(body: bytes) -> bytes:
    """Return the first line of an index: its version, and a checksum by which damage shows."""
    return f"{_VERSION:08x} {zlib.crc32(body):08x}".encode()


def _read(folder: Path, file: _File) -> tuple[tuple[Entry, ...], str]:
    """Return the entries of a file, or why there are none; neither if it is not an audit."""
    path = folder / file.path
    try:
        if path.name == RESULT:
            if broken := describe_break(path.parent):
                return (), f"{broken}; epsilometer runs resume makes the result again"
        elif not looks_like_audit(read_head(path, _HEAD)):
            return (), ""
        found = from_json(read_plain(path))
        entries = list_entries(found, path=file.path, written=file.changed / 1e9)
        return tuple(entries), ""
    except OSError as error:
        return (), f"it cannot be read: {error.strerror}"
    except (InvalidArgument, UnreadableFile) as error:
        return (), str(error)


def find_index(folder: Path) -> Path | None:
    """Return the file of a folder's index; None if no place is writable only by this user.

    An index in the folder itself could have been written by anyone.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return find_cached(f"index-{name}.json")
