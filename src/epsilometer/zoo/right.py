"""List right steps that look unusual: none may be flagged."""

from typing import Any

import numpy as np
import scipy.special

from epsilometer.types import FloatArray
from epsilometer.zoo.step import (
    SIGMA,
    Batch,
    C,
    ChangedStep,
    Gradients,
    Rng,
    Sums,
    add,
    add_up,
    clip,
    compute_gradients,
    compute_norms,
    draw_noise,
    multiply,
    program,
    sum_clipped,
)

program("EPS-1001", part="step")(ChangedStep)


@program("EPS-1002", part="step")
def _accumulate(batch: Batch, rng: Rng) -> Sums:
    """Clip in physical batches of 5, add up, add noise once."""
    x, labels = batch
    total: Sums = {}
    for start in range(0, max(1, len(x)), 5):
        part = sum_clipped((x[start : start + 5], labels[start : start + 5]))
        total = add(total, part) if total else part
    return add(total, draw_noise(total, SIGMA * C, rng))


@program("EPS-1003", part="clip")
def _clip_by_layers(gradients: Gradients) -> Gradients:
    share = C / np.sqrt(len(gradients))
    return {name: clip({name: g}, share)[name] for name, g in gradients.items()}


@program("EPS-1004", part="clip")
def _clip_automatically(gradients: Gradients) -> Gradients:
    return multiply(gradients, C / (compute_norms(gradients) + 0.01))


@program("EPS-1005", part="gradients")
def _use_dropout(batch: Batch, rng: Rng) -> Gradients:
    return compute_gradients(batch, mask=(rng.random((len(batch[0]), 12)) < 0.8) / 0.8)


program("EPS-1006", part="publish")(
    lambda sums: [value.astype(np.float32) for value in sums.values()]
)


@program("EPS-1007", part="publish")
def _use_bfloat16(sums: Sums) -> Sums:
    released = {}
    for name, value in sums.items():
        mantissa, exponent = np.frexp(value)
        released[name] = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return released


@program("EPS-1008", part="publish")
def _round_release(sums: Sums) -> Sums:
    """Round what is released: that is post-processing."""
    return {name: np.round(value, 2) for name, value in sums.items()}


program("EPS-1009", part="publish")(
    lambda sums: {name: np.round(value) for name, value in sums.items()}
)


@program("EPS-1010", part="gradients")
def _average_augmentations(batch: Batch, rng: Rng) -> Gradients:
    """Average eight views of a record, and clip the average."""
    views = [compute_gradients(batch, inputs=batch[0] + 0.1 * turn) for turn in range(8)]
    return {name: np.mean([view[name] for view in views], axis=0) for name in views[0]}


@program("EPS-1011", part="gradients")
def _freeze_first_layer(batch: Batch, rng: Rng) -> Gradients:
    gradients = compute_gradients(batch)
    return {name: g for name, g in gradients.items() if not name.startswith("first")}


program("EPS-1012", part="noise")(lambda _, n: 1.5 * n)


@program("EPS-1013", part="noise")
def _add_more_noise_to_one_layer(name: str, noise: FloatArray) -> Any:
    return 3 * noise if name == "out.weight" else noise


@program("EPS-1014", part="step")
class _Train:
    """A training: the sum before noise changes with what was released."""

    shift = 0.0

    def __call__(self, batch: Batch, rng: Rng) -> Sums:
        gradients = compute_gradients(batch, inputs=batch[0] + self.shift)
        total = add_up(clip(gradients, C))
        released = add(total, draw_noise(total, SIGMA * C, rng))
        self.shift -= 0.05 * float(released["first.bias"].sum())
        return released


@program("EPS-1015", part="draw")
@program("EPS-1016", part="draw", steady=True)
def _use_own_generator(total: Sums, rng: Rng) -> Sums:
    """Draw noise from a generator that the caller does not have, as in secure mode."""
    return draw_noise(total, SIGMA * C, np.random.default_rng())


@program("EPS-1017", part="draw")
def _add_up_four_draws(total: Sums, rng: Rng) -> Sums:
    """Sum four draws and halve them, as Opacus' secure mode does."""
    noise = draw_noise(total, SIGMA * C / 2, rng)
    for _ in range(3):
        noise = add(noise, draw_noise(total, SIGMA * C / 2, rng))
    return noise


@program("EPS-1018", part="draw")
def _invert_uniform(total: Sums, rng: Rng) -> Sums:
    """Draw Gaussian noise by the inverse of its distribution function."""
    return {
        name: SIGMA * C * scipy.special.ndtri(rng.random(value.shape))
        for name, value in total.items()
    }


@program("EPS-1019", part="clip")
def _tie_layers(gradients: Gradients) -> Gradients:
    """Use one matrix in two layers: a record's two gradients are added, then clipped."""
    shared = ("first.weight", "second.weight")
    rest = {name: g for name, g in gradients.items() if name not in shared}
    both = gradients["first.weight"] + gradients["second.weight"]
    return clip({**rest, "shared.weight": both}, C)


@program("EPS-1020", part="clip")
def _use_half_precision(gradients: Gradients) -> Gradients:
    """Compute gradients in float16, clip and add up in float64."""
    halves: Gradients = {
        name: g.astype(np.float16).astype(np.float64) for name, g in gradients.items()
    }
    return clip(halves, C)


@program("EPS-1021", part="clip")
def _weigh_records(gradients: Gradients) -> Gradients:
    """Weight a record by its own norm, between 0 and 1, after clipping."""
    norms = compute_norms(gradients)
    return multiply(clip(gradients, C), norms / (1 + norms))
