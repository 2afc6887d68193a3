"""Demonstrate an audit: DP training on real data, as claimed and with a classic mistake."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import full_batch_noise, poisson_curve
from epsilometer.audits.training.gradient_descent import GradientDescent
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Curve
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import Local
from epsilometer.engine.fingerprints import fingerprint
from epsilometer.engine.request import Request
from epsilometer.engine.runs import Program, RunsJob
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

CLAIM = Claim(
    epsilon=3.0, delta=1e-5, adjacency="add_remove", sampler="full batch", accountant="PLD"
)
RECORDS, STEPS, RUNS = 100, 20, 5_000
_BLOCK = 250  # runs that make a unit: a second of work


@dataclass(frozen=True, eq=False)
class Demo:
    """Two training programs with the same noise on paper: one right, one with its noise mistaken.

    The noise is what ``CLAIM`` needs. The mistake is to pass the standard deviation where a
    variance is asked for, so that the square root is taken once too often. The target is an image
    with the wrong label.

    Attributes:
        features: Pixels of images, 0 to 16, shape ``(n, d)``; the first 101 are used.
        labels: Their classes, 0 to 9.
        runs: Runs of either kind, of either program.
        source: What the images were read from, where it is known.
    """

    features: FloatArray = field(metadata=DATA)
    labels: IntArray = field(metadata=DATA)
    _: KW_ONLY
    runs: int = RUNS
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        _validate.whole(2, runs=self.runs)
        if min(len(self.features), len(self.labels)) <= RECORDS:
            raise InvalidArgument(
                f"Expected more than {RECORDS} images with labels, got {len(self.features)} "
                f"and {len(self.labels)}."
            )


SUBJECTS = (Demo,)


def run_audit(subject: Demo, request: Request) -> Audit:
    """Train both programs with the target and without it: one finding per program."""
    if request.until is not None:
        raise InvalidArgument(
            f"Expected no until for Demo, got {request.until!r}: both programs run to their end."
        )
    noise = full_batch_noise(epsilon=CLAIM.epsilon, delta=CLAIM.delta, steps=STEPS)
    allowed = (_compute_allowed(noise),)
    programs = (
        _make_program(subject, "as claimed", noise, allowed),
        _make_program(subject, "with √σ where σ was meant", math.sqrt(noise), allowed),
    )
    plan = request.make_plan(
        subject,
        units=len(programs) * -(-subject.runs // _BLOCK),
        inputs={name: fingerprint(getattr(subject, name)) for name in ("features", "labels")},
        block=_BLOCK,
    )
    job = RunsJob(
        plan=plan,
        subject="DP gradient descent on handwritten digits",
        claim=request.claim,
        programs=programs,
        runs=subject.runs,
        block=_BLOCK,
        delta=request.known_delta,
        confidence=request.confidence,
        also=("gdp",),
    )
    return request.execute(job, usual=Local())


def _make_program(subject: Demo, name: str, noise: float, curves: tuple[Curve, ...]) -> Program:
    labels = np.asarray(subject.labels)
    data = np.column_stack([subject.features[: RECORDS + 1] / 16.0, np.ones(RECORDS + 1)])
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
        adversary="sees every noisy gradient sum, knows all other records",
        curves=curves,
    )


def _compute_allowed(noise: float) -> Curve:
    """Compute what the accountant allows of an attack on the program as claimed."""
    fpr = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 120)])
    fnr = poisson_curve(fpr, noise_multiplier=noise, sampling_rate=1.0, steps=STEPS)
    return Curve(
        name="PLD of the claimed noise",
        fpr=tuple(float(f"{rate:.6g}") for rate in fpr),
        fnr=tuple(float(f"{rate:.6g}") for rate in fnr),
    )
