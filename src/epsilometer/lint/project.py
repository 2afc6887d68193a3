"""Join the modules of a project: resolve imports to files, and names to functions."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeVar

from epsilometer.lint.bindings import Scope
from epsilometer.lint.module import FUNCTIONS, Call, Function, Import, Module, write_name

Held = TypeVar("Held")
_DEEPEST = 12  # folders above a file in which its imports are looked for
_REEXPORTS = 5  # from a import b, which a imports from c, ...
_ROOTS = ("", "src", "lib", "python")
_MOST_CALLERS = 20  # of one function that are followed
_MOST_BASES = 10  # of one class, and theirs


@dataclass(frozen=True, eq=False)
class Symbol:
    """A function, a class or a variable of the project.

    Attributes:
        module: Where it is defined.
        name: What it is called there; empty for the module itself.
        node: The function or class; None for a variable.
    """

    module: Module
    name: str = ""
    node: Function | ast.ClassDef | None = None


@dataclass(frozen=True, eq=False)
class Site:
    """A call, and the module that contains it."""

    module: Module
    call: Call


class Project:
    """The modules of a project and the names by which they know each other."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self._places: dict[tuple[str, ...], Module] = {}
        for module in self.modules:
            self._places.setdefault(locate(module.path), module)
        self._symbols: dict[tuple[int, str], Symbol | None] = {}

    def find_module(self, module: Module, made: Import) -> Module | None:
        """Return the file of the project that an import means, seen from a module."""
        return find_imported(self._places, module.path, made)

    def find_symbol(self, module: Module, dotted: str) -> Symbol | None:
        """Return what ``train``, ``data.loader`` or ``a.b.C`` stands for; None if nothing here."""
        key = (id(module), dotted)
        if key not in self._symbols:
            self._symbols[key] = self._find(module, dotted)
        return self._symbols[key]

    def _find(self, module: Module, dotted: str) -> Symbol | None:
        first, _, rest = dotted.partition(".")
        if first in module.names.imports:
            for made in module.names.imports[first]:
                found = self._follow_import(module, made, rest)
                if found is not None:
                    return found
            return None
        found = self._find_own(module, first)
        if found is None:
            found = self._find_starred(module, first)
        return found if not rest else None

    def _follow_import(self, module: Module, made: Import, rest: str) -> Symbol | None:
        parts = [part for part in rest.split(".") if part]
        if not made.name:  # import a.b.c, or as x; the first name is a, or x
            whole = self.find_module(module, made)
            inner = made.path.split(".")[1:]
            if parts[: len(inner)] == inner and "." in made.path:
                parts = parts[len(inner) :]
            return self._descend(whole, parts)
        submodule = Import(made.level, f"{made.path}.{made.name}".strip("."))
        whole = self.find_module(module, submodule)
        if whole is not None:
            return self._descend(whole, parts)
        return self._descend(self.find_module(module, made), [made.name, *parts])

    def _descend(self, module: Module | None, parts: list[str]) -> Symbol | None:
        if module is None:
            return None
        if not parts:
            return Symbol(module)
        found = self._find_exported(module, parts[0])
        if len(parts) == 1 or found is None:
            return found
        return self._descend(found.module, parts[1:]) if not found.name else None

    def _find_exported(self, module: Module, name: str, depth: int = 0) -> Symbol | None:
        found = self._find_own(module, name)
        if found is not None or depth > _REEXPORTS:
            return found
        for made in module.names.imports.get(name, ()):
            submodule = Import(made.level, f"{made.path}.{made.name}".strip("."))
            whole = self.find_module(module, submodule if made.name else made)
            if whole is not None:
                return Symbol(whole)
            source = self.find_module(module, made)
            if source is not None and made.name:
                return self._find_exported(source, made.name, depth + 1)
        return self._find_starred(module, name, depth + 1)

    def _find_starred(self, module: Module, name: str, depth: int = 0) -> Symbol | None:
        for made in module.names.stars[:_DEEPEST]:
            source = self.find_module(module, made)
            if source is not None and source is not module and depth <= _REEXPORTS:
                found = self._find_exported(source, name, depth + 1)
                if found is not None:
                    return found
        return None

    def _find_own(self, module: Module, name: str) -> Symbol | None:
        node = module.top_level.get(name)
        if node is not None:
            return Symbol(module, name, node)
        return Symbol(module, name) if module.bindings.find_global(name) else None

    def resolve(self, module: Module, expression: ast.expr) -> Symbol | None:
        """Return what a dotted name in a module stands for, if it is the project's own."""
        dotted = write_name(expression)
        if not dotted:
            return None
        root: ast.expr = expression
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            scope, bound = module.bindings.find(root)
            if bound and (scope is not None or any(each.argument for each in bound)):
                return None  # a variable of a function hides it
        return self.find_symbol(module, dotted)

    def list_classes(self, module: Module, around: ast.ClassDef) -> list[Symbol]:
        """Return a class and the classes of the project that it derives from, nearest first."""
        found = [Symbol(module, around.name, around)]
        for each in found:  # grows while it is walked
            assert isinstance(each.node, ast.ClassDef)
            for base in each.node.bases:
                symbol = self.resolve(each.module, base)
                if (
                    symbol is not None
                    and isinstance(symbol.node, ast.ClassDef)
                    and len(found) < _MOST_BASES
                    and all(symbol.node is not other.node for other in found)
                ):
                    found.append(symbol)
        return found

    def find_bases(self, module: Module, around: ast.ClassDef) -> set[tuple[str, str]]:
        """Return the classes of libraries that a class derives from, in the end."""
        return {
            known
            for each in self.list_classes(module, around)
            if isinstance(each.node, ast.ClassDef)
            for base in each.node.bases
            for known in each.module.names.resolve(base)
        }

    def find_method(self, module: Module, around: ast.ClassDef, name: str) -> Symbol | None:
        """Return the method of a class, or of one that it derives from."""
        for each in self.list_classes(module, around):
            found = each.module.methods.get(id(each.node), {}).get(name)
            if found is not None:
                return Symbol(each.module, name, found)
        return None

    @cached_property
    def _methods_by_name(self) -> dict[str, list[Symbol]]:
        found: dict[str, list[Symbol]] = defaultdict(list)
        for module in self.modules:
            for methods in module.methods.values():
                for name, node in methods.items():
                    if len(found[name]) < 2:
                        found[name].append(Symbol(module, name, node))
        return found

    def find_called(self, module: Module, call: Call) -> Symbol | None:
        """Return the function or class of the project that a call calls.

        A method is known by ``self``, or by a name that one class alone has.
        """
        symbol = self.resolve(module, call.function)
        if symbol is not None:
            return symbol if symbol.node is not None else None
        match call.function:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                around = module.find_class(call.node)
                return None if around is None else self.find_method(module, around, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                return self._find_above(module, call, name)
            case ast.Attribute(attr=name) if not call.known and not name.startswith("__"):
                found = self._methods_by_name.get(name, [])
                return found[0] if len(found) == 1 else None
        return None

    def _find_above(self, module: Module, call: Call, name: str) -> Symbol | None:
        around = module.find_class(call.node)
        if around is None:
            return None
        for each in self.list_classes(module, around)[1:]:
            found = each.module.methods.get(id(each.node), {}).get(name)
            if found is not None:
                return Symbol(each.module, name, found)
        return None

    @cached_property
    def callers(self) -> dict[int, list[Site]]:
        """The calls of each function of the project, by its id; of a class, those of __init__."""
        found: dict[int, list[Site]] = defaultdict(list)
        for module in self.modules:
            for call in module.calls:
                symbol = self.find_called(module, call)
                if symbol is None or symbol.node is None:
                    continue
                node: ast.AST = symbol.node
                if isinstance(node, ast.ClassDef):
                    made = self.find_method(symbol.module, node, "__init__")
                    node = made.node if made is not None and made.node is not None else node
                if len(found[id(node)]) < _MOST_CALLERS:
                    found[id(node)].append(Site(module, call))
        return found

    @cached_property
    def options(self) -> dict[str, list[tuple[Module, ast.expr]]]:
        """What settings are by default: options of a command line, and fields of classes."""
        found: dict[str, list[tuple[Module, ast.expr]]] = defaultdict(list)
        for module in self.modules:
            for name, default in _list_options(module):
                if len(found[name]) < _MOST_CALLERS:
                    found[name].append((module, default))
        return found


def _list_options(module: Module) -> Iterator[tuple[str, ast.expr]]:
    for call in module.calls:
        texts = [
            each.value
            for each in call.positional
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        default = call.arguments.get("default")
        if call.method in ("add_argument", "option") and texts and default is not None:
            long = [text for text in texts if text.startswith("--")] or texts
            dest = call.arguments.get("dest")
            name = dest.value if isinstance(dest, ast.Constant) else long[0]
            yield str(name).lstrip("-").replace("-", "_"), default
        elif call.method.startswith("DEFINE_") and texts and len(call.positional) > 1:
            yield texts[0], call.positional[1]
    for node in module.nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                if isinstance(module.find_function(node), ast.ClassDef):
                    yield name, _unwrap_field(value)


def _unwrap_field(value: ast.expr) -> ast.expr:
    """Return the default of ``field(default=3)``."""
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == "default":
                return keyword.value
    return value


def locate(path: str) -> tuple[str, ...]:
    """Return where a module is: the parts of its path, without its ending."""
    parts = PurePosixPath(path).with_suffix("").parts if PurePosixPath(path).name else (path,)
    return parts[:-1] if parts and parts[-1] == "__init__" else parts


def find_imported(places: Mapping[tuple[str, ...], Held], path: str, made: Import) -> Held | None:
    """Return what is held for the module that an import in a file means."""
    folder = _list_folder(path)
    wanted = tuple(part for part in made.path.split(".") if part)
    if made.level:
        start = folder[: len(folder) - (made.level - 1)] if made.level > 1 else folder
        return places.get((*start, *wanted))
    if not wanted:
        return None
    for depth in range(len(folder), max(-1, len(folder) - _DEEPEST), -1):
        for root in _ROOTS:
            start = (*folder[:depth], root) if root else folder[:depth]
            found = places.get((*start, *wanted))
            if found is not None:
                return found
    return None


def _list_folder(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).parts[:-1]


def bind_arguments(
    function: Function, call: Call, *, method: bool
) -> tuple[dict[str, ast.expr], set[str]]:
    """Return the argument expressions of a call by the names of the function's parameters.

    Returns:
        What is given, and the parameters of which nothing can be said (behind ``*`` or ``**``).
    """
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    if method and names:
        names = names[1:]
    bound: dict[str, ast.expr] = {}
    unsure: set[str] = set()
    for place, argument in enumerate(call.node.args):
        if isinstance(argument, ast.Starred):
            unsure.update(names[place:])
            break
        if place < len(names):
            bound[names[place]] = argument
    allowed = {*names, *(each.arg for each in given.kwonlyargs)}
    for keyword in call.node.keywords:
        if keyword.arg is None:
            unsure |= allowed - set(bound)
        elif keyword.arg in allowed:
            bound[keyword.arg] = keyword.value
    return bound, unsure - set(bound)


def list_defaults(function: Function) -> dict[str, ast.expr]:
    """Return the default of each parameter that has one."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    plain = dict(zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True))
    named = zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True)
    return plain | {name: default for name, default in named if default is not None}


def is_method(module: Module, function: Scope) -> bool:
    """Tell whether a function is a method that takes ``self``."""
    if not isinstance(function, FUNCTIONS):
        return False
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    inside = isinstance(module.find_function(function), ast.ClassDef)
    return inside and bool(names) and names[0] in ("self", "cls")
