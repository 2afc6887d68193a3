"""DP gradient descent for softmax regression, many runs at once, watched by a strong adversary.

Every record takes part in every step: gradients are clipped one by one, summed, and Gaussian noise
is added. The adversary sees every noisy sum and knows all but whether the target is there.
"""

from dataclasses import dataclass

import numpy as np

from epsilometer import _validate
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_AT_ONCE = 250  # runs that share a matrix product; their activations stay in cache


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientDescent:
    """A training set, a target record, and how the model is trained.

    Attributes:
        features: Shape ``(n, d)``; give them a constant column for a bias.
        labels: Classes 0, 1, …, shape ``(n,)``.
        target: Features of the target record, shape ``(d,)``.
        target_label: Its class.
        steps: Gradient steps.
        learning_rate: Of the mean gradient.
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
        """Trains ``runs`` models with the target and as many without; same ``rng``, same scores."""
        _validate.whole(1, runs=runs)
        worlds = []
        for present in (True, False):
            sizes = [min(_AT_ONCE, runs - start) for start in range(0, runs, _AT_ONCE)]
            streams = rng.spawn(len(sizes))
            parts = [
                self._scores(size, present, stream)
                for size, stream in zip(sizes, streams, strict=True)
            ]
            worlds.append(np.concatenate(parts))
        return Scores(inside=worlds[0], outside=worlds[1])

    def _scores(self, runs: int, present: bool, rng: np.random.Generator) -> FloatArray:
        """Log-likelihood ratio of all noisy sums of each run."""
        classes = max(int(self.labels.max()), self.target_label) + 1
        weights = np.zeros((runs, self.features.shape[1], classes))
        score = np.zeros(runs)
        for _ in range(self.steps):
            others = self._clipped_sum(weights, self.features, self.labels)
            target = self._clipped_sum(weights, self.target[None, :], np.array([self.target_label]))
            noise = rng.normal(0.0, self.noise * self.clip, weights.shape)
            seen = noise + present * target  # what is left when the known records are taken off
            score += _dot(target, seen) - _dot(target, target) / 2
            weights -= self.learning_rate / self.labels.size * (others + seen)
        return score / (self.noise * self.clip) ** 2

    def _clipped_sum(self, weights: FloatArray, x: FloatArray, y: IntArray) -> FloatArray:
        """Sum of clipped gradients; a gradient is an outer product, so its norm is a product."""
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
