"""Restore a training state: parameters, buffers, optimiser, books, random streams.

A replay takes steps that must leave no trace. Everything is restored in place, so that references
to tensors, lists and optimisers stay valid.
"""

import functools
import hashlib
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Self

import numpy as np
import torch

from epsilometer.errors import MissingExtra

_WATCHED = ("clip_and_accumulate", "accumulate", "add_noise", "pre_step")
_OWN = "epsilometer.integrations."
_CLEARED = ("grad_sample", "summed_grad", "_current_grad_sample", "_norm_sample")  # for each run


class Rewinder:
    """Save a training state, and restore it exactly, any number of times.

    It restores values and attributes of parameters and buffers, gradients, attributes of modules
    and optimisers, the state of the inner optimiser, the accountant's history, and every random
    stream that can be found (torch on all devices, NumPy, Python, the optimiser's generator,
    generators held by modules and the loss).

    Args:
        engine: The ``PrivacyEngine``.
        model: The trained module.
        optimizer: The ``DPOptimizer``.
        loss: Loss function; may hold generators, or the module of ghost clipping.
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
        """Restore everything, including random streams."""
        for restore in self._restores:
            restore()
        self.streams.restore()

    def begin(self, seed: int) -> None:
        """Restore everything, with random streams from a seed and without gradients."""
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
    """Remove the wrappers that an audit of this package put around an optimiser's methods.

    Other wrappers stay: they are part of the program.
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
    """List the objects that compute per-example gradients, if the loss holds them."""
    try:
        from opacus.grad_sample.gsm_base import (  # type: ignore[import-untyped]
            AbstractGradSampleHooks,
        )
    except ImportError as error:
        raise MissingExtra(
            f"Expected Opacus 1.6 or later to replay a step, got {version('opacus')}. "
            "Get it with: pip install 'opacus>=1.6'"
        ) from error
    return [each for each in [loss, *list_held(loss)] if isinstance(each, AbstractGradSampleHooks)]


def _list_parameters(model: Any, inner: Any) -> list[Any]:
    given = [each for group in inner.param_groups for each in group["params"]]
    return list_once([*given, *model.parameters()])


def remember_attributes(thing: Any) -> Callable[[], None]:
    """Return a function that restores all attributes of an object, or entries of a dictionary."""
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
    """Return a function that restores a mutable value; others need none."""
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
    """Do nothing: immutable or unchanged values need no copy."""


def _remember_data(tensor: Any) -> Callable[[], None]:
    alias, copy = tensor.data, tensor.detach().clone()

    def restore() -> None:
        tensor.data = alias
        alias.copy_(copy)

    return restore


def _remember_tensor(tensor: Any) -> Callable[[], None]:
    """Return a function that restores a parameter or buffer with gradient and attributes."""
    data, attributes = _remember_data(tensor), remember_attributes(tensor)
    gradient, needed = tensor.grad, tensor.requires_grad  # no run is given this gradient

    def restore() -> None:
        data()
        attributes()
        tensor.grad = gradient
        tensor.requires_grad_(needed)

    return restore


def _remember_states(inner: Any) -> Callable[[], None]:
    """Return a function that restores the inner optimiser's state of every parameter."""
    state = inner.state
    entries = [(key, value, remember_attributes(value)) for key, value in state.items()]

    def restore() -> None:
        inner.state = state
        state.clear()
        for key, value, restore_value in entries:
            restore_value()
            state[key] = value

    return restore


class RandomStreams:
    """Manage all random streams: torch on every device, NumPy, Python, and held generators.

    Leaving a ``with`` block restores them to their state at construction.

    Args:
        optimizer: The ``DPOptimizer``, whose generator draws the noise; None if there is none.
        modules: Modules that may hold generators.
        loss: Loss that may hold or close over generators.

    Example:
        >>> import torch
        >>> before = torch.get_rng_state()
        >>> with RandomStreams() as streams:
        ...     streams.seed(3)
        ...     _ = torch.rand(5)
        >>> bool((torch.get_rng_state() == before).all())
        True
    """

    def __init__(
        self, optimizer: Any = None, modules: Iterable[Any] = (), loss: Any = None
    ) -> None:
        self._streams = _find_streams(optimizer, modules, loss)
        self._states = [stream.save() for stream in self._streams]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore all streams."""
        for stream, state in zip(self._streams, self._states, strict=True):
            stream.load(state)

    def seed(self, seed: int) -> None:
        """Seed all streams."""
        for stream in self._streams:
            stream.seed(seed)

    def read(self) -> str:
        """Return the states of all streams, as text."""
        return _digest(self._streams)

    def read_accelerators(self) -> str:
        """Return the states of the accelerators' streams, as text."""
        return _digest(stream for stream in self._streams if stream.accelerator)


