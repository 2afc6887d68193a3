"""Take a training back to where it was: parameters, buffers, optimiser, books, random streams.

A replay takes steps that must leave no trace. Everything is restored in place, so that whoever
holds a tensor, a list or an optimiser still holds the same one afterwards.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

from epsilometer.integrations.opacus.streams import RandomStreams, list_held, list_once

_WATCHED = ("clip_and_accumulate", "accumulate", "add_noise", "pre_step")
_OWN = "epsilometer.integrations."
_CLEARED = ("grad_sample", "summed_grad", "_current_grad_sample", "_norm_sample")  # for each run


class Rewinder:
    """Remember a training, and restore it exactly, as often as is wanted.

    Restored are: values and attributes of parameters and buffers, gradients, attributes of
    modules and optimisers, the state of the inner optimiser, the accountant's history, and every
    random stream that can be found (torch on all devices, NumPy, Python, the optimiser's own
    generator, generators that modules and the loss hold).

    Args:
        engine: The ``PrivacyEngine``.
        model: The module that is trained.
        optimizer: The ``DPOptimizer``.
        loss: What computes the loss; may hold generators, or the module of ghost clipping.
    """

    def __init__(self, engine: Any, model: Any, optimizer: Any, loss: Any) -> None:
        self._model, self._optimizer = model, optimizer
        inner = optimizer.original_optimizer
        modules = list(model.modules())
        self._modules = modules
        self.parameters = _list_parameters(model, inner)
        buffers = [each for each in model.buffers() if each is not None]
        holders = [engine.accountant, optimizer, inner, *modules, *_find_hooks(loss)]
        self._restores = [
            *(remember_attributes(each) for each in list_once(holders)),
            *(_remember_tensor(each) for each in list_once([*self.parameters, *buffers])),
            _remember_states(inner),
            *(remember_attributes(group) for group in inner.param_groups),
        ]
        self.streams = RandomStreams(optimizer, modules, loss)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore everything, random streams too."""
        for restore in self._restores:
            restore()
        self.streams.restore()

    def begin(self, seed: int) -> None:
        """Restore everything, with random streams from a seed and no gradients left over."""
        for restore in self._restores:
            restore()
        self.streams.seed(seed)
        for parameter in self.parameters:
            parameter.grad = None
            held = vars(parameter)
            held.update(dict.fromkeys(held.keys() & {"grad_sample", "summed_grad"}))
            held.update(dict.fromkeys(held.keys() & {"_forward_counter"}, 0))
            for name in _CLEARED[2:]:
                held.pop(name, None)
        for module in self._modules:
            if "activations" in module.__dict__:  # of a forward pass without a backward one
                module.activations = []
            module.__dict__.pop("max_batch_len", None)
        self._optimizer._step_skip_queue = []
        self._optimizer._is_last_step_skipped = False
        unwrap(self._optimizer)


def unwrap(optimizer: Any) -> None:
    """Take off what an audit of this package put around methods of an optimiser.

    What others put there stays: it is part of the program.
    """
    for name in _WATCHED:
        own = optimizer.__dict__.get(name)
        if own is None or not _is_ours(own):
            continue
        while own is not None and _is_ours(own):
            own = getattr(own, "__wrapped__", None)
        del optimizer.__dict__[name]
        if own is not None:
            optimizer.__dict__[name] = own


def _is_ours(function: Any) -> bool:
    """Tell whether a function, or the object whose method it is, comes from this package."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return str(getattr(function, "__globals__", {}).get("__name__", "")).startswith(_OWN)


def _find_hooks(loss: Any) -> list[Any]:
    """List the objects that compute gradients of single records, where the loss holds them."""
    from opacus.grad_sample.gsm_base import (  # type: ignore[import-untyped]
        AbstractGradSampleHooks,
    )

    return [each for each in [loss, *list_held(loss)] if isinstance(each, AbstractGradSampleHooks)]


def _list_parameters(model: Any, inner: Any) -> list[Any]:
    given = [each for group in inner.param_groups for each in group["params"]]
    return list_once([*given, *model.parameters()])


def remember_attributes(thing: Any) -> Callable[[], None]:
    """Return what restores all attributes of an object, or entries of a dictionary."""
    held = thing if isinstance(thing, dict) else vars(thing)
    entries = [
        (name, value, _keep if name in _CLEARED else _remember_value(value))
        for name, value in held.items()
    ]

    def restore() -> None:
        held.clear()
        for name, value, restore_value in entries:
            restore_value()
            held[name] = value

    return restore


def _remember_value(value: Any) -> Callable[[], None]:
    """Return what restores a value that can be changed in place; others need nothing."""
    import torch

    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        return _remember_data(value)
    if isinstance(value, list):
        items = list(value)
        return lambda: value.__setitem__(slice(None), items)
    if isinstance(value, dict):
        entries = dict(value)

        def restore() -> None:
            value.clear()
            value.update(entries)

        return restore
    return _keep


def _keep() -> None:
    """Do nothing: what cannot be changed in place, or is not, needs no copy."""


def _remember_data(tensor: Any) -> Callable[[], None]:
    alias, copy = tensor.data, tensor.detach().clone()

    def restore() -> None:
        tensor.data = alias
        alias.copy_(copy)

    return restore


def _remember_tensor(tensor: Any) -> Callable[[], None]:
    """Return what restores a parameter or buffer with its gradient and its attributes."""
    data, attributes = _remember_data(tensor), remember_attributes(tensor)
    gradient, needed = tensor.grad, tensor.requires_grad  # no run is given this gradient

    def restore() -> None:
        data()
        attributes()
        tensor.grad = gradient
        tensor.requires_grad_(needed)

    return restore


def _remember_states(inner: Any) -> Callable[[], None]:
    """Return what restores the inner optimiser's state of every parameter."""
    state = inner.state
    entries = [(key, value, remember_attributes(value)) for key, value in state.items()]

    def restore() -> None:
        inner.state = state
        state.clear()
        for key, value, restore_value in entries:
            restore_value()
            state[key] = value

    return restore
