"""Bound ε of partial shuffling where the adversary must guess the buffer: Section VII.

No command reaches this: the exact accountant knows the buffer, which is worse for privacy.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from epsilometer import _validate
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.likelihood_ratio import one_of
from epsilometer.types import FloatArray

_ADVERSARY = (
    "sees the noisy sum of every step, knows all other records, and chose them to stand out"
)


def audit_buffer(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    buffer: int,
    guesses: Sequence[int],
    runs: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[EpsilonLowerBound, int]:
    """Bound ε of one epoch shuffled within a buffer that the adversary must guess.

    Every guess looks at the first batches only, as many as it holds the buffer to be; guesses are
    paid for: each gets its share of the error, and the best bound holds with ``confidence``.

    Args:
        noise_multiplier: σ.
        steps: Batches of the epoch.
        delta: δ.
        buffer: Batches within which the target is really shuffled.
        guesses: Numbers of batches to try.
        runs: Runs with the record, and as many without.
        confidence: One-sided, for the best of the guesses.
        seed: Of the runs.

    Returns:
        The best bound, and the guess that gave it.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, steps=steps, buffer=buffer, runs=runs)
    if not guesses or not all(1 <= guess <= steps for guess in guesses):
        raise InvalidArgument(f"Expected guesses from 1 to {steps} batches, got {list(guesses)}.")
    rng = np.random.default_rng(seed)
    inside, outside = (
        score_first_batches(noise_multiplier, steps, min(buffer, steps), mean, guesses, runs, rng)
        for mean in (2, 1)
    )
    bounds = [
        epsilon_lower_bound(
            Scores(inside=inside[:, i], outside=outside[:, i]),
            delta=delta,
            confidence=1 - (1 - confidence) / len(guesses),
            seed=seed,
            adjacency="zero_out",
            adversary=f"{_ADVERSARY}; guesses the buffer",
        )
        for i in range(len(guesses))
    ]
    best = max(range(len(guesses)), key=lambda i: bounds[i].epsilon)
    return replace(bounds[best], confidence=confidence), guesses[best]


def score_first_batches(
    sigma: float,
    steps: int,
    buffer: int,
    mean: int,
    guesses: Sequence[int],
    runs: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Log-likelihood ratios by the first batches alone, for every guess, shape (runs, guesses)."""
    blocks = []
    for start in range(0, runs, 10_000):
        count = min(10_000, runs - start)
        x = sigma * rng.standard_normal((count, steps))
        x[np.arange(count), rng.integers(0, buffer, count)] += mean
        blocks.append(
            np.stack(
                [
                    one_of(x[:, None, :guess], sigma=sigma, present=2.0, absent=1.0)
                    for guess in guesses
                ],
                axis=1,
            )
        )
    return np.concatenate(blocks)
