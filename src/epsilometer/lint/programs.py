"""Find code that runs together: units, what each reaches, and the accountants of a node."""

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from epsilometer.lint.flow import Flow
from epsilometer.lint.module import Call, Module
from epsilometer.lint.project import Project, Symbol
from epsilometer.lint.roles import Accountant, Roles

_MOST = 12  # facts of a kind that are passed from a unit to its users
Fact = TypeVar("Fact")
_FARTHEST = 4  # steps up to a program that trains with DP: in large packages all use all
_WIDEST = 300  # units above a node to check


@dataclass(eq=False)
class Unit:
    """Hold a function, a class, an assignment, or other code at the top of a module.

    Attributes:
        module: Where it is.
        used_by: Units that read its name, by their ids.
        accountants: Calls that assume Poisson sampling, in it or in what it reaches.
        engines: Calls that replace a loader there.
        draws: Whether it draws batches by coin tosses.
    """

    module: Module
    used_by: "dict[int, Unit]" = field(default_factory=dict)
    accountants: dict[int, Accountant] = field(default_factory=dict)
    engines: dict[int, Call] = field(default_factory=dict)
    draws: bool = False


@dataclass(frozen=True, eq=False)
class Beside:
    """Hold an accountant that runs together with a node.

    Attributes:
        accountant: The accountant.
        together: Whether some code of the project runs both; otherwise they only share a file.
        engines: Engines in the program around both.
    """

    accountant: Accountant
    together: bool
    engines: list[Call]


