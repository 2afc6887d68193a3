"""Check a module: one function per mistake yields the places where it is made."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from epsilometer.lint.module import Call, Module, Scope, write_name
from epsilometer.lint.pipelines import Shuffle, find_shuffles
from epsilometer.lint.rules import Severity
from epsilometer.lint.sampling import Sampling
from epsilometer.lint.suggestion import list_dataset_sizes

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
    """Yield all mistakes of a module, those in its tests left out: no ε leaves a test."""
    for find_mistakes in _CHECKS:
        for place in find_mistakes(sampling):
            if not sampling.is_in_test(place.call):
                yield place


def find_poisson_off(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF001: ``make_private(..., poisson_sampling=False)``.

    Not where the loader draws by coins already, nor without noise: then no ε is promised.
    """
    module = sampling.module
    for call in sampling.engines:
        option = call.find_argument("poisson_sampling")
        noiseless = module.read_value(call, "noise_multiplier") == 0
        if option is None or module.values.evaluate(option) is not False:
            continue
        if noiseless or sampling.by_coins:
            continue
        if call.method.endswith("epsilon") or sampling.reads_epsilon:
            yield _make_place("SHUF001", "error", call.node, option, f"In {call.method}().")
        else:
            detail = f"In {call.method}(). No ε is asked for in this file; elsewhere it may be."
            yield _make_place("SHUF001", "warning", call.node, option, detail)


def find_shuffled_loaders(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF002: ``DataLoader(shuffle=True)`` and what amounts to it."""
    module = sampling.module
    engines = {module.find_scope(engine.node) for engine in sampling.engines}
    accountants = {module.find_scope(accountant.node) for accountant in sampling.accountants}
    for call in module.calls:
        option = _find_shuffling(module, call)
        # A loader that make_private may replace is left out. That is not followed from function to
        # function: it is another loader only if it shares its function with an accountant alone.
        apart = engines and module.find_scope(call.node) not in accountants
        if option is None or apart or module.runs_together(call.node, engines):
            continue
        data = call.find_argument("dataset", position=0)
        dataset = "" if data is None else write_name(data)
        yield from _report_beside(sampling, "SHUF002", call.node, option, names=(dataset,))


def _find_shuffling(module: Module, call: Call) -> ast.expr | None:
    """Return what makes a loader shuffle: the argument that says so, or the call itself."""
    loaders = module.catalogue.loaders
    loader = next((loaders[name] for name in call.known if name in loaders), None)
    if loader is None:
        return None
    option = call.find_argument(loader.argument, position=loader.position)
    value = loader.default if option is None else module.values.evaluate(option)
    return (option or call.node) if value is loader.shuffles_when else None


def find_shuffled_pipelines(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF003, SHUF004 and SHUF005: tf.data and its kin, the gravest fault of each."""
    if not sampling.accountants or sampling.by_coins:
        return
    sizes = list_dataset_sizes(sampling.module)
    for shuffle in find_shuffles(sampling.module):
        rule_id, seen = _find_fault(shuffle, sizes)
        if rule_id:
            node = shuffle.node
            yield from _report_beside(sampling, rule_id, node, node.func, shuffle.names, seen)


def _find_fault(shuffle: Shuffle, sizes: list[int | float]) -> tuple[str, str]:
    if shuffle.after_batch:
        return "SHUF004", ""
    size = shuffle.size if shuffle.size is not None else min(sizes, default=None)
    if shuffle.buffer is not None and size is not None and shuffle.buffer < size:
        return "SHUF005", f"The buffer holds {shuffle.buffer} of {size} records. "
    return ("SHUF003", "") if shuffle.before_batch else ("", "")


def find_shuffled_fits(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF006: ``fit(x, y, batch_size=...)``.

    Keras takes ``batch_size`` with arrays only, so it tells arrays (shuffled) from datasets.
    """
    module = sampling.module
    if not module.names.list_packages() & module.catalogue.fit_shuffles:
        return
    plain = _find_plain_models(module)
    for call in module.calls:
        if call.method != "fit" or not isinstance(call.function, ast.Attribute):
            continue
        option = call.find_argument("shuffle", position=8)
        batch_size = call.find_argument("batch_size", position=2)
        shown = batch_size if option is None else option
        shuffles_arrays = option is None or module.values.evaluate(option) is True
        receiver = write_name(call.function.value)
        if shown is None or not shuffles_arrays or receiver in plain:
            continue
        yield from _report_beside(sampling, "SHUF006", call.node, shown, names=(receiver,))


def _find_plain_models(module: Module) -> set[str]:
    """Return models that are compiled with an optimizer that is not private.

    Only said where DP is the optimizer's doing: DPModel and JAX-Privacy take any optimizer.
    """
    dp = {name for call in module.calls for root, name in call.known if "privacy" in root}
    if not any(name.endswith("Optimizer") for name in dp) or dp & {"DPModel", "DPSequential"}:
        return set()
    models = set()
    for call in module.calls:
        if call.method == "compile" and isinstance(call.function, ast.Attribute):
            optimizer = call.find_argument("optimizer", position=0)
            if _is_plain(module, optimizer):
                models.add(write_name(call.function.value))
    return models


def _is_plain(module: Module, optimizer: ast.expr | None) -> bool:
    if isinstance(optimizer, ast.Name):
        optimizer = module.values.find_assigned(optimizer)
    match optimizer:
        case ast.Constant(value=str()):
            return True
        case ast.Call(func=function):
            packages = {package for package, _ in module.names.resolve(function)}
            return bool(packages & module.catalogue.fit_shuffles)
    return False


def find_permuted_epochs(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF007: in a loop, a permutation that an inner loop cuts into slices."""
    module = sampling.module
    if not sampling.accountants or sampling.by_coins:
        return
    cuts: dict[ast.AST, dict[str, ast.AST]] = {}  # a loop is looked through once
    for call in module.calls:
        name = _find_permutation(module, call)
        loops = (node for node in module.walk_up(call.node) if isinstance(node, _LOOPS))
        loop = next(loops, None) if name else None
        if loop is None or module.find_function(loop) is not module.find_function(call.node):
            continue
        if loop not in cuts:
            cuts[loop] = _find_first_cuts(loop)
        if name in cuts[loop] and _is_in_inner_loop(module, cuts[loop][name], loop):
            yield from _report_beside(sampling, "SHUF007", call.node, call.node, names=(name,))


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


def find_dropped_loaders(sampling: Sampling) -> Iterator[Place]:
    """Yield SHUF008: ``..., _ = engine.make_private(data_loader=loader)``, and then ``loader``."""
    module = sampling.module
    read, fed = _find_reads(module), _find_feeds(module)
    for call in sampling.engines:
        handed = call.find_argument("data_loader")
        if module.read_value(call, "poisson_sampling") is False or not isinstance(handed, ast.Name):
            continue
        name = _find_returned(module, call)
        if name is None or name == handed.id or module.runs_together(call.node, read[name]):
            continue
        if fed.get((module.find_function(call.node), handed.id), 0) >= call.node.lineno:
            detail = f"{handed.id} is looped over after make_private(), {name} is not."
            yield _make_place("SHUF008", "error", call.node, handed, detail)


def _find_returned(module: Module, call: Call) -> str | None:
    """Return the name that takes the loader, which comes last."""
    match module.parents.get(id(call.node)):
        case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id=name)])]):
            return name
    return None


