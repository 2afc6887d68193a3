"""Fingerprint the inputs of an audit, so that a run never continues with other inputs."""

import copyreg
import functools
import hashlib
import os
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from epsilometer.errors import InvalidArgument


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value by its contents, the same in every process.

    Arrays and tensors are compared by type, shape and bytes, containers and objects by their parts.
    A path counts by the contents of its file, a function only by its name.

    Raises:
        InvalidArgument: It contains something without contents, such as an open file or a lock.

    Example:
        >>> fingerprint([1, "a"]) == fingerprint([1, "a"]), fingerprint([1]) == fingerprint([1.0])
        (True, False)
    """
    digest = hashlib.sha256()
    try:
        _add(digest, value, ())
    except RecursionError as error:
        raise InvalidArgument(
            f"Expected contents that can be compared, {type(value).__name__} is nested too deeply."
        ) from error
    return digest.hexdigest()


def name_of(function: Any) -> str:
    """Return the module and qualified name of a function, or of a callable object's type."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor, as of torch; files have ``detach`` too, and lose by it."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def _add(digest: _Digest, value: Any, above: tuple[int, ...]) -> None:
    """Add a value to the digest; ``above`` are the values it is a part of."""
    kind = type(value)
    _add_text(digest, f"{kind.__module__}.{kind.__qualname__}")
    if id(value) in above:  # part of itself
        _add_text(digest, f"again {len(above) - above.index(id(value))}")
        return
    inner = (*above, id(value))
    text = _describe_leaf(value)
    if text is not None:
        _add_text(digest, text)
    elif is_tensor(value):
        plain = value.detach().cpu()
        _add_text(digest, str(plain.dtype))
        _add_array(
            digest, (plain.float() if "bfloat16" in str(plain.dtype) else plain).numpy(), inner
        )
    elif isinstance(value, (np.ndarray, np.generic)):
        _add_array(digest, np.asarray(value), inner)
    else:
        _add_parts(digest, _list_parts(value), inner)


def _describe_leaf(value: Any) -> str | None:
    """Return a value without parts as text; None for anything else."""
    if isinstance(value, (str, Path)) and os.path.isfile(value):
        with open(value, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return name_of(value)
    plain = (str, bytes, bool, int, float, complex, Path, type(None))
    return repr(value) if isinstance(value, plain) and not isinstance(value, np.generic) else None


def _list_parts(value: Any) -> list[Any]:
    """Return the parts of a value, in a fixed order."""
    parts: list[Any]
    match value:
        case functools.partial():
            parts = [value.func, value.args, value.keywords]
        case types.MethodType():
            parts = [value.__func__, value.__self__]
        case set() | frozenset():
            parts = sorted(fingerprint(part) for part in value)
        case Mapping():
            pairs = sorted(value.items(), key=lambda pair: (str(type(pair[0])), repr(pair[0])))
            parts = [part for pair in pairs for part in pair]
        case list() | tuple():
            parts = list(value)
        case _ if hasattr(value, "to_numpy"):  # a column or a table, as of pandas
            parts = [list(getattr(value, "columns", ())), value.to_numpy()]
        case _:
            parts = _reduce(value)
    return parts


def _add_parts(digest: _Digest, parts: list[Any], above: tuple[int, ...]) -> None:
    _add_text(digest, f"{len(parts)} parts")
    for part in parts:
        _add(digest, part, above)


def _add_array(digest: _Digest, array: "np.ndarray[Any, Any]", above: tuple[int, ...]) -> None:
    _add_text(digest, f"{array.dtype.str} {array.shape}")
    if array.dtype.hasobject:
        _add_parts(digest, array.ravel().tolist(), above)
    else:
        digest.update(np.ascontiguousarray(array).tobytes())


def _add_text(digest: _Digest, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    digest.update(f"{len(data)}:".encode())  # so that parts are separated unambiguously
    digest.update(data)


def _reduce(value: Any) -> list[Any]:
    """Return what a pickle would hold; pickles themselves differ by which parts are shared."""
    registered = copyreg.dispatch_table.get(type(value))  # as NumPy does for np.log1p and such
    try:
        parts = value.__reduce_ex__(4) if registered is None else registered(value)
    except Exception as error:  # objects raise almost anything when asked for their contents
        raise InvalidArgument(
            f"Expected contents that can be compared, {type(value).__name__} has none ({error})."
        ) from error
    if isinstance(parts, str):
        return [parts]
    return [list(part) if isinstance(part, Iterator) else part for part in parts]
