"""One function a mistake: each yields the places where it is made."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from epsilometer.lint.findings import Severity
from epsilometer.lint.libraries import LOADERS
from epsilometer.lint.module import Call, Module, text
from epsilometer.lint.pipelines import Shuffle, shuffles
from epsilometer.lint.sampling import Sampling
from epsilometer.lint.suggestion import dataset_sizes
from epsilometer.lint.values import Scope

_KERAS = {"tensorflow", "keras", "tf_keras"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Place:
    """Where a mistake is made: the call, and the part of it to point at."""

    rule_id: str
    severity: Severity
    call: ast.AST
    line: int
    column: int
    detail: str


def check(sampling: Sampling) -> Iterator[Place]:
    """All mistakes of a module, those in its tests left out: no ε leaves a test."""
    for mistakes in _CHECKS:
        for place in mistakes(sampling):
            if not sampling.is_in_test(place.call):
                yield place


def poisson_sampling_off(sampling: Sampling) -> Iterator[Place]:
    """SHUF001: ``make_private(..., poisson_sampling=False)``.

    Not where the loader draws by coins already, nor without noise: then no ε is promised.
    """
    module = sampling.module
    for call in sampling.engines:
        option = module.argument(call, "poisson_sampling")
        noiseless = module.value(call, "noise_multiplier") == 0
        if option is None or module.values.of(option) is not False:
            continue
        if noiseless or sampling.by_coins:
            continue
        if call.method.endswith("epsilon") or sampling.reads_epsilon:
            yield _place("SHUF001", "error", call.node, option, f"In {call.method}().")
        else:
            detail = f"In {call.method}(). No ε is asked for in this file; elsewhere it may be."
            yield _place("SHUF001", "warning", call.node, option, detail)


def shuffled_loaders(sampling: Sampling) -> Iterator[Place]:
    """SHUF002: ``DataLoader(shuffle=True)`` and what amounts to it."""
    module = sampling.module
    engines = {module.scope(engine.node) for engine in sampling.engines}
    accountants = {module.scope(accountant.node) for accountant in sampling.accountants}
    for call in module.calls:
        option = _shuffling(module, call)
        if option is None or _is_made_private(module, call, engines, accountants):
            continue
        dataset = text(call.positional[0]) if call.positional else ""
        if "dataset" in call.arguments:
            dataset = text(call.arguments["dataset"])
        yield from _beside(sampling, "SHUF002", call.node, option, names=(dataset,))


def _shuffling(module: Module, call: Call) -> ast.expr | None:
    """What makes a loader shuffle: the argument that says so, or the call itself."""
    loader = next((LOADERS[name] for name in call.known if name in LOADERS), None)
    if loader is None:
        return None
    option = module.argument(call, loader.name, position=loader.position)
    if option is None:
        return call.node if loader.default is loader.when else None
    return option if module.values.of(option) is loader.when else None


def _is_made_private(
    module: Module, call: Call, engines: set[Scope], accountants: set[Scope]
) -> bool:
    """Whether the loader may be one that ``make_private`` replaces.

    That is not followed from function to function: where there is an engine, only a loader that
    shares its function with an accountant, and not with the engine, is told apart.
    """
    if not engines:
        return False
    own = module.scope(call.node)
    return own is None or None in engines or own in engines or own not in accountants


def shuffled_pipelines(sampling: Sampling) -> Iterator[Place]:
    """SHUF003, SHUF004 and SHUF005: tf.data and its kin. A shuffle is told its gravest fault."""
    if not sampling.accountants or sampling.by_coins:
        return
    told = dataset_sizes(sampling.module)
    for shuffle in shuffles(sampling.module):
        rule_id, seen = _fault(shuffle, told)
        if rule_id:
            node = shuffle.node
            yield from _beside(sampling, rule_id, node, node.func, shuffle.names, seen)


def _fault(shuffle: Shuffle, told: list[int | float]) -> tuple[str, str]:
    if shuffle.after_batch:
        return "SHUF004", ""
    size = shuffle.size if shuffle.size is not None else min(told, default=None)
    if shuffle.buffer is not None and size is not None and shuffle.buffer < size:
        return "SHUF005", f"The buffer holds {shuffle.buffer} of {size} records. "
    return ("SHUF003", "") if shuffle.before_batch else ("", "")


def shuffled_fits(sampling: Sampling) -> Iterator[Place]:
    """SHUF006: ``fit(x, y, batch_size=...)``.

    Keras takes ``batch_size`` with arrays only, so it tells arrays (shuffled) from datasets.
    """
    module = sampling.module
    if not module.names.packages() & _KERAS:
        return
    plain = _compiled_plainly(module)
    for call in module.calls:
        if call.method != "fit" or not isinstance(call.function, ast.Attribute):
            continue
        option = module.argument(call, "shuffle", position=8)
        batch_size = module.argument(call, "batch_size", position=2)
        shown = batch_size if option is None else option
        shuffles_arrays = option is None or module.values.of(option) is True
        receiver = text(call.function.value)
        if shown is None or not shuffles_arrays or receiver in plain:
            continue
        yield from _beside(sampling, "SHUF006", call.node, shown, names=(receiver,))


def _compiled_plainly(module: Module) -> set[str]:
    """Models that are compiled with an optimizer that is not private.

    Only said where DP is the optimizer's doing: DPModel and JAX-Privacy take any optimizer.
    """
    dp = {name for call in module.calls for root, name in call.known if "privacy" in root}
    if not any(name.endswith("Optimizer") for name in dp) or dp & {"DPModel", "DPSequential"}:
        return set()
    found = set()
    for call in module.calls:
        if call.method == "compile" and isinstance(call.function, ast.Attribute):
            optimizer = module.argument(call, "optimizer", position=0)
            if _is_plain(module, optimizer):
                found.add(text(call.function.value))
    return found


def _is_plain(module: Module, optimizer: ast.expr | None) -> bool:
    if isinstance(optimizer, ast.Name):
        optimizer = module.values.assigned(optimizer)
    match optimizer:
        case ast.Constant(value=str()):
            return True
        case ast.Call(func=function):
            return bool({root for root, _ in module.names.known(function)} & _KERAS)
    return False


def permuted_epochs(sampling: Sampling) -> Iterator[Place]:
    """SHUF007: in a loop, a permutation that an inner loop cuts into slices."""
    module = sampling.module
    if not sampling.accountants or sampling.by_coins:
        return
    cuts: dict[ast.AST, dict[str, ast.AST]] = {}  # a loop is looked through once
    for call in module.calls:
        name = _permuted(module, call)
        loops = (node for node in module.around(call.node) if isinstance(node, _LOOPS))
        loop = next(loops, None) if name else None
        if loop is None or module.function(loop) is not module.function(call.node):
            continue
        if loop not in cuts:
            cuts[loop] = _first_cuts(loop)
        if name in cuts[loop] and _is_in_inner_loop(module, cuts[loop][name], loop):
            yield from _beside(sampling, "SHUF007", call.node, call.node, names=(name,))


def _permuted(module: Module, call: Call) -> str:
    """The name that a call fills with a permutation; or empty."""
    if call.method in ("permutation", "randperm"):
        return module.target(call.node)
    in_place = call.method == "shuffle" and len(call.positional) == 1
    if in_place and isinstance(call.positional[0], ast.Name):
        return call.positional[0].id
    return ""


def _first_cuts(loop: ast.AST) -> dict[str, ast.AST]:
    """For each name the first slice of it, or of what is put in its order, in a loop."""
    ordered: dict[str, set[str]] = defaultdict(set)
    cuts: dict[str, tuple[int, ast.AST]] = {}
    for place, node in enumerate(ast.walk(loop)):
        match node:
            case ast.Assign():
                for order, names in _put_in_order(node):
                    ordered[order] |= names
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(lower=low, upper=up)):
                if low is not None and up is not None:
                    cuts.setdefault(name, (place, node))
    found = {}
    for name in {*cuts, *ordered}:
        own = [cuts[each] for each in {name, *ordered.get(name, ())} if each in cuts]
        if own:
            found[name] = min(own)[1]
    return found


def _put_in_order(node: ast.Assign) -> Iterator[tuple[str, set[str]]]:
    """The permutations of ``x = x[order]``, with the names that are put in order; also in pairs."""
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    slices = [value.slice for value in values if isinstance(value, ast.Subscript)]
    target = node.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    for order in {each.id for each in slices if isinstance(each, ast.Name)}:
        yield order, names


def _is_in_inner_loop(module: Module, node: ast.AST, epoch: ast.AST) -> bool:
    for parent in module.around(node):
        if parent is epoch:
            return False
        if isinstance(parent, (*_LOOPS, ast.ListComp, ast.GeneratorExp)):
            return True
    return False


def dropped_loaders(sampling: Sampling) -> Iterator[Place]:
    """SHUF008: ``..., _ = engine.make_private(data_loader=loader)``, and then ``loader``."""
    module = sampling.module
    read, fed = _read(module), _fed(module)
    for call in sampling.engines:
        handed = module.argument(call, "data_loader")
        if module.value(call, "poisson_sampling") is False or not isinstance(handed, ast.Name):
            continue
        kept = _kept(module, call)
        if kept is None or kept == handed.id or module.shared(call.node, read[kept]):
            continue
        if fed.get((module.function(call.node), handed.id), 0) >= call.node.lineno:
            detail = f"{handed.id} is looped over after make_private(), {kept} is not."
            yield _place("SHUF008", "error", call.node, handed, detail)


def _kept(module: Module, call: Call) -> str | None:
    """The name that takes the loader, which comes last."""
    match module.parents.get(id(call.node)):
        case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id=name)])]):
            return name
    return None


def _read(module: Module) -> dict[str, set[Scope]]:
    """Where each name is read."""
    found: dict[str, set[Scope]] = defaultdict(set)
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id].add(module.scope(node))
    return found


def _fed(module: Module) -> dict[tuple[Scope, str], int]:
    """The last line where a loop, or the memory manager around it, takes batches from a name."""
    found: dict[tuple[Scope, str], int] = {}
    for node in module.nodes:
        match node:
            case ast.For(iter=source):
                names = [_looped_over(source)]
            case ast.Call(func=ast.Name(id="BatchMemoryManager"), keywords=keywords):
                names = [text(keyword.value) for keyword in keywords]
            case _:
                continue
        for name in names:
            place = (module.function(node), name)
            found[place] = max(found.get(place, 0), node.lineno)
    return found


def _looped_over(source: ast.expr) -> str:
    """``loader``, ``enumerate(loader)``, ``tqdm(enumerate(loader))``."""
    while isinstance(source, ast.Call) and source.args:
        source = source.args[0]
    return source.id if isinstance(source, ast.Name) else ""


_CHECKS = (
    poisson_sampling_off,
    shuffled_loaders,
    shuffled_pipelines,
    shuffled_fits,
    permuted_epochs,
    dropped_loaders,
)


def _beside(
    sampling: Sampling,
    rule_id: str,
    call: ast.AST,
    shown: ast.AST,
    names: tuple[str, ...] = (),
    seen: str = "",
) -> Iterator[Place]:
    """A mistake that is one only beside an accountant, and only where private data are fed."""
    accountant = sampling.nearest(call)
    if accountant is None or sampling.serves_other_ends(call, *names):
        return
    severity = sampling.severity(accountant, call)
    yield _place(rule_id, severity, call, shown, seen + sampling.said(accountant, call))


def _place(rule_id: str, severity: Severity, call: ast.AST, shown: ast.AST, detail: str) -> Place:
    line, column = getattr(shown, "lineno", 1), getattr(shown, "col_offset", 0)
    if isinstance(shown, ast.Attribute):  # the method's own name, on its own line of a chain
        line, column = shown.end_lineno or line, (shown.end_col_offset or 0) - len(shown.attr)
    return Place(rule_id, severity, call, line, column, detail)
