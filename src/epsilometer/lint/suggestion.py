"""Fill the ``epsilometer shuffle`` call of a finding with the numbers the module has."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from epsilometer.lint.libraries import Option
from epsilometer.lint.module import Call, Module, Number, Scope
from epsilometer.lint.sampling import RATES, Sampling

_SIZE = "dataset-size"
_METHODS = ("get_epsilon", "get_privacy_spent", "fit", "step")  # describe training anywhere
# Methods that take a number by position: which, and the option that it is.
_POSITIONS = {"batch": (0, "batch-size"), "get_epsilon": (0, "delta"), "compose": (1, "steps")}
# What was said of each option; of more than two numbers, two: none of them counts then.
_Said: TypeAlias = dict[str, set[Number]]


class Suggestions:
    """The numbers of a module, and the commands made of them."""

    def __init__(self, sampling: Sampling) -> None:
        self._module = module = sampling.module
        self._at: dict[ast.AST, _Said] = defaultdict(_make_said)
        self._in: dict[Scope, _Said] = defaultdict(_make_said)
        self._anywhere, self._constant = _make_said(), _make_said()
        for call in module.calls:
            if _describes_training(sampling, call):
                for option, number in _read_call(module, call):
                    self._take(call.node, option, number)
        for loop, epochs in _find_epoch_loops(module):
            self._take(loop, "epochs", epochs)
        for name, expression in module.values.list_constants():
            known = module.catalogue.constants.get(name.lower())
            for option, number in _read_number(module, known, expression):
                _add(self._constant, option, number)

    def _take(self, node: ast.AST, option: str, number: Number) -> None:
        for said in (self._at[node], self._in[self._module.find_scope(node)], self._anywhere):
            _add(said, option, number)

    def make_command(self, node: ast.AST) -> tuple[str, tuple[str, ...]]:
        """Return the command for a finding, and the placeholders in it to be filled by hand."""
        numbers = self._find_numbers(node)
        length = "steps" if "steps" in numbers and "epochs" not in numbers else "epochs"
        words, unknown = ["epsilometer shuffle"], []
        for option in ("noise-multiplier", _SIZE, "batch-size", length, "delta"):
            if option in numbers:
                words.append(f"--{option} {_write_number(numbers[option])}")
            else:
                unknown.append(self._module.catalogue.options[option].placeholder)
                words.append(f"--{option} {unknown[-1]}")
        return " ".join(words), tuple(unknown)

    def _find_numbers(self, node: ast.AST) -> dict[str, Number]:
        """Return what is known of each option. The nearest place wins; if it says two, none."""
        scope = self._module.find_scope(node)
        together = [self._in[None], self._in[scope]] if scope else [self._anywhere]
        numbers: dict[str, Number] = {}
        for places in ([self._constant], [self._anywhere], together, [self._at[node]]):
            for option in {option for said in places for option in said}:
                every = set().union(*(said.get(option, set()) for said in places))
                if len(every) == 1:
                    numbers[option] = every.pop()
        return numbers


def list_dataset_sizes(module: Module) -> list[Number]:
    """Return every size of the data that accountants of a module were told."""
    sizes: list[Number] = []
    for call in module.calls:
        if call.packages & module.catalogue.private:
            sizes += [number for option, number in _read_call(module, call) if option == _SIZE]
    return sizes


def _make_said() -> _Said:
    return defaultdict(set)


def _add(said: _Said, option: str, number: Number) -> None:
    if len(said[option]) < 2:
        said[option].add(number)


def _find_epoch_loops(module: Module) -> Iterator[tuple[ast.AST, Number]]:
    """Yield every ``for epoch in range(15)``, with the 15."""
    for node in module.nodes:
        match node:
            case ast.For(
                target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[end])
            ) if "epoch" in name:
                for _, epochs in _read_number(module, module.catalogue.options["epochs"], end):
                    yield node, epochs


def _describes_training(sampling: Sampling, call: Call) -> bool:
    """Tell whether a call's arguments describe the private training."""
    if ("torch", "DataLoader") in call.known or call.method == "batch":
        return not sampling.serves_other_ends(call.node)
    catalogue = sampling.module.catalogue
    named = call.method in _METHODS or call.method in catalogue.engines
    return named or bool(call.packages & catalogue.private)


def _read_call(module: Module, call: Call) -> Iterator[tuple[str, Number]]:
    catalogue = module.catalogue
    for name, expression in call.arguments.items():
        yield from _read_number(module, catalogue.arguments.get(name), expression)
        if name in RATES:
            ratio = module.values.read_ratio(expression)
            for option, number in zip(("batch-size", _SIZE), ratio, strict=True):
                yield from _check_number(catalogue.options[option], number)
    position, option = _POSITIONS.get(call.method, (0, ""))
    if option and len(call.positional) > position:
        yield from _read_number(module, catalogue.options[option], call.positional[position])


def _read_number(
    module: Module, option: Option | None, expression: ast.expr
) -> Iterator[tuple[str, Number]]:
    """Yield an option with its number, if it is one and the number can be read."""
    if option is not None:
        yield from _check_number(option, module.values.read_number(expression))


def _check_number(option: Option, number: Number | None) -> Iterator[tuple[str, Number]]:
    if number is None or number <= 0 or (option.whole and number != int(number)):
        return
    yield option.name, int(number) if option.whole else number


def _write_number(number: Number) -> str:
    """Return ``1e-05`` as a person writes it."""
    return re.sub(r"e([+-])0+", r"e\1", repr(number)).replace("e+", "e")
