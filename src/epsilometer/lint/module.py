"""Parse a module into what the checks need: names, bindings and calls."""

import ast
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeAlias

from epsilometer.lint.bindings import LONGEST, Bindings, Scope
from epsilometer.lint.libraries import Catalogue, Known, load_catalogue

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PARTIAL = ("functools", "partial")
_LONGEST_ALIAS = 10  # limit for a = b; b = c; …, which may be circular
_MEANINGS = 10  # of a name that is imported from alternative places


@dataclass(frozen=True)
class Import:
    """An import, as it is written: ``from ..a import b`` has level 2, path ``a``, and name ``b``.

    ``name`` is empty for ``import a.b``, and ``*`` for a star.
    """

    level: int
    path: str
    name: str = ""


class Names:
    """The imports and aliases of a module.

    Imports inside functions count for the whole module, and both branches of a ``try`` count: it
    suffices what a name *may* stand for. A name that the module defines itself is not a library's.
    """

    def __init__(self, nodes: Iterable[ast.AST], catalogue: Catalogue) -> None:
        self._starred = catalogue.names | {_PARTIAL}
        self.imports: dict[str, list[Import]] = defaultdict(list)  # by the name that is bound
        self.stars: list[Import] = []
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._aliases: dict[str, list[ast.expr]] = defaultdict(list)
        self._star_packages: set[str] = set()
        self.defined: set[str] = set()
        for node in nodes:
            self._take(node)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._import(alias.asname or whole, whole)
                    self._note(alias.asname or whole, Import(0, alias.name))
            case ast.ImportFrom(level=level):
                for alias in node.names:
                    bound, made = alias.asname or alias.name, Import(level, node.module or "")
                    if alias.name == "*":
                        self.stars.append(Import(level, node.module or "", "*"))
                        if not level:
                            self._star_packages.add(made.path.partition(".")[0])
                        continue
                    self._note(bound, Import(level, made.path, alias.name))
                    if level:  # from . import DataLoader: the project's own
                        self.defined.add(bound)
                    else:
                        self._import(bound, f"{node.module}.{alias.name}")
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases[name].append(value)

    def _import(self, name: str, path: str) -> None:
        if len(self._imported[name]) < _MEANINGS:
            self._imported[name].add(path)

    def _note(self, name: str, made: Import) -> None:
        if len(self.imports[name]) < _MEANINGS:
            self.imports[name].append(made)

    @cached_property
    def packages(self) -> frozenset[str]:
        """The top packages of all imports."""
        paths: set[str] = set().union(*self._imported.values())
        return frozenset({path.partition(".")[0] for path in paths} | self._star_packages)

    def resolve(self, expression: ast.expr) -> set[Known]:
        """Return top package and last part of what an expression may stand for."""
        split = (path.partition(".") for path in self._resolve_paths(expression))
        return {(package, rest.rpartition(".")[2]) for package, _, rest in split}

    def is_one_of(self, expression: ast.expr, names: Container[Known]) -> bool:
        """Tell whether an expression may stand for one of these names."""
        return any(name in names for name in self.resolve(expression))

    def _resolve_paths(self, expression: ast.expr) -> set[str]:
        parts: list[str] = []
        for _ in range(_LONGEST_ALIAS):
            while isinstance(expression, ast.Attribute):
                parts.append(expression.attr)
                expression = expression.value
            if not isinstance(expression, ast.Name) or expression.id in self.defined:
                return set()
            name = expression.id
            if name in self._imported:
                return {".".join([path, *reversed(parts)]) for path in self._imported[name]}
            values = self._aliases.get(name, [])
            if not values and not self._star_packages:
                return set()
            if not values:
                whole = ".".join([name, *reversed(parts)])
                last = whole.rpartition(".")[2]
                known = {package for package, of_it in self._starred if of_it == last}
                return {f"{package}.{whole}" for package in known & self._star_packages}
            if len(values) > 1 or not isinstance(values[0], ast.Name | ast.Attribute):
                return set()
            expression = values[0]
        return set()


