"""Find Python sources on disk, read them, and extract the cells of notebooks."""

import ast
import fnmatch
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.lint.libraries import load_catalogue
from epsilometer.lint.rules import Problem

SKIPPED = ("node_modules", "build", "dist", "__pycache__", "site-packages", "venv", "env")
_LARGEST_NOTEBOOK = 256 * 2**20  # bytes, most of them pictures
_SEARCHED = 64 * 2**20  # bytes to search for code that needs checks
LARGEST = 5 * 2**20  # bytes; a tree takes a hundred times that, and no training script comes near

_SUFFIXES = (".py", ".pyi", ".pyw", ".ipynb")
_HARMLESS_MAGIC = ("%%time", "%%timeit", "%%capture")


@dataclass(frozen=True)
class Source:
    """Hold the text of a module, or of all cells of a notebook.

    Attributes:
        path: As given or found.
        content: The text, or the bytes with whatever encoding they declare.
        cells: For each line its cell and the line there; empty in a module.
    """

    path: str
    content: str | bytes
    cells: list[tuple[int, int]] = field(default_factory=list)


def find_files(
    paths: Iterable[Path], exclude: tuple[str, ...] = ()
) -> tuple[list[Path], list[Problem]]:
    """Return every Python file and notebook among and below the paths, once, in order.

    Hidden folders, and those with third-party code, are skipped below the paths but not among them.
    Links to folders are not followed. Folders that cannot be read are problems.
    """
    found: dict[Path, None] = {}
    closed: list[OSError] = []
    for path in paths:
        if not os.path.exists(path):  # Path.exists raises on a name that is too long
            raise UnreadableFile(f"Expected a file or folder at {str(path)!r}, found none.")
        files = _walk(path, exclude, closed) if path.is_dir() else [path]
        found.update(dict.fromkeys(files))
    problems = [
        Problem(path=str(error.filename), message=f"Could not be read: {error.strerror}")
        for error in closed
    ]
    if not found and not problems:
        looked = ", ".join(repr(str(path)) for path in paths)
        raise InvalidArgument(f"Expected Python files in {looked}, found none.")
    return list(found), problems


def _walk(folder: Path, exclude: tuple[str, ...], closed: list[OSError]) -> Iterator[Path]:
    for here, folders, files in os.walk(folder, onerror=closed.append):
        inside = Path(here)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED
            and not _is_excluded(inside / name, exclude)
        )
        for name in sorted(files):
            path = inside / name
            if path.suffix in _SUFFIXES and not _is_excluded(path, exclude):
                yield path


def _is_excluded(path: Path, exclude: tuple[str, ...]) -> bool:
    whole = path.as_posix()
    return any(
        fnmatch.fnmatch(whole, pattern) or fnmatch.fnmatch(whole, f"*/{pattern}")
        for pattern in (each.rstrip("/") for each in exclude)
    )


def read_source(path: Path) -> tuple[Source | None, list[Problem]]:
    """Return the source in a file; None if it has nothing to check."""
    name = path.as_posix()
    try:
        content = _read_bytes(path)
    except (OSError, UnreadableFile) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return None, [Problem(path=name, message=f"Could not be read: {reason or error}")]
    if path.suffix == ".ipynb":
        return _read_notebook(name, content)
    if len(content) > LARGEST:
        if not any(marker.encode() in content for marker in load_catalogue().markers):
            return None, []
        message = f"Larger than {LARGEST >> 20} MiB: not checked."
        return None, [Problem(path=name, message=message)]
    return Source(name, content), []


def _read_bytes(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        raise UnreadableFile("not a regular file")
    most = _LARGEST_NOTEBOOK if path.suffix == ".ipynb" else _SEARCHED
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableFile(f"larger than {most >> 20} MiB")
    return content


def parse(source: Source) -> ast.Module | Problem:
    """Return the tree, or the reason why there is none."""
    try:
        with warnings.catch_warnings():  # about invalid escapes in other people's code
            warnings.simplefilter("ignore")
            return ast.parse(source.content)
    except SyntaxError as error:
        message = f"Not Python {sys.version_info.major}.{sys.version_info.minor}: {error.msg}"
        return Problem(path=source.path, message=message, line=error.lineno or None)
    except (ValueError, LookupError) as error:  # null bytes, unknown encodings
        return Problem(path=source.path, message=f"Not Python: {error}")
    except (RecursionError, MemoryError):
        return Problem(path=source.path, message="Nested too deeply to be parsed.")


def _read_notebook(name: str, content: bytes) -> tuple[Source | None, list[Problem]]:
    """Return the code cells in one text; cells that do not parse are left out and reported."""
    try:
        cells = json.loads(content)["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        return None, [Problem(path=name, message=f"Not a notebook: {what}")]
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    problems = []
    for number, code in enumerate(codes, start=1):
        plain = _remove_magic(code)
        parsed = parse(Source(name, plain))
        if isinstance(parsed, Problem):
            problem = Problem(path=name, message=parsed.message, line=parsed.line, cell=number)
            problems.append(problem)
            continue
        own = plain.split("\n")
        lines += own
        places += [(number, line) for line in range(1, len(own) + 1)]
    return Source(name, "\n".join(lines), places), problems


def _remove_magic(code: str) -> str:
    """Return the cell with IPython commands neutralised, line by line."""
    if code.startswith("%%") and not code.startswith(_HARMLESS_MAGIC):
        return ""
    return "\n".join(_make_plain(line) for line in code.splitlines())


def _make_plain(line: str) -> str:
    bare = line.lstrip()
    indent = line[: len(line) - len(bare)]
    return f"{indent}pass" if bare.startswith(("%", "!", "?")) or bare.endswith("?") else line


def to_text(content: Any) -> str:
    """Decode bytes for display and search; never fail."""
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