def list_held(holder: Any) -> list[Any]:
    """List what a function closes over, or an object holds."""
    while isinstance(holder, functools.partial):
        holder = holder.func
    cells = getattr(holder, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if _is_filled(cell)]
    return [*held, *vars(holder).values()] if hasattr(holder, "__dict__") else held


def list_once(things: Iterable[Any]) -> list[Any]:
    """Return each thing once, by identity, in order."""
    return list({id(each): each for each in things}.values())


class _Stream:
    """Read, restore and seed a random stream."""

    def __init__(
        self,
        save: Callable[[], Any],
        load: Callable[[Any], Any],
        seed: Callable[[int], Any],
        *,
        accelerator: bool = False,
    ) -> None:
        self.save, self.load, self.seed, self.accelerator = save, load, seed, accelerator

    @classmethod
    def of_generator(cls, generator: Any) -> Self:
        """Return the stream of a generator of torch, NumPy or Python."""
        if isinstance(generator, torch.Generator):
            on_device = generator.device.type != "cpu"
            own = generator.get_state, generator.set_state, generator.manual_seed
            return cls(*own, accelerator=on_device)
        if isinstance(generator, random.Random):
            return cls(generator.getstate, generator.setstate, generator.seed)
        bits = generator.bit_generator

        def load(state: Any) -> None:
            bits.state = state

        return cls(lambda: bits.state, load, lambda seed: load(type(bits)(seed).state))

    def read(self) -> bytes:
        """Return the state of the stream."""
        state = self.save()
        return state.cpu().numpy().tobytes() if hasattr(state, "cpu") else repr(state).encode()


def _find_streams(optimizer: Any, modules: Iterable[Any], loss: Any) -> list[_Stream]:
    streams = [
        _Stream(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed),
        _Stream(random.getstate, random.setstate, random.seed),
        _Stream(
            lambda: [part.tolist() if at == 1 else part for at, part in enumerate(_numpy_state())],
            lambda state: np.random.set_state(tuple(state)),
            np.random.seed,
        ),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        streams += map(_Stream.of_generator, torch.cuda.default_generators)
    if torch.backends.mps.is_available():  # pragma: no cover  # a machine of Apple's
        own = torch.mps.get_rng_state, torch.mps.set_rng_state, torch.mps.manual_seed
        streams.append(_Stream(*own, accelerator=True))
    kinds = (torch.Generator, np.random.Generator, random.Random)
    held = [value for each in modules for value in vars(each).values()]
    for each in list_once([*held, *list_held(loss)]):
        if isinstance(each, kinds):
            streams.append(_Stream.of_generator(each))
    if getattr(optimizer, "generator", None) is not None:
        streams.append(_find_noise_stream(optimizer))
    return streams


def _find_noise_stream(optimizer: Any) -> _Stream:
    """Return the stream of the noise; a substitute if it cannot be restored.

    A source of true random numbers, as in secure mode, has no state and is not touched.
    """
    generator = optimizer.generator
    with suppress(RuntimeError, NotImplementedError):
        generator.set_state(generator.get_state())
        own = generator.get_state, generator.set_state, generator.manual_seed
        return _Stream(*own)  # not an accelerator's, since only noise is drawn from it
    stand_in = torch.Generator(generator.device)

    def seed(number: int) -> None:
        optimizer.generator = stand_in.manual_seed(number)

    return _Stream(stand_in.get_state, stand_in.set_state, seed)


def _numpy_state() -> Any:
    return np.random.get_state(legacy=True)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a variable that was never set
        return False
    return True


def _digest(streams: Iterable[_Stream]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for stream in streams:
        total.update(stream.read())
    return total.hexdigest()
