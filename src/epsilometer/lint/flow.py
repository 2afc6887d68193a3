"""Follow values through a project: find where an expression comes from, and its value."""

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from epsilometer.lint.bindings import Binding, Path, list_turns
from epsilometer.lint.module import FUNCTIONS, Call, Function, Module
from epsilometer.lint.project import (
    Project,
    Site,
    Symbol,
    bind_arguments,
    is_method,
    list_defaults,
)

Number: TypeAlias = int | float

_BUDGET = 60  # steps per query, so that its cost does not depend on the size of the code
_DEEPEST = 6  # nested queries
_SENSIBLE = 1e18  # numbers of a training run are smaller
_MOST_VALUES = 4  # that one expression may have
_PASSES_ON = ("iter", "enumerate", "tqdm", "trange", "cycle", "list", "tuple", "islice", "track")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}


class Unknown:
    """Mark a value that the source does not determine."""


UNKNOWN = Unknown()


@dataclass(frozen=True, eq=False)
class Frame:
    """Hold the arguments of one call of a function.

    Attributes:
        function: The function.
        arguments: Arguments, by the names of the parameters.
        unsure: Parameters with unknown values.
        site: The call; None if the project has none.
        turns: Current values of loops over literals, by the ids of the loops.
    """

    function: Function | None
    arguments: "dict[str, Value]" = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    site: Site | None = None
    turns: "dict[int, Value]" = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Value:
    """Hold a part of an expression, with its module and call.

    Attributes:
        node: The expression.
        module: The module that contains it.
        frame: The call of the enclosing function, if one is checked.
        path: The selected part: ``(0,)`` is its first result.
    """

    node: ast.expr
    module: Module
    frame: Frame | None = None
    path: Path = ()

    @property
    def call(self) -> Call | None:
        """The call, if the value is one."""
        return self.module.call_of.get(id(self.node))


