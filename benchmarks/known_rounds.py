"""Measure what is proved of a client whose round is known, by its noise and by canaries.

    python benchmarks/known_rounds.py                 # true ε of 8, 20 and 30
    python benchmarks/known_rounds.py 8 --weights 40000

1,000 canaries, each in one of ten rounds, beside five clients that all pull one way.
"""

import argparse
import warnings

import numpy as np
from sizes import ARGUMENTS, choose_size

import epsilometer as em
from epsilometer.integrations.rounds import AccountedMean, IterateWatch

DELTA, CLIENTS = 1e-5, 5
WEIGHTS, ROUNDS, CANARIES = choose_size((10**6, 10, 1000), (400, 2, 20))


def run(epsilon: float, weights: int, seed: int = 3) -> em.Audit:
    """Train once with the noise of an ε, for a client that takes part once."""
    rng, noise = np.random.default_rng(seed), em.gaussian_sigma(epsilon, DELTA)
    model = {"w": np.zeros(weights)}
    accounted = AccountedMean(noise_multiplier=noise, clip_norm=1.0, server_rate=1.0)
    watch = IterateWatch(
        model, clip_norm=1.0, canaries=CANARIES, seed=seed + 1, accounted=accounted
    )
    pull = rng.normal(size=weights) / np.sqrt(weights)
    for members in np.array_split(rng.permutation(CANARIES), ROUNDS):
        own = 0.3 * rng.normal(size=(CLIENTS, weights)) / np.sqrt(weights)
        updates = [0.9 * pull + part for part in own]
        total = sum(part * min(1.0, 1 / np.linalg.norm(part)) for part in updates)
        for number in members:
            total += watch.make_update(int(number))["w"]
        noisy = total + noise * rng.normal(size=weights)
        model = {"w": model["w"] + noisy / (CLIENTS + members.size)}
        watch.see(model, canaries=members, updates=[{"w": part} for part in updates])
    return watch.audit(em.Claim(epsilon, delta=DELTA, unit="client"))


def main() -> None:
    """Print the rows of a table: by the noise, by canaries, by their ranks alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("epsilon", nargs="*", type=float, default=[8.0, 20.0, 30.0])
    parser.add_argument("--weights", type=int, default=WEIGHTS)
    asked = parser.parse_args(ARGUMENTS)
    warnings.simplefilter("ignore")
    for epsilon in asked.epsilon:
        audit = run(epsilon, asked.weights)
        rounds = audit.view("all rounds")
        ranks = next(each for each in (rounds.bound, *rounds.also) if each.method == "cosines")
        shown = (audit.conformance.bound.epsilon, rounds.bound.epsilon, ranks.epsilon)
        print(f"| {epsilon:g} | {' | '.join(f'{each:.2f}' for each in shown)} |", flush=True)


if __name__ == "__main__":
    main()
