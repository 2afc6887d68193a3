"""CANIFE on the two-layer net of the one-shot papers' comparison, over seeds.

    python reproductions/one_shot/canife.py --data FOLDER --seeds 3

FOLDER has fashion_mnist.npz. Audits every 100 rounds with a pool of 512 and 100 scores of each
kind; prints a line a seed, then mean ± standard deviation.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from canife_audit import audit_canife
from federated import Setting, cell, fashion, options, trained

from epsilometer._extras import needs
from epsilometer.accounting import pld, rdp
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import mlp
from epsilometer.networks.optimizers import SGD
from epsilometer.stats.gaussians import gaussian_epsilon


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
    found = []
    for seed in range(asked.seeds):
        start = time.perf_counter()
        by_rdp, by_pld, rounds = audited(asked, seed)
        found.append((by_rdp, by_pld))
        print(
            f"seed {seed}: {by_rdp:.3f} by RDP, {by_pld:.3f} by PLD; rounds {rounds}; "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    for name, values in zip(("RDP", "PLD"), zip(*found, strict=True), strict=True):
        print(f"{name}: {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}")


def audited(asked: argparse.Namespace, seed: int) -> tuple[float, float, str]:
    """ε by CANIFE, composed by Rényi moments and by privacy loss distributions; its rounds."""
    vars(asked).update(canaries=0, rounds=0)
    setting = _digits(asked, seed) if asked.data is None else fashion(asked, asked.noise, seed)
    few = asked.data is None
    audit = audit_canife(
        setting.training,
        delta=setting.delta,
        every=10 if few else 100,
        pool=64 if few else 512,
        steps=asked.steps,
        seed=seed,
    )
    rate = setting.training.cohort / len(setting.training.clients)
    tight = pld.varied_poisson_epsilon(audit.noise, sampling_rate=rate, delta=setting.delta)
    rounds = ", ".join(f"{epsilon:.2f}" for _, epsilon in audit.rounds)
    return audit.estimate.epsilon, tight, rounds


def _digits(asked: argparse.Namespace, seed: int) -> Setting:
    """Handwritten digits of scikit-learn, one a client, in place of Fashion-MNIST."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    torch.manual_seed(seed)
    training = FederatedTraining(
        mlp(64, 10, asked.hidden),
        cross_entropy,
        clients=[(x[i : i + 1], y[i : i + 1]) for i in range(1600)],
        rounds=20,
        cohort=80,
        noise_multiplier=asked.noise,
        learning_rate=1.0,
        batch_size=1,
        server_rate=0.5 * (1 - asked.momentum),
        server_optimizer=SGD(momentum=asked.momentum),
        at_once=80,
        device=asked.device,
    )
    return Setting(training, (x[1600:], y[1600:]), 1 / 1600, None)


def appendix_h(
    *, data: Path | None, device: str, work: Path, hidden: int, steps: int, seeds: int
) -> dict[str, str]:
    """CANIFE, and all iterates of the same training with 1,000 canaries of either kind."""
    asked = argparse.Namespace(data=data, device=device, hidden=hidden, steps=steps)
    vars(asked).update(noise=0.2, momentum=0.9)
    crafted = [audited(asked, seed)[0] for seed in range(seeds)]
    moments = rdp.poisson_epsilon(noise_multiplier=0.2, sampling_rate=1, steps=1, delta=1 / 60_000)
    if data is None:  # few records: one-shot on clients with several of them
        words, mark = ["digits", "--rounds=12", "--canaries=300", "--noise=0.2"], " (digits)"
    else:
        words, mark = ["fashion", f"--data={data}", f"--hidden={hidden}"], ""
    rows = trained(options(*words, f"--device={device}", f"--seeds={seeds}", f"--out={work}"))
    return {
        "CANIFE": cell(crafted) + mark,
        "one-shot, all iterates": cell([row["steps_est"] for row in rows]) + mark,
        "analytical ε": f"{moments:.2f}",
        "exact ε": f"{gaussian_epsilon(0.2, 1 / 60_000):.2f}",
    }


if __name__ == "__main__":
    main()
