"""The ``epsilometer shuffle`` call for a finding, filled with the numbers the module has."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from epsilometer.lint.module import Call, Module
from epsilometer.lint.sampling import MAKE_PRIVATE, Sampling
from epsilometer.lint.values import Scope

_PLACEHOLDERS = {
    "noise-multiplier": "SIGMA",
    "dataset-size": "N",
    "batch-size": "B",
    "epochs": "EPOCHS",
    "delta": "DELTA",
}
_ARGUMENTS = {
    "noise_multiplier": "noise-multiplier",
    "noise_multipliers": "noise-multiplier",
    "number_of_examples": "dataset-size",
    "num_examples": "dataset-size",
    "num_samples": "dataset-size",
    "train_size": "dataset-size",
    "dataset_size": "dataset-size",
    "sample_size": "dataset-size",
    "n": "dataset-size",
    "batch_size": "batch-size",
    "batch_sizes": "batch-size",
    "epochs": "epochs",
    "num_epochs": "epochs",
    "steps": "steps",
    "num_steps": "steps",
    "iterations": "steps",
    "train_steps": "steps",
    "num_updates": "steps",
    "count": "steps",
    "delta": "delta",
    "target_delta": "delta",
}
_CONSTANTS = _ARGUMENTS | {
    "sigma": "noise-multiplier",
    "num_train": "dataset-size",
    "n_train": "dataset-size",
    "n_epochs": "epochs",
}
_RATES = ("sampling_probability", "sampling_prob", "sample_rate", "q")
_WHOLE = ("dataset-size", "batch-size", "steps")
_PACKAGES = {"opacus", "tensorflow_privacy", "dp_accounting", "jax_privacy"}
_METHODS = (*MAKE_PRIVATE, "get_epsilon", "get_privacy_spent", "fit", "step")
_SIZE = "dataset-size"

Number = int | float


class Suggestions:
    """The numbers of a module, and the commands made of them."""

    def __init__(self, sampling: Sampling) -> None:
        self._module = module = sampling.module
        self._at: dict[ast.AST, _Said] = defaultdict(_Said)
        self._in: dict[Scope, _Said] = defaultdict(_Said)
        self._anywhere, self._constant = _Said(), _Said()
        for call in module.calls:
            if _counts(sampling, call):
                for option, number in _said_by(module, call):
                    self._take(call.node, option, number)
        for loop, epochs in _epoch_loops(module):
            self._take(loop, "epochs", epochs)
        for option, number in _constants(module):
            self._constant.add(option, number)

    def _take(self, node: ast.AST, option: str, number: Number) -> None:
        for said in (self._at[node], self._in[self._module.scope(node)], self._anywhere):
            said.add(option, number)

    def command(self, node: ast.AST) -> tuple[str, tuple[str, ...]]:
        """The command for a finding, and the placeholders in it to be filled by hand."""
        numbers = self._numbers(node)
        length = "steps" if "steps" in numbers and "epochs" not in numbers else "epochs"
        words, unknown = ["epsilometer shuffle"], []
        for option in ("noise-multiplier", "dataset-size", "batch-size", length, "delta"):
            if option in numbers:
                words.append(f"--{option} {_written(numbers[option])}")
            else:
                words.append(f"--{option} {_PLACEHOLDERS[option]}")
                unknown.append(_PLACEHOLDERS[option])
        return " ".join(words), tuple(unknown)

    def _numbers(self, node: ast.AST) -> dict[str, Number]:
        """What is known of each option. The nearest place wins; if it says two things, none."""
        scope = self._module.scope(node)
        together = [self._in[None], self._in[scope]] if scope else [self._anywhere]
        numbers: dict[str, Number] = {}
        for places in ([self._constant], [self._anywhere], together, [self._at[node]]):
            numbers |= _told(*places)
        return numbers


class _Said:
    """What was said of each option; of more than two numbers, two: none of them counts then."""

    def __init__(self) -> None:
        self.numbers: dict[str, set[Number]] = defaultdict(set)

    def add(self, option: str, number: Number) -> None:
        """One more."""
        if len(self.numbers[option]) < 2:
            self.numbers[option].add(number)


def _told(*places: _Said) -> dict[str, Number]:
    """The options of which some places say one number."""
    options = {option for said in places for option in said.numbers}
    every = {o: set().union(*(said.numbers.get(o, ()) for said in places)) for o in options}
    return {option: numbers.pop() for option, numbers in every.items() if len(numbers) == 1}


def dataset_sizes(module: Module) -> list[Number]:
    """Every size of the data that accountants of a module were told."""
    sizes = []
    for call in module.calls:
        if {package for package, _ in call.known} & _PACKAGES:
            sizes += [number for option, number in _said_by(module, call) if option == _SIZE]
    return sizes


def _epoch_loops(module: Module) -> Iterator[tuple[ast.AST, Number]]:
    """``for epoch in range(15)``."""
    for node in module.nodes:
        match node:
            case ast.For(
                target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[end])
            ) if "epoch" in name:
                for _, epochs in _checked("epochs", module.values.number(end)):
                    yield node, epochs


def _counts(sampling: Sampling, call: Call) -> bool:
    """Whether a call's arguments describe the private training."""
    loads = ("torch", "DataLoader") in call.known or call.method == "batch"
    if loads:
        return not sampling.serves_other_ends(call.node)
    return bool({package for package, _ in call.known} & _PACKAGES) or call.method in _METHODS


def _said_by(module: Module, call: Call) -> Iterator[tuple[str, Number]]:
    for name, expression in call.arguments.items():
        if name in _ARGUMENTS:
            yield from _checked(_ARGUMENTS[name], module.values.number(expression))
        if name in _RATES:
            batch, size = module.values.ratio(expression)
            yield from _checked("batch-size", batch)
            yield from _checked("dataset-size", size)
    for method, position, option in (
        ("batch", 0, "batch-size"),
        ("get_epsilon", 0, "delta"),
        ("compose", 1, "steps"),
    ):
        if call.method == method and len(call.positional) > position:
            yield from _checked(option, module.values.number(call.positional[position]))


def _constants(module: Module) -> Iterator[tuple[str, Number]]:
    for name, expression in module.values.constants():
        option = _CONSTANTS.get(name.lower())
        if option is not None:
            yield from _checked(option, module.values.number(expression))


def _checked(option: str, number: Number | None) -> Iterator[tuple[str, Number]]:
    if number is None or number <= 0:
        return
    if option in _WHOLE and number != int(number):
        return
    yield option, int(number) if option in _WHOLE else number


def _written(number: Number) -> str:
    """``1e-05`` as a person writes it."""
    return re.sub(r"e([+-])0+", r"e\1", repr(number)).replace("e+", "e")