class Programs:
    """Hold the units of a project and what each reaches."""

    def __init__(self, project: Project, flow: Flow) -> None:
        self.project, self.flow = project, flow
        self.roles = {id(module): Roles(module, flow) for module in project.modules}
        self._units: dict[tuple[int, int], Unit] = {}
        self._groups: dict[int, dict[int, ast.AST]] = {}
        self._assigned = {id(module): self._group(module) for module in project.modules}
        for module in project.modules:
            self._connect(module)
        for module in project.modules:
            self._fill(module)
        self._carry()

    def _unit(self, module: Module, node: ast.AST | None) -> Unit:
        key = (id(module), id(node))
        if key not in self._units:
            self._units[key] = Unit(module)
        return self._units[key]

    def find_unit(self, module: Module, node: ast.AST) -> Unit:
        """Return the unit of a node."""
        scope = module.find_scope(node)
        if scope is not None:
            return self._unit(module, scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._unit(module, node)
        for parent in (node, *module.walk_up(node)):
            if isinstance(parent, ast.Assign | ast.AnnAssign):
                return self._unit(module, self._groups[id(module)].get(id(parent)))
        return self._unit(module, None)

    def _group(self, module: Module) -> dict[str, ast.AST]:
        """Join assignments of the same names into one unit, and return it for each name."""
        leaders: dict[str, ast.AST] = {}
        groups = self._groups[id(module)] = {}
        for node in module.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and module.find_scope(node) is None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [
                    each.id
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                ]
                known = [leaders[name] for name in names if name in leaders]
                leader = known[0] if known else node
                groups[id(node)] = leader
                leaders |= dict.fromkeys(names, leader)
                for other in known[1:]:  # two groups with a name in common are used together
                    _join(self._unit(module, other), self._unit(module, leader))
                    _join(self._unit(module, leader), self._unit(module, other))
        return leaders

    def _connect(self, module: Module) -> None:
        """Join a module's units to those whose names they read."""
        body = self._unit(module, None)
        assigned = self._assigned[id(module)]
        for leader in assigned.values():
            _join(body, self._unit(module, leader))
        candidates = {*module.top_level, *module.names.imports, *assigned}
        starred = bool(module.names.stars)
        for node in module.nodes:
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id not in candidates and not starred:
                continue
            expression: ast.expr = node
            parent = module.parents.get(id(node))
            if node.id in module.names.imports:
                while isinstance(parent, ast.Attribute):
                    expression, parent = parent, module.parents.get(id(parent))
            used = self._find_used(module, expression)
            if used is not None:
                user = self.find_unit(module, node)
                if used is not user:
                    _join(user, used)

    def _find_used(self, module: Module, expression: ast.expr) -> Unit | None:
        if module.names.is_one_of(expression, module.catalogue.names):
            return None  # a library is known by its facts, even if its source is available
        symbol = self._resolve(module, expression)
        if symbol is None or not symbol.name:
            return None
        if symbol.node is not None:
            return self._unit(symbol.module, symbol.node)
        leader = self._assigned[id(symbol.module)].get(symbol.name)
        return None if leader is None else self._unit(symbol.module, leader)

    def _resolve(self, module: Module, expression: ast.expr) -> Symbol | None:
        """Return the symbol of the longest part of a dotted name that is one."""
        while True:
            symbol = self.project.resolve(module, expression)
            if symbol is not None or not isinstance(expression, ast.Attribute):
                return symbol
            expression = expression.value

    def _fill(self, module: Module) -> None:
        roles = self.roles[id(module)]
        for accountant in roles.accountants:
            _add(self.find_unit(module, accountant.node).accountants, accountant)
        for engine in roles.engines:
            _add(self.find_unit(module, engine.node).engines, engine)
        for node in roles.coins:
            self.find_unit(module, node).draws = True

    def _carry(self) -> None:
        """Pass to every unit the facts of the units that it reaches, up to a limit."""
        waiting = deque(
            unit for unit in self._units.values() if unit.accountants or unit.engines or unit.draws
        )
        queued = {id(unit) for unit in waiting}
        while waiting:
            unit = waiting.popleft()
            queued.discard(id(unit))
            for user in unit.used_by.values():
                grown = [_add(user.accountants, each) for each in unit.accountants.values()]
                grown += [_add(user.engines, each) for each in unit.engines.values()]
                if unit.draws and not user.draws:
                    user.draws = True
                    grown.append(True)
                if any(grown) and id(user) not in queued:
                    queued.add(id(user))
                    waiting.append(user)

    def list_beside(self, module: Module, node: ast.AST) -> list[Beside]:
        """Return the accountants that run together with a node, in the smallest program around.

        A program that draws batches by coin tosses is left out: its shuffles serve other purposes.
        """
        roles = self.roles[id(module)]
        if roles.coins or module.names.packages & module.catalogue.clients:
            return []
        found: list[Beside] = []
        programs = list(self._list_programs(self.find_unit(module, node)))
        for unit in programs:
            if not unit.draws:
                loudest = min(unit.accountants.values(), key=lambda each: _rank(each, module, node))
                if not self.roles[id(loudest.module)].coins:
                    found.append(Beside(loudest, True, list(unit.engines.values())))
        if not programs and roles.accountants:
            loudest = min(roles.accountants[:_MOST], key=lambda each: _rank(each, module, node))
            # Top-level code runs together with everything.
            together = None in (module.find_scope(node), module.find_scope(loudest.node))
            found.append(Beside(loudest, together, list(roles.engines)))
        return found

    def list_private(self, module: Module, node: ast.AST) -> list[Unit]:
        """Return the smallest programs around a node that train with DP; else its own file."""
        found = list(self._list_programs(self.find_unit(module, node), engines=True))
        roles = self.roles[id(module)]
        if not found and (roles.accountants or roles.engines):
            whole = Unit(module)
            for accountant in roles.accountants:
                _add(whole.accountants, accountant)
            for engine in roles.engines:
                _add(whole.engines, engine)
            return [whole]
        return found

    def list_beside_all(self, module: Module, node: ast.AST) -> list[Accountant]:
        """Return at most one accountant that runs with a node, however batches are drawn."""
        for unit in self.list_private(module, node):
            known = [each for each in unit.accountants.values() if each.kind != "training"]
            if known:
                return known[:1]
        return []

    def list_modules(self, unit: Unit) -> list[Module]:
        """Return the files of a program with facts about privacy."""
        found = {id(unit.module): unit.module}
        for accountant in unit.accountants.values():
            found[id(accountant.module)] = accountant.module
        for engine in unit.engines.values():
            other = self._homes[id(engine)]
            found[id(other)] = other
        return list(found.values())

    def home_of(self, engine: Call) -> Module:
        """Return the file in which an engine is called."""
        return self._homes[id(engine)]

    @cached_property
    def _homes(self) -> dict[int, Module]:
        return {id(call): each.module for each in self.roles.values() for call in each.engines}

    def _list_programs(self, start: Unit, *, engines: bool = False) -> Iterator[Unit]:
        """Yield the smallest units that reach both the start and an accountant, or an engine."""
        waiting, seen = deque([(start, 0)]), {id(start)}
        while waiting and len(seen) < _WIDEST:
            unit, distance = waiting.popleft()
            if unit.accountants or (engines and unit.engines):
                yield unit
                continue
            for user in unit.used_by.values():
                if id(user) not in seen and not (engines and distance >= _FARTHEST):
                    seen.add(id(user))
                    waiting.append((user, distance + 1))

    @cached_property
    def private(self) -> bool:
        """Whether the project contains differentially private training."""
        return any(unit.accountants or unit.engines for unit in self._units.values())


def _join(user: Unit, used: Unit) -> None:
    used.used_by[id(user)] = user


def _add(facts: dict[int, Fact], fact: Fact) -> bool:
    """Keep a fact, up to this many; tell whether it is new."""
    if len(facts) >= _MOST or id(fact) in facts:
        return False
    facts[id(fact)] = fact
    return True


def _rank(accountant: Accountant, module: Module, node: ast.AST) -> tuple[bool, int, int, int]:
    """Order accountants: those with an ε, of these near ones first."""
    kinds = {"accountant": 0, "hedged": 1, "training": 2}
    near = accountant.module is module and module.find_scope(accountant.node) in (
        None,
        module.find_scope(node),
    )
    said = kinds[accountant.kind] + accountant.own
    return accountant.kind == "training", 0 if near else 1, said, accountant.node.lineno
