"""Check that the private loader is the one that is trained on: SHUF008."""

import ast
from collections.abc import Iterator

from epsilometer.lint.chains import are_alternatives
from epsilometer.lint.checks.feeding import Feeding, list_origins
from epsilometer.lint.checks.place import Place, make_place
from epsilometer.lint.flow import Value
from epsilometer.lint.module import FUNCTIONS, Call, Module, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.roles import Roles

_TRAINERS = ("transformers", "trl")
_MOST_READS = 20  # of one name that are checked


def find_dropped_loaders(programs: Programs, feeding: Feeding) -> Iterator[Place]:
    """Yield SHUF008: ``..., _ = engine.make_private(data_loader=loader)``, and then ``loader``."""
    for roles in programs.roles.values():
        for call in roles.engines:
            handed = call.find_argument("data_loader")
            if handed is None or roles.evaluate(call, "poisson_sampling") is False:
                continue
            detail = _find_drop(programs, feeding, roles, call, handed)
            if detail:
                yield make_place("SHUF008", "error", roles.module, call.node, detail, shown=handed)
            yield from _find_replaced(roles, call)
        yield from _find_made_anew(programs, roles)


def _find_drop(
    programs: Programs, feeding: Feeding, roles: Roles, call: Call, handed: ast.expr
) -> str:
    """Return how the private loader of an engine is lost; empty if it is not."""
    module, flow = roles.module, programs.flow
    if feeding.list_training_loops(Value(call.node, module)) or _is_read(module, call):
        return ""
    for value in flow.trace(Value(handed, module)):
        if value.node is call.node:
            continue
        loops = [
            loop
            for loop in feeding.list_training_loops(value)
            if (id(call.node), "") not in list_origins(flow, Value(loop.node.iter, loop.module))
            and _comes_after(loop.module, loop.node, module, call.node)
        ]
        if loops:
            loop = loops[0]
            where = loop.module.point_at(loop.node, reader=module)
            name = write_name(handed) or "The old loader"
            return f"{name} is looped over after make_private() ({where}), what it returned is not."
    return _find_framework_drop(programs, roles, call)


def _find_replaced(roles: Roles, call: Call) -> Iterator[Place]:
    """Yield a new loader that takes the name of the private one, and is trained on."""
    module = roles.module
    match module.parents.get(id(call.node)):
        case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id=name)])]):
            pass
        case _:
            return
    own = module.find_function(call.node)
    for made in module.made_at.get(name, []):
        line = made.node.lineno
        if (
            made.known & set(module.catalogue.loaders)
            and module.find_function(made.node) is own
            and line > call.node.lineno
            and not are_alternatives(module, made.node, call.node)
            and any(
                loop.trains and loop.node.lineno > line and write_name(loop.node.iter) == name
                for loop in roles.loops
                if module.find_function(loop.node) is own
            )
        ):
            detail = f"{name} of {call.method}() is replaced by {made.method}()."
            yield make_place("SHUF008", "error", module, made.node, detail)
            return


def _comes_after(inner: Module, loop: ast.AST, module: Module, call: ast.AST) -> bool:
    """Tell whether a loop may run after a call: in one function, by its line."""
    if inner is not module or inner.find_function(loop) is not module.find_function(call):
        return True
    return getattr(loop, "lineno", 0) >= getattr(call, "lineno", 0)


def _is_read(module: Module, call: Call) -> bool:
    """Tell whether something but ``len`` reads the loader that an engine returned.

    What is returned, kept whole or kept as an attribute is assumed to be read.
    """
    match module.parents.get(id(call.node)):
        case ast.Assign(targets=[ast.Tuple(elts=[*_, last])]):
            if isinstance(last, ast.Attribute):
                return not _is_attribute_dropped(module, call, last)
            if not isinstance(last, ast.Name):
                return True
            return _is_name_read(module, call.node, last.id)
        case ast.Expr():
            return False
    return True


def _is_name_read(module: Module, node: ast.AST, name: str) -> bool:
    own = module.find_scope(node)
    for each in module.reads.get(name, [])[:_MOST_READS]:
        if own is not None and module.find_scope(each) is not own:
            continue
        parent = module.parents.get(id(each))
        measured = isinstance(parent, ast.Call) and write_name(parent.func) == "len"
        own_argument = isinstance(parent, ast.keyword) and parent.arg == "data_loader"
        unread = isinstance(parent, ast.Attribute) and parent.attr in ("dataset", "batch_size")
        if not measured and not own_argument and not unread and name != "_":
            return not _is_assigned_to_trainer(module, parent)
    return False


