"""A recording layer between a program and its disk, and what a power cut may leave of it.

Every call that changes a directory or a file is recorded, with what it changed. At a power cut a
directory has the changes that were fsynced, and *any* subset of the later ones, in any order. A
file has what it had at its last fsync, or anything that a disk may have made of what came later:
nothing, a part, zeros, all of it.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

Choice = Literal["least", "most", "random"]


@dataclass(frozen=True)
class Change:
    """A change of names: an object appears under one, or disappears from one, or both at once."""

    folders: tuple[int, ...]  # whose fsync makes it last
    appears: tuple[int, str, int] | None = None  # folder, name, object
    disappears: tuple[int, str] | None = None


@dataclass(frozen=True)
class Content:
    """What a file held at that moment."""

    file: int
    data: bytes


@dataclass(frozen=True)
class Sync:
    """An fsync of a file or a folder."""

    thing: int


@dataclass(frozen=True)
class Acknowledged:
    """Something that somebody was told is safe."""

    what: Any


@dataclass
class Disk:
    """What happened below a folder, in order."""

    top: Path
    events: list[Change | Content | Sync | Acknowledged] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)  # inode → object
    _folders: set[int] = field(default_factory=set)
    _handles: dict[int, int] = field(default_factory=dict)  # file → a handle of our own
    _last: dict[int, bytes] = field(default_factory=dict)
    _count: int = 0

    def acknowledge(self, what: Any) -> None:
        self._see_contents()
        self.events.append(Acknowledged(what))

    @contextmanager
    def recorded(self) -> Iterator["Disk"]:
        """Records all that happens inside; begins with the folder as it is, which is empty."""
        assert not list(self.top.iterdir())
        self._new(os.stat(self.top).st_ino, folder=True)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "mkdir", "replace", "unlink", "fsync"):
                patch.setattr(os, name, getattr(self, f"_record_{name}")(getattr(os, name)))
            try:
                yield self
                self._see_contents()
            finally:
                for handle in self._handles.values():
                    os.close(handle)

    # Calls

    def _record_open(self, plain: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            folder, name = self._find(path, dir_fd)
            new = bool(flags & os.O_CREAT) and not _is_there(path, dir_fd)
            handle = plain(path, flags, mode, dir_fd=dir_fd)
            if folder is not None and flags & (os.O_WRONLY | os.O_RDWR):
                if new:
                    file = self._new(os.fstat(handle).st_ino)
                    self._note(Change((folder,), appears=(folder, name, file)))
                file = self._known[os.fstat(handle).st_ino]
                if file not in self._handles:
                    self._handles[file] = os.dup(handle)
            return handle

        return call

    def _record_mkdir(self, plain: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            plain(path, mode, dir_fd=dir_fd)
            folder, name = self._find(path, dir_fd)
            if folder is not None:
                made = self._new(_stat(path, dir_fd).st_ino, folder=True)
                self._note(Change((folder,), appears=(folder, name, made)))

        return call

    def _record_replace(self, plain: Callable[..., None]) -> Callable[..., None]:
        def call(
            old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            source, target = self._find(old, src_dir_fd), self._find(new, dst_dir_fd)
            moved = self._known.get(_stat(old, src_dir_fd).st_ino)
            plain(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if source[0] is not None and target[0] is not None and moved is not None:
                there = (target[0], target[1], moved)
                folders = tuple({source[0], target[0]})
                self._note(Change(folders, there, (source[0], source[1])))

        return call

    def _record_unlink(self, plain: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            plain(path, dir_fd=dir_fd)
            folder, name = self._find(path, dir_fd)
            if folder is not None:
                self._note(Change((folder,), disappears=(folder, name)))

        return call

    def _record_fsync(self, plain: Callable[[int], None]) -> Callable[[int], None]:
        def call(handle: int) -> None:
            thing = self._known.get(os.fstat(handle).st_ino)
            plain(handle)
            if thing is not None:
                self._see_contents()
                self.events.append(Sync(thing))

        return call

    # What they mean

    def _new(self, inode: int, *, folder: bool = False) -> int:
        self._count += 1
        self._known[inode] = self._count
        if folder:
            self._folders.add(self._count)
        return self._count

    def _find(self, path: Any, dir_fd: int | None) -> tuple[int | None, str]:
        """The folder that a path is in, where it is one of ours, and the name there."""
        parent, name = os.path.split(os.fspath(path))
        if parent or dir_fd is None:
            inode = os.stat(parent or ".").st_ino
        else:
            inode = os.fstat(dir_fd).st_ino
        folder = self._known.get(inode)
        return (folder if folder in self._folders else None), name

    def _note(self, change: Change) -> None:
        self._see_contents()
        self.events.append(change)

    def _see_contents(self) -> None:
        for file, handle in self._handles.items():
            with open(f"/proc/self/fd/{handle}", "rb") as again:
                data = again.read()
            if self._last.get(file, b"") != data:
                self._last[file] = data
                self.events.append(Content(file, data))

    # Power cuts

    def acknowledged(self, moment: int) -> list[Any]:
        """What was said to be safe before a moment."""
        return [e.what for e in self.events[:moment] if isinstance(e, Acknowledged)]

    def cut(self, moment: int, choice: Choice, rng: random.Random, where: Path) -> str:
        """Makes the folder as a power cut after so many events may leave it; returns which."""
        entries: dict[tuple[int, str], int] = {}
        synced: dict[int, bytes] = {}
        latest: dict[int, bytes] = {}
        pending: list[Change] = []
        events = self.events[:moment]
        lasting = self._list_lasting(events)
        for number, event in enumerate(events):
            match event:
                case Content(file, data):
                    latest[file] = data
                case Sync(thing) if thing not in self._folders:
                    synced[thing] = latest.get(thing, b"")
                case Change() if number in lasting:
                    _apply(entries, event)
                case Change():
                    pending.append(event)
        if choice == "random":
            pending = [each for each in rng.sample(pending, len(pending)) if rng.random() < 0.5]
        for change in pending if choice != "least" else ():
            _apply(entries, change)
        contents = {
            file: _choose(synced.get(file, b""), data, choice, rng) for file, data in latest.items()
        }
        return self._make(1, where, entries, contents)

    def _list_lasting(self, events: list[Any]) -> set[int]:
        """Which changes of names were fsynced."""
        lasting, since = set[int](), dict[int, list[int]]()
        for number, event in enumerate(events):
            if isinstance(event, Change):
                for folder in event.folders:
                    since.setdefault(folder, []).append(number)
            elif isinstance(event, Sync):
                lasting.update(since.pop(event.thing, ()))
        return lasting

    def _make(
        self, folder: int, where: Path, entries: dict[Any, int], contents: dict[int, bytes]
    ) -> str:
        where.mkdir(mode=0o700)
        listed = []
        for (inside, name), thing in sorted(entries.items()):
            if inside != folder:
                continue
            if thing in self._folders:
                listed.append(f"{name}({self._make(thing, where / name, entries, contents)})")
            else:
                data = contents.get(thing, b"")
                (where / name).write_bytes(data)
                (where / name).chmod(0o600)
                listed.append(f"{name}:{hash(data)}")
        return " ".join(listed)


def _apply(entries: dict[tuple[int, str], int], change: Change) -> None:
    if change.disappears is not None:
        entries.pop(change.disappears, None)
    if change.appears is not None:
        folder, name, thing = change.appears
        entries[folder, name] = thing


def _choose(synced: bytes, latest: bytes, choice: Choice, rng: random.Random) -> bytes:
    if synced == latest or choice == "least":
        return synced
    if choice == "most":
        return latest
    kept = latest[: rng.randrange(len(latest) + 1)] if latest else b""
    torn = max(kept, synced, key=len) if latest.startswith(synced) else kept
    return rng.choice([synced, latest, torn, torn + bytes(len(latest) - len(torn))])


def _stat(path: Any, dir_fd: int | None) -> os.stat_result:
    return os.stat(path, dir_fd=dir_fd, follow_symlinks=False)


def _is_there(path: Any, dir_fd: int | None) -> bool:
    try:
        _stat(path, dir_fd)
    except FileNotFoundError:
        return False
    return True
