"""Find every random stream of a training, and read, seed and restore it."""

import functools
import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np


class RandomStreams:
    """All random streams that can be found: torch on every device, NumPy, Python, generators held.

    Leaving a ``with`` block restores them as they were when this was made.

    Args:
        optimizer: The ``DPOptimizer``, whose generator draws the noise; None where there is none.
        modules: May hold generators of their own.
        loss: May hold or close over generators.

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
        """Let all streams begin anew."""
        for stream in self._streams:
            stream.seed(seed)

    def read(self) -> str:
        """Return where all streams are, as text."""
        return _digest(self._streams)

    def read_accelerators(self) -> str:
        """Return where the streams of accelerators are, as text."""
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
    """A random stream: how to read, restore and seed it."""

    def __init__(
        self,
        save: Callable[[], Any],
        load: Callable[[Any], Any],
        seed: Callable[[int], Any],
        *,
        accelerator: bool = False,
    ) -> None:
        self.save, self.load, self.seed, self.accelerator = save, load, seed, accelerator

    def read(self) -> bytes:
        state = self.save()
        return state.cpu().numpy().tobytes() if hasattr(state, "cpu") else repr(state).encode()


def _find_streams(optimizer: Any, modules: Iterable[Any], loss: Any) -> list[_Stream]:
    import torch

    streams = [
        _Stream(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed),
        _Stream(random.getstate, random.setstate, random.seed),
        _Stream(
            lambda: [part if at != 1 else part.tolist() for at, part in enumerate(_numpy_state())],
            lambda state: np.random.set_state(tuple(state)),
            np.random.seed,
        ),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        streams += [_of_generator(each, accelerator=True) for each in torch.cuda.default_generators]
    if torch.backends.mps.is_available():  # pragma: no cover  # a machine of Apple's
        streams.append(
            _Stream(
                torch.mps.get_rng_state,
                torch.mps.set_rng_state,
                torch.mps.manual_seed,
                accelerator=True,
            )
        )
    held = [value for each in modules for value in vars(each).values()]
    for generator in list_once([*held, *list_held(loss)]):
        if isinstance(generator, torch.Generator):
            streams.append(_of_generator(generator, accelerator=generator.device.type != "cpu"))
        elif isinstance(generator, np.random.Generator):
            streams.append(_of_numpy(generator))
        elif isinstance(generator, random.Random):
            streams.append(_Stream(generator.getstate, generator.setstate, generator.seed))
    own = getattr(optimizer, "generator", None)
    if own is not None:
        streams.append(_of_noise(optimizer, own))
    return streams


def _of_generator(generator: Any, *, accelerator: bool = False) -> _Stream:
    return _Stream(
        generator.get_state, generator.set_state, generator.manual_seed, accelerator=accelerator
    )


def _of_numpy(generator: np.random.Generator) -> _Stream:
    bits = generator.bit_generator

    def load(state: Any) -> None:
        bits.state = state

    return _Stream(lambda: bits.state, load, lambda seed: load(type(bits)(seed).state))


def _of_noise(optimizer: Any, generator: Any) -> _Stream:
    """Return the stream of the noise; another one stands in where it cannot be restored.

    A source of true random numbers, as in secure mode, has no state. It is not touched then.
    """
    import torch

    try:
        generator.set_state(generator.get_state())
    except (RuntimeError, NotImplementedError):
        stand_in = torch.Generator(generator.device)

        def seed(number: int) -> None:
            optimizer.generator = stand_in.manual_seed(number)

        return _Stream(stand_in.get_state, stand_in.set_state, seed)
    return _of_generator(generator)


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
