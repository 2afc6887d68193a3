"""Which library a name in a module stands for."""

import ast
from collections import defaultdict
from collections.abc import Container, Iterable

from epsilometer.lint.libraries import (
    DP_TRAINING,
    LOADERS,
    POISSON_ACCOUNTANTS,
    POISSON_SAMPLERS,
    SIGNATURES,
    Known,
)

# What a star import is taken to bring. Elsewhere the import itself says it.
_STARRED = POISSON_ACCOUNTANTS | DP_TRAINING | POISSON_SAMPLERS | set(LOADERS) | set(SIGNATURES)
_STARRED |= {("opacus", "PrivacyEngine"), ("functools", "partial")}

_LONGEST_ALIAS = 10  # a = b; b = c; ... ends, also if it turns in a circle
_MEANINGS = 10  # of a name that is imported from here or there


class Names:
    """The imports and aliases of a module.

    Imports inside functions count for the whole module, and both branches of a ``try`` count:
    what a name *may* stand for is enough here. A name that the module defines itself stands for
    nothing of a library.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
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
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                self._defined.add(name)
            case ast.AsyncFunctionDef(name=name):
                self._defined.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases[name].append(value)

    def _import(self, name: str, path: str) -> None:
        if len(self._imported[name]) < _MEANINGS:
            self._imported[name].add(path)

    def packages(self) -> set[str]:
        """Top packages of everything imported."""
        paths: set[str] = set().union(*self._imported.values())
        return {path.partition(".")[0] for path in paths} | self._stars

    def known(self, expression: ast.expr) -> set[Known]:
        """Top package and last part of what an expression may stand for."""
        found = set()
        for path in self._paths(expression):
            package, _, rest = path.partition(".")
            found.add((package, rest.rpartition(".")[2]))
        return found

    def is_one_of(self, expression: ast.expr, names: Container[Known]) -> bool:
        """Whether an expression may stand for one of these."""
        return any(name in names for name in self.known(expression))

    def imported(self, name: str) -> bool:
        """Whether a bare name is an import (and not the module's own)."""
        return name in self._imported and name not in self._defined

    def _paths(self, expression: ast.expr) -> set[str]:
        parts: list[str] = []
        for _ in range(_LONGEST_ALIAS):
            while isinstance(expression, ast.Attribute):
                parts.append(expression.attr)
                expression = expression.value
            if not isinstance(expression, ast.Name):
                return set()
            name = expression.id
            if self.imported(name):
                return {".".join([path, *reversed(parts)]) for path in self._imported[name]}
            if name in self._defined:
                return set()
            values = self._aliases.get(name, [])
            if not values:
                return self._starred(".".join([name, *reversed(parts)]))
            if len(values) > 1 or not isinstance(values[0], ast.Name | ast.Attribute):
                return set()
            expression = values[0]
        return set()

    def _starred(self, name: str) -> set[str]:
        last = name.rpartition(".")[2]
        known = {package for package, of_it in _STARRED if of_it == last}
        return {f"{package}.{name}" for package in known & self._stars}
