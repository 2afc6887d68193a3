"""Which reading of "all iterates" gives the numbers that the one-shot papers print?

    python reproductions/one_shot/readings.py

Cosines from their law in many dimensions: N(0, 1) in units of 1/√d in every round, shifted by 1/z
in the one round in which a canary takes part; with server momentum, of what is left of all rounds
so far. 1,000 canaries of either kind, the largest cosine of each, no model and no data. Prints a
row for every all-iterates number of both papers: mean ± standard deviation over simulations.
"""

import argparse
from typing import NamedTuple

import numpy as np

from epsilometer.observations import Scores
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import two_gaussians_directions, two_gaussians_epsilon
from epsilometer.stats.thresholds import Best


class Published(NamedTuple):
    """A row of the papers."""

    where: str
    rounds: int
    delta: float
    noise: float
    epsilon: float
    lower: float | None


STACKOVERFLOW, STACKOVERFLOW_1, EMNIST = 34_000**-1.1, 341_000**-1.1, 3383**-1.1
PUBLISHED = (
    Published("Stackoverflow, v2", 2048, STACKOVERFLOW, 0.0496, 382, 6.238),
    Published("Stackoverflow, v2", 2048, STACKOVERFLOW, 0.0986, 89.4, 5.05),
    Published("Stackoverflow, v2", 2048, STACKOVERFLOW, 0.2317, 2.693, 0.407),
    Published("Stackoverflow, v1", 2048, STACKOVERFLOW_1, 0.0644, 266, 6.15),
    Published("Stackoverflow, v1", 2048, STACKOVERFLOW_1, 0.1023, 84.0, 4.93),
    Published("Stackoverflow, v1", 2048, STACKOVERFLOW_1, 0.1836, 7.60, 1.34),
    Published("Stackoverflow, v1", 2048, STACKOVERFLOW_1, 0.2344, 2.41, 0.271),
    Published("EMNIST", 500, EMNIST, 0.16, 17.9, 2.87),
    Published("EMNIST", 500, EMNIST, 0.18, 12.0, 2.32),
    Published("EMNIST", 500, EMNIST, 0.195, 8.88, 2.02),
    Published("EMNIST", 500, EMNIST, 0.25, 3.86, 0.896),
    Published("EMNIST", 500, EMNIST, 0.315, 1.50, 0.315),
    Published("Fashion-MNIST", 469, 1 / 60_000, 0.2, 6.76, None),
)
HEADER = (
    "| task | noise | **published ε_est** | **steps, momentum 0.9** | noisy mean | threshold rule "
    "| one direction | wider spread in both | **published ε_lo** | **steps, momentum 0.9** | "
    "noisy mean |\n" + "|---" * 11 + "|"
)


def main() -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=10)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(HEADER)
    for row in PUBLISHED:
        streams = np.random.default_rng(asked.seed).spawn(asked.simulations)
        steps, means = (
            np.array([_read(row, momentum, asked.canaries, rng) for rng in streams])
            for momentum in (0.9, 0.0)
        )
        cells = [
            row.where,
            f"{row.noise:g}",
            f"**{row.epsilon:g}**",
            f"**{_cell(steps[:, 0])}**",
            *(_cell(means[:, i]) for i in range(4)),
            "" if row.lower is None else f"**{row.lower:g}**",
            f"**{_cell(steps[:, 4])}**",
            _cell(means[:, 4]),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def largest(
    row: Published, momentum: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The largest cosines of canaries that took part once, and of others."""
    when = rng.integers(row.rounds, size=count)
    kept, variance = np.zeros((2, count)), 0.0
    highest = np.full((2, count), -np.inf)
    for number in range(row.rounds):
        drawn = rng.normal(size=(2, count))
        drawn[0] += (when == number) / row.noise
        kept, variance = momentum * kept + drawn, momentum**2 * variance + 1
        highest = np.maximum(highest, kept / np.sqrt(variance))
    return highest[0], highest[1]


def _read(
    row: Published, momentum: float, count: int, rng: np.random.Generator
) -> tuple[float, ...]:
    observed, unobserved = largest(row, momentum, count, rng)
    laws = (unobserved.mean(), unobserved.std(), observed.mean(), observed.std())
    wider = max(laws[1], laws[3])
    lower = epsilon_lower_bound(
        Scores(observed, unobserved), delta=row.delta, method="jeffreys", rule=Best()
    )
    return (
        two_gaussians_epsilon(*laws, row.delta, relative=1e-4),
        two_gaussians_epsilon(*laws, row.delta, "threshold", relative=1e-4),
        min(two_gaussians_directions(*laws, row.delta, relative=1e-4)),
        two_gaussians_epsilon(laws[0], wider, laws[2], wider, row.delta, relative=1e-4),
        lower.epsilon,
    )


def _cell(values: np.ndarray) -> str:
    digits = 0 if values.mean() >= 100 else 1 if values.mean() >= 10 else 2
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


if __name__ == "__main__":
    main()
