"""Walk through the state of a fitted model, and through the bytes of its file."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.types import FloatArray

_VALUES = 3  # values of a row from which it is looked for in a file
_RUN = 8  # different values by which a column is recognised in a file
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    np.generic,
    np.dtype,
    np.random.Generator,
    np.random.RandomState,
)


def walk_state(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a model, named by the class and attribute that hold them.

    Example:
        >>> from types import SimpleNamespace
        >>> inner = SimpleNamespace(rows=np.eye(2), words={"ann": 0, "bob": 1})
        >>> [name for name, _ in walk_state(SimpleNamespace(model=inner))]
        ['SimpleNamespace.rows', 'SimpleNamespace.words', 'SimpleNamespace.words']
    """
    seen: set[int] = set()
    held: list[Any] = []  # what was made on the way must not give its address to another
    stack: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while stack:
        where, value = stack.pop()
        if value is None or isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        held.append(value)
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu().numpy()  # a tensor of torch
        if isinstance(value, np.ndarray) or hasattr(value, "tocsr"):
            yield where, value
            if value.dtype == object:
                stack += [(where, each) for each in value.ravel().tolist()]
            continue
        if hasattr(value, "iloc"):
            stack += [(where, np.asarray(value)), (where, np.asarray(value.index))]
            continue
        stack += reversed([*_list_parts(where, value)])


def _list_parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from _list_items(where, [*value])
        yield from _list_items(where, [*value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _list_items(where, [*value])
    elif not callable(value) or hasattr(value, "__dict__"):
        state = _read_state(value)
        for name, part in state.items():
            if f"{name}_" in state and not hasattr(part, "fit"):
                continue  # a parameter whose fitted value is there too
            yield f"{type(value).__name__}.{name}" if name else where, part


def _list_items(where: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a list of numbers or of texts as an array, and the parts of any other."""
    if items and all(isinstance(each, str) for each in items):
        yield where, np.array(items, object)
    elif items and all(isinstance(each, bytes) for each in items):
        yield where, np.frombuffer(b"".join(items), np.uint8)
    elif items and all(isinstance(each, int | float | np.number) for each in items):
        yield where, np.asarray(items, np.float64)
    elif len({_count_numbers(each) for each in items}) == 1 and _count_numbers(items[0]):
        yield where, np.array([[*each] for each in items], np.float64)
    else:
        yield from ((where, each) for each in items)


def _count_numbers(item: Any) -> int:
    """Return the length of a list of numbers; 0 of anything else."""
    plain = isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim == 1)
    return len(item) if plain and all(isinstance(x, int | float | np.number) for x in item) else 0


def _read_state(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; of one without any, what pickle would write."""
    attributes = getattr(value, "__dict__", None)
    if attributes:
        return dict(attributes)
    module = type(value).__module__.partition(".")[0]
    if module in ("builtins", "types", "functools", "numpy", "_thread"):
        return {}
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # whatever cannot be pickled is not in a file
        return {}
    parts = [part for part in reduced[1:3] if part is not None] if type(reduced) is tuple else []
    states = [part for part in parts if isinstance(part, dict)]
    named = {str(name): part for state in states for name, part in state.items()}
    return {**named, "": [part for part in parts if not isinstance(part, dict)]}


def unpack(content: bytes) -> Iterator[bytes]:
    """Yield a file as it is, and what is packed in it."""
    yield content
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                yield from unpack(archive.read(name))
    unpackers: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
        (b"\x1f\x8b", gzip.decompress),
        (b"x", zlib.decompress),
        (b"BZh", bz2.decompress),
        (b"\xfd7zXZ", lzma.decompress),
    )
    for begin, decompress in unpackers:
        if content.startswith(begin):
            try:
                yield from unpack(decompress(content))
            except (OSError, zlib.error, lzma.LZMAError, EOFError):
                continue


def count_in_bytes(content: bytes, table: FloatArray) -> int:
    """Return how many rows of a table stand in a file, in any plain format of numbers."""
    best = 0
    for kind in ("<f8", "<f4", "<i8", "<i4"):
        with np.errstate(invalid="ignore"):
            rows = table.astype(kind)
        if kind[1] == "i" and not np.array_equal(rows, table):
            continue
        size = rows.itemsize
        for offset in range(size):
            length = (len(content) - offset) // size
            if length >= max(rows.shape[1], _RUN):
                values = np.frombuffer(content, kind, length, offset)
                best = max(best, _count_runs(values, rows), _count_columns(values, rows))
    return best


def _count_runs(values: NDArray[Any], rows: NDArray[Any]) -> int:
    """Count rows that stand in the file one after the other."""
    width = rows.shape[1]
    if width < _VALUES:
        return 0
    starts = np.arange(values.size - width + 1)
    for column in range(width):
        starts = starts[np.isin(values[starts + column], rows[:, column])]
        if not starts.size:
            return 0
    there = {values[start : start + width].tobytes() for start in starts.tolist()}
    return sum(row.tobytes() in there for row in rows)


def _count_columns(values: NDArray[Any], rows: NDArray[Any]) -> int:
    """Return n where a column of many different values stands in the file as a whole."""
    n = len(rows)
    varied = [column for column in rows.T if np.unique(column).size >= _RUN]
    for column in varied:
        for start in np.flatnonzero(values[: max(values.size - n + 1, 0)] == column[0]).tolist():
            if np.array_equal(values[start : start + n], column):
                return n
    return 0
