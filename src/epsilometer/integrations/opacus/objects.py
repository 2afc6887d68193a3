"""What is asked of Opacus's own objects: engines, optimisers, loaders.

Nothing here changes them, or uses up their randomness.
"""

import math
import warnings
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Poisson, Sampler, Sequential, Shuffle, label_sampler


def is_engine(thing: Any) -> bool:
    """Whether it is a ``PrivacyEngine``."""
    with needs("opacus", extra="opacus"):
        from opacus import PrivacyEngine  # type: ignore[import-untyped]
    return isinstance(thing, PrivacyEngine)


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no ``DPOptimizer``, and one that holds shards of gradients."""
    from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]

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
    """Whether it clips without gradients of single records."""
    from opacus.optimizers import DPOptimizerFastGradientClipping

    return isinstance(optimizer, DPOptimizerFastGradientClipping)


def batches_of(loader: Any) -> int:
    """Batches of an epoch; refuses what is no loader of records that have indices."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        raise InvalidArgument(
            f"Expected the DataLoader that make_private returned, got {type(loader).__name__}. "
            "A PrivacyEngine does not keep its loader: give it beside the engine."
        )
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidArgument(
            "Expected a loader over records that have indices, got one of an IterableDataset: "
            "what it draws can be neither seen nor accounted for."
        )
    if len(loader) == 0:
        raise InvalidArgument("Expected a loader of at least one batch, got none.")
    return len(loader)


def reported_epsilon(accountant: Any, delta: float) -> float:
    """The ε that Opacus reports."""
    if any(sigma == 0 for sigma, _, _ in accountant.history):
        return math.inf
    if not accountant.history:
        return 0.0
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        # At rate 1 the PRV accountant takes ln 0, RDP comments on its orders: the numbers hold.
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta))


def sampler_of(loader: Any) -> Sampler | None:
    """The sampler of a loader by its type; None where that says nothing."""
    from opacus.utils.uniform_sampler import (  # type: ignore[import-untyped]
        UniformWithReplacementSampler,
    )
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    source: Any = None if loader.batch_sampler is None else find_logical_sampler(loader)
    if find_type(source) is UniformWithReplacementSampler:
        return Poisson(rate=float(source.sample_rate), steps=len(source))
    if find_type(source) is not BatchSampler:
        return None
    order: Any = source.sampler
    whole = len(order) == len(loader.dataset)
    if type(order) is RandomSampler and not order.replacement and whole:
        return Shuffle(drop_last=source.drop_last)
    return Sequential(drop_last=source.drop_last) if type(order) is SequentialSampler else None


def find_logical_sampler(loader: Any) -> Any:
    """Return what draws the logical batches of a loader, or its single records."""
    from opacus.utils.batch_memory_manager import (  # type: ignore[import-untyped]
        BatchSplittingSampler,
    )

    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while isinstance(source, BatchSplittingSampler):  # physical batches of logical ones
        source = source.sampler
    return source


def count_logical_batches(loader: Any) -> int:
    """Return how many logical batches an epoch has, also where they are split."""
    return len(loader) if loader.batch_sampler is None else len(find_logical_sampler(loader))


def find_type(sampler: Any) -> type:
    """Return the type of a sampler as its user made it, whoever watches it."""
    kind = type(sampler)
    while hasattr(kind, "watched_type"):
        kind = kind.watched_type
    return kind


def find_noise(optimizer: Any) -> float:
    """Return the noise multiplier that gradients need, for the one that is booked.

    Adaptive clipping also releases how many records were not clipped, with noise of its own: then
    gradients need more, so that both together are what is booked (Andrew et al. 2021, Theorem 1).
    """
    booked, count = float(optimizer.noise_multiplier), getattr(optimizer, "unclipped_num_std", None)
    if count is None or booked == 0:
        return booked
    left = booked**-2 - (2 * float(count)) ** -2
    return left**-0.5 if left > 0 else booked


def count_taken(optimizer: Any) -> int | None:
    """Return how many steps the optimiser's state counts; None where it counts none.

    Adam and its kin count the steps of every parameter; plain SGD keeps no such number.
    """
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return max(counts, default=None)


def in_words(sampler: Sampler) -> str:
    """The sampler, for people."""
    return str(getattr(sampler, "words", label_sampler(sampler)))
