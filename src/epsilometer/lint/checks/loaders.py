"""Check loaders: SHUF001, SHUF002, SHUF009 and SHUF010."""

import ast
from collections.abc import Iterator

from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place, make_place, report_beside
from epsilometer.lint.flow import Frame, Value
from epsilometer.lint.module import FUNCTIONS, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import is_other_end, names_training
from epsilometer.lint.roles import Loop, Roles, Source, Training


def find_poisson_off(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF001: ``make_private(..., poisson_sampling=False)``.

    Not if the loader already draws by coin tosses, nor without noise: then no ε is claimed.
    """
    asked = any(roles.reads_epsilon for roles in programs.roles.values())
    for roles in programs.roles.values():
        module = roles.module
        for call in roles.engines:
            option = call.find_argument("poisson_sampling")
            if option is None or roles.coins or roles.evaluate(call, "noise_multiplier") == 0:
                continue
            if False not in programs.flow.list_values(Value(option, module)):
                continue
            calibrated = bool(programs.list_beside_all(module, call.node))
            if call.method.endswith("epsilon") or asked or calibrated:
                detail = f"In {call.method}()."
                yield make_place("SHUF001", "error", module, call.node, detail, shown=option)
            else:
                detail = (
                    f"In {call.method}(). No ε is asked for in this project; elsewhere it may be."
                )
                yield make_place("SHUF001", "warning", module, call.node, detail, shown=option)


def find_loaders(programs: Programs, feeding: Feeding) -> Iterator[Place]:
    """Yield SHUF002 and SHUF009: loaders that shuffle, or keep the order of the data."""
    for roles in programs.roles.values():
        for source in roles.sources:
            if programs.private:
                yield from _check_source(programs, feeding, source)


def _check_source(programs: Programs, feeding: Feeding, source: Source) -> Iterator[Place]:
    call, loader, module = source.call, source.loader, source.module
    if loader.needs and call.find_argument(loader.needs) is None:
        return
    if any(_is_given(call.find_argument(name)) for name in loader.unless):
        return  # the sampler is checked by itself
    loops = feeding.list_loops(Value(call.node, module))
    if loops and not any(loop.trains for loop in loops):
        return  # only observed
    option = call.find_argument(loader.argument, position=loader.position)
    data = call.find_argument(loader.data or "dataset", position=0)
    if takes_everything(source) or module.is_read_once(call.node):
        return
    for frame in list_frames(programs, source):
        names = (write_name(data), *_list_site_names(frame))
        if any(is_other_end(name) for name in names):
            continue
        value: object = loader.default
        if option is None and call.unsure:
            continue
        if option is not None:
            value = programs.flow.evaluate(Value(option, module, frame))
        value = bool(value) if value in (0, 1) else value  # DataLoader(data, shuffle=1)
        if value is loader.shuffles_when:
            rule, seen = "SHUF002", _describe_site(frame, source)
        elif (
            value in (True, False)
            and loader.ordered
            and _is_trained_on(programs, source, loops, names)
        ):
            rule, seen = "SHUF009", _describe_site(frame, source)
        else:
            continue
        found = list(
            report_beside(
                programs, rule, module, call.node, shown=option or call.node, names=names,
                seen=seen, replaced=True,
            )
        )  # fmt: skip
        if found:
            yield from found
            return


def _is_given(argument: ast.expr | None) -> bool:
    return argument is not None and not (
        isinstance(argument, ast.Constant) and argument.value is None
    )


def takes_everything(source: Source) -> bool:
    """Tell whether a batch is the whole of the data: then nothing is sampled."""
    size = source.call.find_argument("batch_size", position=1)
    match size:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
            data = source.call.find_argument(source.loader.data or "dataset", position=0)
            return write_name(data) == name
    return False


def list_frames(programs: Programs, source: Source) -> list[Frame | None]:
    """Return the calls, and the turns of loops, in which a loader is made."""
    module, node, flow = source.module, source.call.node, programs.flow
    function = module.find_function(node)
    frames: list[Frame | None] = [None]
    if isinstance(function, FUNCTIONS):
        frames = [*flow.list_frames(module, function)]
    return [turn for frame in frames for turn in flow.list_turns(Value(node, module, frame))]


def _list_site_names(frame: Frame | None) -> list[str]:
    """Return what a call of a function that makes a loader says about its purpose."""
    if frame is None:
        return []
    names = [write_name(value.node) for value in frame.arguments.values()]
    names += [
        value.node.value
        for value in (*frame.arguments.values(), *frame.turns.values())
        if isinstance(value.node, ast.Constant)
        and isinstance(value.node.value, str)
        and value.node.value.isidentifier()
    ]
    site = frame.site
    return names if site is None else [*names, site.module.find_target(site.call.node)]


def _describe_site(frame: Frame | None, source: Source) -> str:
    if frame is None or frame.site is None or frame.site.module is source.module:
        return ""
    return f"Called in {frame.site.module.point_at(frame.site.call.node, reader=source.module)}. "


def _is_trained_on(
    programs: Programs, source: Source, loops: list[Loop], names: tuple[str, ...]
) -> bool:
    """Tell whether there is evidence that a loader feeds training."""
    if any(loop.trains for loop in loops):
        return True
    target = source.module.find_target(source.call.node)
    around = source.module.find_function(source.call.node)
    method = around.name if isinstance(around, FUNCTIONS) else ""
    if source.call.method == "numpy_input_fn":
        return names_training(target)
    if any(is_other_end(name) for name in names):
        return False
    # A trainer that can shuffle as well decides elsewhere.
    alone = method in source.module.catalogue.makes and not any(
        other is not source and source.module.find_function(other.call.node) is around
        for other in programs.roles[id(source.module)].sources
    )
    return alone or method == "train_dataloader"


def find_trainers(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield SHUF010: a trainer that makes its own loader, and shuffles."""
    for roles in programs.roles.values():
        for training in roles.trainings:
            if training.overridden or _is_plain_method(roles, training):
                continue
            yield from report_beside(
                programs,
                "SHUF010",
                training.module,
                training.call.node,
                shown=training.call.node,
                replaced=True,
            )


def _is_plain_method(roles: Roles, training: Training) -> bool:
    """Tell whether another method of the class has trainer and accountant, this one a trainer.

    A class that can train with privacy and without it has a method for each.
    """
    module = roles.module
    around, own = module.find_class(training.call.node), module.find_function(training.call.node)
    if around is None or not isinstance(own, FUNCTIONS):
        return False
    private = {id(module.find_function(each.node)) for each in roles.accountants}
    trains = {id(module.find_function(each.call.node)) for each in roles.trainings}
    methods = module.methods.get(id(around), {})
    names = {name for name, method in methods.items() if id(method) in private & trains}
    read = {each.attr for each in ast.walk(own) if isinstance(each, ast.Attribute)}
    return bool(names) and id(own) not in private and not names & read
