"""The demonstration: DP training on real data, as promised and with a classic mistake."""

import math

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import full_batch_noise
from epsilometer.audits.scores import audit_scores
from epsilometer.claims import PrivacyClaim
from epsilometer.mechanisms.gradient_descent import GradientDescent
from epsilometer.results import AuditResult
from epsilometer.types import FloatArray, IntArray

CLAIM = PrivacyClaim(
    epsilon=3.0, delta=1e-5, adjacency="add_remove", sampler="full batch", accountant="PLD"
)
RECORDS, STEPS, RUNS = 100, 20, 5_000


def demo(features: FloatArray, labels: IntArray, *, runs: int, seed: int) -> list[AuditResult]:
    """Audits two training programs that promise the same: one sound, one with its noise mistaken.

    The mistake is to hand the standard deviation where a variance is asked for, so that the square
    root is taken once too often. The target is an image with the wrong label.
    """
    _validate.whole(0, seed=seed)
    noise = full_batch_noise(epsilon=CLAIM.epsilon, delta=CLAIM.delta, steps=STEPS)
    programs = {
        "as promised": noise,
        "with √σ where σ was meant": math.sqrt(noise),
    }
    data = np.column_stack([features[: RECORDS + 1] / 16.0, np.ones(RECORDS + 1)])
    streams = np.random.default_rng(seed).spawn(len(programs))
    results = []
    for (name, used), stream in zip(programs.items(), streams, strict=True):
        training = GradientDescent(
            features=data[:-1],
            labels=labels[:RECORDS],
            target=data[-1],
            target_label=int(labels[RECORDS] + 1) % 10,
            steps=STEPS,
            learning_rate=0.5,
            clip=0.5,
            noise=used,
        )
        results.append(
            audit_scores(
                training.play(runs, stream),
                delta=CLAIM.delta,
                claim=CLAIM,
                also=("gdp",),
                seed=seed,
                subject=f"DP gradient descent on digits, {name}",
                adversary="sees every noisy gradient sum, knows all other records",
            )
        )
    return results
