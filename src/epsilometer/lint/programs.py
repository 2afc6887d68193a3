"""Find what runs together: units of code, what each reaches, and the accountants beside a node."""

import ast
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from epsilometer.lint.flow import Flow
from epsilometer.lint.module import Call, Module
from epsilometer.lint.project import Project, Symbol
from epsilometer.lint.roles import Accountant, Roles

_MOST = 40  # facts of a kind that are carried from a unit to those that use it
_WIDEST = 300  # units above a node that are looked at


@dataclass(eq=False)
class Unit:
    """A function, a class, an assignment of a module, or what else a module does itself.

    Attributes:
        module: Where it is.
        used_by: Units that read its name, by their ids.
        accountants: Calls in it, or in what it reaches, that assume Poisson sampling.
        engines: Calls that replace a loader there.
        draws: Whether batches are drawn by coins there.
    """

    module: Module
    used_by: "dict[int, Unit]" = field(default_factory=dict)
    accountants: list[Accountant] = field(default_factory=list)
    engines: list[Call] = field(default_factory=list)
    draws: bool = False


@dataclass(frozen=True, eq=False)
class Beside:
    """An accountant that runs together with a node.

    Attributes:
        accountant: Which.
        together: Whether something of the project runs both; else they only share a file.
        engines: Engines that the program around both has.
    """

    accountant: Accountant
    together: bool
    engines: list[Call]


class Programs:
    """The units of a project and what each reaches."""

    def __init__(self, project: Project, flow: Flow) -> None:
        self.project, self.flow = project, flow
        self.roles = {id(module): Roles(module, flow) for module in project.modules}
        self._units: dict[tuple[int, int], Unit] = {}
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
        """Return the unit a node is in."""
        scope = module.find_scope(node)
        if scope is not None:
            return self._unit(module, scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._unit(module, node)
        for parent in (node, *module.walk_up(node)):
            if isinstance(parent, ast.Assign | ast.AnnAssign):
                return self._unit(module, parent)
        return self._unit(module, None)

    def _connect(self, module: Module) -> None:
        """Join a module's units to those whose names they read."""
        body = self._unit(module, None)
        assigned: dict[str, list[ast.AST]] = defaultdict(list)
        for node in module.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and module.find_scope(node) is None:
                _join(body, self._unit(module, node))
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for each in ast.walk(target):
                        if isinstance(each, ast.Name):
                            assigned[each.id].append(node)
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
            user = self.find_unit(module, node)
            for used in self._find_used(module, expression, assigned):
                if used is not user:
                    _join(user, used)

    def _find_used(
        self, module: Module, expression: ast.expr, assigned: dict[str, list[ast.AST]]
    ) -> Iterator[Unit]:
        symbol = self._resolve(module, expression)
        if symbol is None or not symbol.name:
            return
        if symbol.node is not None:
            yield self._unit(symbol.module, symbol.node)
        elif symbol.module is module:
            for node in assigned.get(symbol.name, [])[:_MOST]:
                yield self._unit(module, node)
        else:
            for binding in symbol.module.bindings.find_global(symbol.name)[:_MOST]:
                if binding.value is not None:
                    yield self.find_unit(symbol.module, binding.value)

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
        """Give every unit what the units that it reaches have; each unit is done a few times."""
        waiting = deque(
            unit
            for unit in self._units.values()
            if unit.accountants or unit.engines or unit.draws
        )
        queued = {id(unit) for unit in waiting}
        while waiting:
            unit = waiting.popleft()
            queued.discard(id(unit))
            for user in unit.used_by.values():
                grown = [_add(user.accountants, each) for each in unit.accountants]
                grown += [_add(user.engines, each) for each in unit.engines]
                if unit.draws and not user.draws:
                    user.draws = True
                    grown.append(True)
                if any(grown) and id(user) not in queued:
                    queued.add(id(user))
                    waiting.append(user)

    def list_beside(self, module: Module, node: ast.AST) -> list[Beside]:
        """Return the accountants that run together with a node, in the smallest program around.

        A program that draws batches by coins is left out: shuffles in it serve other ends.
        """
        roles = self.roles[id(module)]
        if roles.coins or module.names.packages & module.catalogue.clients:
            return []
        found: list[Beside] = []
        programs = list(self._list_programs(self.find_unit(module, node)))
        for unit in programs:
            if not unit.draws:
                loudest = min(unit.accountants, key=lambda each: _rank(each, module, node))
                if not self.roles[id(loudest.module)].coins:
                    found.append(Beside(loudest, True, unit.engines))
        if not programs and roles.accountants:
            loudest = min(roles.accountants[:_MOST], key=lambda each: _rank(each, module, node))
            # What is the module's own runs together with everything.
            together = None in (module.find_scope(node), module.find_scope(loudest.node))
            found.append(Beside(loudest, together, list(roles.engines)))
        return found

    def _list_programs(self, start: Unit) -> Iterator[Unit]:
        """Yield the smallest units that reach both the start and an accountant."""
        waiting, seen = deque([start]), {id(start)}
        while waiting and len(seen) < _WIDEST:
            unit = waiting.popleft()
            if unit.accountants:
                yield unit
                continue
            for user in unit.used_by.values():
                if id(user) not in seen:
                    seen.add(id(user))
                    waiting.append(user)

    @cached_property
    def private(self) -> bool:
        """Whether anything of the project is differentially private training."""
        return any(unit.accountants or unit.engines for unit in self._units.values())


def _join(user: Unit, used: Unit) -> None:
    used.used_by[id(user)] = user


def _add(facts: list, fact: object) -> bool:  # type: ignore[type-arg]
    if len(facts) >= _MOST or any(fact is each for each in facts):
        return False
    facts.append(fact)
    return True


def _rank(accountant: Accountant, module: Module, node: ast.AST) -> tuple[int, int, int]:
    """Order accountants: near ones first, then those with an ε."""
    kinds = {"accountant": 0, "hedged": 1, "training": 2}
    near = accountant.module is module and module.find_scope(accountant.node) in (
        None,
        module.find_scope(node),
    )
    return 0 if near else 1, kinds[accountant.kind], accountant.node.lineno
