"""Read the file of a model without loading it: no code that it names is imported or run.

Pickle and joblib are read into inert objects that hold their arguments. Archives (skops, torch,
NumPy) are read entry by entry, ONNX by the wire format of its messages. Files of other formats are
reported as not read.
"""

import base64
import binascii
import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.model_state import Unread
from epsilometer.files.inert_pickle import Reader
from epsilometer.types import FloatArray

_VALUES = 3  # smallest number of values of a row to search for in a file
_RUN = 8  # distinct values by which a column is recognised in a file
_LONG = 24  # characters from which a text is searched for numbers
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{64,}={0,2}\s*")
_UNPACKERS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"x", zlib.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
    (b"]\x00\x00", lzma.decompress),
)
_DEEPEST = 8  # levels of archives in archives


def unpack(content: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield the raw bytes of a file, and its unpacked contents."""
    yield content
    if depth == _DEEPEST:
        return
    for _, entry in _list_entries(content):
        yield from unpack(entry, depth + 1)
    packed = _decompress(content)
    if packed is not None:
        yield from unpack(packed, depth + 1)


def read_objects(content: bytes, name: str = "", depth: int = 0) -> Iterator[Any]:
    """Yield the contents of a model's file, for ``walk_state``: inert objects, arrays, texts.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> model = GaussianNB().fit([[0.0], [1.0]], [0, 1])
        >>> [type(each).__name__ for each in read_objects(pickle.dumps(model))]
        ['GaussianNB']
    """
    packed = _decompress(content)
    entries = _list_entries(content)
    if depth == _DEEPEST:
        yield Unread("is packed too deeply")
    elif packed is not None:
        yield from read_objects(packed, name, depth + 1)
    elif entries:
        for inside, entry in entries:
            yield from read_objects(entry, inside, depth + 1)
    elif content.startswith(b"\x93NUMPY"):
        yield from _read_array(content)
    elif content.startswith(b"\x80") and len(content) > 2 and content[1] <= pickle.HIGHEST_PROTOCOL:
        yield from _read_pickle(content)
    elif (text := _read_text(content)) is not None:
        yield text
    elif depth and "data/" in name and len(content) % 4 == 0:  # weights in an archive of torch
        yield np.frombuffer(content, "<f4")
        if len(content) % 8 == 0:
            yield np.frombuffer(content, "<f8")
    elif (message := _read_message(content)) is not None and depth == 0:
        yield message
    elif content:
        yield Unread("has an unknown format: only its bytes were searched")


def _decompress(content: bytes) -> bytes | None:
    for begin, decompress in _UNPACKERS:
        if content.startswith(begin):
            try:
                return decompress(content)
            except (OSError, zlib.error, lzma.LZMAError, EOFError):
                continue
    return None


def _list_entries(content: bytes) -> list[tuple[str, bytes]]:
    if not content.startswith(b"PK"):
        return []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [(each, archive.read(each)) for each in archive.namelist()]
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error):
        return []


def _read_array(content: bytes) -> Iterator[Any]:
    try:
        yield np.load(io.BytesIO(content), allow_pickle=False)
    except ValueError:
        yield Unread("has an array of objects that cannot be read without running code")


def _read_text(content: bytes) -> Any:
    """Return text, parsed if it is JSON; None if the bytes are not text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.isprintable() and any(ord(c) < 32 and c not in "\t\r\n" for c in text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def find_in_text(text: str) -> Iterator[Any]:
    """Yield the numbers in a long text, and the bytes that it encodes.

    Example:
        >>> [found.tolist() for found in find_in_text("[[0.125, 2.0], [-1e3, 40, 5]]")]
        [[0.125, 2.0, -1000.0, 40.0, 5.0]]
    """
    if len(text) < _LONG:
        return
    numbers = [float(each) for each in _NUMBER.findall(text)]
    if len(numbers) >= _VALUES:
        yield np.array(numbers)
    if _BASE64.fullmatch(text):
        for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
            try:
                yield decode(text)
            except (binascii.Error, ValueError):
                continue


def _read_pickle(content: bytes) -> Iterator[Any]:
    stream = io.BytesIO(content)
    while stream.tell() < len(content):
        try:
            yield Reader(stream).load()
        except Exception:  # a file may hold anything; none of it is run
            yield Unread("could not be read to its end: only its bytes were searched")
            return


def _read_message(content: bytes) -> Any:
    """Return the fields of a protocol buffers message, lists of numbers as arrays; or None."""
    fields: dict[tuple[int, int], list[Any]] = {}
    place, value = 0, cast("Any", None)
    while place < len(content):
        key, place = _read_varint(content, place)
        number, kind = key >> 3, key & 7
        if not number or place < 0:
            return None
        if kind == 0:
            value, place = _read_varint(content, place)
            if place < 0:
                return None
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if place + size > len(content):
                return None
            (value,) = struct.unpack_from("<d" if kind == 1 else "<f", content, place)
            place += size
        elif kind == 2:
            size, place = _read_varint(content, place)
            if place < 0 or place + size > len(content):
                return None
            value, place = content[place : place + size], place + size
        else:
            return None
        fields.setdefault((number, kind), []).append(value)
    return {key: _read_fields(values) for key, values in fields.items()}


def _read_fields(values: list[Any]) -> Any:
    return [_read_field(each) if isinstance(each, bytes) else each for each in values]


def _read_field(value: bytes) -> Any:
    """Return a field as text, as a message and as numbers: the format does not say which it is."""
    if (text := _read_text(value)) is not None:
        return text
    parts: list[Any] = [_read_message(value)]
    for kind in ("<f4", "<f8"):
        if len(value) % np.dtype(kind).itemsize == 0:
            with np.errstate(invalid="ignore"):
                parts.append(np.frombuffer(value, kind))
    return parts


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a variable-length integer and where it ends; −1 if it does not end."""
    value = shift = 0
    while place < len(content) and shift < 64:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return 0, -1


def count_in_bytes(content: bytes, table: FloatArray) -> int:
    """Return how many rows of a table a file contains, in any plain format of numbers."""
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
    """Count rows whose values the file contains consecutively."""
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
    """Return n if the file contains a whole column of many different values."""
    n = len(rows)
    varied = [column for column in rows.T if np.unique(column).size >= _RUN]
    for column in varied:
        for start in np.flatnonzero(values[: max(values.size - n + 1, 0)] == column[0]).tolist():
            if np.array_equal(values[start : start + n], column):
                return n
    return 0
