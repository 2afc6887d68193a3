"""Screen records for high PDTP without leaving them out, to choose which are refitted.

A screen is a guess: it orders records, and says nothing about how large a PDTP is. How well each
follows the exact order was measured (benchmarks/screens.md), and no screen follows it for every
model. So a screen never clears a record: what it did not choose is sampled at random
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
MODELS = 32  # of halves of the records
_FLOOR = np.log(0.005)  # the lowest that two decimals show
_WIDEST = 2_000  # columns, whose curvature is a matrix of their square
_LEAST = 1e-3  # of 1 − leverage


def screen_records(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    screen: Screen = "subsamples",
    seed: int = 0,
    engine: Any = None,
) -> FloatArray:
    """Guess which records have a high PDTP: larger is riskier; only the order has a meaning.

    - ``"subsamples"`` trains the estimator on 32 halves of the records, with the same random
      numbers, and compares what models with a record and models without it say of it (Feldman and
      Zhang 2020). For any estimator.
    - ``"influence"`` takes a logistic regression in place of the estimator, and its first-order
      change when a record leaves (Koh and Liang 2017).
    - ``"leverage"`` is how far a record lies from the others, in the metric of that regression.
    - ``"per-instance"`` is the length of a record's gradient in that metric: its ε if the weights
      were published with noise of that shape, up to a factor (Wang 2019).

    Guarantee: none about PDTP. How well it orders records is in benchmarks/screens.md.
    Assumption: for all but ``"subsamples"``, X are numbers, 2,000 columns at most.

    Args:
        estimator: As for ``pdtp``; not fitted itself.
        X: Features.
        y: Labels.
        screen: Which.
        seed: Seed of the halves, and of training.
        engine: What trains models of halves.

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
    """Trains every model with the same random numbers, so that they differ by their records."""

    train: FitEstimator
    seed: int

    def __call__(self, X: Any, codes: IntArray, seed: int) -> Callable[[Any], Any]:  # noqa: N803
        return self.train(X, codes, self.seed)


class _Surrogate:
    """A logistic regression on standardised columns, in place of any model.

    Its curvature is taken for the same in all classes, Σ w x xᵀ + 2 I with w = 1 − Σ p²: exact for
    two classes, whose weights are each other's negatives, and of that size for more.

    Attributes:
        logs: ln p at each record, ``(n, classes)``.
        residual: Label less p.
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
