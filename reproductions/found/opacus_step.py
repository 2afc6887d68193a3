"""Take one step of Opacus as a function of records and randomness, as ``epsilometer.Step`` wants.

Everything between the records and what the inner optimiser applies is Opacus's own: its loader,
gradients of single records, clipping, noise and division.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

CLIP_NORM = NOISE_MULTIPLIER = 1.0


def make_private(model: Any, records: Any, *, batch_size: int, **given: Any) -> tuple[Any, ...]:
    """Return model, optimiser and loader as ``PrivacyEngine.make_private`` makes them."""
    with warnings.catch_warnings(action="ignore"):  # that noise is not of a secure generator
        return tuple(
            PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=DataLoader(records, batch_size=batch_size, **given),
                noise_multiplier=NOISE_MULTIPLIER,
                max_grad_norm=CLIP_NORM,
            )
        )


def release_gradients(
    model: Any,
    optimizer: Any,
    batch: Any,
    rng: np.random.Generator,
    *,
    compute_loss: Callable[[Any, Any], Any],
    scale: float,
) -> dict[str, Any]:
    """Take a step up to what is applied, and return it times a public scale.

    Args:
        model: As ``make_private`` returned it.
        optimizer: The ``DPOptimizer``.
        batch: What ``compute_loss`` takes beside the model.
        rng: Seeds torch: the same generator gives the same noise.
        compute_loss: Returns the mean loss of the batch.
        scale: Turns the mean that Opacus applies into a sum, such as the public batch size.
    """
    optimizer.zero_grad()
    with warnings.catch_warnings(action="ignore"):  # of hooks on inputs without gradients
        compute_loss(model, batch).backward()
    torch.manual_seed(int(rng.integers(2**62)))
    optimizer.pre_step()  # clips, adds noise, divides; the update itself is left out
    named: Iterable[tuple[str, Any]] = model.named_parameters()
    released = {
        name: (parameter.grad * scale).detach().double().numpy().copy()
        for name, parameter in named
        if parameter.requires_grad
    }
    optimizer.zero_grad()
    return released
