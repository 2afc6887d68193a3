"""What is asked of Opacus's own objects: engines, optimisers, loaders.

Nothing here changes them, or uses up their randomness.
"""

import math
import warnings
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson, Sampler, Sequential, Shuffle


def is_engine(thing: Any) -> bool:
    """Whether it is a ``PrivacyEngine``."""
    with needs("opacus", extra="opacus"):
        from opacus import PrivacyEngine  # type: ignore[import-untyped]
    return isinstance(thing, PrivacyEngine)


def check_optimizer(optimizer: Any) -> None:
    """Refuses what is no ``DPOptimizer``, and one of several processes."""
    from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]

    if not isinstance(optimizer, DPOptimizer):
        raise InvalidArgument(
            f"Expected the DPOptimizer that make_private returned, got {type(optimizer).__name__}."
        )
    kinds = " ".join(kind.__name__ for kind in type(optimizer).__mro__)
    if "Distributed" in kinds or "FSDP" in kinds:
        raise InvalidArgument(
            f"Expected an optimiser of one process, got {type(optimizer).__name__}. "
            "Every process would plant its own canaries: audit the training on one."
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
    from opacus.utils.batch_memory_manager import (  # type: ignore[import-untyped]
        BatchSplittingSampler,
    )
    from opacus.utils.uniform_sampler import (  # type: ignore[import-untyped]
        UniformWithReplacementSampler,
    )
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    source = loader.batch_sampler
    if type(source) is BatchSplittingSampler:  # physical batches of logical ones
        source = source.sampler
    if type(source) is UniformWithReplacementSampler:
        return Poisson(rate=float(source.sample_rate), steps=len(source))
    if type(source) is not BatchSampler:
        return None
    order: Any = source.sampler
    whole = len(order) == len(loader.dataset)
    if type(order) is RandomSampler and not order.replacement and whole:
        return Shuffle(drop_last=source.drop_last)
    return Sequential(drop_last=source.drop_last) if type(order) is SequentialSampler else None


def in_words(sampler: Sampler) -> str:
    """The sampler, for people."""
    match sampler:
        case Poisson(rate):
            return f"Poisson sampling at rate {rate:.4g}"
        case Shuffle():
            return "shuffling every epoch"
        case _:
            return "going through the records in order"
