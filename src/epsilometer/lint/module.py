"""Parse a module into what the checks ask of it: names, values and calls."""

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from epsilometer.lint.libraries import Catalogue, Known, load_catalogue

Scope: TypeAlias = ast.AST | None  # a function or class; None is the module
Number: TypeAlias = int | float

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PARTIAL = ("functools", "partial")
_LONGEST = 200  # arguments that a partial, or a dictionary that is handed over, holds
_LONGEST_ALIAS = 10  # a = b; b = c; ... ends, also if it turns in a circle
_MEANINGS = 10  # of a name that is imported from here or there
_DEEPEST = 20  # of an arithmetic expression; a longer one is no constant a person wrote
_SENSIBLE = 1e18  # numbers of a training run are smaller
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}


class Names:
    """The imports and aliases of a module.

    Imports inside functions count for the whole module, and both branches of a ``try`` count:
    what a name *may* stand for is enough here. A name that the module defines itself stands for
    nothing of a library.
    """

    def __init__(self, nodes: Iterable[ast.AST], catalogue: Catalogue) -> None:
        self._starred = catalogue.names | {_PARTIAL}
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._aliases: dict[str, list[ast.expr]] = defaultdict(list)
        self._stars: set[str] = set()  # top packages
        self._defined: set[str] = set()
        for node in nodes:
            self._take(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._import(alias.asname or whole, whole)
            case ast.ImportFrom(level=0):
                for alias in node.names:
                    if alias.name == "*":
                        self._stars.add((node.module or "").partition(".")[0])
                    else:
                        self._import(alias.asname or alias.name, f"{node.module}.{alias.name}")
            case ast.ImportFrom():  # from . import DataLoader: the project's own
                self._defined.update(alias.asname or alias.name for alias in node.names)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self._defined.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases[name].append(value)

    def _import(self, name: str, path: str) -> None:
        if len(self._imported[name]) < _MEANINGS:
            self._imported[name].add(path)

    def list_packages(self) -> set[str]:
        """Return the top packages of everything imported."""
        paths: set[str] = set().union(*self._imported.values())
        return {path.partition(".")[0] for path in paths} | self._stars

    def resolve(self, expression: ast.expr) -> set[Known]:
        """Return top package and last part of what an expression may stand for."""
        split = (path.partition(".") for path in self._resolve_paths(expression))
        return {(package, rest.rpartition(".")[2]) for package, _, rest in split}

    def is_one_of(self, expression: ast.expr, names: Container[Known]) -> bool:
        """Tell whether an expression may stand for one of these."""
        return any(name in names for name in self.resolve(expression))

    def _resolve_paths(self, expression: ast.expr) -> set[str]:
        parts: list[str] = []
        for _ in range(_LONGEST_ALIAS):
            while isinstance(expression, ast.Attribute):
                parts.append(expression.attr)
                expression = expression.value
            if not isinstance(expression, ast.Name) or expression.id in self._defined:
                return set()
            name = expression.id
            if name in self._imported:
                return {".".join([path, *reversed(parts)]) for path in self._imported[name]}
            values = self._aliases.get(name, [])
            if not values:
                whole = ".".join([name, *reversed(parts)])
                last = whole.rpartition(".")[2]
                known = {package for package, of_it in self._starred if of_it == last}
                return {f"{package}.{whole}" for package in known & self._stars}
            if len(values) > 1 or not isinstance(values[0], ast.Name | ast.Attribute):
                return set()
            expression = values[0]
        return set()


class Values:
    """Names that are assigned once, to something that can be read off the source.

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
            case ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
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

    def find_assigned(self, name: ast.Name) -> ast.expr | None:
        """Return the one expression a name was assigned, seen from where it stands."""
        for scope in reversed(self._scopes[id(name)]):
            values = self._bound.get((id(scope), name.id))
            if values:
                return values[0] if len(values) == 1 else None
        return None

    def list_constants(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield names that are assigned once, with what."""
        for (_, name), values in self._bound.items():
            if len(values) == 1 and values[0] is not None:
                yield name, values[0]

    def evaluate(self, expression: ast.expr | None, depth: int = 0) -> Any:  # noqa: PLR0911
        """Return a number, a bool or a text; None if it cannot be told."""
        if depth > _DEEPEST:
            return None
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name():
                return self.evaluate(self.find_assigned(expression), depth + 1)
            case ast.UnaryOp(op=op, operand=operand):
                inner, function = [operand], _OPERATORS.get(type(op))
            case ast.BinOp(left=left, op=op, right=right):
                inner, function = [left, right], _OPERATORS.get(type(op))
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[operand], keywords=[]):
                inner, function = [operand], int if kind == "int" else float
            case _:
                return None
        values = [self.evaluate(each, depth + 1) for each in inner] if function else [None]
        # Numbers of a sensible size alone: the rest is not arithmetic of a training script.
        if not all(isinstance(value, int | float) and abs(value) < _SENSIBLE for value in values):
            return None
        try:
            return function(*values) if function else None
        except (ArithmeticError, ValueError):
            return None

    def read_number(self, expression: ast.expr | None) -> Number | None:
        """Return a number of a sensible size, or None."""
        value = self.evaluate(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if abs(value) < _SENSIBLE else None

    def read_ratio(self, expression: ast.expr | None) -> tuple[Number | None, Number | None]:
        """Return numerator and denominator of ``batch_size / n``, also behind a name."""
        if isinstance(expression, ast.Name):
            expression = self.find_assigned(expression)
        match expression:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self.read_number(left), self.read_number(right)
        return None, None

    def expand_keywords(self, expression: ast.expr) -> list[ast.keyword]:
        """Return what ``**expression`` hands over, if it is a literal that nobody changes."""
        if isinstance(expression, ast.Name):
            if expression.id in self._changed:
                return []
            value = self.find_assigned(expression)
            return self.expand_keywords(value) if isinstance(value, ast.Dict | ast.Call) else []
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


@dataclass(frozen=True)
class Call:
    """A call with its arguments by name, ``**`` and ``functools.partial`` taken apart.

    Attributes:
        node: Where it stands.
        function: What is called.
        known: What that may be, by top package and last part.
        positional: Arguments given by position.
        arguments: By name; those given by position under their names where we know them.
    """

    node: ast.Call
    function: ast.expr
    known: frozenset[Known]
    positional: list[ast.expr] = field(default_factory=list)
    arguments: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Return the last part of what is called: ``fit`` of ``model.fit``."""
        match self.function:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
        return ""

    @property
    def packages(self) -> set[str]:
        """Return the top packages of what is called."""
        return {package for package, _ in self.known}

    def find_argument(self, name: str, *, position: int | None = None) -> ast.expr | None:
        """Return an argument by its name, or by its place."""
        if name in self.arguments:
            return self.arguments[name]
        if position is None or len(self.positional) <= position:
            return None
        before = self.positional[: position + 1]
        return None if any(isinstance(each, ast.Starred) for each in before) else before[-1]


class Module:
    """The tree of a module, its names, values and calls."""

    def __init__(self, tree: ast.Module) -> None:
        self.catalogue = load_catalogue()
        self.nodes: list[ast.AST] = []
        self.parents: dict[int, ast.AST] = {}
        self._scopes: dict[int, tuple[Scope, ...]] = {}
        self._index(tree)
        self.names = Names(self.nodes, self.catalogue)
        self.values = Values(self.nodes, self._scopes)

    def _index(self, tree: ast.Module) -> None:
        """List nodes in the order of the source; without recursion, since code nests deeply."""
        waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(tree, (None,))]
        while waiting:
            node, scopes = waiting.pop()
            self.nodes.append(node)
            self._scopes[id(node)] = scopes
            inner = (*scopes, node) if isinstance(node, _SCOPES) else scopes
            for child in reversed(list(ast.iter_child_nodes(node))):
                self.parents[id(child)] = node
                waiting.append((child, inner))

    def find_scope(self, node: ast.AST) -> Scope:
        """Return the outermost function or class around a node: what is there runs together."""
        around = self._scopes[id(node)]
        return around[1] if len(around) > 1 else None

    def find_function(self, node: ast.AST) -> Scope:
        """Return the innermost function, class or lambda around a node."""
        return self._scopes[id(node)][-1]

    def runs_together(self, node: ast.AST, scopes: set[Scope]) -> bool:
        """Tell whether a node shares a top-level function or class with one of these scopes.

        What is the module's own runs together with everything.
        """
        own = self.find_scope(node)
        return bool(scopes) and (own is None or None in scopes or own in scopes)

    def walk_up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, from the inside."""
        parent = self.parents.get(id(node))
        while parent is not None:
            yield parent
            parent = self.parents.get(id(parent))

    def find_target(self, node: ast.AST) -> str:
        """Return the name a value is assigned to, also inside a longer expression; or empty."""
        for parent in self.walk_up(node):
            match parent:
                case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                    return write_name(target)
                case ast.stmt():
                    return ""
        return ""

    @cached_property
    def calls(self) -> list[Call]:
        """All calls, in the order of the source.

        A partial that only prepares a call that stands elsewhere is left out: it may be overridden.
        """
        nodes = [node for node in self.nodes if isinstance(node, ast.Call)]
        called = {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
        return [
            self._read_call(node)
            for node in nodes
            if not (self._is_partial(node) and self.find_target(node) in called)
        ]

    def _is_partial(self, node: ast.Call) -> bool:
        return self.names.is_one_of(node.func, (_PARTIAL,))

    def _read_call(self, node: ast.Call) -> Call:
        function, positional, keywords = node.func, list(node.args), list(node.keywords)
        prepared = self._find_partial(node)
        if prepared is not None and prepared.args:
            function = prepared.args[0]
            own = prepared is node
            positional = [*prepared.args[1:], *([] if own else positional)]
            keywords = [*prepared.keywords, *([] if own else keywords)]
        known = frozenset(self.names.resolve(function))
        signatures = self.catalogue.signatures
        names = next((signatures[name] for name in known if name in signatures), ())
        starred = any(isinstance(argument, ast.Starred) for argument in positional)
        arguments = {} if starred else dict(zip(names, positional, strict=False))
        for keyword in keywords:
            given = [keyword] if keyword.arg else self.values.expand_keywords(keyword.value)
            arguments.update({each.arg: each.value for each in given if each.arg})
        return Call(node, function, known, positional, arguments)

    def _find_partial(self, node: ast.Call) -> ast.Call | None:
        """Return the ``functools.partial(...)`` that this call is, or that it calls."""
        if self._is_partial(node):
            return node
        if isinstance(node.func, ast.Name):
            made = self.values.find_assigned(node.func)
            if isinstance(made, ast.Call) and self._is_partial(made):
                return made if len(made.args) + len(made.keywords) <= _LONGEST else None
        return None

    def read_value(self, call: Call, name: str) -> Any:
        """Return what an argument is worth; None if it is missing or cannot be told."""
        return self.values.evaluate(call.find_argument(name))


def write_name(expression: ast.expr) -> str:
    """Return ``self.loader`` as it is written; empty for what is not a dotted name."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join([expression.id, *reversed(parts)])


def split_words(name: str) -> list[str]:
    """Return ``testLoader_2`` as ``["test", "loader"]``."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
