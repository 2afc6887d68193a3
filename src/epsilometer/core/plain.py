"""Define the base class of JSON records: frozen, with checked plain Python numbers."""

import functools
import math
from collections.abc import Callable, Iterable
from html import escape
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.errors import InvalidArgument

_LARGEST = 2**1000  # no count and no seed comes near what a float cannot hold


# Types of fields with their domain: each is checked by the function in its annotation.
Probability: TypeAlias = Annotated[float, _validate.probability]
Confidence: TypeAlias = Annotated[float, _validate.open_unit]
Number: TypeAlias = Annotated[float, _validate.number]
Nonnegative: TypeAlias = Annotated[float, functools.partial(_validate.at_least, 0)]
Count: TypeAlias = Annotated[int, functools.partial(_validate.whole, 0)]
PositiveCount: TypeAlias = Annotated[int, functools.partial(_validate.whole, 1)]


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record whose numbers are plain Python numbers, never nan, as JSON needs."""

    def __post_init__(self) -> None:
        for name, kind, check in _find_number_fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, np.generic):
                msgspec.structs.force_setattr(self, name, kind(value))
            elif kind is int and isinstance(value, int) and abs(value) > _LARGEST:
                raise InvalidArgument(f"Expected {name} to fit into a float, it does not.")
            elif kind is float and _has_nan(value):
                raise InvalidArgument(f"Expected a number for {name}, got nan.")
            if check is not None and value is not None:
                check(**{name: value})
        for name, flat in _find_tuple_fields(type(self)).items():
            value = getattr(self, name)
            # The sum is nan too where infinities of both signs are added, which is no fault.
            if (not flat or math.isnan(sum(value))) and _has_nan(value):
                raise InvalidArgument(f"Expected numbers in {name}, got nan among them.")


def to_plain(value: Any) -> Any:
    """Return a record as JSON values; infinities and nan as "inf", "-inf" and "nan"."""
    return _write_values(msgspec.to_builtins(value))


def make_html_table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a small HTML table for notebooks, with all text escaped."""
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def check_same_length(record: Any, *names: str) -> None:
    """Refuse fields of different lengths."""
    lengths = {name: len(getattr(record, name)) for name in names}
    if len(set(lengths.values())) > 1:
        raise InvalidArgument(f"Expected parts of one length, got {lengths}.")


def check_counts(name: str, counts: tuple[int, ...]) -> None:
    """Refuse anything but whole numbers from 0; hundreds take a few microseconds."""
    if not set(map(type, counts)) <= {int} or min(counts, default=0) < 0:
        for count in counts:
            _validate.whole(0, **{name: count})


def check_cites(cites: tuple[str, ...]) -> None:
    """Refuse keys that the bibliography does not have."""
    unknown = [key for key in cites if key not in BIBLIOGRAPHY]
    if unknown:
        raise InvalidArgument(
            f"Expected keys of the bibliography in cites, got {_validate.listed(unknown)}."
        )


@functools.cache
def _find_number_fields(cls: Any) -> tuple[tuple[str, type, Callable[..., None] | None], ...]:
    """Return name, type and check of each field that holds one number, or None."""
    found = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        kind = next(part for part in kinds if part is not NoneType)
        check = None
        if get_origin(kind) is Annotated:
            kind, check = get_args(kind)
        if kind in (float, int, bool) and name in cls.__struct_fields__:
            found.append((name, kind, check))
    return tuple(found)


@functools.cache
def _find_tuple_fields(cls: Any) -> dict[str, bool]:
    """Return tuple fields that hold floats, and whether each is a flat tuple of floats."""
    hints = get_type_hints(cls)
    return {
        name: hints[name] == tuple[float, ...]
        for name in cls.__struct_fields__
        if get_origin(hints[name]) is tuple and _holds_floats(hints[name])
    }


def _holds_floats(kind: Any) -> bool:
    return kind is float or (get_origin(kind) is tuple and any(map(_holds_floats, get_args(kind))))


def _has_nan(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_nan, value))
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _write_values(value: Any) -> Any:
    if isinstance(value, float):
        # msgspec writes infinity as null, which no reader could tell from a missing number.
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str) and not value.isascii():
        # Halves of letters, as of file names that are not UTF-8, cannot be written to a file.
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_write_values(key): _write_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_write_values(item) for item in value]
    return value
