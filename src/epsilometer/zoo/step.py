"""Give the step that plain programs of the zoo are made from, and ways to change it.

Every program takes a batch and a generator and returns the noisy sum of clipped gradients of the
same small network. σ and C are those of its record.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from epsilometer.conformance.replay import StepFunction
from epsilometer.types import FloatArray
from epsilometer.zoo.network import (
    Batch,
    Gradients,
    Sums,
    add,
    add_up,
    clip,
    compute_gradients,
    draw_noise,
)
from epsilometer.zoo.program import SIGMA, C


def clipped_sum(batch: Batch, clip_norm: float = C) -> Sums:
    """Return the sum of clipped gradients: what every program should add its noise to."""
    return add_up(clip(compute_gradients(batch), clip_norm))


def change_noise(change: Callable[[str, FloatArray], Any]) -> StepFunction:
    """Return the right program with its noise changed, tensor by tensor."""

    def step(batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        noise = draw_noise(total, SIGMA * C, rng)
        return {name: total[name] + change(name, noise[name]) for name in total}

    return _name_change(step, change)


def change_clipping(change: Callable[[Gradients], Gradients]) -> StepFunction:
    """Return the right program with its clipping changed."""

    def step(batch: Batch, rng: np.random.Generator) -> Sums:
        total = add_up(change(compute_gradients(batch)))
        return add(total, draw_noise(total, SIGMA * C, rng))

    return _name_change(step, change)


def take_right_step(batch: Batch, rng: np.random.Generator) -> Sums:
    """Clip every record, sum, add noise."""
    total = clipped_sum(batch)
    return add(total, draw_noise(total, SIGMA * C, rng))


def _name_change(step: Any, change: Any) -> StepFunction:
    """Let the step say which of its parts is worth reading."""
    step.changed = change
    checked: StepFunction = step
    return checked
