"""Follow chains of dataset methods: find what comes before and after a shuffle."""

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

from epsilometer.lint.bindings import Scope
from epsilometer.lint.flow import Flow, Value
from epsilometer.lint.module import Module, write_name

_BATCHES = ("batch", "padded_batch", "batched")
_UNBATCHES = ("unbatch", "flat_map", "interleave")
_MIXES = {"shuffle", "sample_from_datasets", "interleave", "random_map", "filter", "apply"}
_CONVERTS = {"as_numpy"}
_TELLING = (*_BATCHES, *_UNBATCHES, "shuffle", "range", "take")
_REACH = 20  # calls of a chain to check on either side of a shuffle

_Arms: TypeAlias = Callable[[ast.AST], dict[int, bool]]


@dataclass
class Shuffle:
    """A ``shuffle()`` in a chain.

    Attributes:
        node: The call.
        names: What the chain starts from and is assigned to.
        before_batch: Whether records are shuffled, then batched.
        after_batch: Whether batches are shuffled.
        buffer: Size of the buffer, if it is known.
        size: Records that come in, if the chain itself tells.
    """

    node: ast.Call
    names: tuple[str, ...]
    before_batch: bool = False
    after_batch: bool = False
    buffer: int | float | None = None
    size: int | float | None = None


def find_shuffles(module: Module, flow: Flow) -> list[Shuffle]:
    """Return every shuffle of a dataset, described by the chain around it.

    Chains are followed through assignments to the same name in a function.
    """
    arms = cache(partial(_find_arms, module))
    packages = module.names.packages & module.catalogue.chains
    if not packages:
        return []
    found: dict[int, Shuffle] = {}
    earlier: dict[tuple[Scope, str], list[ast.Call]] = defaultdict(list)
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not _is_whole(module, node):
            continue
        if module.is_read_once(node):
            continue
        calls, root = _unwind(node)
        start, target = write_name(root), module.find_target(node)
        if not calls or not _is_dataset(module, root):
            continue
        scope = module.find_function(node)
        known = len(earlier[scope, start])
        calls = earlier[scope, start] + [call for call in calls if _name_method(call) in _TELLING]
        if target:
            earlier[scope, target] = calls[-_REACH:]
        for place, call in enumerate(calls):
            if _name_method(call) != "shuffle":
                continue
            if id(call) not in found:  # what is before it stays what it is
                found[id(call)] = Shuffle(call, (start, target))
                before = calls[max(place - _REACH, 0) : place]
                _look_back(found[id(call)], before, arms)
                sizes = [
                    size for each in before if (size := _read_size(flow, module, each)) is not None
                ]
                found[id(call)].size = min(sizes, default=None)
            _look_ahead(found[id(call)], calls[max(place + 1, known) : place + 1 + _REACH], arms)
    if packages & module.catalogue.buffered:
        for shuffle in found.values():
            shuffle.buffer = _read_buffer(flow, module, shuffle.node)
    return list(found.values())


def is_ordered(flow: Flow, start: Value) -> bool:
    """Tell whether a value is a dataset that is batched and never shuffled."""
    waiting, batched, known, left = [start], False, False, _REACH
    while waiting:
        left -= 1
        for value in flow.trace(waiting.pop()):
            if not isinstance(value.node, ast.Call) or not left:
                return False  # data from elsewhere may be shuffled there
            calls, root = _unwind(value.node)
            names = {_name_method(call) for call in calls} or {write_name(value.node.func)}
            if names & _MIXES or any(_asks_for_shuffle(call) for call in calls):
                return False
            batched |= bool(names & set(_BATCHES))
            packages = {package for package, _ in value.module.names.resolve(root)}
            if packages & value.module.catalogue.chains:
                known = True
                if names & _CONVERTS:
                    waiting += [Value(each, value.module, value.frame) for each in calls[-1].args]
            elif isinstance(root, ast.Name | ast.Attribute) and calls:
                waiting.append(Value(root, value.module, value.frame))
            else:
                return False
    return batched and known


def _asks_for_shuffle(call: ast.Call) -> bool:
    return any("shuffle" in (each.arg or "") for each in call.keywords)


def _look_back(shuffle: Shuffle, calls: list[ast.Call], arms: _Arms) -> None:
    before = _keep_same_arm(shuffle, calls, arms)
    for number, call in enumerate(before):
        if _name_method(call) in _UNBATCHES:
            before = before[number + 1 :]
    shuffle.after_batch = any(_name_method(call) in _BATCHES for call in before)


def _look_ahead(shuffle: Shuffle, calls: list[ast.Call], arms: _Arms) -> None:
    batches = [call for call in calls if _name_method(call) in _BATCHES]
    shuffle.before_batch |= bool(_keep_same_arm(shuffle, batches, arms))


def _is_whole(module: Module, node: ast.Call) -> bool:
    """Tell whether no further method is called on what this call returns."""
    parent = module.parents.get(id(node))
    if not isinstance(parent, ast.Attribute):
        return True
    above = module.parents.get(id(parent))
    return not (isinstance(above, ast.Call) and above.func is parent)


def _unwind(node: ast.Call) -> tuple[list[ast.Call], ast.expr]:
    """Return the calls of a chain from the inside out, and its start."""
    calls: list[ast.Call] = []
    expression: ast.expr = node
    while isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        calls.append(expression)
        expression = expression.func.value
    return calls[::-1], expression


def _is_dataset(module: Module, root: ast.expr) -> bool:
    """Tell whether a chain may start from a dataset: not if it starts from another library."""
    packages = {package for package, _ in module.names.resolve(root)}
    return not packages or bool(packages & module.catalogue.chains)


def _keep_same_arm(shuffle: Shuffle, calls: list[ast.Call], arms: _Arms) -> list[ast.Call]:
    """Return those of the calls that are not in another arm of an ``if`` than the shuffle."""
    own = arms(shuffle.node) if calls else {}
    if not own:
        return calls
    return [
        call
        for call in calls
        if not any(own.get(number, arm) is not arm for number, arm in arms(call).items())
    ]


def _find_arms(module: Module, node: ast.AST) -> dict[int, bool]:
    """Return every ``if`` around a node, and whether the node is in its ``else``."""
    found = {}
    child = node
    for parent in module.walk_up(node):
        if isinstance(parent, ast.If):
            found[id(parent)] = any(child is each for each in parent.orelse)
        child = parent
    return found


def are_alternatives(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Tell whether two nodes are in different arms of an ``if``."""
    own = _find_arms(module, one)
    return any(own.get(number, arm) is not arm for number, arm in _find_arms(module, other).items())


def _name_method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _read_buffer(flow: Flow, module: Module, call: ast.Call) -> int | float | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "buffer_size"]
    given = [*call.args, *named]
    return flow.read_number(Value(given[0], module)) if given else None


def _read_size(flow: Flow, module: Module, call: ast.Call) -> int | float | None:
    """Return how many records ``Dataset.range(n)`` or ``take(n)`` lets through."""
    if _name_method(call) not in ("range", "take"):
        return None
    ends = [flow.read_number(Value(argument, module)) for argument in call.args]
    known = [end for end in ends if end is not None]
    if len(known) != len(ends) or call.keywords:
        return None
    match _name_method(call), known:
        case "range", [end]:
            return end
        case "range", [start, end]:
            return end - start
        case "take", [end] if end > 0:
            return end
    return None
