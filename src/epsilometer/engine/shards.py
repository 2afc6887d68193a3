"""Finished units as bytes: named arrays, whose they are, and a checksum over both."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import EpsilometerError, InvalidArgument

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


_KINDS = "biufcSU"
_DTYPE = re.compile(rf"[<>|=][{_KINDS}][0-9]{{1,9}}")  # as ``dtype.str``; NumPy knows other words


class DamagedShard(EpsilometerError):
    """Bytes that are not, or no longer, what a unit of this plan returned."""


def checked(returned: Any) -> Arrays:
    """What a unit returned, if that can be kept: arrays of numbers, truth values or text."""
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
    return arrays


def pack(units: Mapping[int, Arrays], *, plan: str) -> bytes:
    """Line 1: SHA-256 of the rest. Line 2: whose arrays these are. Then their bytes, C order.

    Not .npy, whose headers are Python literals that cost more to read than a short array.
    """
    whose = {
        "plan": plan,
        "units": [
            [unit, [[name, array.dtype.str, array.shape] for name, array in arrays.items()]]
            for unit, arrays in units.items()
        ],
    }
    contents = [array.tobytes() for arrays in units.values() for array in arrays.values()]
    body = json.dumps(whose).encode("utf-8") + b"\n" + b"".join(contents)
    return hashlib.sha256(body).hexdigest().encode("ascii") + b"\n" + body


def unpack(data: bytes, *, plan: str) -> dict[int, Arrays]:
    """What ``pack`` was given; ``DamagedShard`` says what is wrong with other bytes."""
    checksum, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode("ascii") != checksum:
        raise DamagedShard("its checksum does not fit: it is torn, cut off or overwritten")
    line, _, contents = body.partition(b"\n")
    try:
        whose = json.loads(line)
        if whose["plan"] != plan:
            raise DamagedShard(f"it belongs to the plan {str(whose['plan'])[:12]}…")
        return _arrays(whose["units"], contents)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedShard("its checksum fits, its contents do not") from error


def _arrays(described: Any, contents: bytes) -> dict[int, Arrays]:
    units: dict[int, Arrays] = {}
    at = 0
    for unit, arrays in described:
        found = {}
        for name, kind, shape in arrays:
            if not _DTYPE.fullmatch(kind) or min(shape, default=0) < 0:
                raise ValueError(f"arrays of {kind} and shape {shape} are never kept")
            dtype = np.dtype(kind)
            array: NDArray[Any] = np.ndarray(tuple(shape), dtype, contents, at)
            found[str(name)] = array.copy()  # aligned, and free of the rest of the file
            at += array.nbytes
        units[int(unit)] = found
    return units
