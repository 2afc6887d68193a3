"""Check loops over permutations: SHUF007."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, report_beside
from epsilometer.lint.module import FUNCTIONS, Call, Module
from epsilometer.lint.programs import Programs

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def find_permuted_epochs(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF007: in a loop, a permutation that an inner loop cuts into slices."""
    for roles in programs.roles.values():
        if not roles.coins:
            yield from _find_permuted(programs, roles.module)


def _find_permuted(programs: Programs, module: Module) -> Iterator[Place]:
    cuts: dict[ast.AST, dict[str, ast.AST]] = {}  # a loop is looked through once
    for call in module.calls:
        name = _find_permutation(module, call)
        loop = _find_epoch(programs, module, call.node) if name else None
        if loop is None:
            continue
        if loop not in cuts:
            cuts[loop] = _find_first_cuts(loop)
        if name in cuts[loop] and _is_in_inner_loop(module, cuts[loop][name], loop):
            yield from report_beside(
                programs, "SHUF007", module, call.node, shown=call.node, names=(name,)
            )


def _find_epoch(programs: Programs, module: Module, node: ast.AST) -> ast.AST | None:
    """Return the loop of epochs around a node, or the function around it that is one epoch."""
    function = module.find_function(node)
    for parent in module.walk_up(node):
        if isinstance(parent, _LOOPS) and module.find_function(parent) is function:
            return parent
    if not isinstance(function, FUNCTIONS):
        return None
    words = [function.name, *(each.arg for each in function.args.args)]
    sites = programs.project.callers.get(id(function), [])
    repeated = any(
        isinstance(parent, _LOOPS)
        for site in sites
        for parent in site.module.walk_up(site.call.node)
    )
    return function if repeated and any("epoch" in word.lower() for word in words) else None


def _find_permutation(module: Module, call: Call) -> str:
    """Return the name that a call fills with a permutation; or empty."""
    if call.method in ("permutation", "randperm"):
        return module.find_target(call.node)
    in_place = call.method == "shuffle" and len(call.positional) == 1
    if in_place and isinstance(call.positional[0], ast.Name):
        return call.positional[0].id
    return ""


def _find_first_cuts(loop: ast.AST) -> dict[str, ast.AST]:
    """Return for each name the first slice of it, or of what is put in its order, in a loop."""
    ordered: dict[str, set[str]] = defaultdict(set)
    cuts: dict[str, tuple[int, ast.AST]] = {}
    for place, node in enumerate(ast.walk(loop)):
        match node:
            case ast.Assign():
                for order, names in _find_ordered(node):
                    ordered[order] |= names
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(lower=low, upper=up)):
                if low is not None and up is not None:
                    cuts.setdefault(name, (place, node))
    first = {}
    for name in {*cuts, *ordered}:
        own = [cuts[each] for each in {name, *ordered.get(name, ())} if each in cuts]
        if own:
            first[name] = min(own)[1]
    return first


def _find_ordered(node: ast.Assign) -> Iterator[tuple[str, set[str]]]:
    """Yield the permutations of ``x = x[order]``, with the names put in order; also in pairs."""
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    slices = [value.slice for value in values if isinstance(value, ast.Subscript)]
    target = node.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    for order in {each.id for each in slices if isinstance(each, ast.Name)}:
        yield order, names


def _is_in_inner_loop(module: Module, node: ast.AST, epoch: ast.AST) -> bool:
    for parent in module.walk_up(node):
        if parent is epoch:
            return False
        if isinstance(parent, (*_LOOPS, ast.ListComp, ast.GeneratorExp)):
            return True
    return False
