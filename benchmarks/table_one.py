"""Plays the game with the paper's settings and observations on a GPU, and prints its bounds.

python benchmarks/table_one.py cuda
"""

import sys
import time

import numpy as np

from epsilometer.mechanisms.batched_gaussian import BatchedGaussian
from epsilometer.mechanisms.samplers import Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, RankGrid

# σ, T, E, observations, what the paper found
_ROWS = (
    ("SST-2", 0.79, 117, 10, 10**7, 9.80),
    ("QNLI", 0.87, 195, 30, 10**7, 10.60),
    ("MNLI", 0.73, 781, 50, 10**7, 12.73),
    ("Persona-Chat", 0.82, 254, 30, 10**7, 11.08),
    ("CIFAR-10", 3.00, 11, 168, 10**7, 6.39),
    ("Places-365", 1.00, 440, 509, 10**7, 13.54),
    ("σ = 0.5", 0.5, 100, 1, 10**9, 8.96),
    ("σ = 1.0", 1.0, 100, 1, 10**9, 4.01),
    ("σ = 1.5", 1.5, 100, 1, 10**9, 1.44),
)


def main() -> None:
    """One line a setting."""
    device = sys.argv[1]
    print("| | observations | paper | Best() (not valid) | off | RankGrid (valid) | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, sigma, steps, epochs, observations, paper in _ROWS:
        game = BatchedGaussian(
            sampler=Shuffle(), noise_multiplier=sigma, steps=steps, epochs=epochs, device=device
        )
        rng = np.random.default_rng(0)
        start = time.perf_counter()
        if observations > 10**8:
            scores = game.count(observations // 2, rng, thresholds=np.linspace(-6, 14, 2001))
        else:
            scores = game.play(observations // 2, rng)
        seconds = time.perf_counter() - start
        best, valid = (
            epsilon_lower_bound(scores, delta=1e-5, rule=rule).epsilon
            for rule in (Best(), RankGrid())
        )
        print(
            f"| {name} | {observations:.0e} | {paper} | {best:.2f} | {best / paper - 1:+.1%} "
            f"| {valid:.2f} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
