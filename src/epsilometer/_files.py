"""Read and write files that others may have prepared: no links, no pipes, no surprises in size.

A run's directory may lie where someone else can write, and a result may come from anywhere. Only
plain files of a bounded size are read. Files are written into the intended directory, never through
a link, and are readable only by their owner unless they are to be shared.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from epsilometer.errors import UnreadableFile

CACHE_FOLDER = "EPSILOMETER_CACHE"  # environment variable: the folder for caches
OWNER_FILE = 0o600
OWNER_FOLDER = 0o700
LARGEST_TEXT = 8 * 2**20  # bytes of a result or a plan; as Python objects, 250 MB at worst
_SHARED_FILE = 0o666  # before the umask
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}
# Absent on Windows, where links need rights that few have.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
_A_FOLDER: int = getattr(os, "O_DIRECTORY", 0)
_BY_HANDLE = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd


class NotPlain(UnreadableFile):
    """A pipe, a device, a link or a folder where a plain file was expected."""


class Folder:
    """A directory that is held open: no renaming by others leads a name elsewhere.

    Example:
        >>> import tempfile
        >>> with Folder.hold(Path(tempfile.mkdtemp())) as folder:
        ...     folder.write("a.txt", b"text")
        ...     folder.read("a.txt", largest=10), folder.names()
        (b'text', ['a.txt'])
    """

    def __init__(self, path: Path, handle: int | None) -> None:
        """Store the path, for messages, and the handle; use ``hold`` and ``hold_inner``."""
        self.path, self._handle = path, handle

    @classmethod
    @contextmanager
    def hold(cls, path: Path) -> Iterator["Folder"]:
        """Open a directory that a user named; that name may be a link."""
        handle = os.open(path, os.O_RDONLY | _A_FOLDER) if _BY_HANDLE else None
        try:
            yield cls(path, handle)
        finally:
            if handle is not None:
                os.close(handle)

    @contextmanager
    def hold_inner(self, name: str, *, make: bool = False) -> Iterator["Folder"]:
        """Open a folder of ours in it, never a link; ``make`` creates it, for the owner only.

        Raises:
            NotPlain: It is a link, or not a folder.
            FileNotFoundError: It does not exist, and ``make`` is False.
        """
        if make:
            with suppress(FileExistsError):
                self._at(os.mkdir, name, OWNER_FOLDER)
                self._at(os.chmod, name, OWNER_FOLDER)  # whatever the umask took away
            self.sync()  # also one that a crash left: it may not be on the disk
        found = self.look(name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise NotPlain(f"Expected a folder at {str(self.path / name)!r}, found {_kind(found)}.")
        if not _BY_HANDLE:
            yield Folder(self.path / name, None)
            return
        handle = self._at(os.open, name, os.O_RDONLY | _A_FOLDER | _NO_LINK)
        try:
            if make:
                _close_to_others(handle)
            yield Folder(self.path / name, handle)
        finally:
            os.close(handle)

    def names(self) -> list[str]:
        """Return the names of its entries, in order."""
        return sorted(os.listdir(self.path if self._handle is None else self._handle))

    def look(self, name: str) -> os.stat_result | None:
        """Return the status of the file of that name, without following links; None if missing."""
        try:
            found: os.stat_result = self._at(os.lstat, name)
        except FileNotFoundError:
            return None
        return found

    def read(self, name: str, *, largest: int) -> bytes:
        """Return the bytes of a plain file that is not a link.

        Raises:
            NotPlain: It is something else.
            UnreadableFile: It has more than ``largest`` bytes.
        """
        handle = self._open(name, os.O_RDONLY)
        return _read_all(handle, self.path / name, largest)

    def open(self, name: str) -> BinaryIO:
        """Open a plain file that is not a link, for reading."""
        return os.fdopen(self._open(name, os.O_RDONLY), "rb")

    def write(
        self,
        name: str,
        data: bytes | Sequence[Any],
        *,
        mode: int | None = OWNER_FILE,
        lasting: bool = True,
    ) -> None:
        """Write a file so that at every moment the old one is there, or the new one, whole.

        Args:
            name: Name of the file.
            data: Contents of the file, or pieces of them: bytes or objects with a buffer.
            mode: Mode of the file; None: as the umask allows.
            lasting: Whether the file is safely on the disk when this returns.
        """
        pieces: Sequence[Any] = [data] if isinstance(data, bytes) else data
        half = f"{name}.tmp"
        with suppress(FileNotFoundError):
            self.remove(half)  # left by a crash, or a link to somewhere else
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
        handle = self._at(os.open, half, new, _SHARED_FILE if mode is None else mode)
        try:
            with os.fdopen(handle, "wb") as file:
                if mode is not None:
                    _restrict(file.fileno(), mode)
                for piece in pieces:
                    file.write(piece)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # the disk may be full
                self.remove(half)
            raise
        self.move(half, self, name)
        if lasting:
            self.sync()

    def append(self, name: str, data: bytes) -> None:
        """Append to a plain file of ours that is not a link; create it if it does not exist."""
        handle = self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(handle, "ab") as file:
            _restrict(file.fileno(), OWNER_FILE)
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself."""
        self._at(os.unlink, name)

    def move(self, name: str, other: "Folder", new: str) -> None:
        """Rename a file, a link or a folder, as a whole."""
        if self._handle is None or other._handle is None:
            os.replace(self.path / name, other.path / new)
        else:
            os.replace(name, new, src_dir_fd=self._handle, dst_dir_fd=other._handle)

    def sync(self) -> None:
        """Make names survive a power cut."""
        if self._handle is not None:
            os.fsync(self._handle)

    def _open(self, name: str, flags: int) -> int:
        """Open a plain file, without waiting for a pipe."""
        found = self.look(name)
        if found is not None:
            _refuse_other(found, self.path / name)
        handle: int = self._at(os.open, name, flags | _NO_LINK | _NO_WAIT, OWNER_FILE)
        try:
            _refuse_other(os.fstat(handle), self.path / name)
        except NotPlain:
            os.close(handle)
            raise
        return handle

    def _at(self, call: Callable[..., Any], name: str, *arguments: Any) -> Any:
        """Call a function of ``os`` with a name in this directory."""
        if self._handle is None:
            return call(self.path / name, *arguments)
        if call is os.lstat:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        return call(name, *arguments, dir_fd=self._handle)


