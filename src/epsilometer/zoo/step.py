"""Give the step of DP-SGD that plain programs change in one part.

Every program takes a batch and a generator and returns the noisy sum of clipped gradients of the
same small network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from epsilometer.audits.step.subject import Step
from epsilometer.conformance.replay import StepFunction
from epsilometer.types import FloatArray
from epsilometer.zoo.network import (
    Batch,
    Gradients,
    Sums,
    add_up,
    clip,
    compute_gradients,
    draw_noise,
    make_batch,
)
from epsilometer.zoo.program import Register

C = 1.0
SIGMA = 1.0
Rng: TypeAlias = np.random.Generator


def clipped_sum(batch: Batch) -> Sums:
    """Return the sum of clipped gradients: what every program should add its noise to."""
    return add_up(clip(compute_gradients(batch), C))


@dataclass(frozen=True, kw_only=True)
class ChangedStep:
    """Clip every record, sum, add noise: with what a program puts in place of one part.

    Attributes:
        gradients: Computes the gradient of each record.
        clip: Clips the gradients of all records.
        draw: Draws noise for the sums.
        noise: Changes the noise of a tensor, by its name.
        release: Changes what is released.
    """

    gradients: Callable[[Batch, Rng], Gradients] = lambda batch, _: compute_gradients(batch)
    clip: Callable[[Gradients], Gradients] = lambda gradients: clip(gradients, C)
    draw: Callable[[Sums, Rng], Sums] = lambda total, rng: draw_noise(total, SIGMA * C, rng)
    noise: Callable[[str, FloatArray], Any] = lambda _, noise: noise
    release: Callable[[Sums], Any] = lambda sums: sums

    def __call__(self, batch: Batch, rng: Rng) -> Any:
        """Take the step."""
        total = add_up(self.clip(self.gradients(batch, rng)))
        noise = self.draw(total, rng)
        return self.release({name: total[name] + self.noise(name, noise[name]) for name in total})


def make_step(
    _: int,
    *,
    step: StepFunction | None = None,
    clip_norm: float = C,
    noise_multiplier: float = SIGMA,
    steady: bool | None = None,
    **parts: Any,
) -> Step:
    """Return the right step, with what a program changes.

    Args:
        step: The whole step, called as ``step(batch, rng)``.
        clip_norm: C that is accounted for.
        noise_multiplier: σ that is accounted for.
        steady: As of ``epsilometer.Step``.
        parts: As of :class:`ChangedStep`. A class is called, as it keeps state.
    """
    made = {name: part() if isinstance(part, type) else part for name, part in parts.items()}
    whole: Any = step() if isinstance(step, type) else step
    return Step(
        whole or ChangedStep(**made),
        make_batch(),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        steady=steady,
    )


program = Register("step", make_step)
