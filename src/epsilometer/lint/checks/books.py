"""Check the books of an accountant: BOOK001 to BOOK004."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from epsilometer.lint.checks.feeding import Feeding, list_origins
from epsilometer.lint.checks.place import Place, make_place
from epsilometer.lint.flow import Flow, Number, Value
from epsilometer.lint.module import Call, Module, split_words, write_name
from epsilometer.lint.programs import Programs, Unit
from epsilometer.lint.purposes import (
    is_other_end,
    is_part_of_library,
    names_training,
    serves_other_ends,
)
from epsilometer.lint.roles import BOOKS, RATES, Roles
from epsilometer.lint.suggestion import find_epoch_loops, write_number

_START = re.compile(
    r"^(start|begin|resume|initial|init|first|last)\w*(epoch|step|iter)"
    r"|^(global_step|epochs?_done|start|begin)$"
)
_OPTIMIZER = re.compile(r"optim|(^|[._])opt([._\d]|$)")
_SIZES = ("batch_size", "batch_sizes")
_LENGTHS = ("sample_size", "num_samples", "number_of_examples", "num_examples", "n", "train_size")
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs")
_STEPS = ("steps", "count", "iterations", "num_steps", "num_updates", "num_iterations")
_TURNS = {"step", "steps", "iter", "iteration", "itr", "it", "i", "t"}
_MOST = 4  # accountants, engines and steps of one program that are compared
_ACCUMULATES = "gradient_accumulation_steps"


def find_lost_books(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield BOOK001: a run that is resumed, while its accountant begins at zero."""
    restores = cache(restores_books)  # a file is read once
    for roles in programs.roles.values():
        module = roles.module
        seen: set[int] = set()
        for node, what in _list_resumes(module):
            scope = id(module.find_scope(node))
            if scope in seen:
                continue
            for unit in programs.list_private(module, node):
                counting = [each for each in unit.accountants.values() if each.counts]
                modules = programs.list_modules(unit)
                if not counting and not unit.engines:
                    continue
                if any(restores(each) for each in (module, *modules)):
                    continue
                seen.add(scope)
                yield make_place("BOOK001", "error", module, node, what, beside=modules[-1])
                break


def _list_resumes(module: Module) -> Iterator[tuple[ast.expr, str]]:
    for call in module.calls:
        receiver = _name_receiver(call)
        own = receiver.startswith("self.") and is_part_of_library(module, call.node)
        loads = call.method == "load_state_dict" and bool(call.node.args) and not own
        if loads and _OPTIMIZER.search(receiver):
            yield call.node, f"{receiver} is restored, the accountant is not."
        if call.method not in ("fit", "train") and not call.known & module.catalogue.settings:
            continue
        for name in sorted(module.catalogue.resumes & set(call.arguments)):
            value = call.arguments[name]
            if not (isinstance(value, ast.Constant) and value.value in (None, False)):
                yield call.node, f"{name} continues a run, the accountant begins at zero."
    for node in module.nodes:
        match node:
            case ast.Assign(targets=[target], value=value) if _is_start(write_name(target)):
                if any(_is_key(each, "epoch", "step", "iter") for each in ast.walk(value)):
                    yield value, f"{write_name(target)} is restored, the accountant is not."


def _is_start(name: str) -> bool:
    return bool(_START.search(name.rpartition(".")[2]))


def _is_key(node: ast.AST, *words: str) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(word in node.value for word in words)
    )


def restores_books(module: Module) -> bool:
    """Tell whether a file gives an accountant the steps of an earlier run."""
    for call in module.calls:
        receiver = _name_receiver(call)
        if call.method == "load_state_dict" and BOOKS.search(receiver):
            return True
        if call.method in module.catalogue.restores and BOOKS.search(receiver):
            return True
        if call.method in ("append", "extend") and receiver.endswith("accountant.history"):
            return True
    for node in module.nodes:
        match node:
            case ast.Attribute(attr="history" | "accountant" | "steps", ctx=ast.Store()):
                if BOOKS.search(write_name(node).lower().replace("self.", "")):
                    return True
            case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                if BOOKS.search(key.lower()):
                    return True
    return False


