"""Fill the ``epsilometer shuffle`` call of a finding with numbers from the project."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from epsilometer.lint.bindings import Scope
from epsilometer.lint.flow import Flow, Number, Value
from epsilometer.lint.libraries import Option
from epsilometer.lint.module import Call, Module
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import serves_other_ends
from epsilometer.lint.roles import RATES

SIZE, _BATCH = "dataset-size", "batch-size"
_METHODS = (
    "get_epsilon",
    "get_privacy_spent",
    "fit",
    "step",
    "compose",
)  # describe training anywhere
# Methods that take a number by position: which, and the option that it is.
_POSITIONS = {"batch": (0, "batch-size"), "get_epsilon": (0, "delta"), "compose": (1, "steps")}
# Values found for each option; at most two, since with two none counts.
_Said: TypeAlias = dict[str, set[Number]]


class _Numbers:
    """Hold the numbers of one module, by their place."""

    def __init__(self, module: Module, flow: Flow) -> None:
        self.module, self._flow = module, flow
        self.at: dict[ast.AST, _Said] = defaultdict(_make_said)
        self.within: dict[Scope, _Said] = defaultdict(_make_said)
        self.anywhere, self.constant = _make_said(), _make_said()
        self.booked = set(list_numbers(module, flow, _BATCH))
        for call in module.calls:
            if _describes_training(module, call):
                for option, number in read_call(module, flow, call):
                    self._take(call.node, option, number)
        for loop, epochs in find_epoch_loops(module, flow):
            self._take(loop, "epochs", epochs)
        for name, expression in module.bindings.list_constants():
            known = module.catalogue.constants.get(name.lower())
            for option, number in _read_number(module, flow, known, expression):
                _add(self.constant, option, number)

    def _take(self, node: ast.AST, option: str, number: Number) -> None:
        for said in (self.at[node], self.within[self.module.find_scope(node)], self.anywhere):
            _add(said, option, number)


class Suggestions:
    """Collect the numbers of a project, and make commands from them."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._numbers: dict[int, _Numbers] = {}

    def _read(self, module: Module) -> _Numbers:
        if id(module) not in self._numbers:
            self._numbers[id(module)] = _Numbers(module, self._programs.flow)
        return self._numbers[id(module)]

    def make_command(
        self,
        module: Module,
        node: ast.AST,
        *,
        beside: Module | None = None,
        known: dict[str, Number] | None = None,
        sampler: str = "",
    ) -> tuple[str, tuple[str, ...]]:
        """Return the command for a finding, and its placeholders that the user must fill.

        Args:
            module: The finding's own file.
            node: What is wrong there.
            beside: The accountant's file, for numbers that the finding's file lacks.
            known: Numbers that the finding knows.
            sampler: How batches are drawn; a shuffle if empty.
        """
        numbers = self._find_numbers(module, node)
        booked = self._read(beside or module).booked
        if len(booked) == 1 and numbers.get(_BATCH, 0) < min(booked):
            numbers[_BATCH] = min(booked)  # gradients of several batches make one step
        numbers |= known or {}
        if beside is not None and beside is not module:
            other = self._read(beside)
            for places in ([other.anywhere], [other.constant]):
                for option, number in _agree(places).items():
                    numbers.setdefault(option, number)
        length = "steps" if "steps" in numbers and "epochs" not in numbers else "epochs"
        words, unknown = ["epsilometer shuffle"], []
        for option in ("noise-multiplier", SIZE, "batch-size", length, "delta"):
            if option in numbers:
                words.append(f"--{option} {write_number(numbers[option])}")
            else:
                unknown.append(module.catalogue.options[option].placeholder)
                words.append(f"--{option} {unknown[-1]}")
        if sampler:
            buffer = write_number(numbers["buffer"]) if "buffer" in numbers else "BUFFER"
            unknown += ["BUFFER"] if "{buffer}" in sampler and buffer == "BUFFER" else []
            words.append(f"--sampler {sampler.replace('{buffer}', buffer)}")
        return " ".join(words), tuple(unknown)

    def _find_numbers(self, module: Module, node: ast.AST) -> dict[str, Number]:
        """Return the known options. The nearest place wins; if it has two values, none counts."""
        own, scope = self._read(module), module.find_scope(node)
        together = [own.within[None], own.within[scope]] if scope else [own.anywhere]
        numbers: dict[str, Number] = {}
        for places in ([own.constant], [own.anywhere], together, [own.at[node]]):
            numbers |= _agree(places)
        return numbers


