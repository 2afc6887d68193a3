"""Table 6 of the one-shot papers: one run with 1,000 canaries, or ten with 100 each?

    python reproductions/one_shot/table_six.py

What a training of T = 2,048 rounds of noise z leaves of a canary in the final model is the Gaussian
mechanism with noise z√T. That mechanism itself is played, with Hadamard canaries, so that canaries
of one run are in each other's way as they would be; no model and no data. Prints quantiles of ε by
the fitted spread over experiments, measured beside published.
"""

import argparse
from itertools import product

import numpy as np

from epsilometer.audits.federated.cosine_audit import GaussianMechanism
from epsilometer.stats.sphere_estimates import cosine_epsilon

ROUNDS, DELTA = 2048, 34_000**-1.1
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
PUBLISHED = {
    (0.0496, 1): "1.59, 1.75, 1.97, 2.15, 2.46",
    (0.0496, 10): "1.65, 1.80, 1.92, 2.16, 2.32",
    (0.0986, 1): "0.81, 1.06, 1.18, 1.33, 1.54",
    (0.0986, 10): "0.87, 1.03, 1.16, 1.36, 1.78",
}


def quantiles(noise: float, runs: int, experiments: int, dimension: int) -> str:
    """Of ε over experiments, each of as many runs, 1,000 canaries in all."""
    found = []
    for rng in np.random.default_rng([runs, int(1e4 * noise)]).spawn(experiments):
        mechanism = GaussianMechanism(noise * np.sqrt(ROUNDS), dimension, canaries=1000 // runs)
        parts = [mechanism.cosines(stream) for stream in rng.spawn(runs)]
        cosines = np.concatenate(parts)
        found.append(cosine_epsilon(cosines, spread="fitted", dimension=dimension, delta=DELTA))
    return ", ".join(f"{value:.2f}" for value in np.quantile(found, LEVELS))


def measured(*, experiments: int, dimension: int, **_: object) -> dict[str, str]:
    """By noise, and runs with canaries of each."""
    return {
        f"noise {noise}, {runs} × {1000 // runs}": quantiles(noise, runs, experiments, dimension)
        for noise, runs in product((0.0496, 0.0986), (1, 10))
    }


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=50)
    parser.add_argument("--dimension", type=int, default=10**6, help="The paper: 4.1 million.")
    asked = parser.parse_args()
    print("| | " + " | ".join(map(str, LEVELS)) + " |\n" + "|---" * 6 + "|")
    found = measured(experiments=asked.experiments, dimension=asked.dimension)
    for (name, values), published in zip(found.items(), PUBLISHED.values(), strict=True):
        for what, text in (("published", published), ("here", values)):
            print(f"| {name}, {what} | {' | '.join(text.split(', '))} |", flush=True)


if __name__ == "__main__":
    main()