def _name_receiver(call: Call) -> str:
    function = call.function
    return write_name(function.value).lower() if isinstance(function, ast.Attribute) else ""


@dataclass(frozen=True)
class _Booked:
    """A number that an accountant was given: its argument, and where."""

    module: Module
    call: Call
    shown: ast.expr
    value: Value


def _list_booked(
    unit: Unit, programs: Programs, names: tuple[str, ...], part: int
) -> list[_Booked]:
    """Return what the accountants of a program were given under some names.

    Args:
        unit: The program.
        programs: All of them.
        names: Arguments that give the number itself.
        part: Which part of a rate gives it: 0 is above, 1 below; -1 is none.
    """
    found = []
    for module, call in _list_accounting(unit, programs):
        for name, shown in call.arguments.items():
            value = Value(shown, module)
            if name in RATES and part >= 0:
                inner = programs.flow.read_ratio(value)[part]
                if inner is not None:
                    found.append(_Booked(module, call, shown, inner))
            elif name in names:
                found.append(_Booked(module, call, shown, value))
    return found


def _list_accounting(unit: Unit, programs: Programs) -> Iterator[tuple[Module, Call]]:
    """Yield calls that compute ε, or book a step; of many in one program, the first."""
    modules: dict[int, Module] = {id(unit.module): unit.module}
    for accountant in list(unit.accountants.values())[:_MOST]:
        modules[id(accountant.module)] = accountant.module
        if accountant.kind != "training":
            yield accountant.module, accountant.call
    for engine in list(unit.engines.values())[:_MOST]:
        yield programs.home_of(engine), engine
    for module in modules.values():
        for call in programs.roles[id(module)].book_steps[:_MOST]:
            yield module, call


@dataclass(frozen=True)
class _Feed:
    """What feeds a training: its batch size and its data.

    Attributes:
        module: The module that contains it.
        node: The call.
        batch: Its batch size.
        data: Its records.
        factor: How many such batches make a step.
        loops: The loops that take batches from it, by the ids of their nodes.
    """

    module: Module
    node: ast.Call
    batch: ast.expr | None
    data: ast.expr | None
    factor: Number = 1
    loops: frozenset[int] = frozenset()

    def read_batch(self, flow: Flow) -> Number | None:
        """Return how many records a step takes, if it is known."""
        if self.batch is None or _is_product(flow, Value(self.batch, self.module)):
            return None
        size = flow.read_number(Value(self.batch, self.module))
        return None if size is None or size <= 0 else size * self.factor


def _list_feeds(
    roles: Roles, feeding: Feeding, flow: Flow, handed: set[tuple[int, str]]
) -> Iterator[_Feed]:
    module = roles.module
    for source in roles.sources:
        call = source.call
        batch = call.find_argument("batch_size")
        data = call.find_argument(source.loader.data or "dataset", position=0)
        loops = feeding.list_loops(Value(call.node, module))
        target = module.find_target(call.node)
        trains = any(loop.trains for loop in loops) if loops else names_training(target)
        trains |= (id(call.node), "") in handed
        if trains and not serves_other_ends(module, call.node, write_name(data)):
            found = frozenset(id(loop.node) for loop in loops)
            yield _Feed(module, call.node, batch, data, loops=found)
    for call in module.calls:
        if call.method == "fit" and isinstance(call.function, ast.Attribute):
            if module.names.packages & module.catalogue.fit_shuffles:
                batch = call.find_argument("batch_size", position=2)
                data = call.find_argument("x", position=0)
                if not is_other_end(_name_receiver(call)):
                    yield _Feed(module, call.node, batch, data)
        elif call.method == "batch" and call.positional:
            if module.names.packages & module.catalogue.chains and names_training(
                module.find_target(call.node)
            ):
                yield _Feed(module, call.node, call.positional[0], None)
        elif call.known & module.catalogue.settings:
            batch = call.find_argument("per_device_train_batch_size")
            times = call.find_argument(_ACCUMULATES)
            factor = 1 if times is None else flow.read_number(Value(times, module))
            if factor is not None:
                yield _Feed(module, call.node, batch, None, factor)