def _agree(places: list[_Said]) -> dict[str, Number]:
    """Return the options with a single number over all places."""
    numbers: dict[str, Number] = {}
    for option in {option for said in places for option in said}:
        every = set().union(*(said.get(option, set()) for said in places))
        if len(every) == 1:
            numbers[option] = every.pop()
    return numbers


def list_numbers(module: Module, flow: Flow, name: str) -> list[Number]:
    """Return every number that accountants of a module were given for an option."""
    return [
        number
        for call in module.calls
        if call.packages & module.catalogue.private
        for option, number in read_call(module, flow, call)
        if option == name
    ]


def _make_said() -> _Said:
    return defaultdict(set)


def _add(said: _Said, option: str, number: Number) -> None:
    if len(said[option]) < 2:
        said[option].add(number)


def find_epoch_loops(module: Module, flow: Flow) -> Iterator[tuple[ast.AST, Number]]:
    """Yield every ``for epoch in range(15)``, with the 15."""
    for node in module.nodes:
        match node:
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range" | "trange"), args=[*_, end] as ends),
            ) if len(ends) < 3 and _counts_epochs(name, node):
                option = module.catalogue.options["epochs"]
                for _, epochs in _read_number(module, flow, option, end):
                    start = 0
                    if len(ends) == 2:
                        given = flow.read_number(Value(ends[0], module))
                        if given not in (0, 1):
                            continue
                        start = int(given)
                    yield node, epochs - start


def _counts_epochs(name: str, loop: ast.For) -> bool:
    """Tell whether a loop is over epochs, by its name; for ``e`` and ``_``, if it nests another."""
    inner = any(isinstance(line, ast.For) for line in loop.body)
    return "epoch" in name or (inner and name in ("e", "ep", "_"))


def _describes_training(module: Module, call: Call) -> bool:
    """Tell whether a call's arguments describe the private training."""
    if ("torch", "DataLoader") in call.known or call.method == "batch":
        return not serves_other_ends(module, call.node)
    catalogue = module.catalogue
    named = call.method in _METHODS or call.method in catalogue.engines
    trainer = bool(call.known & catalogue.settings) or "max_epochs" in call.arguments
    return named or trainer or bool(call.packages & catalogue.private)


def read_call(module: Module, flow: Flow, call: Call) -> Iterator[tuple[str, Number]]:
    """Yield the options of ``epsilometer shuffle`` that the arguments of a call provide."""
    catalogue = module.catalogue
    for name, expression in call.arguments.items():
        yield from _read_number(module, flow, catalogue.arguments.get(name), expression)
        if name in RATES:
            ratio = flow.read_ratio(Value(expression, module))
            for option, part in zip((_BATCH, SIZE), ratio, strict=True):
                number = None if part is None else flow.read_number(part)
                if option == _BATCH and number == 1:
                    break  # 1 / len(loader) is a rate, not a batch size
                yield from _check_number(catalogue.options[option], number)
    position, option = _POSITIONS.get(call.method, (0, ""))
    if option and len(call.positional) > position:
        expression = call.positional[position]
        yield from _read_number(module, flow, catalogue.options[option], expression)


def _read_number(
    module: Module, flow: Flow, option: Option | None, expression: ast.expr
) -> Iterator[tuple[str, Number]]:
    """Yield an option with its number, if it is one and the number is known."""
    if option is not None:
        yield from _check_number(option, flow.read_number(Value(expression, module)))


def _check_number(option: Option, number: Number | None) -> Iterator[tuple[str, Number]]:
    if number is None or number <= 0 or (option.whole and number != int(number)):
        return
    yield option.name, int(number) if option.whole else number


def write_number(number: Number) -> str:
    """Return ``1e-05`` as written by hand."""
    return re.sub(r"e([+-])0+", r"e\1", repr(number)).replace("e+", "e")