def _is_assigned_to_trainer(module: Module, parent: ast.AST | None) -> bool:
    """Recognise ``trainer.train_dataloader = private``, which no trainer reads."""
    match parent:
        case ast.Assign(targets=[ast.Attribute(value=base, attr=name)]):
            known = {package for package in module.names.packages if package in _TRAINERS}
            return bool(known) and "trainer" in write_name(base).lower() and "loader" in name
    return False


def _is_attribute_dropped(module: Module, call: Call, target: ast.Attribute) -> bool:
    """Tell whether nothing reads the attribute that takes the private loader."""
    return not any(
        module.find_class(each) is module.find_class(call.node)
        for each in module.reads.get(f".{target.attr}", [])[:_MOST_READS]
    )


def _find_framework_drop(programs: Programs, roles: Roles, call: Call) -> str:
    """Say which framework takes its batches from elsewhere than the private loader."""
    module, project = roles.module, programs.project
    around = module.find_class(call.node)
    catalogue = module.catalogue
    if around is not None:
        bases = project.find_bases(module, around)
        for base in sorted(bases):
            trainer = catalogue.trainers.get(base)
            if trainer is not None and not any(
                project.find_method(module, around, name) for name in trainer.makes
            ):
                return f"{base[1]} makes its own loader and does not get the private one."
            if base in catalogue.modules and not roles.coins:
                return "Lightning takes its batches from train_dataloader(), not from this loader."
    own = module.find_scope(call.node)
    for training in roles.trainings:
        together = own is None or module.find_scope(training.call.node) in (own, None)
        if not training.overridden and together:
            where = module.point_at(training.call.node)
            return (
                f"{training.call.method} ({where}) makes its own loader and does not get the "
                "private one."
            )
    return ""


def _find_made_anew(programs: Programs, roles: Roles) -> Iterator[Place]:
    """Yield where a private loader is taken apart, or prepared again."""
    module, flow = roles.module, programs.flow
    engines = {
        id(call.node): call
        for each in programs.roles.values()
        for call in each.engines
        if each.evaluate(call, "poisson_sampling") is not False
    }
    if not engines:
        return
    prepares = module.catalogue.prepares
    for call in module.calls:
        arguments: list[ast.expr] = []
        if call.method in prepares and module.names.packages & module.catalogue.prepare_packages:
            arguments, how = list(call.positional), "accelerate remakes it, without its sampler."
        elif call.known & {("torch", "DataLoader")}:
            how = "A new loader of its records samples by itself."
            data = call.find_argument("dataset", position=0)
            sampled = {"sampler", "batch_sampler"} & set(call.arguments)
            if isinstance(data, ast.Attribute) and data.attr == "dataset" and not sampled:
                arguments = [data.value]
        for argument in arguments:
            origins = flow.trace(Value(argument, module))
            made = [engines[id(value.node)] for value in origins if id(value.node) in engines
                    and value.path and value.path[-1] in (-1, 2, 3)]  # fmt: skip
            if made and _is_later(module, call.node, made[0].node) and _feeds(module, call):
                yield make_place(
                    "SHUF008", "error", module, call.node,
                    f"{write_name(argument)} comes from make_private(); {how}", shown=argument,
                )  # fmt: skip
                break


def _is_later(module: Module, node: ast.AST, engine: ast.AST) -> bool:
    """Tell whether a node comes after an engine, where both are in one function."""
    if id(engine) not in module.call_of:
        return True
    same = module.find_function(node) is module.find_function(engine)
    return not same or getattr(node, "lineno", 0) > getattr(engine, "lineno", 0)


def _feeds(module: Module, call: Call) -> bool:
    """Tell whether what is made again may be trained on."""
    target = module.find_target(call.node)
    around = module.find_function(call.node)
    name = around.name if isinstance(around, FUNCTIONS) else ""
    return not any(word in f"{target} {name}".lower() for word in ("eval", "test", "val"))
