"""Hold a run's directory, and say in words what the disk refuses."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from epsilometer._files import OWNER_FILE, Folder, make_private_folder
from epsilometer.errors import EpsilometerError

_PATIENCE = 1.0  # seconds: somebody who only asks for the status holds the lock for an instant
_LOG = 4 * 2**20  # bytes of a log that are searched for who works


class RunBusy(EpsilometerError):
    """Another process works on this run."""


class CannotWrite(EpsilometerError):
    """The directory cannot be written: full, read-only, gone. What is finished stays finished."""


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds a run. The kernel lets go when the process ends, however it ends."""
    held = FileLock(directory / "lock", mode=OWNER_FILE)
    try:
        with explain_write_errors(directory):
            make_private_folder(directory)
            held.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise RunBusy(
            f"Expected a run that nobody works on; {_find_holder(directory)} works on "
            f"{str(directory)!r}. Wait for it, or follow it with: "
            f"epsilometer runs status {directory}"
        ) from error
    try:
        yield
    finally:
        held.release()


def busy(directory: Path) -> bool:
    """Tell whether somebody works on the run now. Nothing is written, not even a lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return (directory / "lock").is_file() and not _can_lock(directory)
    try:
        handle = os.open(directory / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # nobody ever worked there, or it is not ours to look at
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
    """Who said last that they began; the log may be torn, and then it is somebody."""
    with suppress(OSError, EpsilometerError), Folder.hold(directory) as home:
        text = home.read("log.jsonl", largest=_LOG).decode("utf-8", "replace")
        for line in reversed(text.splitlines()):
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                event = json.loads(line)
                if event["event"] == "started":
                    return f"process {event['process']} on {event['host']}"
    return "another process"
