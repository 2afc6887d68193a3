"""Read Opacus objects (engines, optimisers, loaders), and make audits of them.

Nothing here changes them or uses their randomness.
"""

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine  # type: ignore[import-untyped]
from opacus.optimizers import (  # type: ignore[import-untyped]
    DPOptimizer,
    DPOptimizerFastGradientClipping,
)
from opacus.utils import batch_memory_manager, uniform_sampler  # type: ignore[import-untyped]
from torch.utils import data

from epsilometer.conformance.loader_watch import find_type
from epsilometer.engine.framework_audits import make_framework_audit
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.batch_sampler import BatchSampler
from epsilometer.sampling.samplers import Poisson, Sampler, Sequential, Shuffle, label_sampler
from epsilometer.types import FloatArray


def is_engine(thing: Any) -> bool:
    """Return whether an object is a ``PrivacyEngine``."""
    return isinstance(thing, PrivacyEngine)


def check_engine(thing: Any, call: str) -> None:
    """Reject anything but a ``PrivacyEngine``; ``call`` is the correct call."""
    if not is_engine(thing):
        kind = type(thing).__name__
        raise InvalidArgument(f"Expected a PrivacyEngine first, got {kind}: {call}.")


def check_optimizer(optimizer: Any) -> None:
    """Reject anything but a ``DPOptimizer``, and optimisers that hold shards of gradients."""
    if not isinstance(optimizer, DPOptimizer):
        raise InvalidArgument(
            f"Expected the DPOptimizer that make_private returned, got {type(optimizer).__name__}."
        )
    if any("FSDP" in kind.__name__ for kind in type(optimizer).__mro__):
        raise InvalidArgument(
            f"Expected an optimiser that holds whole gradients, got {type(optimizer).__name__}: "
            "with FSDP each process holds a shard of every tensor, so that neither the noise of a "
            "tensor nor a record's whole gradient can be seen. Audit a run on one device or by DDP."
        )


def is_ghost(optimizer: Any) -> bool:
    """Return whether an optimiser clips without per-example gradients."""
    return isinstance(optimizer, DPOptimizerFastGradientClipping)


def count_batches(loader: Any) -> int:
    """Count the batches of an epoch; reject anything but a loader over records with indices."""
    if not isinstance(loader, data.DataLoader):
        raise InvalidArgument(
            f"Expected the DataLoader that make_private returned, got {type(loader).__name__}. "
            "A PrivacyEngine does not keep its loader: pass it with the engine."
        )
    if isinstance(loader.dataset, data.IterableDataset):
        raise InvalidArgument(
            "Expected a loader over records that have indices, got one of an IterableDataset: "
            "what it draws can be neither seen nor accounted for."
        )
    if len(loader) == 0:
        raise InvalidArgument("Expected a loader of at least one batch, got none.")
    return len(loader)


def report_epsilon(accountant: Any, delta: float) -> float:
    """Return the ε that Opacus reports."""
    if any(sigma == 0 for sigma, _, _ in accountant.history):
        return math.inf
    if not accountant.history:
        return 0.0
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        # At rate 1 the PRV accountant takes ln 0, RDP comments on its orders: the numbers hold.
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta))


def find_sampler(loader: Any) -> Sampler | None:
    """Return the sampler of a loader by its type; None if the type is unknown."""
    source: Any = None if loader.batch_sampler is None else find_logical_sampler(loader)
    if find_type(source) is uniform_sampler.UniformWithReplacementSampler:
        return Poisson(rate=float(source.sample_rate), steps=len(source))
    if isinstance(source, BatchSampler):
        return source.sampler
    if find_type(source) is not data.BatchSampler:
        return None
    order: Any = source.sampler
    whole = len(order) == len(loader.dataset)
    if type(order) is data.RandomSampler and not order.replacement and whole:
        return Shuffle(drop_last=source.drop_last)
    return Sequential(drop_last=source.drop_last) if type(order) is data.SequentialSampler else None


def find_logical_sampler(loader: Any) -> Any:
    """Return the sampler of a loader's logical batches, or of its single records."""
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    # Physical batches are made of logical ones.
    while isinstance(source, batch_memory_manager.BatchSplittingSampler):
        source = source.sampler
    return source


def count_logical_batches(loader: Any) -> int:
    """Return the number of logical batches per epoch, even if they are split."""
    return len(loader) if loader.batch_sampler is None else len(find_logical_sampler(loader))


def find_noise(optimizer: Any) -> float:
    """Return the noise multiplier that gradients need, given the booked one.

    Adaptive clipping also releases the number of unclipped records, with separate noise: then
    gradients need more, so that both together match the books (Andrew et al. 2021, Theorem 1).
    """
    booked, count = float(optimizer.noise_multiplier), getattr(optimizer, "unclipped_num_std", None)
    if count is None or booked == 0:
        return booked
    left = booked**-2 - (2 * float(count)) ** -2
    return left**-0.5 if left > 0 else booked


def find_seed(optimizer: Any) -> int | None:
    """Return the seed of the noise generator; None if it is unknown."""
    generator, device = optimizer.generator, optimizer.params[0].device
    if generator is None and device.type == "cuda":
        current = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[current]
    elif generator is None and device.type == "cpu":
        generator = torch.default_generator
    try:
        return int(generator.initial_seed())
    except (AttributeError, RuntimeError):  # true random numbers, as in secure mode
        return None


def measure_rows(parameters: Sequence[Any]) -> FloatArray:
    """Return the norms of per-example gradients; empty if they are not kept."""
    rows = [
        [part.reshape(len(part), p.numel()).norm(dim=1).float() for part in list_gradients(p)]
        for p in parameters
    ]
    if not all(rows) or len({sum(map(len, parts)) for parts in rows}) > 1:
        return np.zeros(0)
    norms = torch.stack([torch.cat(parts) for parts in rows]).norm(dim=0)
    return np.asarray(norms.double().cpu().numpy())


def count_taken(optimizer: Any) -> int | None:
    """Return the number of steps in the optimiser's state; None if it counts none.

    Adam and similar optimisers count the steps of every parameter; plain SGD does not.
    """
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return max(counts, default=None)


def describe_sampler(sampler: Sampler) -> str:
    """Return what a sampler does, in words."""
    return getattr(sampler, "words", label_sampler(sampler))


def list_gradients(parameter: Any) -> list[Any]:
    """List per-example gradients, one tensor per accumulated batch."""
    samples = getattr(parameter, "grad_sample", None)
    if samples is None:
        return []
    return samples if isinstance(samples, list) else [samples]


def find_precision(tensors: Sequence[Any]) -> float:
    """Return the relative precision of the coarsest type of some tensors; 0 if there are none."""
    return max((float(torch.finfo(each.dtype).eps) for each in tensors), default=0.0)


def call_weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method while its object is alive.

    Example:
        >>> class Counter:
        ...     calls = 0
        ...     def count(self) -> None:
        ...         Counter.calls += 1
        >>> counter = Counter()
        >>> hook = call_weakly(counter.count)
        >>> hook(); del counter; hook()
        >>> Counter.calls
        1
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args)

    return call


# Makes the audit of a function of this package, with what a second run needs.
make_audit = partial(make_framework_audit, "opacus", ("torch", "opacus"))