def find_other_numbers(programs: Programs, feeding: Feeding) -> Iterator[Place]:
    """Yield BOOK002 and BOOK003: an accountant that is given another batch size, or length."""
    flow = programs.flow
    handed = {  # the origins of what engines are given to train on
        origin
        for roles in programs.roles.values()
        for call in roles.engines
        if (loader := call.find_argument("data_loader")) is not None
        for origin in list_origins(flow, Value(loader, roles.module))
    }
    feeds = [
        feed
        for roles in programs.roles.values()
        for feed in _list_feeds(roles, feeding, flow, handed)
    ]
    fed: dict[int, list[_Feed]] = defaultdict(list)
    for feed in feeds:
        for loop in feed.loops:
            fed[loop].append(feed)
    for feed in feeds:
        others = [each for loop in feed.loops for each in fed[loop] if each is not feed]
        for unit in programs.list_private(feed.module, feed.node):
            yield from _compare_batches(programs, unit, feed, others)
            yield from _compare_lengths(programs, unit, feed)


def _compare_batches(
    programs: Programs, unit: Unit, feed: _Feed, others: list[_Feed]
) -> Iterator[Place]:
    """Yield BOOK002, unless another loader may be in the place of this one, as in a branch."""
    flow = programs.flow
    real = feed.read_batch(flow)
    if real is None or any(each.read_batch(flow) != real for each in others):
        return
    for booked in _list_booked(unit, programs, _SIZES, 0):
        number = flow.read_number(booked.value)
        if number is not None and 1 < number < real and number == int(number):
            detail = (
                f"{booked.call.method} is given {write_number(number)}, the batches of "
                f"{_point(feed, booked.module)} have {write_number(real)}."
            )
            yield make_place(
                "BOOK002",
                "error",
                booked.module,
                booked.call.node,
                detail,
                shown=booked.shown,
                numbers={"batch-size": real},
            )


def _is_product(flow: Flow, value: Value) -> bool:
    """Tell whether a batch is counted in parts of records, as ``batch_size * length`` tokens."""
    return any(
        isinstance(each.node, ast.BinOp) and isinstance(each.node.op, ast.Mult)
        for each in flow.trace(value)
    )


def _point(feed: _Feed, module: Module) -> str:
    return feed.module.point_at(feed.node, reader=module)


def _compare_lengths(programs: Programs, unit: Unit, feed: _Feed) -> Iterator[Place]:
    if feed.data is None:
        return
    flow = programs.flow
    origins = list_origins(flow, Value(feed.data, feed.module))
    for whole, length in _list_wholes(flow, feed):
        for booked in _list_booked(unit, programs, _LENGTHS, 1):
            number = flow.read_number(booked.value)
            if number is not None:
                wrong = length is not None and number > length
                said = write_number(number)
            else:
                measured = _find_measured(flow, booked.value)
                wrong = measured is not None and bool(whole & measured) and not (measured & origins)
                said = ast.unparse(booked.value.node)[:40] if measured is not None else ""
            if wrong:
                detail = (
                    f"{booked.call.method} is given {said}, the loader of "
                    f"{_point(feed, booked.module)} has a part of these records."
                )
                yield make_place(
                    "BOOK003",
                    "error",
                    booked.module,
                    booked.call.node,
                    detail,
                    shown=booked.shown,
                    numbers=None if length is None else {"dataset-size": length},
                )


