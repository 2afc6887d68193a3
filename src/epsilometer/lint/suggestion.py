"""The ``epsilometer shuffle`` call for a finding, filled with the numbers the module has."""

import ast
import re
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
        self._module = sampling.module
        self._said: list[tuple[ast.AST, str, Number]] = []
        for call in self._module.calls:
            if _counts(sampling, call):
                self._said += [(call.node, *pair) for pair in _said_by(self._module, call)]
        self._said += [(loop, "epochs", epochs) for loop, epochs in _epoch_loops(self._module)]
        self._by_scope: dict[Scope, dict[str, Number]] = {}

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
        numbers: dict[str, Number] = {}
        _add(numbers, [(option, number) for at, option, number in self._said if at is node])
        scope = self._module.scope(node)
        if scope not in self._by_scope:
            self._by_scope[scope] = self._around(node)
        return self._by_scope[scope] | numbers

    def _around(self, node: ast.AST) -> dict[str, Number]:
        numbers: dict[str, Number] = {}
        together = self._module.together
        near = [(option, number) for at, option, number in self._said if together(at, node)]
        _add(numbers, near)
        _add(numbers, [(option, number) for _, option, number in self._said])
        _add(numbers, list(_constants(self._module)))
        return numbers


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


def _add(numbers: dict[str, Number], said: list[tuple[str, Number]]) -> None:
    for option in {option for option, _ in said} - set(numbers):
        values = {number for each, number in said if each == option}
        if len(values) == 1:
            numbers[option] = values.pop()


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
