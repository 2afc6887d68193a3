"""A parsed module, with what the checks ask of it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from epsilometer.lint.libraries import SIGNATURES, Known
from epsilometer.lint.names import Names
from epsilometer.lint.values import Scope, Values

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PARTIAL = frozenset({("functools", "partial")})
_LONGEST = 200  # arguments that a partial holds


@dataclass(frozen=True)
class Call:
    """A call with its arguments by name, ``**`` and ``functools.partial`` taken apart.

    Attributes:
        node: Where it stands.
        function: What is called.
        known: What that may be, by top package and last part.
        arguments: By name; those given by position under their names where we know them.
        positional: Those given by position.
    """

    node: ast.Call
    function: ast.expr
    known: frozenset[Known]
    positional: list[ast.expr] = field(default_factory=list)
    arguments: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The last part of what is called: ``fit`` of ``model.fit``."""
        match self.function:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
        return ""


class Module:
    """The tree of a module, its names, values and calls."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes: list[ast.AST] = []
        self.parents: dict[int, ast.AST] = {}
        self._scopes: dict[int, tuple[Scope, ...]] = {}
        self._index(tree)
        self.names = Names(self.nodes)
        self.values = Values(self.nodes, self._scopes)

    def _index(self, tree: ast.Module) -> None:
        """Lists nodes in the order of the source; without recursion, since code nests deeply."""
        waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(tree, (None,))]
        while waiting:
            node, scopes = waiting.pop()
            self.nodes.append(node)
            self._scopes[id(node)] = scopes
            inner = (*scopes, node) if isinstance(node, _SCOPES) else scopes
            for child in reversed(list(ast.iter_child_nodes(node))):
                self.parents[id(child)] = node
                waiting.append((child, inner))

    def scope(self, node: ast.AST) -> Scope:
        """The outermost function or class around a node: what is written there runs together."""
        around = self._scopes[id(node)]
        return around[1] if len(around) > 1 else None

    def function(self, node: ast.AST) -> Scope:
        """The innermost function, class or lambda around a node."""
        return self._scopes[id(node)][-1]

    def together(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes share a top-level function or class, or one is the module's own."""
        return self.shared(one, {self.scope(other)})

    def shared(self, node: ast.AST, scopes: set[Scope]) -> bool:
        """Whether a node is together with something of one of these scopes."""
        own = self.scope(node)
        return bool(scopes) and (own is None or None in scopes or own in scopes)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that contain a node, from the inside."""
        parent = self.parents.get(id(node))
        while parent is not None:
            yield parent
            parent = self.parents.get(id(parent))

    def target(self, node: ast.AST) -> str:
        """The name a value is assigned to, also inside a longer expression; or empty."""
        for parent in self.around(node):
            match parent:
                case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                    return text(target)
                case ast.stmt():
                    return ""
        return ""

    @cached_property
    def calls(self) -> list[Call]:
        """All calls, in the order of the source."""
        nodes = [node for node in self.nodes if isinstance(node, ast.Call)]
        called = {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
        return [self._call(node) for node in nodes if not self._is_used_partial(node, called)]

    def _is_used_partial(self, node: ast.Call, called: set[str]) -> bool:
        """Whether this only prepares a call that stands elsewhere, where it may be overridden."""
        return self.names.is_one_of(node.func, _PARTIAL) and self.target(node) in called

    def _call(self, node: ast.Call) -> Call:
        function, positional, keywords = node.func, list(node.args), list(node.keywords)
        prepared = self._partial(node)
        if prepared is not None and prepared.args:
            function = prepared.args[0]
            own = [] if prepared is node else positional
            positional = [*prepared.args[1:], *own]
            keywords = [*prepared.keywords, *(node.keywords if prepared is not node else [])]
        known = frozenset(self.names.known(function))
        arguments = self._named(known, positional)
        for keyword in keywords:
            given = [keyword] if keyword.arg else self.values.keywords(keyword.value)
            arguments.update({each.arg: each.value for each in given if each.arg})
        return Call(node, function, known, positional, arguments)

    def _partial(self, node: ast.Call) -> ast.Call | None:
        """The ``functools.partial(...)`` that this call is, or that it calls."""
        if self.names.is_one_of(node.func, _PARTIAL):
            return node
        if isinstance(node.func, ast.Name):
            made = self.values.assigned(node.func)
            if isinstance(made, ast.Call) and self.names.is_one_of(made.func, _PARTIAL):
                return made if len(made.args) + len(made.keywords) <= _LONGEST else None
        return None

    @staticmethod
    def _named(known: frozenset[Known], positional: list[ast.expr]) -> dict[str, ast.expr]:
        signature = next((SIGNATURES[name] for name in known if name in SIGNATURES), ())
        if any(isinstance(argument, ast.Starred) for argument in positional):
            return {}
        return dict(zip(signature, positional, strict=False))

    def argument(self, call: Call, name: str, *, position: int | None = None) -> ast.expr | None:
        """An argument by its name, or by its place."""
        if name in call.arguments:
            return call.arguments[name]
        if position is None or len(call.positional) <= position:
            return None
        before = call.positional[: position + 1]
        return None if any(isinstance(each, ast.Starred) for each in before) else before[-1]

    def value(self, call: Call, name: str, *, position: int | None = None) -> Any:
        """What an argument is worth; None if it is missing or cannot be told."""
        return self.values.of(self.argument(call, name, position=position))


def text(expression: ast.expr) -> str:
    """``self.loader`` as it is written; empty for what is not a dotted name."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join([expression.id, *reversed(parts)])


def words(name: str) -> list[str]:
    """``testLoader_2`` as ``["test", "loader"]``."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
