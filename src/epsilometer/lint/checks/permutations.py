"""Check loops that cut their own batches: SHUF007 and SHUF009."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, report_beside
from epsilometer.lint.module import FUNCTIONS, Call, Module, split_words, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.roles import Roles

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_PERMUTES = ("permutation", "randperm")
_DRAWS = {*_PERMUTES, "shuffle", "choice", "choices", "randint", "integers", "sample"}
_PARTS = {"split", "array_split", "tensor_split", "chunk", "reshape", "view", "batched"}
_SAME = {"to", "cuda", "tolist", "numpy", "astype", "long", "enumerate", "tqdm", "zip", "list",
         "iter", "asarray", "array", "device_put"}  # fmt: skip
_BUDGET = 20  # expressions that are followed from a loop to the permutation it takes parts of


@dataclass(frozen=True, eq=False)
class Cut:
    """A loop that cuts batches itself.

    Attributes:
        rule_id: SHUF007 if a permutation is cut, SHUF009 if the data in their order.
        node: What shows it.
        name: What is cut.
    """

    rule_id: str
    node: ast.expr
    name: str


def find_cut_batches(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF007 and SHUF009: a permutation, or the data in their order, cut into batches."""
    for roles in programs.roles.values():
        if not roles.coins and programs.private:
            for cut in list_cuts(programs, roles):
                yield from report_beside(
                    programs,
                    cut.rule_id,
                    roles.module,
                    cut.node,
                    shown=cut.node,
                    names=(cut.name,),
                    replaced=cut.rule_id == "SHUF009",
                )


def list_cuts(programs: Programs, roles: Roles) -> list[Cut]:
    """Return the loops of a module that cut their own batches, each permutation once."""
    found = [*_list_permuted(programs, roles.module)]
    known = {id(cut.node) for cut in found}
    for loop in roles.loops:
        parted = _find_parted(roles.module, loop.node.iter) if loop.trains else None
        if parted is not None and id(parted) not in known:
            known.add(id(parted))
            found.append(Cut("SHUF007", parted, write_name(loop.node.iter)))
    return [*found, *_list_sequential(roles)]


def _list_permuted(programs: Programs, module: Module) -> Iterator[Cut]:
    """Yield permutations that an inner loop cuts into slices."""
    cuts: dict[ast.AST, dict[str, ast.AST]] = {}  # a loop is searched once
    for call in module.calls:
        name = _find_permutation(module, call)
        loop = _find_epoch(programs, module, call.node) if name else None
        if loop is None:
            continue
        if loop not in cuts:
            cuts[loop] = _find_first_cuts(loop)
        if name in cuts[loop] and _is_in_inner_loop(module, cuts[loop][name], loop):
            yield Cut("SHUF007", call.node, name)


def _find_parted(module: Module, over: ast.expr) -> ast.Call | None:
    """Return the permutation whose parts a loop takes: ``torch.randperm(n).split(64)``."""
    waiting: list[tuple[ast.expr, bool]] = [(over, False)]
    seen: set[tuple[int | str, bool]] = set()
    while waiting and len(seen) < _BUDGET:
        expression, parted = waiting.pop()
        key = (expression.id if isinstance(expression, ast.Name) else id(expression), parted)
        if key in seen:
            continue
        seen.add(key)
        match expression:
            case ast.Name():
                _, bound = module.bindings.find(expression)
                waiting += [(each.value, parted) for each in bound if each.value and not each.path]
            case ast.Subscript(value=value, slice=index):
                waiting += [(each, parted) for each in (value, index) if _is_plain(each)]
            case ast.Call(func=function, args=arguments):
                name = _name_last(function)
                if name in _PERMUTES:
                    if parted:
                        return expression
                elif name in _PARTS | _SAME:
                    inner = [*arguments[:2], *_list_receiver(function)]
                    waiting += [(each, parted or name in _PARTS) for each in inner]
    return None


def _is_plain(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name | ast.Call | ast.Subscript)


def _name_last(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _list_receiver(function: ast.expr) -> list[ast.expr]:
    return [function.value] if isinstance(function, ast.Attribute) else []


def _list_sequential(roles: Roles) -> Iterator[Cut]:
    """Yield ``for i in range(0, n, size): step(data[i : i + size])``, in a loop of epochs."""
    module = roles.module
    drawn = {id(module.find_function(call.node)) for call in module.calls if call.method in _DRAWS}
    seen: set[int] = set()
    for step in roles.weight_updates:
        loop = next((each for each in module.walk_up(step.node) if isinstance(each, _LOOPS)), None)
        if not isinstance(loop, ast.For) or id(loop) in seen:
            continue
        seen.add(id(loop))
        if id(module.find_function(loop)) in drawn or not _is_epoch(module, loop):
            continue
        for node in ast.walk(loop):
            name = _find_slice_of_turn(module, loop, node)
            if name is not None and isinstance(node, ast.expr):
                if not _is_made_in_turn(module, loop, name):
                    yield Cut("SHUF009", node, name.id)
                break


def _is_epoch(module: Module, loop: ast.For) -> bool:
    """Tell whether a loop over batches is one epoch: by the loop or the function around it."""
    if _name_last(loop.iter.func if isinstance(loop.iter, ast.Call) else loop.iter) != "range":
        return False
    for parent in module.walk_up(loop):
        match parent:
            case ast.While():
                return True
            case ast.For(iter=ast.Call(func=function)):
                return _name_last(function) in ("range", "trange", "tqdm")
            case ast.For():
                return False
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return bool({"epoch", "train", "fit"} & set(split_words(name)))
    return False


def _find_slice_of_turn(module: Module, loop: ast.For, node: ast.AST) -> ast.Name | None:
    """Return what a node cuts the next batch from: ``x`` of ``x[i : i + size]``."""
    match node, loop.target, loop.iter:
        case (
            ast.Subscript(value=ast.Name() as name, slice=ast.Slice(lower=ast.expr() as low,
                upper=ast.expr())),
            ast.Name(id=turn),
            ast.Call(args=ends),
        ):  # fmt: skip
            if isinstance(low, ast.Name) and low.id != turn:
                low = module.bindings.find_once(low) or low
            match low:
                case ast.Name(id=own) if own == turn and len(ends) == 3:
                    return name
                case ast.BinOp(left=left, op=ast.Mult(), right=right):
                    if turn in (write_name(left), write_name(right)):
                        return name
    return None


def _is_made_in_turn(module: Module, loop: ast.For, name: ast.Name) -> bool:
    """Tell whether what is cut is made again in the loop around: then it is not a dataset."""
    outer = next((each for each in module.walk_up(loop) if isinstance(each, _LOOPS)), loop)
    _, bound = module.bindings.find(name)
    end = outer.end_lineno or outer.lineno
    return any(outer.lineno <= each.line <= end for each in bound)


def _find_epoch(programs: Programs, module: Module, node: ast.AST) -> ast.AST | None:
    """Return the loop of epochs around a node, or the function around it that is one epoch."""
    function = module.find_function(node)
    for parent in module.walk_up(node):
        if isinstance(parent, _LOOPS) and module.find_function(parent) is function:
            return parent
    if not isinstance(function, FUNCTIONS):
        return None
    if function.name == "__iter__" or id(function) in module.generators:
        return function
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
    if call.method in _PERMUTES:
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
