"""Check models and model selection: MODL001 and DATA001."""

import ast
from collections.abc import Iterator

from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, make_place
from epsilometer.lint.flow import Value
from epsilometer.lint.module import Call, Module, split_words, write_name
from epsilometer.lint.programs import Programs, Unit
from epsilometer.lint.purposes import is_in_test, is_other_end
from epsilometer.lint.roles import Roles

_REPAIRS = {"fix", "convert_batchnorm_modules", "replace_batchnorm", "get_compatible_module"}
_KEEPS = {"save", "deepcopy", "state_dict", "save_pretrained", "save_model", "save_checkpoint",
          "save_weights", "copy", "dump", "clone"}  # fmt: skip
_SCORES = {"acc", "accuracy", "loss", "score", "f", "auc", "metric", "perplexity", "ppl"}


def find_mixers(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield MODL001: a layer that mixes the records of a batch, in a model trained with DP."""
    for roles in programs.roles.values():
        module = roles.module
        for call in module.calls:
            if not call.known & module.catalogue.mixers or _is_for_other_ends(module, call):
                continue
            for unit in programs.list_private(module, call.node):
                said = _find_acceptance(programs, unit, module)
                if said:
                    detail = f"{call.method} computes with all records of a batch. {said}"
                    beside = programs.list_modules(unit)[-1]
                    yield make_place("MODL001", "error", module, call.node, detail, beside=beside)
                    break


def _is_for_other_ends(module: Module, call: Call) -> bool:
    around = module.find_class(call.node)
    names = [] if around is None else [around.name]
    names += [
        each.name
        for each in module.walk_up(call.node)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(is_other_end(name) for name in names)


def _find_acceptance(programs: Programs, unit: Unit, reader: Module) -> str:
    """Say what trains such a model all the same; empty if the engine refuses it."""
    modules = programs.list_modules(unit)
    if any(call.method in _REPAIRS for module in modules for call in module.calls):
        return ""
    for module in modules:
        for call in module.calls:
            for name in sorted(module.catalogue.strict & set(call.arguments)):
                if programs.roles[id(module)].evaluate(call, name) is False:
                    where = module.point_at(call.node, reader=reader)
                    return f"{call.method} ({where}) has {name}=False."
    refuses = bool(unit.engines) or any(
        call.method in ("PrivacyEngine", "GradSampleModule") and "opacus" in call.packages
        for module in modules
        for call in module.calls
    )
    trained = list(unit.accountants.values())
    if refuses or not trained:
        return ""
    where = trained[0].module.point_at(trained[0].node, reader=reader)
    return f"Nothing refuses it: {trained[0].name} ({where})."


def find_selection(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield DATA001: a model, a setting or a learning rate is chosen by a score on records."""
    for roles in programs.roles.values():
        module = roles.module
        for node, what in (*_list_selectors(programs, roles), *_list_best(module)):
            units = [] if is_in_test(module, node) else programs.list_private(module, node)
            if units:
                beside = programs.list_modules(units[0])[-1]
                yield make_place("DATA001", "warning", module, node, what, beside=beside)


def _list_selectors(programs: Programs, roles: Roles) -> Iterator[tuple[ast.AST, str]]:
    module = roles.module
    selectors = module.catalogue.selectors
    for call in module.calls:
        for name in sorted(call.known & set(selectors)):
            needed = selectors[name]
            monitor = call.find_argument("monitor")
            watched = None
            if monitor is not None:
                watched = programs.flow.evaluate(Value(monitor, module))
            if isinstance(watched, str) and _is_public(watched):
                continue
            given = [each for each in needed if _is_switched_on(programs, module, call, each)]
            if not needed or given:
                said = watched if isinstance(watched, str) else "a score"
                yield call.node, f"{call.method} decides by {said}."


def _is_switched_on(programs: Programs, module: Module, call: Call, name: str) -> bool:
    argument = call.find_argument(name)
    if argument is None:
        return False
    value = programs.flow.evaluate(Value(argument, module))
    return value is True or (isinstance(value, str) and value not in ("epoch", "step"))


def _is_public(name: str) -> bool:
    return "public" in split_words(name)


def _list_best(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield ``if val_acc > best: save(model)``."""
    for node in module.nodes:
        match node:
            case ast.If(test=ast.Compare(left=left, ops=[_], comparators=[right]) as test):
                names = [write_name(left) or _word(left), write_name(right) or _word(right)]
                words = [
                    set(split_words(" ".join([name, *_list_scored(module, side)])))
                    for name, side in zip(names, (left, right), strict=True)
                ]
                best = any(
                    each & {"best", "lowest", "highest"} or ("min" in each and each & _SCORES)
                    for each in words
                )
                scored = any(
                    any(word.startswith(("val", "dev", "eval", "test")) for word in each)
                    for each in words
                )
                public = any("public" in each for each in words)
                if best and scored and not public and _keeps(node.body):
                    yield (
                        test,
                        f"The model is kept where {' and '.join(filter(None, names))} say so.",
                    )


def _list_scored(module: Module, side: ast.expr) -> list[str]:
    """Return the names in the call that computes a score: ``acc = evaluate(model, held_out)``."""
    made: list[ast.expr | None] = [side]
    if isinstance(side, ast.Name) and split_words(side.id)[:1] != ["best"]:
        _, bound = module.bindings.find(side)
        made = [each.value for each in bound]
    return [
        write_name(each)
        for value in made
        if isinstance(value, ast.Call)
        for each in (value.func, *value.args, *(keyword.value for keyword in value.keywords))
    ]


def _word(expression: ast.expr) -> str:
    """Return ``val_acc`` of ``metrics["val_acc"]``."""
    match expression:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
    return ""


def _keeps(body: list[ast.stmt]) -> bool:
    for line in body:
        for node in ast.walk(line):
            if isinstance(node, ast.Call):
                name = write_name(node.func).rpartition(".")[2]
                if isinstance(node.func, ast.Attribute):
                    name = node.func.attr
                if name in _KEEPS or name.startswith("save"):
                    return True
    return False
