"""List programs that are wrong: each breaks one thing that was accounted for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from epsilometer.types import FloatArray
from epsilometer.zoo.network import (
    WEIGHTS,
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
from epsilometer.zoo.step import change_clipping, change_noise, clipped_sum

# Noise: its scale.


def _use_square_root(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    return add(total, draw_noise(total, np.sqrt(2.0) * C, rng))  # σ = 2 is accounted for


def _forget_clip_norm(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch, 4.0)
    return add(total, draw_noise(total, SIGMA, rng))


def _divide_noise_by_batch(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    return add(total, draw_noise(total, SIGMA * C / len(batch[0]), rng))


def _scale_noise_by_gradients(batch: Batch, rng: np.random.Generator) -> Sums:
    """Add noise only where the sum is not small, as sparse updates do."""
    total = clipped_sum(batch)
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: total[name] + noise[name] * (np.abs(total[name]) > 0.2) for name in total}


def _skip_some_steps(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    noise = draw_noise(total, SIGMA * C, rng)
    return total if rng.random() < 0.08 else add(total, noise)


class _DecayNoise:
    """Noise that falls from step to step, and is booked as if it did not."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        self.steps += 1
        return add(total, draw_noise(total, SIGMA * C * 0.98**self.steps, rng))


# Noise: its shape.


def _truncate(cut: float) -> Callable[[str, FloatArray], Any]:
    low = scipy.special.ndtr(-cut)

    def change(_: str, noise: FloatArray) -> Any:
        return scipy.special.ndtri(low + scipy.special.ndtr(noise) * (1 - 2 * low))

    return change


