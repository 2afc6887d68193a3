"""List wrong steps: each breaks one accounted property."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from epsilometer.types import FloatArray
from epsilometer.zoo.step import (
    SIGMA,
    WEIGHTS,
    Batch,
    C,
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

# Noise: its scale.

program("EPS-0001", part="noise")(lambda _, n: 0 * n)
program("EPS-0002", part="noise")(lambda _, n: n / 2)
program("EPS-0003", part="noise")(lambda _, n: 0.9 * n)


@program("EPS-0004", part="draw", noise_multiplier=2.0)
def _use_square_root(total: Sums, rng: Rng) -> Sums:
    return draw_noise(total, np.sqrt(2.0) * C, rng)  # σ = 2 is accounted for


@program("EPS-0005", part="draw", clip=lambda gradients: clip(gradients, 4.0), clip_norm=4.0)
def _forget_clip_norm(total: Sums, rng: Rng) -> Sums:
    return draw_noise(total, SIGMA, rng)


@program("EPS-0006", part="step")
def _divide_noise_by_batch(batch: Batch, rng: Rng) -> Sums:
    total = sum_clipped(batch)
    return add(total, draw_noise(total, SIGMA * C / len(batch[0]), rng))


@program("EPS-0007", part="draw")
def _scale_noise_by_gradients(total: Sums, rng: Rng) -> Sums:
    """Add noise only where the sum is not small, as sparse updates do."""
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: noise[name] * (np.abs(total[name]) > 0.2) for name in total}


program("EPS-0008", part="noise")(lambda name, n: n * ("bias" not in name))
program("EPS-0009", part="noise")(lambda name, n: n * (name != "first.weight"))
program("EPS-0010", part="noise")(lambda name, n: n / 2 if name == "out.bias" else n)


@program("EPS-0011", part="noise")
def _drop_rows(name: str, noise: FloatArray) -> Any:
    return noise * (np.arange(len(noise)) != 5)[:, None] if name == "second.weight" else noise


@program("EPS-0012", part="noise")
def _drop_every_eighth(_: str, noise: FloatArray) -> Any:
    return noise * (np.arange(noise.size) % 8 > 0).reshape(noise.shape)


@program("EPS-0013", part="draw")
def _skip_some_steps(total: Sums, rng: Rng) -> Sums:
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: 0 * noise[name] for name in noise} if rng.random() < 0.08 else noise


@program("EPS-0014", part="draw")
class _DecayNoise:
    """Noise that falls from step to step, and is booked as if it did not."""

    steps = 0

    def __call__(self, total: Sums, rng: Rng) -> Sums:
        self.steps += 1
        return draw_noise(total, SIGMA * C * 0.98**self.steps, rng)


# Noise: its shape.


@program("EPS-0015", part="draw")
def _draw_uniform(total: Sums, rng: Rng) -> Sums:
    wide = np.sqrt(3.0) * SIGMA * C
    return {name: rng.uniform(-wide, wide, value.shape) for name, value in total.items()}


@program("EPS-0016", part="draw")
def _draw_laplace(total: Sums, rng: Rng) -> Sums:
    scale = SIGMA * C / np.sqrt(2)
    return {name: rng.laplace(0, scale, value.shape) for name, value in total.items()}


def _truncate(cut: float) -> Callable[[str, FloatArray], Any]:
    low = scipy.special.ndtr(-cut)

    def change(_: str, noise: FloatArray) -> Any:
        return scipy.special.ndtri(low + scipy.special.ndtr(noise) * (1 - 2 * low))

    return change


program("EPS-0017", part="noise")(lambda _, n: np.sign(n))
program("EPS-0018", part="noise")(_truncate(2.0))
program("EPS-0019", part="noise")(_truncate(3.0))
program("EPS-0020", part="noise")(lambda _, n: np.abs(n))
program("EPS-0021", part="noise")(lambda _, n: np.round(4 * n) / 4)

# Noise: its independence.


@program("EPS-0022", part="draw")
def _seed_noise(total: Sums, rng: Rng) -> Sums:
    return draw_noise(total, SIGMA * C, np.random.default_rng(0))


@program("EPS-0023", part="draw")
class _ReuseNoise:
    """Noise that is drawn once and kept."""

    def __init__(self) -> None:
        self.noise: Sums = {}

    def __call__(self, total: Sums, rng: Rng) -> Sums:
        self.noise = self.noise or draw_noise(total, SIGMA * C, rng)
        return self.noise


@program("EPS-0024", part="draw")
def _draw_from_few_seeds(total: Sums, rng: Rng) -> Sums:
    return draw_noise(total, SIGMA * C, np.random.default_rng(int(rng.integers(100))))


@program("EPS-0025", part="draw", steady=True)
class _CancelNoise:
    """Noise minus that of the previous step: it cancels in the sum of all steps."""

    def __init__(self) -> None:
        self.before: Sums = {}

    def __call__(self, total: Sums, rng: Rng) -> Sums:
        now = draw_noise(total, SIGMA * C, rng)
        old, self.before = self.before, now
        return {name: now[name] - old[name] if old else now[name] for name in now}


program("EPS-0026", part="noise")(lambda _, n: np.broadcast_to(n[:1], n.shape) if n.ndim > 1 else n)
program("EPS-0027", part="noise")(
    lambda _, n: np.broadcast_to(n[:, :1], n.shape) if n.ndim > 1 else n
)


@program("EPS-0028", part="draw")
def _share_noise_of_layers(total: Sums, rng: Rng) -> Sums:
    noise = draw_noise(total, SIGMA * C, rng)
    return {**noise, "second.weight": noise["first.weight"]}


@program("EPS-0029", part="draw")
def _reseed_every_tensor(total: Sums, rng: Rng) -> Sums:
    seed = int(rng.integers(2**62))
    return {
        name: SIGMA * C * np.random.default_rng(seed).normal(size=value.shape)
        for name, value in total.items()
    }


@program("EPS-0030", part="draw")
def _mirror_noise(total: Sums, rng: Rng) -> Sums:
    """Draw half of each matrix, and use it again with the opposite sign."""
    noise = draw_noise(total, SIGMA * C, rng)
    for name in WEIGHTS:
        half = len(noise[name]) // 2
        noise[name][half:] = -noise[name][:half]
    return noise


# Clipping.

program("EPS-0031", part="clip")(lambda g: g)


@program("EPS-0032", part="clip")
def _clip_batch_mean(gradients: Gradients) -> Gradients:
    total = add_up(gradients)
    norm = float(np.sqrt(sum(np.sum(value**2) for value in total.values())))
    count = len(gradients["out.bias"])
    return multiply(gradients, np.full(count, count * C / max(norm, count * C)))


@program("EPS-0033", part="clip")
def _clip_each_tensor(gradients: Gradients) -> Gradients:
    return {name: clip({name: g}, C)[name] for name, g in gradients.items()}


@program("EPS-0034", part="clip")
def _clip_without_first(gradients: Gradients) -> Gradients:
    rest = {name: g for name, g in gradients.items() if name != "first.weight"}
    return {"first.weight": gradients["first.weight"], **clip(rest, C)}


@program("EPS-0035", part="clip")
def _clip_largest_entry(gradients: Gradients) -> Gradients:
    return {name: np.clip(g, -C, C) for name, g in gradients.items()}


@program(
    "EPS-0036",
    part="clip",
    draw=lambda total, rng: draw_noise(total, SIGMA * 0.25, rng),
    clip_norm=0.25,
)
def _clip_by_square(gradients: Gradients) -> Gradients:
    """Omit the square root of the norm; C = 0.25. Gradients are of the mean over 8 outputs."""
    scaled = multiply(gradients, np.full(len(gradients["out.bias"]), 1 / 8))
    squares = compute_norms(scaled) ** 2
    return multiply(scaled, np.minimum(1, 0.25 / np.maximum(squares, 1e-300)))


@program("EPS-0037", part="clip")
def _clip_to_median(gradients: Gradients) -> Gradients:
    return clip(gradients, 2.0 * float(np.median(compute_norms(gradients))))


@program("EPS-0038", part="clip")
def _clip_small_ones_up(gradients: Gradients) -> Gradients:
    """Normalise records of norm above 1e-6 and multiply by C, then add the record again."""
    return multiply(gradients, C / np.maximum(compute_norms(gradients), 1e-6) + 0.05)


@program("EPS-0039", part="clip")
def _clip_groups(gradients: Gradients) -> Gradients:
    """Clip sums of four records, as microbatches do, with the accountant of single records."""
    starts = np.arange(0, len(gradients["out.bias"]), 4)
    return clip({name: np.add.reduceat(g, starts) for name, g in gradients.items()}, C)


@program("EPS-0045", part="clip")
def _release_unclipped_bias(gradients: Gradients) -> Gradients:
    """Update the bias of the last layer by its unclipped gradient plus noise."""
    return {**clip(gradients, C), "out.bias": 8 * gradients["out.bias"]}


# Sensitivity.


@program("EPS-0040", part="gradients")
def _augment_as_rows(batch: Batch, rng: Rng) -> Gradients:
    """Clip each of 8 views of a record as if it were a record."""
    x, labels = batch
    views = [x + 0.1 * turn for turn in range(8)]
    return compute_gradients((np.concatenate(views), np.tile(labels, 8)))


@program("EPS-0041", part="gradients")
def _normalise_batch(batch: Batch, rng: Rng) -> Gradients:
    """Centre and scale features by the batch, as BatchNorm does."""
    x = batch[0]
    normal = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    return compute_gradients(batch, inputs=normal)


@program("EPS-0042", part="step")
def _divide_by_drawn(batch: Batch, rng: Rng) -> Sums:
    """Divide by the number of records drawn, and multiply by the expected number."""
    total = sum_clipped(batch)
    factor = 32 / max(1, len(batch[0]))
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: (total[name] + noise[name]) * factor for name in total}


@program("EPS-0043", part="step")
def _divide_sum_by_drawn(batch: Batch, rng: Rng) -> Sums:
    total = sum_clipped(batch)
    factor = 32 / max(1, len(batch[0]))
    noise = draw_noise(total, SIGMA * C, rng)
    return {name: total[name] * factor + noise[name] for name in total}


@program("EPS-0044", part="clip")
def _weigh_by_loss(gradients: Gradients) -> Gradients:
    """Weight clipped records by their share of the batch's norms."""
    norms = compute_norms(gradients)
    return multiply(clip(gradients, C), len(norms) * norms / max(float(norms.sum()), 1e-12))
