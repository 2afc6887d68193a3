"""Prints the table of all rounds of benchmarks/client_canaries.md."""

import math

import numpy as np

import epsilometer as em
from epsilometer.stats import sphere
from epsilometer.stats.gaussians import gaussian_sigma

DIMENSION, DELTA, CANARIES, AUDITS = 10**6, 1e-5, 1000, 20
CELLS = ((2.0, 10), (8.0, 10), (20.0, 10), (30.0, 1000))


def mean_bounds(epsilon: float, rounds: int) -> np.ndarray:
    """Mean ε of two samples, of the law of the largest, with rounds known, and by their mean."""
    rng, mu = np.random.default_rng(0), 1 / gaussian_sigma(epsilon, DELTA)
    asked = {"dimension": DIMENSION, "delta": DELTA}
    found = []
    for _ in range(AUDITS):
        own, elsewhere, null = (
            rng.normal(shift, 1, (CANARIES, many)).max(axis=1) / math.sqrt(DIMENSION)
            for shift, many in ((mu, 1), (0.0, rounds - 1), (0.0, rounds))
        )
        largest = np.maximum(own, elsewhere)
        bounds = (
            em.epsilon_lower_bound(em.Scores(largest, null), delta=DELTA),
            sphere.cosine_bound(largest, rounds=rounds, **asked),  # type: ignore[arg-type]
            sphere.cosine_bound(own, **asked),  # type: ignore[arg-type]
            sphere.tied_bound(own, orthonormal=True, **asked),  # type: ignore[arg-type]
        )
        found.append([bound.epsilon for bound in bounds])
    return np.mean(found, axis=0)


def main() -> None:
    """Prints the rows of the table."""
    for epsilon, rounds in CELLS:
        shown = " | ".join(f"{mean:.2f}" for mean in mean_bounds(epsilon, rounds))
        print(f"| {epsilon:g} | {rounds:,} | {shown} |")


if __name__ == "__main__":
    main()
