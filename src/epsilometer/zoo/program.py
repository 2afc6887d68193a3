"""Describe programs of the zoo: steps of DP-SGD as plain functions, and what they are made of.

Every program takes a batch and a generator and returns the noisy sum of clipped gradients of the
same small network. σ and C are those of its record.
"""

from collections.abc import Callable
from dataclasses import dataclass
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

C = 1.0
SIGMA = 1.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """A step of DP-SGD that is known to be wrong, or right.

    Attributes:
        id: ``EPS-0001`` and so on; it never changes, and is never given twice.
        title: What the program does, in a few words.
        breaks: What is wrong with it; empty for a right one.
        seen: Where it was seen; empty where that is not known.
        step: The program.
        clip_norm: C that is accounted for.
        noise_multiplier: σ that is accounted for.
        steady: As of ``epsilometer.Step``.
    """

    id: str
    title: str
    breaks: str = ""
    seen: str = ""
    step: StepFunction
    clip_norm: float = C
    noise_multiplier: float = SIGMA
    steady: bool | None = None

    @property
    def right(self) -> bool:
        """Whether it does what is accounted for."""
        return not self.breaks


def clipped_sum(batch: Batch, clip_norm: float = C) -> Sums:
    """Return the sum of clipped gradients: what every program should add its noise to."""
    return add_up(clip(compute_gradients(batch), clip_norm))


def change_noise(change: Callable[[str, FloatArray], Any]) -> StepFunction:
    """Return the right program with its noise changed, tensor by tensor."""

    def step(batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        noise = draw_noise(total, SIGMA * C, rng)
        return {name: total[name] + change(name, noise[name]) for name in total}

    return step


def change_clipping(change: Callable[[Gradients], Gradients]) -> StepFunction:
    """Return the right program with its clipping changed."""

    def step(batch: Batch, rng: np.random.Generator) -> Sums:
        total = add_up(change(compute_gradients(batch)))
        return add(total, draw_noise(total, SIGMA * C, rng))

    return step


def take_right_step(batch: Batch, rng: np.random.Generator) -> Sums:
    """Clip every record, sum, add noise."""
    total = clipped_sum(batch)
    return add(total, draw_noise(total, SIGMA * C, rng))
