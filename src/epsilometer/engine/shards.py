"""Pack finished units into bytes: named arrays, their plan, and a checksum over both."""

import hashlib
import json
import math
import re
from collections.abc import Container, Mapping
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import EpsilometerError, InvalidArgument

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


MEMORY = 128 * 2**20  # bytes of finished units that a run holds, beside twice its largest one
LARGEST_SHARD = 2 * 2**30  # bytes; a unit that returns more should be several
_KINDS = "biufcSU"
_SUM = 64  # letters of a SHA-256
_LINE = 64 * 2**20  # bytes of the line that says whose arrays these are
_PART = 2**20  # bytes that are read at once
_TORN = "its checksum does not fit: it is torn, cut off or overwritten"
_UNFIT = "its checksum fits, its contents do not"
_CHECKSUM = re.compile(rb"[0-9a-f]{64}\n")
_DTYPE = re.compile(rf"[<>|=][{_KINDS}][0-9]{{1,9}}")  # as ``dtype.str``; NumPy knows other words


class DamagedShard(EpsilometerError):
    """Raised for bytes that are not, or no longer, the output of a unit of this plan."""


def check_arrays(returned: Any) -> Arrays:
    """Return a unit's output if it can be stored: arrays of numbers, booleans or text."""
    if not isinstance(returned, Mapping) or not all(isinstance(name, str) for name in returned):
        raise InvalidArgument(
            f"Expected a unit to return named arrays as a dict, got {type(returned).__name__}."
        )
    arrays = {name: np.asarray(value) for name, value in returned.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise InvalidArgument(
                f"Expected numbers, truth values or text in {name!r} of a unit, got {array.dtype}. "
                "Nothing that would have to be unpickled is kept."
            )
    size = count_bytes(arrays)
    if size > LARGEST_SHARD // 2:  # several that finish together share a file
        raise InvalidArgument(
            f"Expected at most {LARGEST_SHARD // 2:,} bytes from a unit, got {size:,}. "
            "Give each unit less to do."
        )
    return arrays


def count_bytes(arrays: Arrays) -> int:
    """Return the bytes of a unit's arrays."""
    return sum(array.nbytes for array in arrays.values())


def view_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, not copied unless they are scattered."""
    if not array.nbytes:
        return memoryview(b"")
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def pack(units: Mapping[int, Arrays], *, plan: str) -> list[bytes | memoryview]:
    """Pack units: a line with the SHA-256 of the rest, a line of JSON, the arrays' bytes.

    This is not .npy, whose headers are Python literals that are slower to read than a short array.
    It is returned in pieces, so that no array is copied.
    """
    whose = {
        "plan": plan,
        "units": [
            [unit, [[name, array.dtype.str, array.shape] for name, array in arrays.items()]]
            for unit, arrays in units.items()
        ],
    }
    pieces: list[bytes | memoryview] = [json.dumps(whose).encode("utf-8") + b"\n"]
    pieces += [view_bytes(array) for arrays in units.values() for array in arrays.values()]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [digest.hexdigest().encode("ascii") + b"\n", *pieces]


def scan(file: BinaryIO, *, plans: Container[str]) -> list[int]:
    """Return the units in a file of one of these plans, its checksum checked, piece by piece.

    Arrays are not created, so a file may be larger than memory.
    """
    return [unit for unit, _ in _check_file(file, plans)[0]]


def unpack(file: BinaryIO, *, plans: Container[str]) -> dict[int, Arrays]:
    """Unpack units that ``pack`` packed for one of these plans, or raise ``DamagedShard``.

    The checksum is verified first, so that a forged description cannot cause allocations.
    """
    described, start = _check_file(file, plans)
    file.seek(start)
    try:
        return _read_arrays(described, file)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedShard(_UNFIT) from error


def _check_file(file: BinaryIO, plans: Container[str]) -> tuple[list[tuple[int, Any]], int]:
    """Check a file, and return its description and where its arrays begin."""
    checksum = file.read(_SUM + 1)
    if not _CHECKSUM.fullmatch(checksum):
        raise DamagedShard(_TORN)
    line = file.readline(_LINE)
    digest, size = hashlib.sha256(line), 0
    while part := file.read(_PART):
        digest.update(part)
        size += len(part)
    if digest.hexdigest().encode("ascii") != checksum[:_SUM]:
        raise DamagedShard(_TORN)
    described = _describe_arrays(line, plans)
    try:
        fits = size >= sum(
            _parse_dtype(kind, shape).itemsize * math.prod(shape)
            for _, arrays in described
            for _, kind, shape in arrays
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise DamagedShard(_UNFIT) from error
    if not fits:
        raise DamagedShard(_UNFIT)
    return described, len(checksum) + len(line)


def _describe_arrays(line: bytes, plans: Container[str]) -> list[tuple[int, Any]]:
    """Return whose arrays these are, as the second line says: pairs of a unit and its arrays."""
    try:
        whose = json.loads(line)
        if str(whose["plan"]) not in plans:
            raise DamagedShard(f"it belongs to the plan {str(whose['plan'])[:12]}…")
        return [(int(unit), arrays) for unit, arrays in whose["units"]]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedShard(_UNFIT) from error


def _parse_dtype(kind: Any, shape: Any) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(kind) or min(shape, default=0) < 0:
        raise ValueError(f"arrays of {kind} and shape {shape} are never kept")
    dtype: np.dtype[Any] = np.dtype(kind)
    return dtype


def _read_arrays(described: Any, file: BinaryIO) -> dict[int, Arrays]:
    units: dict[int, Arrays] = {}
    for unit, arrays in described:
        found = {}
        for name, kind, shape in arrays:
            array: NDArray[Any] = np.ndarray(tuple(shape), _parse_dtype(kind, shape))
            found[str(name)] = array
            if array.nbytes:
                file.readinto(view_bytes(array))  # type: ignore[attr-defined]
        units[unit] = found
    return units
