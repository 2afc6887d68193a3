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
    """Softmax regression by full-batch gradient descent, with clipping and Gaussian noise.

    This is DP-SGD whose batches are all records; a test compares it with the package's own trainer.
    It works without torch, for users who have only scikit-learn. Without sampling, ε does not
    depend on how batches are drawn.

    Guarantee: (``epsilon``, ``delta``)-DP for adding or removing a record, if ``random_state`` is
        secret. All steps together are one Gaussian mechanism, accounted without slack.
    Assumption: the number of records and the classes are public; features are scaled independently
        of the records, or the scaling is not covered by the guarantee.

    Attributes:
        epsilon: ε of the guarantee; infinite: no noise.
        delta: δ of the guarantee.
        steps: Steps of gradient descent.
        learning_rate: Learning rate for the mean gradient.
        random_state: Random state of the noise; None: drawn by the operating system.

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
        """Return its parameters by name, as ``sklearn.base.clone`` expects them."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def set_params(self, **changed: Any) -> "PrivateClassifier":
        """Set its parameters."""
        unknown = sorted(set(changed) - {part.name for part in fields(self)})
        if unknown:
            raise InvalidArgument(f"Expected parameters of PrivateClassifier, got {unknown}.")
        for name, value in changed.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return tags that mark it as a classifier, for scikit-learn's checks."""
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
        """Return rows of norm at most 1, with a constant column, each scaled independently."""
        rows = read_matrix(X.toarray() if hasattr(X, "toarray") else X)
        rows = rows / math.sqrt(rows.shape[1])
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
