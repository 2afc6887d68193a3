"""What an expression is worth, where that can be read off the source."""

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Scope = ast.AST | None  # a function or class; None is the module

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_DEEPEST = 20  # of an arithmetic expression; a longer one is no constant a person wrote
_SENSIBLE = 1e18  # numbers of a training run are smaller
_LONGEST = 200  # entries of a dictionary that is handed over


class Values:
    """Names that are assigned once, to something that can be read.

    A name assigned twice, or by a loop, an argument or ``+=``, is unknown.
    """

    def __init__(self, nodes: Iterable[ast.AST], scopes: dict[int, tuple[Scope, ...]]) -> None:
        self._scopes = scopes
        self._bound: dict[tuple[int, str], list[ast.expr | None]] = defaultdict(list)
        self._changed: set[str] = set()
        for node in nodes:
            self._take(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value)
            case ast.AugAssign(target=target):
                self._bind(target, None)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind(node.target, None)
            case ast.withitem(optional_vars=target) if target is not None:
                self._bind(target, None)
            case ast.arg():  # an argument belongs to the function, which is the node's own scope
                self._bound[self._key(node, node.arg)].append(None)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                self._changed.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update" | "pop")):
                self._changed.add(name)

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self._bound[self._key(target, name)].append(value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values: list[ast.expr | None] = [None] * len(targets)
                if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                    values = list(value.elts)
                for each, worth in zip(targets, values, strict=True):
                    self._bind(each, worth)

    def _key(self, node: ast.AST, name: str) -> tuple[int, str]:
        return id(self._scopes[id(node)][-1]), name

    def assigned(self, name: ast.Name) -> ast.expr | None:
        """The one expression a name was assigned, seen from where it stands."""
        for scope in reversed(self._scopes[id(name)]):
            values = self._bound.get((id(scope), name.id))
            if values:
                return values[0] if len(values) == 1 else None
        return None

    def constants(self) -> Iterator[tuple[str, ast.expr]]:
        """Names that are assigned once, with what."""
        for (_, name), values in self._bound.items():
            if len(values) == 1 and values[0] is not None:
                yield name, values[0]

    def of(self, expression: ast.expr | None, depth: int = 0) -> Any:  # noqa: PLR0911
        """A number, a bool or a text; None if it cannot be told."""
        if depth > _DEEPEST:
            return None
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name():
                return self.of(self.assigned(expression), depth + 1)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
                return _safely(_SIGNS[type(op)], self.of(operand, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                both = (self.of(left, depth + 1), self.of(right, depth + 1))
                return _safely(_OPERATORS[type(op)], *both)
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner], keywords=[]):
                return _safely(int if kind == "int" else float, self.of(inner, depth + 1))
            case _:
                return None

    def number(self, expression: ast.expr | None) -> int | float | None:
        """A number of a sensible size, or None."""
        value = self.of(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if abs(value) < _SENSIBLE else None

    def ratio(self, expression: ast.expr | None) -> tuple[float | None, float | None]:
        """Numerator and denominator of ``batch_size / n``, also behind a name."""
        if isinstance(expression, ast.Name):
            expression = self.assigned(expression)
        match expression:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self.number(left), self.number(right)
        return None, None

    def keywords(self, expression: ast.expr) -> list[ast.keyword]:
        """What ``**expression`` hands over, if it is a literal dictionary that nobody changes."""
        if isinstance(expression, ast.Name):
            if expression.id in self._changed:
                return []
            found = self.assigned(expression)
            return self.keywords(found) if isinstance(found, ast.Dict | ast.Call) else []
        match expression:
            case ast.Dict(keys=keys, values=values) if len(keys) <= _LONGEST:
                return [
                    ast.keyword(arg=key.value, value=value)
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return [keyword for keyword in expression.keywords if keyword.arg]
        return []


def _safely(function: Callable[..., Any], *values: Any) -> Any:
    """Arithmetic on numbers of a sensible size; None for everything else."""
    if not all(isinstance(value, int | float) and abs(value) < _SENSIBLE for value in values):
        return None
    try:
        return function(*values)
    except (ArithmeticError, ValueError):
        return None