def list_loops_around(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the loops around a node in its function, from the inside out, with comprehensions."""
    for parent in module.walk_up(node):
        match parent:
            case ast.For():
                yield parent
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from parent.generators
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                return


class Flow:
    """Find where values come from, in a bounded number of steps per query."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def trace(self, start: Value, depth: int = 0) -> list[Value]:
        """Return the possible sources of a value: calls, constants, unresolved names."""
        found: list[Value] = []
        seen: set[tuple[int, int, Path]] = set()
        waiting, left = [start], _BUDGET
        while waiting and left:
            left -= 1
            value = waiting.pop()
            key = (id(value.node), id(value.frame), value.path)
            if key in seen:
                continue
            seen.add(key)
            following = self._step(value, depth)
            if following is None:
                found.append(value)
            else:
                waiting.extend(following)
        return found + waiting[:1]  # expressions that were not followed to their end are unknown

    def _step(self, value: Value, depth: int) -> list[Value] | None:  # noqa: PLR0911, PLR0912
        """Return where a value comes from, one step back; None if it starts here."""
        node, path = value.node, value.path
        match node:
            case ast.Name():
                return self._follow_name(value, node)
            case ast.Attribute():
                return self._follow_attribute(value, node, depth)
            case ast.Call():
                return self._follow_call(value, node, depth)
            case ast.IfExp(test=test, body=body, orelse=other):
                known = self._decide(self._at(value, test, ()), depth)
                arms = [body, other] if known is None else [body if known else other]
                return [self._at(value, arm) for arm in arms]
            case ast.BoolOp(values=values):
                return [self._at(value, each) for each in values]
            case ast.NamedExpr(value=inner) | ast.Await(value=inner) | ast.Starred(value=inner):
                return [self._at(value, inner)]
            case ast.Tuple(elts=elements) | ast.List(elts=elements) if path:
                if isinstance(path[0], int) and -len(elements) <= path[0] < len(elements):
                    return [self._at(value, elements[path[0]], path[1:])]
            case ast.Dict(keys=keys, values=values) if path:
                for key, inner in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == path[0]:
                        return [self._at(value, inner, path[1:])]
            case ast.Subscript(value=inner, slice=ast.Constant(value=index)):
                if isinstance(index, int | str) and not isinstance(index, bool):
                    return [self._at(value, inner, (index, *path))]
        return None

    def _decide(self, test: Value, depth: int) -> bool | None:
        """Return whether a condition holds; None if unknown."""
        if not isinstance(test.node, ast.Compare) or depth + 2 > _DEEPEST:
            return None
        known = self.evaluate(test, depth + 2)
        return known if isinstance(known, bool) else None

    @staticmethod
    def _at(value: Value, node: ast.expr, path: Path | None = None) -> Value:
        return Value(node, value.module, value.frame, value.path if path is None else path)

    def _bind(self, value: Value, binding: Binding, module: Module) -> list[Value]:
        if binding.value is None:
            return []
        frame = value.frame if module is value.module else None
        return [Value(binding.value, module, frame, (*binding.path, *value.path))]

    def _follow_name(self, value: Value, name: ast.Name) -> list[Value] | None:  # noqa: PLR0911
        module = value.module
        scope, bound = module.bindings.find(name)
        if not bound:
            symbol = self.project.resolve(module, name)
            if symbol is None or symbol.node is not None or not symbol.name:
                return None
            return self._list_globals(symbol, value)
        if module.bindings.is_changed(name.id) and value.path:
            return None  # a dictionary that is changed somewhere
        found: list[Value] = []
        for binding in bound:
            if binding.argument:
                if not isinstance(scope, FUNCTIONS):
                    return None
                found += self._follow_argument(value, scope, name.id)
            elif binding.turns:
                return self._follow_turns(value, name)
            elif binding.value is None:
                return None
            else:
                found += self._bind(value, binding, module)
        return found or None

    def _follow_turns(self, value: Value, name: ast.Name) -> list[Value] | None:
        """Return the values of the loop variable around a name: in this turn, or in each."""
        for loop in list_loops_around(value.module, name):
            turns = list_turns(loop, name.id)
            if turns:
                at = value.frame.turns.get(id(loop)) if value.frame is not None else None
                return [at] if at is not None else [self._at(value, turn) for turn in turns]
        return None

    def list_turns(self, value: Value) -> list[Frame | None]:
        """Return one frame per turn of a loop over a literal around a node; else its own."""
        for loop in list_loops_around(value.module, value.node):
            turns = [self._at(value, turn, ()) for turn in list_turns(loop)]
            if turns:
                own = value.frame or Frame(None)
                return [replace(own, turns={**own.turns, id(loop): turn}) for turn in turns]
        return [value.frame]

    def _list_globals(self, symbol: Symbol, value: Value) -> list[Value] | None:
        bound = symbol.module.bindings.find_global(symbol.name)
        if any(each.value is None for each in bound):
            return None
        made = [each for binding in bound for each in self._bind(value, binding, symbol.module)]
        return [Value(each.node, each.module, None, each.path) for each in made] or None

    def _follow_argument(self, value: Value, function: Function, name: str) -> list[Value]:
        frame = value.frame
        if frame is not None and frame.function is function:
            given = frame.arguments.get(name)
            if given is not None:
                return [Value(given.node, given.module, given.frame, (*given.path, *value.path))]
            if name in frame.unsure:
                return []
            default = list_defaults(function).get(name)
            return [] if default is None else [Value(default, value.module, None, value.path)]
        return [
            inner
            for each in self.list_frames(value.module, function)
            for inner in self._follow_argument(
                Value(value.node, value.module, each, value.path), function, name
            )
        ]

    def list_frames(self, module: Module, function: Function) -> list[Frame]:
        """Return the project's calls of a function; one with defaults if there are none."""
        sites = self.project.callers.get(id(function), [])
        frames = [self.make_frame(module, function, site) for site in sites]
        return frames or [Frame(function)]

    def make_frame(
        self, module: Module, function: Function, site: Site, outer: Frame | None = None
    ) -> Frame:
        """Return the frame of a call of a function."""
        method = is_method(module, function)
        given, unsure = bind_arguments(function, site.call, method=method)
        arguments = {name: Value(node, site.module, outer) for name, node in given.items()}
        return Frame(function, arguments, frozenset(unsure), site)

    def _follow_attribute(
        self, value: Value, node: ast.Attribute, depth: int
    ) -> list[Value] | None:
        module, project = value.module, self.project
        symbol = project.resolve(module, node)
        if symbol is not None:
            if symbol.node is None and symbol.name:
                return self._list_globals(symbol, value)
            return None
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            around = module.find_class(node)
            if around is not None:
                return self._list_attributes(module, around, node.attr, value)
            return None
        if depth < _DEEPEST:
            for base in self.trace(self._at(value, node.value, ()), depth + 1):
                made = self.find_class(base)
                if made is not None:
                    assert isinstance(made.node, ast.ClassDef)
                    found = self._list_attributes(made.module, made.node, node.attr, value)
                    if found is not None:
                        return found
        return self._find_option(value, node.attr)

    def find_class(self, value: Value) -> Symbol | None:
        """Return the class of the project that a value is an instance of."""
        call = value.call
        if call is None or value.path:
            return None
        symbol = self.project.resolve(value.module, call.function)
        return symbol if symbol is not None and isinstance(symbol.node, ast.ClassDef) else None

    def _list_attributes(
        self, module: Module, around: ast.ClassDef, name: str, value: Value
    ) -> list[Value] | None:
        for each in self.project.list_classes(module, around):
            assert isinstance(each.node, ast.ClassDef)
            bound = each.module.bindings.find_attribute(each.node, name)
            if bound:
                if any(binding.value is None for binding in bound):
                    return None
                return [
                    Value(binding.value, each.module, None, (*binding.path, *value.path))
                    for binding in bound
                    if binding.value is not None
                ]
            method = each.module.methods.get(id(each.node), {}).get(name)
            if method is not None:
                return self._list_returns(each.module, method, None, value.path)
        return None

    def _find_option(self, value: Value, name: str) -> list[Value] | None:
        """Return the default of an option. Boolean switches may be set, so they are unknown."""
        found = self.project.options.get(name, [])
        own = [each for each in found if each[0] is value.module] or found
        if len(own) != 1 or value.path:
            return None
        module, default = own[0]
        if isinstance(default, ast.Constant) and isinstance(default.value, bool | None):
            return None
        return [Value(default, module)]

    def _list_returns(
        self, module: Module, function: Function, frame: Frame | None, path: Path
    ) -> list[Value] | None:
        returned = module.returns.get(id(function), [])
        return [Value(each, module, frame, path) for each in returned] or None

    def _follow_call(self, value: Value, node: ast.Call, depth: int) -> list[Value] | None:  # noqa: PLR0911
        call, module = value.call, value.module
        if call is None:
            return None
        for name in call.known & set(module.catalogue.passes):
            handed = call.find_argument(module.catalogue.passes[name])
            return None if handed is None else [self._at(value, handed)]
        if call.known & module.catalogue.names or call.method in module.catalogue.engines:
            return None
        symbol = self.project.find_called(module, call)
        if symbol is not None and isinstance(symbol.node, FUNCTIONS):
            frame = self.make_frame(
                symbol.module, symbol.node, Site(module, call), outer=value.frame
            )
            if depth < _DEEPEST:
                return self._list_returns(symbol.module, symbol.node, frame, value.path)
            return None
        if call.method in _PASSES_ON and node.args and not value.path:
            return [self._at(value, node.args[0])]
        return None

    def list_values(self, value: Value, depth: int = 0) -> set[Any]:
        """Return the possible values of an expression; ``UNKNOWN`` stands for unknown ones."""
        worth: set[Any] = set()
        for each in self.trace(value, depth):
            worth.add(self._compute(each, depth))
            if len(worth) > _MOST_VALUES:
                return {UNKNOWN}
        return worth or {UNKNOWN}

    def evaluate(self, value: Value, depth: int = 0) -> Any:
        """Return a number, a bool or a string; None if it is unknown or ambiguous."""
        worth = self.list_values(value, depth)
        only = next(iter(worth)) if len(worth) == 1 else None
        return None if isinstance(only, Unknown) else only

    def _compute(self, value: Value, depth: int) -> Any:  # noqa: PLR0911
        if depth > _DEEPEST or value.path:
            return UNKNOWN
        match value.node:
            case ast.Constant(value=constant):
                return constant if isinstance(constant, int | float | str) else UNKNOWN
            case ast.UnaryOp(op=op, operand=operand):
                inner, function = [operand], _OPERATORS.get(type(op))
            case ast.BinOp(left=left, op=op, right=right):
                inner, function = [left, right], _OPERATORS.get(type(op))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compare(value, left, op, right, depth)
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[operand], keywords=[]):
                inner, function = [operand], int if kind == "int" else float
            case _:
                return UNKNOWN
        if function is None:
            return UNKNOWN
        worth = [self.evaluate(self._at(value, each), depth + 1) for each in inner]
        # Only numbers of a sensible size: others are not from a training script.
        if not all(isinstance(each, int | float) and abs(each) < _SENSIBLE for each in worth):
            return UNKNOWN
        try:
            return function(*worth)
        except (ArithmeticError, ValueError):
            return UNKNOWN

    def _compare(
        self, value: Value, left: ast.expr, op: ast.cmpop, right: ast.expr, depth: int
    ) -> Any:
        """Return whether ``split == "train"`` or ``split in ("train", "all")`` holds."""
        choices = [right]
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                return UNKNOWN
            choices = right.elts[:_MOST_VALUES]
            if len(choices) < len(right.elts):
                return UNKNOWN
        elif not isinstance(op, ast.Eq | ast.NotEq):
            return UNKNOWN
        own, *others = (
            self.evaluate(self._at(value, each), depth + 1) for each in (left, *choices)
        )
        if own is None or None in others:
            return UNKNOWN
        return (own in others) is isinstance(op, ast.Eq | ast.In)

    def read_number(self, value: Value) -> Number | None:
        """Return a number of a sensible size, or None."""
        worth = self.evaluate(value)
        if isinstance(worth, bool) or not isinstance(worth, int | float):
            return None
        return worth if abs(worth) < _SENSIBLE else None

    def read_ratio(self, value: Value) -> tuple[Value | None, Value | None]:
        """Return numerator and denominator of ``batch_size / n``, even behind a name."""
        for each in self.trace(value):
            match each.node:
                case ast.BinOp(left=left, op=ast.Div(), right=right):
                    return self._at(each, left, ()), self._at(each, right, ())
        return None, None
