"""Train a linear classifier with differential privacy, with scikit-learn's interface."""

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.accounting.pld import full_batch_noise
from epsilometer.audits.classifier.sklearn_models import read_labels, read_matrix
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


@dataclass(eq=False)
class PrivateClassifier:
    """Softmax regression by gradient descent on all records, each clipped, with Gaussian noise.

    It is DP-SGD whose batches are all records, and a test holds it to the package's own trainer.
    That one needs torch, which people with a table and scikit-learn do not have; and with nothing
    sampled, ε does not rest on how batches are drawn.

    Guarantee: (``epsilon``, ``delta``)-DP for adding or removing a record, where ``random_state``
        is not known. All steps together are one Gaussian mechanism, accounted without slack.
    Assumption: the number of records and the classes are public; features are scaled without
        looking at the records, or the scaling is not part of the guarantee.

    Attributes:
        epsilon: ε; infinite: no noise.
        delta: δ.
        steps: Steps of gradient descent.
        learning_rate: Learning rate for the mean gradient.
        random_state: Random state of the noise; None: drawn by the system.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = PrivateClassifier(8.0, random_state=0).fit(X, y)
        >>> bool((model.predict(X) == y).mean() > 0.6)
        True
    """

    epsilon: float = 1.0
    _: KW_ONLY
    delta: float = 1e-5
    steps: int = 30
    learning_rate: float = 4.0
    random_state: int | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what it was made of, by name, as ``sklearn.base.clone`` asks for it."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def set_params(self, **changed: Any) -> "PrivateClassifier":
        """Change its parameters."""
        unknown = sorted(set(changed) - {part.name for part in fields(self)})
        if unknown:
            raise InvalidArgument(f"Expected parameters of PrivateClassifier, got {unknown}.")
        for name, value in changed.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Say that it is a classifier, for scikit-learn's own checks."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(sparse=True),
        )

    def fit(self, X: Any, y: Any) -> "PrivateClassifier":  # noqa: N803 - as in scikit-learn
        """Train with noise in every step."""
        if not self.epsilon > 0:
            raise InvalidArgument(
                f"Expected epsilon > 0, infinite for no noise, got {self.epsilon}."
            )
        _validate.positive(learning_rate=self.learning_rate)
        _validate.whole(1, steps=self.steps)
        self.classes_, codes = read_labels(y)
        features = self._scale(X)
        n, width = features.shape
        noise = 0.0
        if math.isfinite(self.epsilon):
            noise = full_batch_noise(epsilon=self.epsilon, delta=self.delta, steps=self.steps)
        rng = np.random.default_rng(self.random_state)
        lengths = np.linalg.norm(features, axis=1)
        self.coef_ = np.zeros((self.classes_.size, width))
        for _ in range(self.steps):
            residuals = scipy.special.softmax(features @ self.coef_.T, axis=1)
            residuals[np.arange(n), codes] -= 1
            norms = np.linalg.norm(residuals, axis=1) * lengths
            residuals /= np.maximum(norms, 1.0)[:, None]  # no record's gradient is longer than 1
            total = residuals.T @ features + noise * rng.normal(size=self.coef_.shape)
            self.coef_ -= self.learning_rate / n * total
        return self

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return probabilities, ``(records, classes)``."""
        if not hasattr(self, "coef_"):
            raise InvalidArgument("Expected a classifier that was fitted. Call fit first.")
        found: FloatArray = scipy.special.softmax(self._scale(X) @ self.coef_.T, axis=1)
        return found

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the likeliest label of each record."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _scale(self, X: Any) -> FloatArray:  # noqa: N803
        """Return rows of length 1 at most beside a constant, each scaled by itself alone."""
        rows = read_matrix(X.toarray() if hasattr(X, "toarray") else X)
        rows = rows / math.sqrt(rows.shape[1])
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
