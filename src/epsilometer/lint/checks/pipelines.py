"""Check pipelines and fits: SHUF003 to SHUF006, and SHUF009."""

import ast
from collections.abc import Iterator

from epsilometer.lint.chains import Shuffle, find_shuffles, is_ordered
from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, report_beside
from epsilometer.lint.flow import Number, Value
from epsilometer.lint.module import Call, Module, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import names_training
from epsilometer.lint.roles import Roles
from epsilometer.lint.suggestion import SIZE, list_numbers


def find_pipelines(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF003, SHUF004 and SHUF005: tf.data and the like, the most severe fault of each."""
    known: dict[int, list[Number]] = {}  # by module, each of which is read once
    for roles in programs.roles.values():
        module = roles.module
        if roles.coins:
            continue
        for shuffle in find_shuffles(module, programs.flow):
            sizes: list[Number] = []
            for beside in programs.list_beside(module, shuffle.node)[:1]:
                told = beside.accountant.module
                if id(told) not in known:
                    known[id(told)] = list_numbers(told, programs.flow, SIZE)
                sizes = known[id(told)]
            rule_id, seen = _find_fault(shuffle, sizes)
            if rule_id:
                node = shuffle.node
                yield from report_beside(
                    programs,
                    rule_id,
                    module,
                    node,
                    shown=node.func,
                    names=shuffle.names,
                    seen=seen,
                    numbers=None if shuffle.buffer is None else {"buffer": shuffle.buffer},
                )


def _find_fault(shuffle: Shuffle, sizes: list[Number]) -> tuple[str, str]:
    if shuffle.after_batch:
        return "SHUF004", ""
    size = shuffle.size if shuffle.size is not None else min(sizes, default=None)
    if shuffle.buffer is not None and size is not None and shuffle.buffer < size:
        return "SHUF005", f"The buffer holds {shuffle.buffer} of {size} records. "
    return ("SHUF003", "") if shuffle.before_batch else ("", "")


def find_ordered(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF009: a dataset that is batched and never shuffled, where it is trained on."""
    for roles in programs.roles.values():
        if programs.private and not roles.coins:
            for node, name in list_ordered(programs, roles):
                yield from report_beside(
                    programs, "SHUF009", roles.module, node, shown=node, names=(name,)
                )


def list_ordered(programs: Programs, roles: Roles) -> Iterator[tuple[ast.expr, str]]:
    """Yield what is trained on in the order of the data, with its name."""
    module = roles.module
    if not module.names.packages & module.catalogue.chains:
        return
    fed = [(loop.node.iter, write_name(loop.node.iter)) for loop in roles.loops if loop.trains]
    for call in module.calls:
        data = call.find_argument("x", position=0) if call.method == "fit" else None
        if data is not None and call.find_argument("y", position=1) is None:
            fed.append((data, write_name(data)))
    for expression, name in fed:
        if is_ordered(programs.flow, Value(expression, module)):
            yield expression, name


def find_fits(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF006 and SHUF009: ``fit(x, y, batch_size=...)``.

    Keras takes ``batch_size`` and labels with arrays only: datasets are batched already.
    """
    for roles in programs.roles.values():
        module = roles.module
        if not module.names.packages & module.catalogue.fit_shuffles:
            continue
        plain = _find_plain_models(module)
        for call in module.calls:
            if call.method != "fit" or not isinstance(call.function, ast.Attribute):
                continue
            option = call.find_argument("shuffle", position=8)
            batch_size = call.find_argument("batch_size", position=2)
            shown = batch_size if option is None else option
            if shown is None and is_fit_of_arrays(call):
                shown = call.node
            receiver = write_name(call.function.value)
            if shown is None or receiver in plain:
                continue
            value = True if option is None else programs.flow.evaluate(Value(option, module))
            if value is True:
                rule = "SHUF006"
            elif value is False and batch_size is not None and _is_of_arrays(call.positional):
                rule = "SHUF009"
            else:
                continue
            yield from report_beside(
                programs, rule, module, call.node, shown=shown, names=(receiver,)
            )


def is_fit_of_arrays(call: Call) -> bool:
    """Recognise ``fit(x, y, epochs=5)``: a dataset has its labels, and only Keras has epochs."""
    labels = call.find_argument("y", position=1)
    return labels is not None and call.find_argument("epochs", position=3) is not None


def _is_of_arrays(positional: list[ast.expr]) -> bool:
    return len(positional) > 1 or any(names_training(write_name(each)) for each in positional)


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
            if is_plain_optimizer(module, optimizer):
                models.add(write_name(call.function.value))
    return models


def is_plain_optimizer(module: Module, optimizer: ast.expr | None) -> bool:
    """Tell whether an optimizer is one of Keras itself, by its name or its class."""
    if isinstance(optimizer, ast.Name):
        optimizer = module.bindings.find_once(optimizer)
    match optimizer:
        case ast.Constant(value=str()):
            return True
        case ast.Call(func=function):
            packages = {package for package, _ in module.names.resolve(function)}
            return bool(packages & module.catalogue.fit_shuffles)
    return False
