"""CANIFE on the two-layer net of the one-shot papers' comparison, over seeds.

    python reproductions/one_shot/canife.py --data FOLDER --seeds 3

FOLDER has fashion_mnist.npz. Audits every 100 rounds with a pool of 512 and 100 scores of each
kind; prints a line a seed, then mean ± standard deviation.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from federated import fashion

from epsilometer.accounting import pld
from epsilometer.audits.canife import audit_canife


def main() -> None:
    """Audits and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2500, help="Of crafting.")
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    asked.canaries, asked.rounds = 0, 0
    found = []
    for seed in range(asked.seeds):
        start = time.perf_counter()
        setting = fashion(asked, asked.noise, seed)
        audit = audit_canife(
            setting.training, delta=setting.delta, every=100, pool=512, steps=asked.steps, seed=seed
        )
        rate = setting.training.cohort / len(setting.training.clients)
        tight = pld.varied_poisson_epsilon(audit.noise, sampling_rate=rate, delta=setting.delta)
        found.append((audit.estimate.epsilon, tight))
        rounds = ", ".join(f"{epsilon:.2f}" for _, epsilon in audit.rounds)
        print(
            f"seed {seed}: {found[-1][0]:.3f} by RDP, {found[-1][1]:.3f} by PLD; rounds {rounds}; "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    for name, values in zip(("RDP", "PLD"), zip(*found, strict=True), strict=True):
        print(f"{name}: {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}")


if __name__ == "__main__":
    main()
