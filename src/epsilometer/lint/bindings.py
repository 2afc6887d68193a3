"""Bind names: find what the names of a module, and the attributes of its classes, stand for."""

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Scope: TypeAlias = ast.AST | None  # a function or class; None is the module
Path: TypeAlias = tuple[int | str, ...]

LONGEST = 200  # arguments that a partial, or a dictionary that is handed over, holds
_NEAREST = 3  # bindings of one name that are checked
_MOST_TURNS = 4  # of a loop over a literal


@dataclass(frozen=True)
class Binding:
    """Bind a name to a part of an expression.

    Attributes:
        value: The expression; None for an argument, a counter or what ``+=`` changes.
        path: The part: ``(1,)`` for ``b`` of ``a, b = value``.
        argument: Whether the name is an argument of its function.
        line: Its line.
        turns: Whether it is the variable of a loop over a literal.
    """

    value: ast.expr | None
    path: Path = ()
    argument: bool = False
    line: int = 0
    turns: bool = False


class Bindings:
    """Hold the bindings of a module's names, and of the attributes of its classes."""

    def __init__(self, nodes: Iterable[ast.AST], scopes: dict[int, tuple[Scope, ...]]) -> None:
        self._scopes = scopes
        self._bound: dict[tuple[int, str], list[Binding]] = defaultdict(list)
        self._attributes: dict[int, dict[str, list[Binding]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._changed: set[str] = set()
        # What a dictionary receives after construction, in order; None if unknown.
        self._given: dict[tuple[int, str], list[tuple[int, ast.keyword | None]]] = defaultdict(list)
        for node in nodes:
            self._take(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
                    match target:
                        case ast.Subscript(
                            value=ast.Name(id=name), slice=ast.Constant(value=str(key))
                        ):
                            self._give(target, name, [ast.keyword(arg=key, value=node.value)])
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value)
            case ast.AugAssign():
                self._bind(node.target, None)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind(node.target, None, turns=bool(list_turns(node)))
            case ast.withitem(optional_vars=target, context_expr=value) if target is not None:
                self._bind(target, value)
            case ast.arg():  # an argument belongs to the function, which is the node's own scope
                self._bound[self._key(node, node.arg)].append(
                    Binding(None, argument=True, line=node.lineno)
                )
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                self._changed.add(name)
                known = isinstance(node.slice, ast.Constant) and isinstance(node.ctx, ast.Store)
                self._give(node, name, [] if known else [None])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update" | "pop")):
                self._changed.add(name)
                starred = [ast.keyword(arg=None, value=each) for each in node.args]
                known = isinstance(node.func, ast.Attribute) and node.func.attr == "update"
                self._give(node, name, [*starred, *node.keywords] if known else [None])

    def _bind(
        self, target: ast.expr, value: ast.expr | None, path: Path = (), *, turns: bool = False
    ) -> None:
        match target:
            case ast.Name(id=name):
                self._bound[self._key(target, name)].append(
                    Binding(value, path, line=target.lineno, turns=turns)
                )
                around = self._scopes[id(target)][-1]
                if isinstance(around, ast.ClassDef):
                    self._attributes[id(around)][name].append(Binding(value, path))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                for scope in reversed(self._scopes[id(target)]):
                    if isinstance(scope, ast.ClassDef):
                        self._attributes[id(scope)][name].append(Binding(value, path))
                        break
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                starred = any(isinstance(each, ast.Starred) for each in targets)
                for place, each in enumerate(targets):
                    index = place if not starred else place - len(targets)
                    whole = isinstance(value, ast.Tuple) and len(value.elts) == len(targets)
                    if value is None or isinstance(each, ast.Starred):
                        self._bind(each, None)
                    elif whole and isinstance(value, ast.Tuple):
                        self._bind(each, value.elts[place], path)
                    else:
                        self._bind(each, value, (*path, index))

    def _give(self, node: ast.expr, name: str, keywords: Iterable[ast.keyword | None]) -> None:
        given = self._given[self._key(node, name)]
        if len(given) <= LONGEST:
            given += [(node.lineno, keyword) for keyword in keywords]

    def _key(self, node: ast.AST, name: str) -> tuple[int, str]:
        return id(self._scopes[id(node)][-1]), name

    def find(self, name: ast.Name) -> tuple[Scope, list[Binding]]:
        """Return the bindings of a name at its place, and their scope.

        The last bindings before the name count; in another scope, the last of all.
        """
        own = self._own(name)
        for scope in reversed(self._scopes[id(name)]):
            found = self._bound.get((id(scope), name.id))
            if not found or (isinstance(scope, ast.ClassDef) and scope is not own):
                continue
            if len(found) > _NEAREST:
                before = bisect_right(found, name.lineno, key=lambda each: each.line)
                end = before if scope is own and before else len(found)
                found = found[max(0, end - _NEAREST) : end]
            return scope, found
        return None, []

    def _own(self, node: ast.AST) -> Scope:
        return self._scopes[id(node)][-1]

    def find_global(self, name: str) -> list[Binding]:
        """Return what the module binds a name to, outside its functions."""
        return self._bound.get((id(None), name), [])[-_NEAREST:]

    def find_attribute(self, around: ast.ClassDef, name: str) -> list[Binding]:
        """Return what a class, or ``self`` in its methods, binds an attribute to."""
        found = self._attributes.get(id(around))
        return [] if found is None else found.get(name, [])[-_NEAREST:]

    def find_once(self, name: ast.Name) -> ast.expr | None:
        """Return the only expression that a name is bound to as a whole; else None."""
        _, found = self.find(name)
        return found[0].value if len(found) == 1 and not found[0].path else None

    def list_constants(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield names that are bound once and as a whole, with what."""
        for (_, name), found in self._bound.items():
            if len(found) == 1 and found[0].value is not None and not found[0].path:
                yield name, found[0].value

    def is_changed(self, name: str) -> bool:
        """Tell whether a dictionary of this name is changed after it was made."""
        return name in self._changed

    def expand_keywords(self, expression: ast.expr) -> list[ast.keyword]:
        """Return what ``**expression`` passes: a literal, and later additions."""
        if not isinstance(expression, ast.Name):
            return _read_literal(expression) or []
        made = _read_literal(self.find_once(expression))
        if made is None or expression.id not in self._changed:
            return made or []
        return self._add_given(expression, made) if expression.id not in self._shared else []

    @cached_property
    def _shared(self) -> set[str]:
        """Return the names that are changed where they are not bound: from another function."""
        return {name for scope, name in self._given if (scope, name) not in self._bound}

    def _add_given(self, name: ast.Name, made: list[ast.keyword]) -> list[ast.keyword]:
        """Return a dictionary with additions before a line; nothing if that is unknown."""
        scope, _ = self.find(name)
        given = self._given[id(scope), name.id]
        own = scope is self._own(name)
        keywords = {each.arg: each for each in made}
        for line, each in given if len(given) <= LONGEST else [(0, None)]:
            if own and line > name.lineno:
                continue
            if each is None:
                return []
            inner: list[ast.keyword] | None = [each]
            if each.arg is None:  # of update(other), which is not followed further
                value = each.value
                once = self.find_once(value) if isinstance(value, ast.Name) else value
                inner = _read_literal(once)
            if inner is None:
                return []
            keywords |= {keyword.arg: keyword for keyword in inner}
        return list(keywords.values())


def _read_literal(expression: ast.expr | None) -> list[ast.keyword] | None:
    """Return the entries of a dictionary that is written out; None if it is not."""
    match expression:
        case ast.Dict(keys=keys, values=values) if len(keys) <= LONGEST:
            return [
                ast.keyword(arg=key.value, value=value)
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return [keyword for keyword in keywords if keyword.arg]
    return None


def list_turns(loop: ast.AST, name: str = "") -> list[ast.expr]:
    """Return the constants that a loop over a short literal takes in turn, as ``name``."""
    match loop:
        case ast.For(target=ast.Name(id=own), iter=ast.Tuple(elts=turns) | ast.List(elts=turns)):
            pass
        case ast.comprehension(
            target=ast.Name(id=own), iter=ast.Tuple(elts=turns) | ast.List(elts=turns)
        ):
            pass
        case _:
            return []
    constant = all(isinstance(each, ast.Constant) for each in turns[: _MOST_TURNS + 1])
    return turns if constant and len(turns) <= _MOST_TURNS and name in ("", own) else []
