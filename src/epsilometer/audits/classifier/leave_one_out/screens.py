"""Screen records for high PDTP without leaving them out, to choose which to refit.

A screen is a heuristic: it ranks records, and does not estimate how large a PDTP is. How well each
screen follows the exact order was measured (benchmarks/screens.md); none does for every model. So a
screen never clears a record: the records it did not choose are sampled at random
(``choose_records``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from epsilometer._extras import needs
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.audits.classifier.sklearn_models import (
    FitEstimator,
    check_choice,
    read_labels,
    read_matrix,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Screen: TypeAlias = Literal["subsamples", "influence", "leverage", "per-instance"]
CITES = MappingProxyType(
    {
        "subsamples": "feldman2020",
        "influence": "koh2017",
        "leverage": "koh2017",
        "per-instance": "wang2019",
    }
)
MODELS = 32  # models trained on halves of the records
_FLOOR = np.log(0.005)  # centre of the lowest bin of two decimals
_WIDEST = 2_000  # largest number of columns: the curvature is a square matrix of that order
_LEAST = 1e-3  # smallest 1 − leverage


def screen_records(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    screen: Screen = "subsamples",
    seed: int = 0,
    engine: Any = None,
) -> FloatArray:
    """Rank records by an estimate of PDTP: larger is riskier; only the order has a meaning.

    - ``"subsamples"`` trains the estimator on 32 halves of the records, with the same random
      numbers. It compares predictions for a record by models with it and without it (Feldman and
      Zhang 2020). For any estimator.
    - ``"influence"`` uses a logistic regression instead of the estimator, and its first-order
      change when a record is removed (Koh and Liang 2017).
    - ``"leverage"`` is how far a record lies from the others, in the metric of that regression.
    - ``"per-instance"`` is the length of a record's gradient in that metric: its ε if the weights
      were published with noise of that shape, up to a factor (Wang 2019).

    Guarantee: none about PDTP. benchmarks/screens.md shows how well each screen ranks records.
    Assumption: for all but ``"subsamples"``, X is numeric, with at most 2,000 columns.

    Args:
        estimator: As for ``pdtp``; not fitted itself.
        X: Features.
        y: Labels.
        screen: Name of the screen.
        seed: Seed of the halves, and of training.
        engine: Executes the training on halves.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> found = screen_records(GaussianNB(), *load_iris(return_X_y=True), screen="influence")
        >>> found.shape, int(found.argmax())
        ((150,), 41)
    """
    check_choice(Screen, screen=screen)
    if screen != "subsamples":
        return _SURROGATE[screen](_Surrogate(X, y))
    fit = _SameSeed(FitEstimator(estimator, read_labels(y)[0]), seed)
    return screen_pool(
        shadow_pool(fit, X, y, models=MODELS, draw="halves", seed=seed, engine=engine)
    )


def screen_pool(pool: ShadowPool) -> FloatArray:
    """Compare models with a record and models without it, by the mean of ln p at the record.

    Example:
        >>> p = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.6, 0.4], [0.5, 0.5]]])
        >>> pool = ShadowPool.from_arrays(np.log(p), [[1, 0], [0, 1]], ["a", "b"])
        >>> screen_pool(pool).round(2)
        array([1.39, 0.  ])
    """
    logs = np.maximum(pool.log_proba, np.float32(_FLOOR))
    inside = pool.member[:, :, None]
    means = [
        np.where(side, logs, 0).sum(axis=0, dtype=np.float64) / np.maximum(side.sum(axis=0), 1)
        for side in (inside, ~inside)
    ]
    return np.asarray(np.abs(means[0] - means[1]).max(axis=1))


@dataclass(frozen=True)
class _SameSeed:
    """Train every model with the same random numbers, so that models differ by their records."""

    train: FitEstimator
    seed: int

    def __call__(self, X: Any, codes: IntArray, seed: int) -> Callable[[Any], Any]:  # noqa: N803
        return self.train(X, codes, self.seed)


class _Surrogate:
    """A logistic regression on standardised columns, as a surrogate for any model.

    Its curvature is assumed to be equal for all classes, Σ w x xᵀ + 2 I with w = 1 − Σ p². That is
    exact for two classes, whose weights are each other's negatives, and approximate for more.

    Attributes:
        logs: ln p at each record, ``(n, classes)``.
        residual: One-hot label minus p.
        spread: xᵀ H⁻¹ x.
        leverage: w xᵀ H⁻¹ x, below 1.
    """

    def __init__(self, X: Any, y: Any) -> None:  # noqa: N803
        with needs("sklearn", extra="sklearn"):
            from sklearn.linear_model import LogisticRegression
        features = read_matrix(X)
        if features.shape[1] > _WIDEST:
            raise InvalidArgument(
                f"Expected at most {_WIDEST:,} columns for this screen, got {features.shape[1]:,}. "
                "Take screen='subsamples'."
            )
        _, codes = read_labels(y)
        spread = features.std(axis=0)
        scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        scaled = np.column_stack([scaled, np.ones(len(scaled))])
        model = LogisticRegression(fit_intercept=False, tol=1e-3, max_iter=200)
        self.logs = np.asarray(model.fit(scaled, codes).predict_log_proba(scaled))
        p = np.exp(self.logs)
        self.residual = np.eye(p.shape[1])[codes] - p
        weight = 1 - (p**2).sum(axis=1)
        curvature = (scaled * weight[:, None]).T @ scaled + 2 * np.eye(scaled.shape[1])
        self.spread = np.einsum("ij,ji->i", scaled, np.linalg.solve(curvature, scaled.T))
        self.leverage = weight * self.spread

    def measure_influence(self) -> FloatArray:
        """Return the largest change of ln p at each record, to first order in its weight."""
        moved = self.spread / np.maximum(1 - self.leverage, _LEAST)
        without = self.logs - moved[:, None] * self.residual
        without -= np.logaddexp.reduce(without, axis=1, keepdims=True)
        return np.asarray(np.abs(without - self.logs).max(axis=1))

    def measure_gradient(self) -> FloatArray:
        """Return the length of each record's gradient in the metric of the curvature."""
        return np.asarray(np.sqrt(self.spread) * np.linalg.norm(self.residual, axis=1))


_SURROGATE: MappingProxyType[str, Callable[[_Surrogate], FloatArray]] = MappingProxyType(
    {
        "influence": _Surrogate.measure_influence,
        "leverage": lambda surrogate: surrogate.leverage,
        "per-instance": _Surrogate.measure_gradient,
    }
)
SCREENS: tuple[Screen, ...] = get_args(Screen)
