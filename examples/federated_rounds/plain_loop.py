"""Audit a federated training loop of your own: ten hospitals, no framework.

The loop clips updates, averages them and adds noise; three more lines plant canaries, show the
weights after every round, and ask for the audit.

    python examples/federated_rounds/plain_loop.py              # as claimed: not refuted
    python examples/federated_rounds/plain_loop.py --forget     # noise is forgotten for one array
"""

import argparse

import numpy as np

import epsilometer as em
from epsilometer.integrations.rounds import AccountedMean, IterateWatch

EPSILON, DELTA, ROUNDS, HOSPITALS, CANARIES = 8.0, 1e-5, 5, 10, 1
NOISE = em.gaussian_sigma(EPSILON, DELTA) * ROUNDS**0.5  # everybody takes part in every round


def clip(update: dict[str, np.ndarray], norm: float = 1.0) -> dict[str, np.ndarray]:
    """Clip an update to a norm over all arrays together."""
    length = np.sqrt(sum(np.sum(part**2) for part in update.values()))
    return {name: part * min(1.0, norm / length) for name, part in update.items()}


def train(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a hospital's update: a few steps of least squares on its own patients."""
    own = weights.copy()
    for _ in range(5):
        own -= 0.1 * x.T @ (x @ own - y) / len(x)
    return own - weights


def run(*, forget: bool = False, seed: int = 0) -> em.Audit:
    """Train once, with canaries, and return the audit."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(100, 40))
    patients = [rng.normal(size=(50, 100)) for _ in range(HOSPITALS)]
    answers = [x @ truth + rng.normal(size=(50, 40)) for x in patients]
    model = {"slope": np.zeros((100, 40)), "offset": np.zeros(600)}

    accounted = AccountedMean(noise_multiplier=NOISE, clip_norm=1.0, server_rate=1.0)
    watch = IterateWatch(model, clip_norm=1.0, canaries=CANARIES, seed=7, accounted=accounted)
    for _ in range(ROUNDS):
        updates = [
            {"slope": train(model["slope"], x, y), "offset": np.zeros(600)}
            for x, y in zip(patients, answers, strict=True)
        ]
        planted = [watch.make_update(number) for number in range(CANARIES)]
        clipped = [clip(update) for update in (*updates, *planted)]
        model = {
            name: value + np.mean([update[name] for update in clipped], axis=0)
            for name, value in model.items()
        }
        for name, value in model.items():
            if not (forget and name == "slope"):
                model[name] = value + NOISE / len(clipped) * rng.normal(size=value.shape)
        watch.see(model, canaries=range(CANARIES), updates=updates)
    return watch.audit(em.Claim(EPSILON, delta=DELTA, unit="client"))


def main() -> None:
    """Print the verdict and what it rests on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forget", action="store_true", help="Forget the noise of one array.")
    audit = run(forget=parser.parse_args().forget)
    print(f"Verdict: {audit.verdict}.")
    for view in audit.views:
        print(f"{view.bound.adversary}: ε ≥ {view.bound.epsilon:.2f} of {EPSILON:g} claimed")


if __name__ == "__main__":
    main()