def check_plain(path: Path) -> os.stat_result:
    """Refuse a pipe, a device or a folder that a user named as a file; a link is followed.

    Raises:
        NotPlain: It is not a plain file.
        FileNotFoundError: It does not exist.
    """
    found = path.stat()
    _refuse_other(found, path)
    return found


def read_plain(path: Path, *, largest: int = LARGEST_TEXT) -> bytes:
    """Return the bytes of a plain file that a user named; a link is followed.

    Raises:
        NotPlain: It is a pipe, a device or a folder.
        UnreadableFile: It has more than ``largest`` bytes.
        OSError: It is missing, or not accessible.
    """
    return _read_all(_open_plain(path), path, largest)


def read_head(path: Path, count: int) -> bytes:
    """Return the first bytes of a plain file that a user named; a link is followed."""
    with os.fdopen(_open_plain(path), "rb") as file:
        return file.read(count)


def write_whole(path: Path, data: bytes, *, private: bool = True) -> None:
    """Write a file so that at every moment the old one is there, or the new one, whole.

    Args:
        path: The file; a link under its name is replaced, not followed.
        data: Contents of the file.
        private: Whether only the owner may read it; otherwise as the umask allows.
    """
    with Folder.hold(path.parent) as folder:
        folder.write(path.name, data, mode=OWNER_FILE if private else None)


def open_private(path: str, flags: int) -> int:
    """Open a plain file that is not a link, for its owner only: an ``opener`` for ``open``."""
    handle = os.open(path, flags | _NO_LINK | _NO_WAIT, OWNER_FILE)
    try:
        _refuse_other(os.fstat(handle), Path(path))
    except NotPlain:
        os.close(handle)
        raise
    _restrict(handle, OWNER_FILE)
    return handle


def make_private_folder(path: Path) -> None:
    """Create the directory of a run, private to its owner; an empty existing one becomes private.

    A directory with other files in it keeps its mode: our files are private anyway.
    """
    make_folder(path.parent)
    try:
        path.mkdir(mode=OWNER_FOLDER)
        sync_folder(path.parent)
    except FileExistsError:
        sync_folder(path.parent)  # its creator may have been killed before this
        known = {"lock", "plan.json"}
        names = set(os.listdir(path))  # raises where it is no folder
        if names and not names & known:
            return
        with suppress(PermissionError):  # somebody else's, into which we may write
            path.chmod(path.stat().st_mode & OWNER_FOLDER)
    else:
        path.chmod(OWNER_FOLDER)  # whatever the umask took away


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, on the disk when this returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    sync_folder((missing[-1].parent if missing else path).parent)  # of one that a crash left
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_folder(path: Path) -> None:
    """Make names in a folder survive a power cut, if the system allows opening folders."""
    with suppress(PermissionError), Folder.hold(path) as folder:  # of somebody else's
        folder.sync()


def _open_plain(path: Path) -> int:
    check_plain(path)
    handle = os.open(path, os.O_RDONLY | _NO_WAIT | getattr(os, "O_BINARY", 0))
    try:
        _refuse_other(os.fstat(handle), path)
    except NotPlain:
        os.close(handle)
        raise
    return handle


def _read_all(handle: int, path: Path, largest: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        claimed = os.fstat(handle).st_size  # for a sparse file, more than is on the disk
        data = file.read(largest + 1) if claimed <= largest else b""
        if claimed > largest or len(data) > largest:
            raise UnreadableFile(f"Expected at most {largest:,} bytes in {str(path)!r}, got more.")
        return data


def _refuse_other(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPlain(f"Expected a plain file at {str(path)!r}, found {_kind(found)}.")


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "a plain file")


def _close_to_others(handle: int) -> None:
    """Remove all rights to a folder from everyone but its owner, and add none."""
    if hasattr(os, "fchmod"):
        with suppress(PermissionError):  # of somebody else's
            os.fchmod(handle, os.fstat(handle).st_mode & OWNER_FOLDER)


def _restrict(handle: int, mode: int) -> None:
    """Set the mode of an open file, since that set by ``open`` depends on the umask."""
    if hasattr(os, "fchmod"):
        with suppress(PermissionError):  # of somebody else's
            os.fchmod(handle, mode)


def find_cached(name: str) -> Path | None:
    """Return the path of a cache file; None where others can write too."""
    home = _find_cache()
    if home is None or not _is_ours(home):
        return None
    file = home / name
    return file if _is_free_or_ours(file) else None


def _find_cache() -> Path | None:
    """Return the folder for caches of the system, or the one set in the environment."""
    if named := os.environ.get(CACHE_FOLDER):
        return Path(named)
    try:
        home = Path.home()
    except RuntimeError:  # nobody's process
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "epsilometer"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "epsilometer"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "epsilometer"


def _is_ours(home: Path) -> bool:
    """Tell whether only this user may write to a folder; create it if it does not exist."""
    try:
        home.mkdir(mode=OWNER_FOLDER, parents=True, exist_ok=True)
        found = home.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and _is_owner(found) and not found.st_mode & others


def _is_free_or_ours(file: Path) -> bool:
    try:
        found = file.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and _is_owner(found)


def _is_owner(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