def _list_wholes(flow: Flow, feed: _Feed) -> Iterator[tuple[set[tuple[int, str]], Number | None]]:
    """Yield where the records of a feed were taken from, and how many there are, if known."""
    assert feed.data is not None
    for value in flow.trace(Value(feed.data, feed.module)):
        match value.node:
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=ast.expr() as end)):
                length = flow.read_number(Value(end, value.module, value.frame))
                if length is not None and length > 0:
                    yield list_origins(flow, Value(inner, value.module, value.frame)), length
        call = value.call
        if call is None or not call.known & value.module.catalogue.parts:
            continue
        whole = call.find_argument("dataset", position=0)
        if whole is not None:
            length = _read_part(flow, value, call)
            yield list_origins(flow, Value(whole, value.module, value.frame)), length


def _read_part(flow: Flow, value: Value, call: Call) -> Number | None:
    """Return how many records ``random_split(d, [50, 10])[0]`` or ``Subset(d, range(9))`` has."""
    second = call.find_argument("lengths", position=1)
    if call.method == "Subset":
        second = call.find_argument("indices", position=1)
        match second:
            case ast.Call(func=ast.Name(id="range"), args=[end]):
                return flow.read_number(Value(end, value.module, value.frame))
        return None
    match second, value.path:
        case ((ast.List(elts=parts) | ast.Tuple(elts=parts)), (int(place), *_)):
            if -len(parts) <= place < len(parts):
                length = flow.read_number(Value(parts[place], value.module, value.frame))
                return length if length is not None and length >= 1 else None
    return None


def _find_measured(flow: Flow, value: Value) -> set[tuple[int, str]] | None:
    """Return what ``len(data)`` or ``data.shape[0]`` measures; None if it is something else."""
    for each in flow.trace(value):
        match each.node:
            case ast.Call(func=ast.Name(id="len"), args=[inner]):
                return list_origins(flow, Value(inner, each.module, each.frame))
            case ast.Subscript(value=ast.Attribute(value=inner, attr="shape")):
                return list_origins(flow, Value(inner, each.module, each.frame))
    return None


def find_other_steps(programs: Programs, _: Feeding) -> Iterator[Place]:
    """Yield BOOK004: an accountant that is given fewer steps than are done."""
    booked = cache(_list_booked_steps)  # a file is read once
    for roles in programs.roles.values():
        for node, real in _list_lengths(roles, programs.flow):
            for unit in programs.list_private(roles.module, node):
                yield from _compare_epochs(programs, unit, roles.module, node, real)
        for loop, steps in _list_step_loops(roles, programs.flow):
            for unit in programs.list_private(roles.module, loop):
                given = [
                    (each, *pair) for each in programs.list_modules(unit) for pair in booked(each)
                ]
                yield from _compare_steps(programs, given, (roles.module, loop), steps)
        yield from _find_rare_steps(programs, roles)


def _list_step_loops(roles: Roles, flow: Flow) -> Iterator[tuple[ast.For, Number]]:
    """Yield ``for step in range(5000)`` that changes the weights in every turn, with the 5000."""
    module = roles.module
    seen: set[int] = set()
    for call in roles.weight_updates:
        for parent in module.walk_up(call.node):
            match parent:
                case ast.If() | ast.While() | ast.FunctionDef() | ast.Lambda():
                    break  # not in every turn: gradients of several may be added up
                case ast.For(target=target, iter=ast.Call(func=function, args=[end])):
                    words = set(split_words(write_name(target)))
                    ranged = write_name(function) in ("range", "trange") and words & _TURNS
                    if ranged and id(parent) not in seen and not serves_other_ends(module, parent):
                        seen.add(id(parent))
                        steps = flow.read_number(Value(end, module))
                        if steps is not None:
                            yield parent, steps
                    break
                case ast.For():
                    break


def _list_booked_steps(module: Module) -> list[tuple[Call, ast.expr]]:
    """Return the calls that book a number of steps, with that number."""
    found = []
    for call in module.calls:
        booked = next((call.arguments[name] for name in _STEPS if name in call.arguments), None)
        known = bool(call.packages & module.catalogue.private)
        if call.method == "compose" and len(call.positional) > 1:
            booked, known = call.positional[1], True
        if booked is not None and known:
            found.append((call, booked))
    return found