def _find_reads(module: Module) -> dict[str, set[Scope]]:
    """Return where each name is read."""
    reads: dict[str, set[Scope]] = defaultdict(set)
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            reads[node.id].add(module.find_scope(node))
    return reads


def _find_feeds(module: Module) -> dict[tuple[Scope, str], int]:
    """Return the last line where a loop, or its memory manager, takes batches from a name."""
    feeds: dict[tuple[Scope, str], int] = {}
    for node in module.nodes:
        match node:
            case ast.For(iter=source):
                names = [_find_iterated(source)]
            case ast.Call(func=ast.Name(id="BatchMemoryManager"), keywords=keywords):
                names = [write_name(keyword.value) for keyword in keywords]
            case _:
                continue
        for name in names:
            place = (module.find_function(node), name)
            feeds[place] = max(feeds.get(place, 0), node.lineno)
    return feeds


def _find_iterated(source: ast.expr) -> str:
    """Return ``loader`` of ``loader``, ``enumerate(loader)``, ``tqdm(enumerate(loader))``."""
    while isinstance(source, ast.Call) and source.args:
        source = source.args[0]
    return source.id if isinstance(source, ast.Name) else ""


_CHECKS = (
    find_poisson_off,
    find_shuffled_loaders,
    find_shuffled_pipelines,
    find_shuffled_fits,
    find_permuted_epochs,
    find_dropped_loaders,
)


def _report_beside(
    sampling: Sampling,
    rule_id: str,
    call: ast.AST,
    shown: ast.AST,
    names: tuple[str, ...] = (),
    seen: str = "",
) -> Iterator[Place]:
    """Yield a mistake that is one only beside an accountant, where private data are fed."""
    accountant = sampling.find_nearest(call)
    if accountant is None or sampling.serves_other_ends(call, *names):
        return
    severity, said = sampling.judge(accountant, call)
    yield _make_place(rule_id, severity, call, shown, seen + said)


def _make_place(
    rule_id: str, severity: Severity, call: ast.AST, shown: ast.AST, detail: str
) -> Place:
    line, column = getattr(shown, "lineno", 1), getattr(shown, "col_offset", 0)
    if isinstance(shown, ast.Attribute):  # the method's own name, on its own line of a chain
        line, column = shown.end_lineno or line, (shown.end_col_offset or 0) - len(shown.attr)
    return Place(rule_id, severity, call, line, column, detail)
