"""Walk through the state of a fitted model: everything that a file of it would hold."""

import array
import copyreg
import dis
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_PLAIN = (
    bool,
    int,
    float,
    complex,
    type,
    np.generic,
    np.dtype,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    np.random.SeedSequence,
    types.ModuleType,
    types.CodeType,
    types.GenericAlias,
    slice,
    range,
    type(NotImplemented),
    type(Ellipsis),
)
_NUMBERS = (int, float, np.number)
_CALLED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


@dataclass(frozen=True)
class Unread:
    """A part of a model that was not searched.

    Attributes:
        why: The reason, as a phrase that follows the name of its holder.
    """

    why: str


def walk_state(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a model, named by the class and attribute that hold them.

    Yields:
        Arrays and sparse matrices; texts as arrays of objects; ``bytes``; and ``Unread`` for parts
        that cannot be searched. No part of a model is skipped silently.

    Example:
        >>> from types import SimpleNamespace
        >>> inner = SimpleNamespace(rows=np.eye(2), words={"ann": 0, "bob": 1})
        >>> [name for name, _ in walk_state(SimpleNamespace(model=inner))]
        ['SimpleNamespace.rows', 'SimpleNamespace.words', 'SimpleNamespace.words']
    """
    for where, value in walk_objects(root):
        if isinstance(value, np.ndarray):
            yield where, _read_numbers(value)
        elif isinstance(value, (bytes, Unread)) or hasattr(value, "tocsr"):
            yield where, value
        elif isinstance(value, str):
            yield where, np.array([value], object)


def walk_objects(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield every object reachable from a model, itself first, each once."""
    seen: set[int] = set()
    held: list[Any] = []  # keeps temporary objects alive, so that their ids stay unique
    stack: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while stack:
        where, value = stack.pop()
        if value is None or isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        held.append(value)
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu().numpy()  # a tensor of torch
        yield where, value
        stack += reversed([*_list_parts(where, value)])


def _list_parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object consists of, as pickle would write it."""
    if isinstance(value, (str, bytes, Unread)) or hasattr(value, "tocsr"):
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from ((where, each) for each in value.ravel().tolist() if type(each) is not str)
        if type(value) is not np.ndarray:
            yield from _list_attributes(where, value, getattr(value, "__dict__", {}))
    elif isinstance(value, (array.array, memoryview, bytearray)):
        held = bytes(value) if isinstance(value, bytearray) else np.asarray(value)
        yield where, held
    elif hasattr(value, "to_numpy"):
        yield from _list_columns(where, value)
    elif isinstance(value, _CALLED):
        yield from _list_function(where, value)
    elif type(value) in (dict, types.MappingProxyType) or isinstance(value, Mapping):
        yield from _list_items(where, [*value])
        yield from _list_items(where, [*value.values()])
        yield from _list_attributes(where, value, getattr(value, "__dict__", {}))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _list_items(where, [*value])
        yield from _list_attributes(where, value, getattr(value, "__dict__", {}))
    else:
        yield from _list_reduced(where, value)


def _list_reduced(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickle writes for an object; ``Unread`` if it refuses."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # such an object cannot be inspected
        yield where, Unread(f"holds a {type(value).__name__} that cannot be searched")
        return
    if not isinstance(reduced, tuple):
        return  # written by its name alone
    made, given, state, listed, named = (*reduced, None, None, None)[:5]
    yield from ((where, each) for each in (made, given) if not isinstance(each, type))
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):  # attributes; the second part of a tuple has those in slots
            yield from _list_attributes(where, value, part)
        else:
            yield where, part
    for more in (listed, named):
        if more is not None:
            yield from _list_items(where, [*more])


def _list_attributes(
    where: str, owner: Any, attributes: Mapping[Any, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield attributes by name, and all that are fractions as one list."""
    fractions = [value for value in attributes.values() if isinstance(value, float)]
    if fractions:
        yield where, np.array(fractions)
    for name, part in attributes.items():
        yield f"{type(owner).__name__}.{name}", part


def _list_function(where: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield everything of a function except its code: closures, defaults, attributes, globals.

    A function of a module is pickled by name, one of a script with the globals that it uses.
    """
    if isinstance(function, functools.partial):
        yield from ((where, each) for each in (function.func, function.args, function.keywords))
        return
    if not isinstance(function, types.FunctionType):  # a method, perhaps of an array
        yield from ((where, getattr(function, name, None)) for name in ("__self__", "__func__"))
        return
    for cell in function.__closure__ or ():
        try:
            yield where, cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
    yield from ((where, each) for each in function.__defaults__ or ())
    yield from ((where, each) for each in (function.__kwdefaults__ or {}).values())
    yield from _list_attributes(where, function, function.__dict__)
    if function.__module__ == "__main__":
        named = function.__globals__
        used = {each.argval for each in dis.get_instructions(function) if "GLOBAL" in each.opname}
        yield from ((where, named[name]) for name in sorted(used) if name in named)


def _list_columns(where: str, table: Any) -> Iterator[tuple[str, Any]]:
    """Yield a table, a column or an index, such as those of pandas and polars."""
    if getattr(table, "ndim", 1) == 2 and hasattr(table, "columns"):
        columns = [np.asarray(table[name]) for name in table.columns]
        numbers = [column for column in columns if column.dtype.kind in "fiub"]
        if numbers:
            yield where, np.column_stack(numbers)
        yield from ((where, column) for column in columns if column.dtype.kind not in "fiub")
        yield from _list_items(where, [*table.columns])
    else:
        yield where, np.asarray(table)
    for name in ("index", "attrs"):
        if name == "attrs" or hasattr(getattr(table, name, None), "to_numpy"):
            yield where, getattr(table, name, None)


def _list_items(where: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a list of numbers or of texts as an array, and the parts of any other."""
    lists = [[*each.values()] if isinstance(each, dict) else each for each in items]
    if items and all(isinstance(each, str) for each in items):
        yield where, np.array(items, object)
    elif items and all(isinstance(each, bytes) for each in items):
        yield where, b"".join(items)
    elif items and all(isinstance(each, _NUMBERS) for each in items):
        yield where, np.asarray(items, np.float64)
    elif len(widths := {_count_numbers(each) for each in lists}) == 1 and widths != {0}:
        yield where, np.array([[*each] for each in lists], np.float64)
    else:
        texts = [each for each in items if isinstance(each, str)]
        numbers = [float(each) for each in items if isinstance(each, float)]
        if texts:
            yield where, np.array(texts, object)
        if numbers:
            yield where, np.array(numbers)
        yield from ((where, each) for each in items if not isinstance(each, str))


def _count_numbers(item: Any) -> int:
    """Return the length of a list of numbers; 0 for anything else."""
    plain = isinstance(item, list | tuple | array.array) or (
        isinstance(item, np.ndarray) and item.ndim == 1 and item.dtype.kind in "fiubO"
    )
    return len(item) if plain and all(isinstance(x, _NUMBERS) for x in item) else 0


def _read_numbers(value: Any) -> Any:
    """Return an array as numbers if possible: from objects, missing values, complex or dates."""
    value = np.ma.getdata(value) if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    match value.dtype.kind:
        case "O":
            try:
                return value.astype(np.float64) if not _holds_text(value) else value
            except (TypeError, ValueError):
                return value
        case "c":
            return np.stack([value.real, value.imag])
        case "M" | "m":
            return value.astype(np.int64).astype(np.float64)
    return value


def _holds_text(value: Any) -> bool:
    return any(isinstance(each, str) for each in value.ravel()[:1000].tolist())
