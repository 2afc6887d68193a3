"""Change single records of a batch of arrays, of tensors, or of plain records.

A batch is an array or tensor with records on axis 0, a tuple or dictionary of batches, a list of
tensors, or a list of records. Scalars belong to no record and are left alone.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.neighbours import Neighbour
from epsilometer.errors import InvalidArgument

_TARGETS = ("label", "target")  # in names of columns


def count_records(batch: Any) -> int:
    """Return how many records a batch has.

    Example:
        >>> count_records((np.zeros((3, 5)), np.zeros(3)))
        3
    """
    counts = {len(column) for column, _ in list_columns(batch)}
    if len(counts) != 1:
        raise InvalidArgument(
            "Expected a batch with records on axis 0, as many records in each part, got lengths "
            f"{_validate.listed(sorted(counts))}. What all records share belongs in the loss."
        )
    return counts.pop()


def list_columns(batch: Any) -> list[tuple[Any, str]]:
    """List the parts of a batch that have one entry per record, with their names."""
    columns: list[tuple[Any, str]] = []
    _map_columns(batch, lambda column, name: columns.append((column, name)))
    return columns


def make_neighbour(batch: Any, neighbour: Neighbour) -> Any:
    """Return the batch with one record changed as the neighbour says."""
    place, other, count = neighbour.place, neighbour.other, count_records(batch)
    if neighbour.alike:
        batch = take_records(batch, [place if at == place else other for at in range(count)])
        other = (place + 1) % count  # any of those that are alike
    match neighbour.change:
        case "scaled":
            return scale_record(batch, place, neighbour.factor)
        case "another record":
            return take_records(batch, [other if at == place else at for at in range(count)])
        case "another label":
            return relabel_record(batch, place, other)
        case "removed":
            return take_records(batch, [at for at in range(count) if at != place])


def take_records(batch: Any, places: Sequence[int]) -> Any:
    """Return the batch of the records at the given indices, in this order; indices may repeat."""

    def take(column: Any, name: str) -> Any:
        if isinstance(column, list):
            return [copy.deepcopy(column[place]) for place in places]
        return column[list(places)]

    return _map_columns(batch, take)


def scale_record(batch: Any, place: int, factor: float) -> Any:
    """Return the batch with the numbers of one record multiplied, except integers (labels)."""

    def scale(column: Any, name: str) -> Any:
        if isinstance(column, list):
            return _set_record(column, place, _scale(column[place], factor))
        if not _has_fractions(column):
            return column
        with np.errstate(over="ignore"):  # the results for huge records are checked
            return _set_record(column, place, column[place] * factor)

    return _map_columns(batch, scale)


def relabel_record(batch: Any, place: int, other: int) -> Any:
    """Return the batch with the label of one record replaced: see :func:`find_labels`."""
    chosen = {id(column) for column in find_labels(batch)}

    def relabel(column: Any, name: str) -> Any:
        if id(column) not in chosen:
            return column
        label = column[other]
        if isinstance(column, list):
            label = _relabel(column[place], label)
        return _set_record(column, place, label)

    return _map_columns(batch, relabel)


def find_labels(batch: Any) -> list[Any]:
    """List the columns that hold labels.

    Among arrays, these are the integer ones. If all are integer, as for texts, these are the ones
    named like labels, or the last one. A single array has none. In lists of records, integers are
    labels.
    """
    columns = list_columns(batch)
    lists = [column for column, _ in columns if isinstance(column, list) and _has_label(column)]
    arrays = [(column, name) for column, name in columns if not isinstance(column, list)]
    whole = [column for column, _ in arrays if _has_label(column)]
    if len(arrays) < 2 or not whole:
        return lists
    if len(whole) < len(arrays):
        return [*whole, *lists]
    named = [column for column, name in arrays if any(word in name.lower() for word in _TARGETS)]
    return [*(named or [arrays[-1][0]]), *lists]


def _map_columns(part: Any, change: Callable[[Any, str], Any], name: str = "") -> Any:
    """Return the batch with every column changed; its kind of container stays."""
    if _is_array(part):
        return change(part, name) if part.ndim else part
    if isinstance(part, Mapping):
        return _rebuild(part, {key: _map_columns(part[key], change, str(key)) for key in part})
    if isinstance(part, list) and not _is_collated(part):
        return change(part, name)  # a list of records, or of their names
    if isinstance(part, (tuple, list)):
        parts = [_map_columns(each, change, name) for each in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


def _set_record(column: Any, place: int, record: Any) -> Any:
    """Return a copy of a column in which one record is another."""
    changed = column.clone() if _is_tensor(column) else column.copy()
    changed[place] = record
    return changed


def _is_array(part: Any) -> bool:
    return isinstance(part, np.ndarray) or _is_tensor(part)


def _is_tensor(part: Any) -> bool:
    return hasattr(part, "detach")  # of torch, which may not be there


def _is_collated(part: list[Any]) -> bool:
    """Tell whether a list holds tensors of many records, rather than records that hold tensors."""
    return any(_is_tensor(each) or (isinstance(each, list) and _is_collated(each)) for each in part)


def _rebuild(original: Any, entries: dict[Any, Any]) -> Any:
    """Return a mapping of the same type; a dictionary if the type cannot be constructed."""
    try:
        return type(original)(entries)
    except TypeError:
        return entries


def _has_fractions(part: Any) -> bool:
    """Tell whether an array or number is not of an integer type."""
    if _is_tensor(part):
        return bool(part.is_floating_point() or part.is_complex())
    return isinstance(part, float) or getattr(getattr(part, "dtype", None), "kind", "") in (
        "f",
        "c",
    )


def _has_label(part: Any) -> bool:
    """Tell whether a part of a batch, or one of its records, has whole numbers."""
    if isinstance(part, (tuple, list, Mapping)):
        return any(map(_has_label, part.values() if isinstance(part, Mapping) else part))
    if _is_tensor(part):
        return not part.is_floating_point()
    return isinstance(part, int) or getattr(getattr(part, "dtype", None), "kind", "") in tuple(
        "biu"
    )


def _scale(record: Any, factor: float) -> Any:
    if isinstance(record, (tuple, list)):
        return type(record)(_scale(part, factor) for part in record)
    if isinstance(record, Mapping):
        return {name: _scale(part, factor) for name, part in record.items()}
    with np.errstate(over="ignore"):
        return record * factor if _has_fractions(record) else record


def _relabel(record: Any, other: Any) -> Any:
    if isinstance(record, (tuple, list)) and type(record) is type(other):
        pairs = zip(record, other, strict=False)
        return type(record)(_relabel(part, its) for part, its in pairs)
    if isinstance(record, dict) and isinstance(other, dict):
        return {name: _relabel(part, other.get(name, part)) for name, part in record.items()}
    return other if _has_label(record) and _has_label(other) else record