def _compare_steps(
    programs: Programs,
    booked: list[tuple[Module, Call, ast.expr]],
    where: tuple[Module, ast.For],
    real: Number,
) -> Iterator[Place]:
    """Yield a number of steps that is booked once, and is smaller than that of a loop."""
    if len(booked) != 1:
        return  # several phases add up
    module, call, given = booked[0]
    number = programs.flow.read_number(Value(given, module))
    if number is not None and 0 < number < real and not _is_repeated(programs, module, call):
        loop, home = where[1], where[0]
        detail = (
            f"{call.method} is given {write_number(number)} steps, "
            f"{home.point_at(loop, reader=module)} trains {write_number(real)}."
        )
        yield make_place(
            "BOOK004", "error", module, call.node, detail, shown=given, numbers={"steps": real}
        )


def _is_repeated(programs: Programs, module: Module, call: Call) -> bool:
    """Tell whether a call, or one of the function around it, is in a loop."""
    sites = programs.project.callers.get(id(module.find_function(call.node)), [])
    places = [(module, call), *((site.module, site.call) for site in sites)]
    return any(
        isinstance(parent, ast.For | ast.While)
        for home, each in places
        for parent in home.walk_up(each.node)
    )


def _list_lengths(roles: Roles, flow: Flow) -> Iterator[tuple[ast.AST, Number]]:
    """Yield the loops and calls that train for a number of epochs."""
    module = roles.module
    training = {id(loop.node) for loop in roles.loops if loop.trains}
    for node, epochs in find_epoch_loops(module, flow):
        if id(node) in training and not serves_other_ends(module, node):
            yield node, epochs
    for call in module.calls:
        settings = bool(call.known & module.catalogue.settings)
        fits = call.method == "fit" and module.names.packages & module.catalogue.fit_shuffles
        lightning = call.method == "Trainer" and "max_epochs" in call.arguments
        if not (settings or fits or lightning) or is_other_end(_name_receiver(call)):
            continue
        for name in _EPOCHS:
            if name in call.arguments:
                given = flow.read_number(Value(call.arguments[name], module))
                if given is not None:
                    yield call.node, given


def _compare_epochs(
    programs: Programs, unit: Unit, module: Module, node: ast.AST, real: Number
) -> Iterator[Place]:
    for booked in _list_booked(unit, programs, _EPOCHS, -1):
        number = programs.flow.read_number(booked.value)
        if number is not None and 0 < number < real:
            where = module.point_at(node, reader=booked.module)
            detail = (
                f"{booked.call.method} is given {write_number(number)} epochs, {where} trains "
                f"{write_number(real)}."
            )
            yield make_place(
                "BOOK004",
                "error",
                booked.module,
                booked.call.node,
                detail,
                shown=booked.shown,
                numbers={"epochs": real},
            )


def _find_rare_steps(programs: Programs, roles: Roles) -> Iterator[Place]:
    """Yield steps that are booked once per epoch, while an inner loop trains."""
    module = roles.module
    loops = roles.loop_of
    for call in roles.book_steps:
        if {"steps", "num_steps"} & set(call.arguments):
            continue
        around = [each for each in module.walk_up(call.node) if id(each) in loops]
        if not around or not programs.list_private(module, call.node):
            continue
        nearest = around[0]
        inner = [
            loop
            for loop in roles.loops
            if loop.updates and loop.node is not nearest and _is_inside(module, loop.node, nearest)
        ]
        if inner:
            detail = (
                f"{write_name(call.function)} is called once in the loop of "
                f"{module.point_at(nearest)}; {module.point_at(inner[0].node)} trains many times."
            )
            yield make_place("BOOK004", "error", module, call.node, detail)


def _is_inside(module: Module, node: ast.AST, loop: ast.AST) -> bool:
    return any(each is loop for each in module.walk_up(node))
