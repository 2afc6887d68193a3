"""Check that books cover the whole training: BOOK005."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from epsilometer.lint.checks.books import restores_books
from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, make_place
from epsilometer.lint.module import FUNCTIONS, Module, split_words, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import serves_other_ends
from epsilometer.lint.rules import Severity

_TURNS = {"epoch", "round", "rnd"}
_MODEL = re.compile(r"model|net|module|classifier|learner|critic|generator|discriminator", re.I)
_ROUND = "in every round"
_COPIES = {"deepcopy", "copy", "clone", "fix", "load", "load_model"}


def find_new_books(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield BOOK005: an engine or accountant made again in every epoch or round of a training.

    Not if a new model is made with it: then every turn is a separate training.
    """
    restores, adds_up = cache(restores_books), cache(_adds_up)  # a file is read once
    turns = _Turns(programs)
    asked = any(roles.reads_epsilon for roles in programs.roles.values())
    for roles in programs.roles.values():
        module = roles.module
        for call in module.calls:
            if not call.known & module.catalogue.books or serves_other_ends(module, call.node):
                continue
            turn = turns.find(module, call.node)
            if not turn or adds_up(module):
                continue
            for unit in programs.list_private(module, call.node):
                if any(restores(each) for each in (module, *programs.list_modules(unit))):
                    continue
                promised = any(each.method.endswith("epsilon") for each in unit.engines.values())
                severity: Severity = "error" if asked or promised else "warning"
                detail = f"{call.method}() is made again {turn}."
                yield make_place("BOOK005", severity, module, call.node, detail)
                break


class _Turns:
    """Find which parts of a training are repeated. A loop or function is read once."""

    def __init__(self, programs: Programs) -> None:
        self._project = programs.project
        self._makes_model = cache(_makes_model)

    def find(self, module: Module, node: ast.AST) -> str:
        """Say in which repeated part of a training a node is; empty if in none."""
        turn = self._name(module, node)
        function = module.find_function(node)
        if turn or not isinstance(function, FUNCTIONS):
            return turn
        for site in self._project.callers.get(id(function), []):
            turn = self._name(site.module, site.call.node)
            if turn and (turn.startswith(_ROUND) or not self._makes_model(module, function)):
                where = "" if site.module is module else f"{site.module.path}: "
                return f"by {function.name}(), {where}{turn}"
        return ""

    def _name(self, module: Module, node: ast.AST) -> str:
        """Name the loop or the round of a client that a node itself is in."""
        loop = self._find_loop(module, node)
        if loop is not None:
            return f"in every turn of the loop of {module.point_at(loop)}"
        function, around = module.find_function(node), module.find_class(node)
        if not isinstance(function, FUNCTIONS):
            return ""
        bases = self._project.find_bases(module, around) if around is not None else set()
        if around is not None and function.name == "fit" and bases & module.catalogue.rounds:
            return f"{_ROUND}: fit() of {around.name} runs once in each"
        if _is_round_of_app(module, function):
            return f"{_ROUND}: {function.name}() runs once in each"
        return ""

    def _find_loop(self, module: Module, node: ast.AST) -> ast.For | None:
        """Return the loop over epochs or rounds around a node that trains one model on."""
        for parent in module.walk_up(node):
            if isinstance(parent, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
                return None
            if isinstance(parent, ast.For):
                names = [each.id for each in ast.walk(parent.target) if isinstance(each, ast.Name)]
                turns = any(_TURNS & set(split_words(name)) for name in names)
                if turns and not self._makes_model(module, parent):
                    return parent
        return None


def _is_round_of_app(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Recognise ``@app.train()`` of a framework that trains in rounds."""
    if not module.names.packages & {package for package, _ in module.catalogue.rounds}:
        return False
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "train"
        for each in function.decorator_list
    )


def _makes_model(module: Module, part: ast.AST) -> bool:
    """Tell whether a part of a program makes a new model, other than of the one it had."""
    for node in ast.walk(part):
        match node:
            case ast.Assign(targets=[target], value=ast.Call() as made):
                name = write_name(target)
                last = write_name(made.func).rpartition(".")[2]
                if not _MODEL.search(name) or last in _COPIES or last in module.catalogue.engines:
                    continue
                read = {write_name(each) for each in ast.walk(made) if isinstance(each, ast.expr)}
                if name not in read:
                    return True
            case ast.keyword(arg="module", value=ast.Call(func=function)):
                if write_name(function).rpartition(".")[2] not in _COPIES:
                    return True
    return False


def _adds_up(module: Module) -> bool:
    """Recognise ``total += engine.get_epsilon(delta)``: the ε of rounds is composed by hand."""
    return any(
        isinstance(node, ast.AugAssign)
        and any(
            "eps" in write_name(each).lower()
            for each in (node.target, *ast.walk(node.value))
            if isinstance(each, ast.expr)
        )
        for node in module.nodes
    )
