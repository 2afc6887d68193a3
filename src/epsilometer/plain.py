"""Frozen dataclasses as plain JSON values, and back: of the right kind, nothing missing."""

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

_LATER = frozenset({"basis"})  # fields that results written before them do not have
_LARGEST = 2**1000  # no count, and no seed, comes near what a float cannot hold


def plain_values(value: Any) -> Any:
    """The value as JSON can hold it; infinities as the strings ``"inf"`` and ``"-inf"``."""
    match value:
        case dict():
            return {key: plain_values(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_values(item) for item in value]
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case _:
            return value


def fields_of(cls: type[Any], plain: Any) -> dict[str, Any]:
    """The values of ``plain`` as constructor arguments: of the right kind, nothing missing."""
    named(cls, plain)
    return {
        field.name: restored(field.name, plain[field.name], field.type)
        for field in fields(cls)
        if field.name in plain
    }


def named(cls: type[Any], plain: Any) -> None:
    """Refuses anything but a JSON object with the fields of ``cls``."""
    if not isinstance(plain, dict) or plain.get("kind", cls.__name__) != cls.__name__:
        raise InvalidArgument(f"Expected {cls.__name__} as a JSON object, got {str(plain)[:60]!r}.")
    given, known = set(plain) - {"kind"}, {field.name for field in fields(cls)}
    odd = sorted((given - known) | (known - given - _LATER))
    if odd:
        raise InvalidArgument(
            f"Expected the fields of {cls.__name__}; missing or unknown: {_validate.listed(odd)}."
        )


def restored(name: str, value: Any, kind: Any) -> Any:
    """A value as its field holds it; ``InvalidArgument`` where it is of another kind."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    real = isinstance(value, float) and not math.isnan(value)  # which no result has
    if kind is float and (whole or real or value in ("inf", "-inf")):
        return float(value)
    if (
        (kind is int and whole and abs(value) <= _LARGEST)
        or (kind in (bool, str) and isinstance(value, kind))
        or (get_origin(kind) is Literal and value in get_args(kind))
    ):
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return kind(**fields_of(kind, value))
    if get_origin(kind) is UnionType:  # something or nothing
        return None if value is None else restored(name, value, get_args(kind)[0])
    if get_origin(kind) is tuple and isinstance(value, list):
        part = get_args(kind)
        inner = part[:1] * len(value) if part[-1] is Ellipsis else part
        if len(inner) == len(value):
            return tuple(restored(name, v, k) for v, k in zip(value, inner, strict=True))
    raise InvalidArgument(f"Expected {name} to be {kind}, got {str(value)[:60]!r}.")


def same_length(result: Any, *names: str) -> None:
    """Refuses parts of different lengths."""
    lengths = {name: len(getattr(result, name)) for name in names}
    if len(set(lengths.values())) > 1:
        raise InvalidArgument(f"Expected parts of one length, got {lengths}.")


def settle(result: Any) -> None:
    """Plain Python numbers in place of NumPy's, which JSON does not know."""
    for field in fields(result):
        kind: Any = field.type
        value = getattr(result, field.name)
        if get_origin(kind) is UnionType and value is not None:
            kind = get_args(kind)[0]
        if kind in (float, int, bool):
            object.__setattr__(result, field.name, kind(value))
