"""List programs that are right, and look unusual: none may be accused."""

from typing import Any

import numpy as np
import scipy.special

from epsilometer.types import FloatArray
from epsilometer.zoo.network import (
    Batch,
    Gradients,
    Sums,
    add,
    add_up,
    clip,
    compute_gradients,
    compute_norms,
    draw_noise,
    multiply,
)
from epsilometer.zoo.program import SIGMA, C, describe_step
from epsilometer.zoo.step import change_clipping, change_noise, clipped_sum, take_right_step


def _accumulate(batch: Batch, rng: np.random.Generator) -> Sums:
    """Clip in physical batches of 5, add up, add noise once."""
    x, labels = batch
    total: Sums = {}
    for start in range(0, max(1, len(x)), 5):
        part = clipped_sum((x[start : start + 5], labels[start : start + 5]))
        total = add(total, part) if total else part
    return add(total, draw_noise(total, SIGMA * C, rng))


def _clip_by_layers(gradients: Gradients) -> Gradients:
    share = C / np.sqrt(len(gradients))
    return {name: clip({name: g}, share)[name] for name, g in gradients.items()}


def _clip_automatically(gradients: Gradients) -> Gradients:
    return multiply(gradients, C / (compute_norms(gradients) + 0.01))


def _use_dropout(batch: Batch, rng: np.random.Generator) -> Sums:
    mask = (rng.random((len(batch[0]), 12)) < 0.8) / 0.8
    total = add_up(clip(compute_gradients(batch, mask=mask), C))
    return add(total, draw_noise(total, SIGMA * C, rng))


def _use_float32(batch: Batch, rng: np.random.Generator) -> list[Any]:
    total = clipped_sum(batch)
    noise = draw_noise(total, SIGMA * C, rng)
    return [(total[name] + noise[name]).astype(np.float32) for name in total]


def _round_release(batch: Batch, rng: np.random.Generator) -> Sums:
    """Round what is released: that is post-processing."""
    return {name: np.round(value, 2) for name, value in take_right_step(batch, rng).items()}


def _round_coarsely(batch: Batch, rng: np.random.Generator) -> Sums:
    return {name: np.round(value) for name, value in take_right_step(batch, rng).items()}


def _use_bfloat16(batch: Batch, rng: np.random.Generator) -> Sums:
    released = {}
    for name, value in take_right_step(batch, rng).items():
        mantissa, exponent = np.frexp(value)
        released[name] = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return released


def _average_augmentations(batch: Batch, rng: np.random.Generator) -> Sums:
    """Average eight views of a record, and clip the average."""
    views = [compute_gradients(batch, inputs=batch[0] + 0.1 * turn) for turn in range(8)]
    mean = {name: np.mean([view[name] for view in views], axis=0) for name in views[0]}
    total = add_up(clip(mean, C))
    return add(total, draw_noise(total, SIGMA * C, rng))


def _freeze_first_layer(batch: Batch, rng: np.random.Generator) -> Sums:
    gradients = compute_gradients(batch)
    trained = {name: g for name, g in gradients.items() if not name.startswith("first")}
    total = add_up(clip(trained, C))
    return add(total, draw_noise(total, SIGMA * C, rng))


def _add_more_noise_to_one_layer(name: str, noise: FloatArray) -> Any:
    return 3 * noise if name == "out.weight" else noise


class _Train:
    """A training: the sum before noise changes with what was released."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Sums:
        gradients = compute_gradients(batch, inputs=batch[0] + self.shift)
        total = add_up(clip(gradients, C))
        released = add(total, draw_noise(total, SIGMA * C, rng))
        self.shift -= 0.05 * float(released["first.bias"].sum())
        return released


class _UseOwnGenerator:
    """Noise from a generator that the caller does not have, as in secure mode."""

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        return add(total, draw_noise(total, SIGMA * C, np.random.default_rng()))


def _add_up_four_draws(batch: Batch, rng: np.random.Generator) -> Sums:
    """Sum four draws and halve them, as Opacus' secure mode does."""
    total = clipped_sum(batch)
    for _ in range(4):
        total = add(total, draw_noise(total, SIGMA * C / 2, rng))
    return total


def _invert_uniform(batch: Batch, rng: np.random.Generator) -> Sums:
    """Draw Gaussian noise by the inverse of its distribution function."""
    return {
        name: value + SIGMA * C * scipy.special.ndtri(rng.random(value.shape))
        for name, value in clipped_sum(batch).items()
    }


def _tie_layers(gradients: Gradients) -> Gradients:
    """Use one matrix in two layers: a record's two gradients are added, then clipped."""
    both = gradients["first.weight"] + gradients["second.weight"]
    rest = {
        name: g for name, g in gradients.items() if name not in ("first.weight", "second.weight")
    }
    return clip({**rest, "shared.weight": both}, C)


def _use_half_precision(gradients: Gradients) -> Gradients:
    """Compute gradients in float16, clip and add up in float64."""
    halves: Gradients = {
        name: g.astype(np.float16).astype(np.float64) for name, g in gradients.items()
    }
    return clip(halves, C)


def _weigh_records(gradients: Gradients) -> Gradients:
    """Weigh a record by its own norm, between 0 and 1, after clipping."""
    norms = compute_norms(gradients)
    return multiply(clip(gradients, C), norms / (1 + norms))


_RIGHT: list[dict[str, Any]] = [
    {"title": "plain DP-SGD", "step": take_right_step},
    {"title": "accumulation over physical batches", "step": _accumulate},
    {
        "title": "clipping by layers, to C/√L",
        "step": change_clipping(_clip_by_layers),
    },
    {"title": "automatic clipping", "step": change_clipping(_clip_automatically)},
    {"title": "dropout", "step": _use_dropout},
    {"title": "float32", "step": _use_float32},
    {"title": "bfloat16 after noise", "step": _use_bfloat16},
    {"title": "release rounded to 0.01", "step": _round_release},
    {"title": "release rounded to whole numbers", "step": _round_coarsely},
    {"title": "averaged augmentations", "step": _average_augmentations},
    {"title": "frozen first layer", "step": _freeze_first_layer},
    {"title": "50 % more noise", "step": change_noise(lambda _, n: 1.5 * n)},
    {
        "title": "more noise in one layer",
        "step": change_noise(_add_more_noise_to_one_layer),
    },
    {"title": "training that changes its parameters", "step": _Train()},
    {"title": "noise from a generator of its own", "step": _UseOwnGenerator()},
    {
        "title": "noise from a generator of its own, declared steady",
        "step": _UseOwnGenerator(),
        "steady": True,
    },
    {"title": "noise of four draws, halved", "step": _add_up_four_draws},
    {"title": "noise by inversion of uniform numbers", "step": _invert_uniform},
    {"title": "one matrix in two layers", "step": change_clipping(_tie_layers)},
    {"title": "gradients in float16", "step": change_clipping(_use_half_precision)},
    {"title": "records weighed by their own norms", "step": change_clipping(_weigh_records)},
]
RIGHT = tuple(
    describe_step(f"EPS-{number:04d}", **fields) for number, fields in enumerate(_RIGHT, 1001)
)
