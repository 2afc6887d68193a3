"""Check that noise and clipping stay what was accounted for: NOIS001, NOIS002 and CLIP001."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from epsilometer.lint.checks.feeding import Feeding, list_origins
from epsilometer.lint.checks.pipelines import is_plain_optimizer
from epsilometer.lint.checks.place import Place, make_place
from epsilometer.lint.flow import Number, Value
from epsilometer.lint.module import Call, Module, write_name
from epsilometer.lint.programs import Programs, Unit
from epsilometer.lint.purposes import is_part_of_library, serves_other_ends
from epsilometer.lint.roles import Roles

_NOISE = {"noise_multiplier", "_noise_multiplier"}
_PATCHED = {"add_noise", "clip_and_accumulate"}
_HOLDERS = re.compile(r"optim|engine|priv|^opt$")
_SETTINGS = re.compile(r"arg|conf|param|self$")
_PARAMETERS = {"parameters", "named_parameters", "trainable_variables", "trainable_weights"}
_CUTS = {"clamp", "clamp_", "min", "minimum", "maximum", "max", "clip"}
_CLIPS_ONE = {"clip_grad_norm_", "clip_grad_norm", "clip_by_norm"}
_MAPS = {"tree_map", "map"}
_MOST_STEPS = 10  # of one optimizer that are checked
_OPTIMIZERS = {
    ("torch", name)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam")
}

_Step: TypeAlias = tuple[Module, Call, str, set[tuple[int, str]]]


def find_overridden_noise(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield NOIS001: the noise is changed after ε was fixed, and the books do not follow.

    Opacus books the optimizer's noise at every step, so a change after ``make_private`` is
    accounted for. This does not hold for the target ε of ``make_private_with_epsilon``, nor for
    noise calibrated to an ε that is never computed again.
    """
    for roles in programs.roles.values():
        module = roles.module
        for node in module.nodes:
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            holder = write_name(node.value).lower()
            if not _HOLDERS.search(holder) or _SETTINGS.search(holder.rpartition(".")[2]):
                continue
            patched = node.attr in _PATCHED
            if not patched and node.attr not in _NOISE:
                continue
            if holder.startswith("self") and is_part_of_library(module, node):
                continue
            for unit in programs.list_private(module, node):
                if patched or not _follows_noise(programs, unit):
                    what = "is replaced" if patched else "is set again after ε was fixed"
                    detail = f"{write_name(node)} {what}."
                    yield make_place(
                        "NOIS001", "error", module, node, detail,
                        beside=programs.list_modules(unit)[-1],
                        numbers=_read_noise(programs, module, node),
                    )  # fmt: skip
                    break


def _read_noise(programs: Programs, module: Module, node: ast.AST) -> dict[str, Number]:
    """Return the noise that is set, if it is a number."""
    match module.parents.get(id(node)):
        case ast.Assign(value=value):
            number = programs.flow.read_number(Value(value, module))
            if number is not None and number > 0:
                return {"noise-multiplier": number}
    return {}


def _follows_noise(programs: Programs, unit: Unit) -> bool:
    """Tell whether an engine of a program books the noise it finds at every step, and says it."""
    if not unit.engines or any(call.method.endswith("epsilon") for call in unit.engines.values()):
        return False
    promised = any("target_epsilon" in each.call.arguments for each in unit.accountants.values())
    return not promised or any(roles.reads_epsilon for roles in programs.roles.values())