def _draw_uniform(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    wide = np.sqrt(3.0) * SIGMA * C
    return {name: value + rng.uniform(-wide, wide, value.shape) for name, value in total.items()}


def _draw_laplace(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    return {
        name: value + rng.laplace(0, SIGMA * C / np.sqrt(2), value.shape)
        for name, value in total.items()
    }


# Noise: its independence.


def _seed_noise(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    return add(total, draw_noise(total, SIGMA * C, np.random.default_rng(0)))


def _draw_from_few_seeds(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    own = np.random.default_rng(int(rng.integers(100)))
    return add(total, draw_noise(total, SIGMA * C, own))


def _reseed_every_tensor(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    seed = int(rng.integers(2**62))
    return {
        name: value + SIGMA * C * np.random.default_rng(seed).normal(size=value.shape)
        for name, value in total.items()
    }


def _share_noise_of_layers(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    noise = draw_noise(total, SIGMA * C, rng)
    return add(total, {**noise, "second.weight": noise["first.weight"]})


def _mirror_noise(batch: Batch, rng: np.random.Generator) -> Sums:
    """Draw half of each matrix, and use it again with the other sign."""
    total = clipped_sum(batch)
    noise = draw_noise(total, SIGMA * C, rng)
    for name in WEIGHTS:
        half = len(noise[name]) // 2
        noise[name][half:] = -noise[name][:half]
    return add(total, noise)


class _ReuseNoise:
    """Noise that is drawn once and kept."""

    def __init__(self) -> None:
        self.noise: Sums = {}

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        self.noise = self.noise or draw_noise(total, SIGMA * C, rng)
        return add(total, self.noise)


class _CancelNoise:
    """Noise less that of the step before: it cancels in the sum of all steps."""

    def __init__(self) -> None:
        self.before: Sums = {}

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Sums:
        total = clipped_sum(batch)
        now = draw_noise(total, SIGMA * C, rng)
        old, self.before = self.before, now
        return add(total, {name: now[name] - old[name] if old else now[name] for name in now})


# Clipping and sensitivity.


def _clip_batch_mean(gradients: Gradients) -> Gradients:
    total = add_up(gradients)
    norm = float(np.sqrt(sum(np.sum(value**2) for value in total.values())))
    count = len(gradients["out.bias"])
    return multiply(gradients, np.full(count, count * C / max(norm, count * C)))


def _clip_each_tensor(gradients: Gradients) -> Gradients:
    return {name: clip({name: g}, C)[name] for name, g in gradients.items()}


def _clip_without_first(gradients: Gradients) -> Gradients:
    rest = {name: g for name, g in gradients.items() if name != "first.weight"}
    return {"first.weight": gradients["first.weight"], **clip(rest, C)}


def _clip_largest_entry(gradients: Gradients) -> Gradients:
    return {name: np.clip(g, -C, C) for name, g in gradients.items()}


def _clip_by_square(gradients: Gradients) -> Gradients:
    """Forget the root of the norm; C = 0.25."""
    squares = compute_norms(gradients) ** 2
    return multiply(gradients, np.minimum(1, 0.25 / np.maximum(squares, 1e-300)))


def _clip_to_median(gradients: Gradients) -> Gradients:
    norms = compute_norms(gradients)
    return clip(gradients, 2.0 * float(np.median(norms)))


def _clip_small_ones_up(gradients: Gradients) -> Gradients:
    """Normalise records of norm above 1e-6 and multiply by C, then add the record again."""
    norms = compute_norms(gradients)
    return multiply(gradients, C / np.maximum(norms, 1e-6) + 0.05)


def _clip_groups(gradients: Gradients) -> Gradients:
    """Clip sums of four records, as microbatches do, beside the accountant of single records."""
    parts = [
        {name: g[start : start + 4].sum(axis=0, keepdims=True) for name, g in gradients.items()}
        for start in range(0, len(gradients["out.bias"]), 4)
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in gradients}
    return clip(joined, C)


def _square_clip_step(batch: Batch, rng: np.random.Generator) -> Sums:
    gradients = compute_gradients(batch)
    scaled = multiply(gradients, np.full(len(batch[0]), 1 / 8))  # of the mean over 8 outputs
    total = add_up(_clip_by_square(scaled))
    return add(total, draw_noise(total, SIGMA * 0.25, rng))


def _augment_as_rows(batch: Batch, rng: np.random.Generator) -> Sums:
    """Clip each of 8 views of a record as if it were a record."""
    x, labels = batch
    views = [x + 0.1 * turn for turn in range(8)]
    total = clipped_sum((np.concatenate(views), np.tile(labels, 8)))
    return add(total, draw_noise(total, SIGMA * C, rng))


def _normalise_batch(batch: Batch, rng: np.random.Generator) -> Sums:
    """Centre and scale features by the batch, as BatchNorm does."""
    x = batch[0]
    normal = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    total = add_up(clip(compute_gradients(batch, inputs=normal), C))
    return add(total, draw_noise(total, SIGMA * C, rng))


def _divide_by_drawn(batch: Batch, rng: np.random.Generator) -> Sums:
    """Divide by the number of records that were drawn, and multiply by the expected one."""
    total = clipped_sum(batch)
    factor = 32 / max(1, len(batch[0]))
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: (total[name] + noise[name]) * factor for name in total}


def _divide_sum_by_drawn(batch: Batch, rng: np.random.Generator) -> Sums:
    total = clipped_sum(batch)
    factor = 32 / max(1, len(batch[0]))
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: total[name] * factor + noise[name] for name in total}


def _weigh_by_loss(gradients: Gradients) -> Gradients:
    """Weigh clipped records by their share of the batch's norms."""
    norms = compute_norms(gradients)
    return multiply(clip(gradients, C), len(norms) * norms / max(float(norms.sum()), 1e-12))


def _release_unclipped_bias(batch: Batch, rng: np.random.Generator) -> Sums:
    """Update the bias of the last layer by its plain gradient, beside noise."""
    gradients = compute_gradients(batch)
    total = {**add_up(clip(gradients, C)), "out.bias": 8 * gradients["out.bias"].sum(axis=0)}
    return add(total, draw_noise(total, SIGMA * C, rng))


def _drop_rows(name: str, noise: FloatArray) -> Any:
    return noise * (np.arange(len(noise)) != 5)[:, None] if name == "second.weight" else noise


def _drop_every_eighth(_: str, noise: FloatArray) -> Any:
    return noise * (np.arange(noise.size) % 8 > 0).reshape(noise.shape)


_WRONG: list[dict[str, Any]] = [
    {"title": "no noise", "breaks": "noise", "step": change_noise(lambda _, n: 0 * n)},
    {
        "title": "half the noise",
        "breaks": "noise",
        "step": change_noise(lambda _, n: n / 2),
    },
    {
        "title": "10 % too little noise",
        "breaks": "noise",
        "step": change_noise(lambda _, n: 0.9 * n),
    },
    {
        "title": "√σ in place of σ",
        "breaks": "noise",
        "step": _use_square_root,
        "noise_multiplier": 2.0,
    },
    {
        "title": "noise not multiplied by C = 4",
        "breaks": "noise",
        "step": _forget_clip_norm,
        "clip_norm": 4.0,
    },
    {
        "title": "noise divided by the batch size",
        "breaks": "noise",
        "step": _divide_noise_by_batch,
        "seen": "Backpropagation Clipping (Tramèr et al. 2022)",
    },
    {
        "title": "noise only where the sum is large",
        "breaks": "noise",
        "step": _scale_noise_by_gradients,
    },
    {
        "title": "no noise on biases",
        "breaks": "noise of tensors",
        "step": change_noise(lambda name, n: n * ("bias" not in name)),
    },
    {
        "title": "no noise on the first layer",
        "breaks": "noise of tensors",
        "step": change_noise(lambda name, n: n * (name != "first.weight")),
    },
    {
        "title": "half the noise on the last bias",
        "breaks": "noise of tensors",
        "step": change_noise(lambda name, n: n / 2 if name == "out.bias" else n),
    },
    {
        "title": "one row of a matrix without noise",
        "breaks": "noise of rows",
        "step": change_noise(_drop_rows),
    },
    {
        "title": "every eighth coordinate without noise",
        "breaks": "noise of coordinates",
        "step": change_noise(_drop_every_eighth),
        "seen": "NVFlare issue 343",
    },
    {
        "title": "8 % of steps without noise",
        "breaks": "noise of steps",
        "step": _skip_some_steps,
    },
    {
        "title": "noise that decays and is not booked",
        "breaks": "noise of steps",
        "step": _DecayNoise(),
    },
    {"title": "uniform noise", "breaks": "shape of noise", "step": _draw_uniform},
    {"title": "Laplace noise", "breaks": "shape of noise", "step": _draw_laplace},
    {
        "title": "noise of ±σ",
        "breaks": "shape of noise",
        "step": change_noise(lambda _, n: np.sign(n)),
    },
    {
        "title": "noise truncated at 2σ",
        "breaks": "shape of noise",
        "step": change_noise(_truncate(2.0)),
    },
    {
        "title": "noise truncated at 3σ",
        "breaks": "shape of noise",
        "step": change_noise(_truncate(3.0)),
    },
    {
        "title": "absolute values of noise",
        "breaks": "shape of noise",
        "step": change_noise(lambda _, n: np.abs(n)),
    },
    {
        "title": "noise rounded to σ/4 before it is added",
        "breaks": "shape of noise",
        "step": change_noise(lambda _, n: np.round(4 * n) / 4),
    },
    {
        "title": "the same noise in every step, by a fixed seed",
        "breaks": "independence",
        "step": _seed_noise,
    },
    {
        "title": "noise drawn once and kept",
        "breaks": "independence",
        "step": _ReuseNoise(),
    },
    {
        "title": "noise of one of 100 seeds",
        "breaks": "independence",
        "step": _draw_from_few_seeds,
    },
    {
        "title": "noise that cancels from step to step",
        "breaks": "independence",
        "step": _CancelNoise(),
        "steady": True,
    },
    {
        "title": "noise broadcast over rows",
        "breaks": "independence",
        "step": change_noise(lambda _, n: np.broadcast_to(n[:1], n.shape) if n.ndim > 1 else n),
    },
    {
        "title": "noise broadcast over columns",
        "breaks": "independence",
        "step": change_noise(lambda _, n: np.broadcast_to(n[:, :1], n.shape) if n.ndim > 1 else n),
    },
    {
        "title": "the same noise for layers of equal shape",
        "breaks": "independence",
        "step": _share_noise_of_layers,
    },
    {
        "title": "the generator seeded anew for every tensor",
        "breaks": "independence",
        "step": _reseed_every_tensor,
        "seen": "JAX's example of DP-SGD (jax pull request 3646)",
    },
    {
        "title": "half of the noise mirrored",
        "breaks": "independence",
        "step": _mirror_noise,
    },
    {"title": "no clipping", "breaks": "clipping", "step": change_clipping(lambda g: g)},
    {
        "title": "clipping of the batch mean",
        "breaks": "clipping",
        "step": change_clipping(_clip_batch_mean),
        "seen": "APPFL issue 349",
    },
    {
        "title": "clipping of each tensor to C",
        "breaks": "clipping",
        "step": change_clipping(_clip_each_tensor),
        "seen": "Fed-BioMed issue 1443",
    },
    {
        "title": "first layer not clipped",
        "breaks": "clipping",
        "step": change_clipping(_clip_without_first),
    },
    {
        "title": "clipping of the largest entry in place of the norm",
        "breaks": "clipping",
        "step": change_clipping(_clip_largest_entry),
    },
    {
        "title": "clipping by the squared norm, C = 0.25",
        "breaks": "clipping",
        "step": _square_clip_step,
        "clip_norm": 0.25,
    },
    {
        "title": "clipping to twice the batch's median norm",
        "breaks": "clipping",
        "step": change_clipping(_clip_to_median),
    },
    {
        "title": "records normalised to C, and 5 % of them added",
        "breaks": "clipping",
        "step": change_clipping(_clip_small_ones_up),
    },
    {
        "title": "clipping of sums of four records",
        "breaks": "clipping",
        "step": change_clipping(_clip_groups),
        "seen": "TensorFlow Privacy issue 81",
    },
    {
        "title": "eight augmentations clipped as records",
        "breaks": "sensitivity",
        "step": _augment_as_rows,
    },
    {
        "title": "features normalised by the batch",
        "breaks": "sensitivity",
        "step": _normalise_batch,
    },
    {
        "title": "release divided by the number of records drawn",
        "breaks": "sensitivity",
        "step": _divide_by_drawn,
        "seen": "asked for in Opacus issue 420",
    },
    {
        "title": "sum divided by the number of records drawn, before noise",
        "breaks": "sensitivity",
        "step": _divide_sum_by_drawn,
    },
    {
        "title": "records weighed by their share of the batch",
        "breaks": "sensitivity",
        "step": change_clipping(_weigh_by_loss),
    },
    {
        "title": "last bias neither clipped nor scaled",
        "breaks": "clipping",
        "step": _release_unclipped_bias,
    },
]
WRONG = tuple(
    describe_step(f"EPS-{number:04d}", **fields) for number, fields in enumerate(_WRONG, 1)
)
