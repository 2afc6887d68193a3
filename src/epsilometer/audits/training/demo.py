"""Demonstrate an audit: DP training on real data, as claimed and with a classic mistake.

Softmax regression is trained by DP gradient descent, many runs at once. Every record takes part in
every step: per-example gradients are clipped and summed, and Gaussian noise is added. The adversary
sees every noisy sum and knows everything except whether the target is present.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.accounting.pld import full_batch_noise, poisson_curve
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Curve
from epsilometer.core.scores import Scores
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
_BLOCK = 250  # runs per unit: a second of work
_AT_ONCE = 250  # runs that share a matrix product; their activations stay in cache


@dataclass(frozen=True, eq=False)
class Demo:
    """Audit two training programs with the same nominal noise: one correct, one with too little.

    The noise is what ``CLAIM`` requires. The mistake is to pass the standard deviation as a
    variance, so that the square root is taken once too often. The target is an image with the wrong
    label.

    Attributes:
        features: Pixels of images, 0 to 16, shape ``(n, d)``; the first 101 are used.
        labels: Their classes, 0 to 9.
        runs: Runs with the record, and as many without it, of each program.
        source: File that the images were read from, if known.
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
    """Train both programs with the target and without it; return one finding per program."""
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
    """Compute the accountant's trade-off curve of the program as claimed."""
    fpr = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 120)])
    fnr = poisson_curve(fpr, noise_multiplier=noise, sampling_rate=1.0, steps=STEPS)
    return Curve(
        name="PLD of the claimed noise",
        fpr=tuple(float(f"{rate:.6g}") for rate in fpr),
        fnr=tuple(float(f"{rate:.6g}") for rate in fnr),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientDescent:
    """Hold a training set, a target record, and the settings of training.

    Attributes:
        features: Shape ``(n, d)``; add a constant column for a bias.
        labels: Classes 0, 1, …, shape ``(n,)``.
        target: Features of the target record, shape ``(d,)``.
        target_label: Its class.
        steps: Gradient steps.
        learning_rate: Learning rate for the mean gradient.
        clip: Norm that each gradient is clipped to.
        noise: Standard deviation of the noise on the sum, in units of ``clip``.
    """

    features: FloatArray
    labels: IntArray
    target: FloatArray
    target_label: int
    steps: int
    learning_rate: float
    clip: float
    noise: float

    def __post_init__(self) -> None:
        _validate.whole(1, steps=self.steps)
        _validate.positive(learning_rate=self.learning_rate, clip=self.clip, noise=self.noise)
        _validate.whole(0, target_label=self.target_label)
        features, labels, target = (
            np.asarray(value) for value in (self.features, self.labels, self.target)
        )
        if features.ndim != 2 or labels.shape != features.shape[:1] or labels.size == 0:
            raise InvalidArgument(
                f"Expected features (n, d), labels (n,), got {features.shape}, {labels.shape}."
            )
        if target.shape != features.shape[1:]:
            raise InvalidArgument(
                f"Expected a target of shape {features.shape[1:]}, got {target.shape}."
            )
        if labels.dtype.kind not in "iu" or labels.min() < 0:
            raise InvalidArgument("Expected labels to be classes 0, 1, …, got others.")
        for name, value in (("features", features), ("labels", labels), ("target", target)):
            object.__setattr__(self, name, value)

    def play(self, runs: int, rng: np.random.Generator) -> Scores:
        """Train ``runs`` models with the target and as many without; same ``rng``, same scores."""
        _validate.whole(1, runs=runs)
        sides = []
        for present in (True, False):
            sizes = [min(_AT_ONCE, runs - start) for start in range(0, runs, _AT_ONCE)]
            streams = rng.spawn(len(sizes))
            parts = [
                self._score_runs(size, present, stream)
                for size, stream in zip(sizes, streams, strict=True)
            ]
            sides.append(np.concatenate(parts))
        return Scores(inside=sides[0], outside=sides[1])

    def _score_runs(self, runs: int, present: bool, rng: np.random.Generator) -> FloatArray:
        """Return the log-likelihood ratio of all noisy sums of each run."""
        classes = max(int(self.labels.max()), self.target_label) + 1
        weights = np.zeros((runs, self.features.shape[1], classes))
        score = np.zeros(runs)
        for _ in range(self.steps):
            others = self._sum_clipped(weights, self.features, self.labels)
            target = self._sum_clipped(weights, self.target[None, :], np.array([self.target_label]))
            noise = rng.normal(0.0, self.noise * self.clip, weights.shape)
            seen = noise + present * target  # the remainder after subtracting the known records
            score += _dot(target, seen) - _dot(target, target) / 2
            weights -= self.learning_rate / self.labels.size * (others + seen)
        return score / (self.noise * self.clip) ** 2

    def _sum_clipped(self, weights: FloatArray, x: FloatArray, y: IntArray) -> FloatArray:
        """Return the sum of clipped gradients: outer products, so norms are products too."""
        error = _softmax(x @ weights)
        error[:, np.arange(y.size), y] -= 1.0
        norms = np.linalg.norm(error, axis=2) * np.linalg.norm(x, axis=1)
        error *= np.minimum(1.0, self.clip / np.maximum(norms, 1e-300))[:, :, None]
        return np.asarray(x.T @ error)


def _softmax(logits: FloatArray) -> FloatArray:
    grown = np.exp(logits - logits.max(axis=2, keepdims=True))
    return np.asarray(grown / grown.sum(axis=2, keepdims=True))


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("rdc,rdc->r", a, b))
