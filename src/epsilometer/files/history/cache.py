"""Find the place of indexes: a folder of the user's own, where nobody else can put a false one."""

import hashlib
import os
import stat
import sys
from pathlib import Path

from epsilometer._files import OWNER_FOLDER

CACHE_FOLDER = "EPSILOMETER_CACHE"  # variable of the environment: where indexes lie


def find_index(folder: Path) -> Path | None:
    """Return the file of a folder's index; None where there is no place that only we can write.

    An index in the folder itself would be believed, whoever wrote it.
    """
    home = _find_cache()
    if home is None or not _is_ours(home):
        return None
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    index = home / f"index-{name}.sqlite"
    return index if _is_free_or_ours(index) else None


def _find_cache() -> Path | None:
    """Return the folder for caches as the system has it, or as the environment says."""
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
    """Tell whether a folder is ours alone to write, and make it where there is none."""
    try:
        home.mkdir(mode=OWNER_FOLDER, parents=True, exist_ok=True)
        found = home.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and _is_owner(found) and not found.st_mode & others


def _is_free_or_ours(index: Path) -> bool:
    try:
        found = index.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and _is_owner(found)


def _is_owner(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
