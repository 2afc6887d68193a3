"""Change single records of a batch of tensors, as a ``DataLoader`` yields it.

A batch is a tensor, a tuple, list or dictionary of batches with records on axis 0, or a list of
records. What has no axis belongs to no record, and is left alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epsilometer import _validate
from epsilometer.conformance.neighbours import Neighbour
from epsilometer.errors import InvalidArgument

_TARGETS = ("label", "target")  # in names of columns


def count_records(batch: Any) -> int:
    """Return how many records a batch has.

    Example:
        >>> import torch
        >>> count_records([torch.zeros(3, 5), torch.zeros(3)])
        3
    """
    counts = {len(part) for part in list_columns(batch)}
    if len(counts) != 1:
        raise InvalidArgument(
            "Expected a batch of tensors with records on axis 0, as many in each, got lengths "
            f"{_validate.listed(sorted(counts))}. What all records share belongs in the loss."
        )
    return counts.pop()


def list_columns(batch: Any) -> list[Any]:
    """List the parts of a batch that have one entry for each record."""
    found: list[Any] = []
    _map_columns(batch, lambda part, name: found.append(part))
    return found


def make_neighbour(batch: Any, neighbour: Neighbour) -> Any:
    """Return the batch in which one record is changed as the neighbour says."""
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
    """Return the batch of the records at some places, in their order; a place may come twice."""
    import torch

    def take(part: Any, name: str) -> Any:
        if isinstance(part, torch.Tensor):
            return part[torch.tensor(places, dtype=torch.long, device=part.device)]
        return [part[place] for place in places]

    return _map_columns(batch, take)


def scale_record(batch: Any, place: int, factor: float) -> Any:
    """Return the batch with the numbers of one record multiplied; whole ones, as labels, stay."""
    import torch

    def scale(part: Any, name: str) -> Any:
        if isinstance(part, torch.Tensor):
            return _scale_row(part, place, factor)
        return [_scale(each, factor) if at == place else each for at, each in enumerate(part)]

    return _map_columns(batch, scale)


def relabel_record(batch: Any, place: int, other: int) -> Any:
    """Return the batch in which one record has the label of another.

    Labels are the columns of whole numbers; where all are, as in texts, those that are named so,
    or the last one.
    """
    chosen = {id(part) for part in find_labels(batch)}

    def relabel(part: Any, name: str) -> Any:
        if id(part) not in chosen:
            return part
        changed = part.clone()
        changed[place] = part[other]
        return changed

    return _map_columns(batch, relabel)


def find_labels(batch: Any) -> list[Any]:
    """List the columns that are labels; none where there is a single column."""
    import torch

    columns: list[tuple[Any, str]] = []
    _map_columns(batch, lambda part, name: columns.append((part, name)))
    tensors = [(part, name) for part, name in columns if isinstance(part, torch.Tensor)]
    whole = [part for part, _ in tensors if not part.is_floating_point()]
    if len(tensors) < 2 or not whole:
        return []
    if len(whole) < len(tensors):
        return whole
    named = [part for part, name in tensors if any(word in name.lower() for word in _TARGETS)]
    return named or [tensors[-1][0]]


def _map_columns(part: Any, change: Callable[[Any, str], Any], name: str = "") -> Any:
    """Return the batch with every column changed; its kind of container stays."""
    import torch

    if isinstance(part, torch.Tensor):
        return change(part, name) if part.dim() else part
    if isinstance(part, Mapping):
        changed = {key: _map_columns(each, change, str(key)) for key, each in part.items()}
        return changed if type(part) is dict else _rebuild(part, changed)
    if isinstance(part, (tuple, list)):
        if isinstance(part, list) and not any(_holds_tensor(each) for each in part):
            return change(part, name)  # a list of records, or of their names
        parts = [_map_columns(each, change, name) for each in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


def _holds_tensor(part: Any) -> bool:
    import torch

    if isinstance(part, (tuple, list)):
        return any(map(_holds_tensor, part))
    if isinstance(part, Mapping):
        return any(map(_holds_tensor, part.values()))
    return isinstance(part, torch.Tensor)


def _rebuild(original: Any, entries: dict[Any, Any]) -> Any:
    """Return a mapping of the same type; a dictionary where it cannot be made."""
    try:
        return type(original)(entries)
    except TypeError:
        return entries


def _scale_row(part: Any, place: int, factor: float) -> Any:
    if not (part.is_floating_point() or part.is_complex()):
        return part
    changed = part.clone()
    changed[place] = part[place] * factor
    return changed


def _scale(record: Any, factor: float) -> Any:
    if isinstance(record, (tuple, list)):
        return type(record)(_scale(each, factor) for each in record)
    if isinstance(record, Mapping):
        return {key: _scale(each, factor) for key, each in record.items()}
    return record * factor if isinstance(record, float) else record
