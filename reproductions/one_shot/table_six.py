"""Table 6 of the one-shot papers: one run with 1,000 canaries, or ten with 100 each?

    python reproductions/one_shot/table_six.py

What a training of T = 2,048 rounds of noise z leaves of a canary in the final model is the Gaussian
mechanism with noise z√T, so cosines are N(1/(z√T), 1) in units of 1/√d, and it does not matter
among how many runs they are. No model and no data. Prints quantiles of ε by the fitted spread over
50 experiments, as the paper does: the mean, and the standard deviation over sets of 50.
"""

import argparse

import numpy as np

from epsilometer.stats.sphere_estimates import cosine_epsilon

ROUNDS, DELTA, DIMENSION, CANARIES = 2048, 34_000**-1.1, 4_100_000, 1000
LEVELS, EXPERIMENTS = (0.1, 0.3, 0.5, 0.7, 0.9), 50
PUBLISHED = {
    "noise 0.0496, 1 × 1000": "1.59, 1.75, 1.97, 2.15, 2.46",
    "noise 0.0496, 10 × 100": "1.65, 1.80, 1.92, 2.16, 2.32",
    "noise 0.0986, 1 × 1000": "0.81, 1.06, 1.18, 1.33, 1.54",
    "noise 0.0986, 10 × 100": "0.87, 1.03, 1.16, 1.36, 1.78",
}


def quantiles(noise: float, sets: int) -> str:
    """Of ε over 50 experiments, in so many sets of them."""
    rng = np.random.default_rng(int(1e4 * noise))
    mean = 1 / (noise * np.sqrt(ROUNDS))
    found = [
        cosine_epsilon(
            rng.normal(mean, 1, CANARIES) / np.sqrt(DIMENSION),
            spread="fitted",
            dimension=DIMENSION,
            delta=DELTA,
        )
        for _ in range(sets * EXPERIMENTS)
    ]
    every = np.quantile(np.reshape(found, (sets, EXPERIMENTS)), LEVELS, axis=1)
    return ", ".join(f"{q.mean():.3f} ± {q.std(ddof=1):.3f}" for q in every)


def measured(*, sets: int, **_: object) -> dict[str, str]:
    """By noise; the same of one run and of ten."""
    by_noise = {noise: quantiles(noise, sets) for noise in (0.0496, 0.0986)}
    return {name: by_noise[float(name.split(", ")[0].split()[1])] for name in PUBLISHED}


def main() -> None:
    """Draws and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=40)
    for name, values in measured(sets=parser.parse_args().sets).items():
        print(f"{name}: {values} (published: {PUBLISHED[name]})", flush=True)


if __name__ == "__main__":
    main()