@dataclass(frozen=True, eq=False)
class Call:
    """Hold a call with its arguments by name, with ``**`` and ``functools.partial`` resolved.

    Attributes:
        node: Its place in the code.
        function: What is called.
        known: What it may be, by top package and last part.
        positional: Arguments given by position.
        arguments: By name; positional ones under their names if known.
        unsure: Whether ``**`` or ``*`` passes unknown arguments.
    """

    node: ast.Call
    function: ast.expr
    known: frozenset[Known]
    positional: list[ast.expr] = field(default_factory=list)
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    unsure: bool = False

    @cached_property
    def method(self) -> str:
        """The last part of what is called: ``fit`` of ``model.fit``."""
        match self.function:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
        return ""

    @property
    def packages(self) -> set[str]:
        """Return the top packages of what is called."""
        return {package for package, _ in self.known}

    def find_argument(self, name: str, *, position: int | None = None) -> ast.expr | None:
        """Return an argument by its name, or by its position."""
        if name in self.arguments:
            return self.arguments[name]
        if position is None or len(self.positional) <= position:
            return None
        before = self.positional[: position + 1]
        return None if any(isinstance(each, ast.Starred) for each in before) else before[-1]


class Module:
    """Hold the tree of a module, its names, bindings and calls.

    Args:
        tree: As the parser made it.
        path: Its file, as given or found.
        cells: For each line of a notebook its cell and the line there; empty for a file.
    """

    def __init__(
        self,
        tree: ast.Module,
        path: str = "<text>",
        cells: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.path, self._cells = path, cells
        self.catalogue = load_catalogue()
        self.nodes: list[ast.AST] = []
        self.parents: dict[int, ast.AST] = {}
        self._scopes: dict[int, tuple[Scope, ...]] = {}
        self._index(tree)
        self.names = Names(self.nodes, self.catalogue)
        self.bindings = Bindings(self.nodes, self._scopes)

    def _index(self, tree: ast.Module) -> None:
        """List nodes in the order of the source; without recursion, since code may nest deeply."""
        waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(tree, (None,))]
        while waiting:
            node, scopes = waiting.pop()
            self.nodes.append(node)
            self._scopes[id(node)] = scopes
            inner = (*scopes, node) if isinstance(node, SCOPES) else scopes
            for child in reversed(list(ast.iter_child_nodes(node))):
                self.parents[id(child)] = node
                waiting.append((child, inner))

    @cached_property
    def top_level(self) -> dict[str, Function | ast.ClassDef]:
        """The functions and classes of the module itself, the last of each name."""
        return {
            node.name: node
            for node in self.nodes
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and len(self._scopes[id(node)]) == 1
        }

    @cached_property
    def methods(self) -> dict[int, dict[str, Function]]:
        """The methods of each class, by its id."""
        found: dict[int, dict[str, Function]] = defaultdict(dict)
        for node in self.nodes:
            if isinstance(node, FUNCTIONS):
                around = self._scopes[id(node)][-1]
                if isinstance(around, ast.ClassDef):
                    found[id(around)][node.name] = node
        return found

    @cached_property
    def returns(self) -> dict[int, list[ast.expr]]:
        """What each function returns, by its id."""
        found: dict[int, list[ast.expr]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                found[id(self._scopes[id(node)][-1])].append(node.value)
        return found

    @cached_property
    def generators(self) -> frozenset[int]:
        """The ids of functions that yield."""
        yields = (node for node in self.nodes if isinstance(node, ast.Yield))
        return frozenset(id(self._scopes[id(node)][-1]) for node in yields)

    @cached_property
    def reads(self) -> dict[str, list[ast.expr]]:
        """Where each name is read, and each attribute, under its name with a dot before it."""
        found: dict[str, list[ast.expr]] = defaultdict(list)
        for node in self.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    found[name].append(node)
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    found[f".{name}"].append(node)
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """All names and attributes, in lower case."""
        found = {node.id for node in self.nodes if isinstance(node, ast.Name)}
        found |= self.attributes
        found |= {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        return frozenset(word.lower() for word in found)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """The names of all attributes that are read or set."""
        return frozenset(node.attr for node in self.nodes if isinstance(node, ast.Attribute))

    def find_scope(self, node: ast.AST) -> Scope:
        """Return the outermost function or class around a node: its code runs together."""
        around = self._scopes[id(node)]
        return around[1] if len(around) > 1 else None

    def find_function(self, node: ast.AST) -> Scope:
        """Return the innermost function, class or lambda around a node."""
        return self._scopes[id(node)][-1]

    def find_class(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node."""
        for scope in reversed(self._scopes[id(node)]):
            if isinstance(scope, ast.ClassDef):
                return scope
        return None

    def walk_up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, from the inside out."""
        parent = self.parents.get(id(node))
        while parent is not None:
            yield parent
            parent = self.parents.get(id(parent))

    def point_at(self, node: ast.AST, *, reader: "Module | None" = None) -> str:
        """Return ``line 3``: with the cell of a notebook, and the file if the reader is another."""
        line = getattr(node, "lineno", 1)
        place = f"line {line}"
        if self._cells:
            cell, line = self._cells[line - 1]
            place = f"cell {cell} line {line}"
        return place if reader in (None, self) else f"{self.path} {place}"

    def is_read_once(self, node: ast.AST) -> bool:
        """Recognise ``next(iter(loader))`` outside of loops: it reads records, not batches."""
        match self.parents.get(id(node)):
            case ast.Call(func=ast.Name(id="iter")) as made:
                match self.parents.get(id(made)):
                    case ast.Call(func=ast.Name(id="next")):
                        loops = (ast.For, ast.AsyncFor, ast.While)
                        return not any(isinstance(each, loops) for each in self.walk_up(made))
        return False

    def find_target(self, node: ast.AST) -> str:
        """Return the name to which a value, or an expression with it, is assigned; or empty."""
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

        A partial that only prepares a call elsewhere is left out: it may be overridden.
        """
        nodes = [node for node in self.nodes if isinstance(node, ast.Call)]
        called = {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
        return [
            self._read_call(node)
            for node in nodes
            if not (self._is_partial(node) and self.find_target(node) in called)
        ]

    @cached_property
    def made_at(self) -> dict[str, list[Call]]:
        """The first calls that are assigned to each name."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            target = self.find_target(call.node)
            if target and len(found[target]) < _LONGEST_ALIAS:
                found[target].append(call)
        return found

    @cached_property
    def call_of(self) -> dict[int, Call]:
        """The calls, by the id of their node."""
        return {id(call.node): call for call in self.calls}

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
        names = next((signatures[name] for name in sorted(known) if name in signatures), ())
        starred = any(isinstance(argument, ast.Starred) for argument in positional)
        arguments = {} if starred else dict(zip(names, positional, strict=False))
        unsure = starred
        for keyword in keywords:
            given = [keyword] if keyword.arg else self.bindings.expand_keywords(keyword.value)
            arguments.update({each.arg: each.value for each in given if each.arg})
            unsure |= not given
        return Call(node, function, known, positional, arguments, unsure)

    def _find_partial(self, node: ast.Call) -> ast.Call | None:
        """Return the ``functools.partial(...)`` that this call is, or that it calls."""
        if self._is_partial(node):
            return node
        if isinstance(node.func, ast.Name):
            made = self.bindings.find_once(node.func)
            if isinstance(made, ast.Call) and self._is_partial(made):
                return made if len(made.args) + len(made.keywords) <= LONGEST else None
        return None

    @cached_property
    def is_test(self) -> bool:
        """Whether the file contains tests: by its name, or by its folder and imports.

        A folder is not enough: a whole project may be in one of that name.
        """
        path = PurePosixPath(self.path)
        if path.name.startswith("test_") or path.name.endswith(("_test.py", "conftest.py")):
            return True
        return path.parent.name in ("test", "tests") and bool(
            self.names.packages & {"unittest", "pytest"}
        )


def write_name(expression: ast.expr | None) -> str:
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
