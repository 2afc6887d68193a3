"""Stamp results with time, system and commit, separately from their deterministic bytes.

A result contains no time, so that the same run gives the same bytes. Its stamp is a separate file:
``stamp.json`` in the directory of a run, ``audit.stamp.json`` next to ``audit.json``.
"""

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

from epsilometer._files import read_plain, write_whole
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument, UnreadableFile

WHO = "EPSILOMETER_WHO"  # variable that names who runs audits; without it nobody is named
# All files but pages: reports, texts and badges, which audits write and no training reads.
_CODE = (":(top)", *(f":(top,exclude,glob)**/*.{end}" for end in ("html", "md", "svg")))
# By these keys a JSON file is a result or a stamp, and no settings of a training.
_WRITTEN = ({"format", "provenance", "verdict"}, {"time", "commit", "packages"})
_PATIENCE = 10.0  # seconds for git
_PACKAGES = ("epsilometer", "numpy", "scipy", "torch", "opacus", "flwr", "scikit-learn", "jax")


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the time, system and commit of a result.

    Guarantee: it names no user and no machine, unless ``EPSILOMETER_WHO`` was set.
    Assumption: it is a statement, not a proof; a signature over both files makes it one.

    Attributes:
        time: UTC, ISO 8601.
        commit: Commit of the git repository of the working directory; empty without one.
        modified: Whether tracked files there differed from the commit. Pages (``.html``, ``.md``,
            ``.svg``), results and stamps do not count: audits write them. All other JSON files do.
        system: Operating system and machine type.
        packages: (name, version) pairs of installed packages.
        who: Value of ``EPSILOMETER_WHO``.
        result: SHA-256 of the result with Unix line ends; empty if unknown.
    """

    time: str
    commit: str = ""
    modified: bool = False
    system: str = ""
    packages: tuple[tuple[str, str], ...] = ()
    who: str = ""
    result: str = ""

    @property
    def moment(self) -> datetime:
        """The time as a date."""
        try:
            found = datetime.fromisoformat(self.time)
        except ValueError as error:
            raise UnreadableFile(f"Expected a time in a stamp, got {self.time[:40]!r}.") from error
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def describe(self) -> tuple[tuple[str, str], ...]:
        """Return names and values for people; unknown ones are left out."""
        commit = self.commit and self.commit[:12] + (" with changes" if self.modified else "")
        rows = (
            ("date", f"{self.moment:%Y-%m-%d %H:%M} UTC"),
            ("commit", commit),
            ("system", self.system),
            ("packages", ", ".join(f"{name} {version}" for name, version in self.packages)),
            ("run by", self.who),
        )
        return tuple((name, one_line(value)) for name, value in rows if value)


def make_stamp() -> Stamp:
    """Return a stamp of the current time and folder.

    Example:
        >>> make_stamp().packages[0][0]
        'epsilometer'
    """
    commit = ask_git("rev-parse", "HEAD")
    return Stamp(
        time=_read_clock().isoformat(timespec="seconds"),
        commit=commit or "",
        modified=bool(commit) and _has_changes(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        packages=tuple(_list_packages()),
        who=os.environ.get(WHO, ""),
    )


def find_stamp(result: Path) -> Path:
    """Return the path of the stamp of a result: a JSON file, or the directory of a run."""
    if result.is_dir() or result.name == "result.json":
        return (result if result.is_dir() else result.parent) / "stamp.json"
    return result.with_suffix(".stamp.json")


def write_stamp(result: str | os.PathLike[str]) -> Stamp:
    """Write a stamp next to a result, once: a later call keeps the first.

    A result that has changed counts as new, and is stamped again.
    """
    result = Path(result)
    known = read_stamp(result)
    if known is not None:
        return known
    path = find_stamp(result)
    stamp = msgspec.structs.replace(make_stamp(), result=_hash_result(result))
    data = msgspec.json.format(msgspec.json.encode(stamp), indent=2) + b"\n"
    try:
        write_whole(path, data, private=result.is_dir())
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
    return stamp


def read_stamp(result: Path) -> Stamp | None:
    """Return the stamp of a result; None if there is none, or it is of another result."""
    path = find_stamp(result)
    if not path.exists():
        return None
    try:
        stamp = msgspec.json.decode(read_plain(path), type=Stamp)
        return stamp if stamp.result in ("", _hash_result(result)) else None
    except (msgspec.DecodeError, OSError) as error:
        raise UnreadableFile(f"Expected a stamp in {str(path)!r}, got other content.") from error


def _hash_result(result: Path) -> str:
    """Return the digest of a result; "" if there is none yet."""
    file = result / "result.json" if result.is_dir() else result
    if not file.is_file():
        return ""
    return hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def ask_git(*call: str, folder: Path | None = None) -> str | None:
    """Return git's output; None if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", *call],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _has_changes() -> bool:
    """Return whether tracked files differ from the commit; True if git fails."""
    top = ask_git("rev-parse", "--show-toplevel")
    names = ask_git("diff", "--name-only", "-z", "HEAD", "--", *_CODE)
    if top is None or names is None:
        return True
    return any(not _is_written(Path(top), name) for name in names.split("\0") if name)


def _is_written(top: Path, name: str) -> bool:
    """Return whether a file is a result or a stamp, by its current or last contents."""
    if not name.endswith(".json"):
        return False
    path = top / name
    try:
        text = read_plain(path) if path.exists() else ask_git("show", f"HEAD:{name}") or ""
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.MsgspecError, UnreadableFile, OSError):  # an unreadable file is not a result
        return False
    return any(needed <= keys for needed in _WRITTEN)


def _read_clock() -> datetime:
    """Return the time, or that of SOURCE_DATE_EPOCH for reproducible builds."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)


def _list_packages() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found
