"""How often bounds from one run's cosines exceed the true ε: the papers' own, and the valid ones.

    python reproductions/one_shot/coverage.py --audits 2000

Cosines are drawn from their law, N(1/σ, 1)/√d; 95 % is claimed. Prints a table.
"""

import argparse

import numpy as np

from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.stats.sphere import cosine_bound, one_shot_epsilon_lo, tied_bound

DELTA, DIMENSION = 1e-6, 10**6
EPSILONS, CANARIES = (0.87, 2.7, 8.0, 19.0), (100, 1000)
HEADER = (
    "| ε | k | ε_lo of the paper | ranks | quantiles | mean | mean ε_lo | ranks | quantiles | "
    "mean |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    print(HEADER)
    for epsilon in EPSILONS:
        mu = 1 / gaussian_sigma(epsilon, DELTA)
        for k in CANARIES:
            rows = np.array([_bounds(rng.normal(mu, 1, k) / 1e3) for _ in range(asked.audits)])
            right = (f"{100 * share:.1f} %" for share in (rows <= epsilon).mean(axis=0))
            means = (f"{mean:.2f}" for mean in rows.mean(axis=0))
            print(f"| {epsilon} | {k} | {' | '.join((*right, *means))} |", flush=True)


def _bounds(cosines: np.ndarray) -> list[float]:
    known = {"dimension": DIMENSION, "delta": DELTA}
    return [
        one_shot_epsilon_lo(cosines, **known).epsilon,
        cosine_bound(cosines, **known).epsilon,
        cosine_bound(cosines, rule="quantiles", **known).epsilon,
        tied_bound(cosines, orthonormal=True, **known).epsilon,
    ]


if __name__ == "__main__":
    main()
