"""Cache results by content: unchanged files are not checked again.

The key is a hash of all texts of a part of a project, of their paths, and of the rules, facts and
code that checked them. A damaged file, or one of another version, is written again.
"""

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from epsilometer._files import find_cached, read_plain, write_whole
from epsilometer.errors import UnreadableFile
from epsilometer.lint.libraries import load_catalogue
from epsilometer.lint.rules import Finding, Problem, Understood
from epsilometer.lint.sources import Source

_LARGEST = 32 * 2**20  # bytes of all cached results
_MOST = 2_000  # number of cached parts of projects


class Result(msgspec.Struct, frozen=True, array_like=True):
    """Hold the findings in one part of a project."""

    findings: tuple[Finding, ...] = ()
    problems: tuple[Problem, ...] = ()
    understood: tuple[Understood, ...] = ()


class Cache:
    """Hold results of earlier calls. If nothing can be written, everything else works."""

    def __init__(self) -> None:
        self._file = find_cached("lint.json")
        self._known: dict[str, Result] = {}
        self._used: dict[str, Result] = {}
        if self._file is not None:
            with suppress(
                OSError, UnreadableFile, msgspec.MsgspecError, ValueError, RecursionError
            ):
                data = read_plain(self._file, largest=_LARGEST)
                self._known = msgspec.json.decode(data, type=dict[str, Result])

    def find(self, key: str) -> Result | None:
        """Return the result of a key, if it is known."""
        return self._known.get(key)

    def keep(self, key: str, result: Result) -> None:
        """Keep a result, for ``write``."""
        self._used[key] = result

    def write(self) -> None:
        """Write the results used in this call, then earlier ones, up to the limit."""
        if self._file is None or all(key in self._known for key in self._used):
            return
        older = {key: each for key, each in self._known.items() if key not in self._used}
        kept = dict([*self._used.items(), *older.items()][:_MOST])
        with suppress(OSError, UnreadableFile, ValueError):  # as a name in no encoding
            data = msgspec.json.encode(kept)
            if len(data) > _LARGEST:
                data = msgspec.json.encode(self._used)
            if len(data) <= _LARGEST:
                write_whole(self._file, data)


def make_key(sources: list[Source]) -> str:
    """Return a key for texts and for all code that checks them."""
    digest = hashlib.sha256(_describe_checker().encode())
    for source in sources:
        content = source.content
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        for part in (os.fsencode(source.path), data, repr(source.cells).encode()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


@cache
def _describe_checker() -> str:
    """Return a hash of the code, the rules and the facts that findings follow from."""
    digest = hashlib.sha256()
    here = Path(str(files("epsilometer.lint")))
    for path in sorted(here.rglob("*")):
        if path.suffix in (".py", ".toml"):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    digest.update(repr(sorted(load_catalogue().names)).encode())  # of other packages too
    digest.update(repr(load_catalogue().markers).encode())
    return digest.hexdigest()
