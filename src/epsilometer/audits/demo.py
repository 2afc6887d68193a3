"""The demonstration: DP training on real data, as promised and with a classic mistake."""

import hashlib
import math

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import full_batch_noise, poisson_curve
from epsilometer.audits.runs import Program, RunsJob
from epsilometer.core.claim import Claim
from epsilometer.engine.plan import Plan
from epsilometer.mechanisms.gradient_descent import GradientDescent
from epsilometer.core.findings import Curve
from epsilometer.types import FloatArray, IntArray

CLAIM = Claim(
    epsilon=3.0, delta=1e-5, adjacency="add_remove", sampler="full batch", accountant="PLD"
)
RECORDS, STEPS, RUNS = 100, 20, 5_000
_BLOCK = 250  # runs that make a unit: a second of work


def demo_job(features: FloatArray, labels: IntArray, *, runs: int, seed: int) -> RunsJob:
    """Two training programs that promise the same: one sound, one with its noise mistaken.

    The mistake is to hand the standard deviation where a variance is asked for, so that the square
    root is taken once too often. The target is an image with the wrong label.
    """
    _validate.whole(2, runs=runs)
    noise = full_batch_noise(epsilon=CLAIM.epsilon, delta=CLAIM.delta, steps=STEPS)
    allowed = (_allowed(noise),)
    blocks = -(-runs // _BLOCK)
    plan = Plan(
        audit="demo",
        parameters={"runs": runs},
        units=2 * blocks,
        seed=seed,
        command=f"epsilometer demo --runs {runs} --seed {seed}",
        inputs={"digits": _fingerprint(features, labels)},
    )
    return RunsJob(
        plan=plan,
        subject="DP gradient descent on handwritten digits",
        programs=(
            _program(features, labels, "as promised", noise, allowed),
            _program(features, labels, "with √σ where σ was meant", math.sqrt(noise), allowed),
        ),
        runs=runs,
        block=_BLOCK,
        delta=CLAIM.delta,
        also=("gdp",),
    )


def _program(
    features: FloatArray, labels: IntArray, name: str, noise: float, curves: tuple[Curve, ...]
) -> Program:
    data = np.column_stack([features[: RECORDS + 1] / 16.0, np.ones(RECORDS + 1)])
    training = GradientDescent(
        features=data[:-1],
        labels=labels[:RECORDS],
        target=data[-1],
        target_label=int(labels[RECORDS] + 1) % 10,
        steps=STEPS,
        learning_rate=0.5,
        clip=0.5,
        noise=noise,
    )
    return Program(
        play=training.play,
        subject=f"DP gradient descent on digits, {name}",
        claim=CLAIM,
        adversary="sees every noisy gradient sum, knows all other records",
        curves=curves,
    )


def _allowed(noise: float) -> Curve:
    """What the accountant allows of an attack on the program as promised."""
    fpr = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 120)])
    fnr = poisson_curve(fpr, noise_multiplier=noise, sampling_rate=1.0, steps=STEPS)
    return Curve(
        name="PLD of the promised noise",
        fpr=tuple(float(f"{rate:.6g}") for rate in fpr),
        fnr=tuple(float(f"{rate:.6g}") for rate in fnr),
    )


def _fingerprint(*arrays: FloatArray | IntArray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