def find_replaced_optimizers(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield NOIS002: training continues with an optimizer that adds no noise."""
    steps: dict[tuple[int, str], list[_Step]] = defaultdict(list)
    engines = {(id(call.node), "") for roles in programs.roles.values() for call in roles.engines}
    for roles in programs.roles.values() if engines else ():
        for call in roles.optimizer_steps:
            assert isinstance(call.function, ast.Attribute)
            name = write_name(call.function.value)
            if "original_optimizer" in name:
                if not _adds_noise(roles.module, call.node):
                    detail = f"{write_name(call.function)}() steps without noise."
                    yield make_place("NOIS002", "error", roles.module, call.node, detail)
                continue
            origins = list_origins(programs.flow, Value(call.function.value, roles.module))
            if origins & engines:
                continue  # a private optimizer, at least at times
            for origin in origins:
                if len(steps[origin]) < _MOST_STEPS:
                    steps[origin].append((roles.module, call, name, origins))
    for roles in programs.roles.values():
        for call in roles.engines:
            yield from _find_bypass(programs, roles, call, steps)
        yield from _find_second_compile(programs, roles)


def _adds_noise(module: Module, node: ast.AST) -> bool:
    """Tell whether the step of a plain optimizer is a part of a private one, noise and all."""
    around = module.find_function(node)
    return is_part_of_library(module, node) or any(
        call.method in ("add_noise", "pre_step") and module.find_function(call.node) is around
        for call in module.calls
    )


def _find_bypass(
    programs: Programs, roles: Roles, call: Call, steps: dict[tuple[int, str], list[_Step]]
) -> Iterator[Place]:
    module = roles.module
    handed = call.find_argument("optimizer")
    own = (id(call.node), "")
    if handed is None:
        return
    kept = _find_kept(module, call)
    remade = _find_remade(roles, call, kept) if kept else None
    if remade is not None:
        detail = f"{kept} of make_private() is replaced by {remade.method}()."
        yield make_place("NOIS002", "error", module, remade.node, detail)
        return
    if kept == write_name(handed):
        return  # one name for both: which one steps depends on the order
    for origin in sorted(list_origins(programs.flow, Value(handed, module)) - {own}):
        for inner, step, name, origins in steps.get(origin, []):
            if own not in origins and _is_later(inner, step, module, call):
                detail = f"{name} is what make_private() was given, not what it returned."
                yield make_place("NOIS002", "error", inner, step.node, detail)
                return


def _is_later(inner: Module, step: Call, module: Module, call: Call) -> bool:
    if inner is not module or inner.find_function(step.node) is not module.find_function(call.node):
        return True
    return step.node.lineno > call.node.lineno


def _find_kept(module: Module, call: Call) -> str:
    """Return the name of the private optimizer, the second of what an engine returns."""
    match module.parents.get(id(call.node)):
        case ast.Assign(targets=[ast.Tuple(elts=[_, second, *_])]):
            return write_name(second)
    return ""


def _find_remade(roles: Roles, call: Call, name: str) -> Call | None:
    """Return a plain optimizer that takes the name after the last call of the engine."""
    module = roles.module
    if roles.engines[-1] is not call:
        return None
    for each in module.made_at.get(name, []):
        if (
            each.known & _OPTIMIZERS
            and module.find_function(each.node) is module.find_function(call.node)
            and each.node.lineno > call.node.lineno
            and any(
                step.node.lineno > each.node.lineno
                for step in roles.optimizer_steps[-_MOST_STEPS:]
                if write_name(step.function) == f"{name}.step"
            )
        ):
            return each
    return None


def _find_second_compile(programs: Programs, roles: Roles) -> Iterator[Place]:
    """Yield where a Keras model is compiled again, with an optimizer of Keras itself."""
    module = roles.module
    if not module.names.packages & module.catalogue.fit_shuffles:
        return
    compiled: dict[tuple[int, str], list[Call]] = defaultdict(list)
    for call in module.calls:
        if call.method == "compile" and isinstance(call.function, ast.Attribute):
            scope = id(module.find_function(call.node))
            compiled[scope, write_name(call.function.value)].append(call)
    private = {id(each.call.node) for each in roles.accountants if each.kind == "training"}
    for calls in compiled.values():
        for first, second in pairwise(calls):
            plain = is_plain_optimizer(module, second.find_argument("optimizer", position=0))
            before = first.find_argument("optimizer", position=0)
            if not plain or before is None:
                continue
            origins = programs.flow.trace(Value(before, module))
            if any(id(value.node) in private for value in origins):
                detail = "The model was compiled with a private optimizer before."
                yield make_place("NOIS002", "error", module, second.node, detail)


def find_layer_clipping(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield CLIP001: every layer is clipped at the bound of the whole gradient."""
    for roles in programs.roles.values():
        module = roles.module
        for node in _list_layer_clips(module):
            if serves_other_ends(module, node) or _scales_by_layers(module, node):
                continue
            for beside in programs.list_beside_all(module, node):
                where = beside.module.point_at(beside.node, reader=module)
                detail = f"{beside.name} ({where}) takes one bound for all layers."
                yield make_place("CLIP001", "error", module, node, detail, beside=beside.module)
                break


def _list_layer_clips(module: Module) -> Iterator[ast.AST]:
    for node in module.nodes:
        match node:
            case ast.For(target=target, iter=over) if _is_over_layers(module, over):
                names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
                yield from _find_cut(node.body, names)
            case ast.ListComp(elt=ast.Call() as call, generators=[_]):
                if _name_function(call) == "clip_by_norm":
                    yield call
            case ast.Call(args=[ast.Lambda() as function, *_]) if _name_function(node) in _MAPS:
                calls = {_name_function(each) for each in ast.walk(function.body)}
                if calls & {"norm", "global_norm"} and calls & _CUTS:
                    yield node


def _is_over_layers(module: Module, over: ast.expr) -> bool:
    """Recognise ``model.parameters()``, also inside ``zip`` or ``enumerate`` or behind a name."""
    if isinstance(over, ast.Name):
        made = module.bindings.find_once(over)
        over = over if made is None else made
    return any(
        isinstance(each, ast.Attribute) and each.attr in _PARAMETERS for each in ast.walk(over)
    )


def _find_cut(body: list[ast.stmt], names: set[str]) -> Iterator[ast.AST]:
    """Yield the first statement that clips by a norm which is taken in the same turn."""
    calls = [each for line in body for each in ast.walk(line) if isinstance(each, ast.Call)]
    for call in calls:
        if _name_function(call) in _CLIPS_ONE and _mentions(call, names):
            yield call
            return
    normed = [call for call in calls if _name_function(call) == "norm"]
    cut = [call for call in calls if _name_function(call) in _CUTS]
    if normed and cut and any(_mentions(call, names) or len(body) > 1 for call in normed):
        yield cut[0]


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _name_function(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return write_name(node.func).rpartition(".")[2] or (
        node.func.attr if isinstance(node.func, ast.Attribute) else ""
    )


def _scales_by_layers(module: Module, node: ast.AST) -> bool:
    """Tell whether a bound is divided among layers: by the root of how many there are."""
    around = module.find_scope(node)
    nodes = module.nodes if around is None else ast.walk(around)
    return any(_name_function(each) == "sqrt" for each in nodes)
