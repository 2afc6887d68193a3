"""Provide the small network and DP-SGD step that plain programs change in one part.

Every program takes a batch and a generator and returns the noisy sum of clipped gradients, which
are computed record by record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.step.subject import Step
from epsilometer.conformance.replay import StepFunction
from epsilometer.types import FloatArray
from epsilometer.zoo.program import Register

C = 1.0
SIGMA = 1.0
Rng: TypeAlias = np.random.Generator
Batch: TypeAlias = tuple[FloatArray, NDArray[np.int64]]
Gradients: TypeAlias = dict[str, FloatArray]  # by tensor; records on axis 0
Sums: TypeAlias = dict[str, FloatArray]

FEATURES, HIDDEN, CLASSES, RECORDS = 12, 12, 4, 32
WEIGHTS = ("first.weight", "second.weight", "out.weight")


def make_batch() -> Batch:
    """Return 32 fixed records of 12 numbers with one of 4 labels."""
    rng = np.random.default_rng(18)
    return rng.normal(size=(RECORDS, FEATURES)), rng.integers(0, CLASSES, RECORDS)


@cache
def make_parameters() -> Sums:
    """Return the fixed parameters at which gradients are taken."""
    rng = np.random.default_rng(81)
    return {
        "first.weight": rng.normal(size=(HIDDEN, FEATURES)) / 3,
        "first.bias": rng.normal(size=HIDDEN) / 3,
        "second.weight": rng.normal(size=(HIDDEN, HIDDEN)) / 3,
        "second.bias": rng.normal(size=HIDDEN) / 3,
        "out.weight": rng.normal(size=(CLASSES, HIDDEN)),
        "out.bias": rng.normal(size=CLASSES),
    }


def compute_gradients(
    batch: Batch, *, inputs: FloatArray | None = None, mask: FloatArray | None = None
) -> Gradients:
    """Return the gradient of the cross-entropy of each record.

    Args:
        batch: Features and labels.
        inputs: Features instead of the batch's own, as after normalisation.
        mask: Factors of the first hidden layer, as for dropout, shape ``(records, 12)``.
    """
    x, labels = batch[0] if inputs is None else inputs, batch[1]
    p = make_parameters()
    kept = np.ones((len(x), HIDDEN)) if mask is None else mask
    plain = np.tanh(x @ p["first.weight"].T + p["first.bias"])
    first = plain * kept
    second = np.tanh(first @ p["second.weight"].T + p["second.bias"])
    scores = second @ p["out.weight"].T + p["out.bias"]
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    error = shifted / shifted.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
    back = (error @ p["out.weight"]) * (1 - second**2)
    front = (
        (back @ p["second.weight"])
        * kept
        * (1 - np.where(kept > 0, first / np.where(kept > 0, kept, 1), 0) ** 2)
    )
    return {
        "first.weight": front[:, :, None] * x[:, None, :],
        "first.bias": front,
        "second.weight": back[:, :, None] * first[:, None, :],
        "second.bias": back,
        "out.weight": error[:, :, None] * second[:, None, :],
        "out.bias": error,
    }


def compute_norms(gradients: Gradients) -> FloatArray:
    """Return the norm of each record's whole gradient."""
    squares = [np.sum(g.reshape(len(g), -1) ** 2, axis=1) for g in gradients.values()]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))


def multiply(gradients: Gradients, factors: FloatArray) -> Gradients:
    """Multiply each record's gradient by its factor."""
    return {name: g * factors.reshape(-1, *(1,) * (g.ndim - 1)) for name, g in gradients.items()}


def clip(gradients: Gradients, clip_norm: float) -> Gradients:
    """Clip each record's whole gradient to a norm."""
    norms = compute_norms(gradients)
    return multiply(gradients, clip_norm / np.maximum(norms, clip_norm))


def add_up(gradients: Gradients) -> Sums:
    """Sum over records."""
    return {name: g.sum(axis=0) for name, g in gradients.items()}


def draw_noise(sums: Sums, scale: float, rng: np.random.Generator) -> Sums:
    """Draw Gaussian noise for every coordinate."""
    return {name: scale * rng.normal(size=value.shape) for name, value in sums.items()}


def add(first: Sums, second: Sums) -> Sums:
    """Add tensor by tensor."""
    return {name: first[name] + second[name] for name in first}


def sum_clipped(batch: Batch) -> Sums:
    """Return the sum of clipped gradients: what every program should add its noise to."""
    return add_up(clip(compute_gradients(batch), C))


@dataclass(frozen=True, kw_only=True)
class ChangedStep:
    """Clip every record, sum, and add noise, with one part replaced by a program.

    Attributes:
        gradients: Computes the gradient of each record.
        clip: Clips the gradients of all records.
        draw: Draws noise for the sums.
        noise: Changes the noise of a tensor, by its name.
        publish: Changes what is released.
    """

    gradients: Callable[[Batch, Rng], Gradients] = lambda batch, _: compute_gradients(batch)
    clip: Callable[[Gradients], Gradients] = lambda gradients: clip(gradients, C)
    draw: Callable[[Sums, Rng], Sums] = lambda total, rng: draw_noise(total, SIGMA * C, rng)
    noise: Callable[[str, FloatArray], Any] = lambda _, noise: noise
    publish: Callable[[Sums], Any] = lambda sums: sums

    def __call__(self, batch: Batch, rng: Rng) -> Any:
        """Take the step."""
        total = add_up(self.clip(self.gradients(batch, rng)))
        noise = self.draw(total, rng)
        return self.publish({name: total[name] + self.noise(name, noise[name]) for name in total})


def make_step(
    _: int,
    *,
    step: StepFunction | None = None,
    clip_norm: float = C,
    noise_multiplier: float = SIGMA,
    steady: bool | None = None,
    **parts: Any,
) -> Step:
    """Return the right step with a program's changes.

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
