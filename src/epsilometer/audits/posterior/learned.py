"""A likelihood ratio that is learned: from runs that the bound then never sees."""

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_RIDGE = 1.0  # of standardised features: as one observation against each
_CONSTANT = 1e-12  # of a feature's size: less spread than that is rounding
_FAR = 1e3  # standard deviations: what lies beyond is as far, and squares stay finite


def learned_scores(
    inside: ArrayLike, outside: ArrayLike, *, rng: np.random.Generator, fraction: float = 0.5
) -> Scores:
    """Scores of runs by logistic regression on their features, learned on other runs.

    Features are standardised on the runs that are learned from, their squares and products added;
    the penalty is a ridge. Runs with the record weigh as much as those without it. The score is
    the log-odds of the record having been there.

    Guarantees: no run is scored by what was learned from it, so every valid rule for thresholds
        stays valid.
    Assumes: runs are independent.

    Args:
        inside: Features of runs with the record, ``(runs, k)``.
        outside: Of runs without it.
        rng: What splits.
        fraction: Of the runs that is learned from; the others are scored.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = learned_scores(
        ...     rng.normal(1, 1, (200, 2)), rng.normal(0, 1, (200, 2)), rng=rng
        ... )
        >>> scores.n_in, bool(scores.inside.mean() > scores.outside.mean())
        (100, True)
    """
    _validate.open_unit(fraction=fraction)
    sides = [np.asarray(side, np.float64) for side in (inside, outside)]
    for side in sides:
        if side.ndim != 2 or side.shape[1] != sides[0].shape[1] or len(side) < 4:
            raise InvalidArgument(
                "Expected features of shape (runs, k) of at least four runs with the record and "
                "four without it, got "
                f"{sides[0].shape} and {sides[1].shape}."
            )
        if not np.isfinite(side).all():
            raise InvalidArgument("Expected finite features, got nan or infinity.")
    orders = [rng.permutation(len(side)) for side in sides]
    cuts = [min(max(2, round(fraction * len(side))), len(side) - 2) for side in sides]
    seen = [side[order[:cut]] for side, order, cut in zip(sides, orders, cuts, strict=True)]
    together = np.vstack(seen)
    centre, spread = together.mean(axis=0), together.std(axis=0)
    # A feature that says nothing counts nowhere.
    spread = np.where(spread > _CONSTANT * np.abs(together).max(axis=0), spread, np.inf)

    def expanded(runs: FloatArray) -> FloatArray:
        return _expanded(np.clip((runs - centre) / spread, -_FAR, _FAR))

    weights = _fitted(*map(expanded, seen))
    scored = (side[order[cut:]] for side, order, cut in zip(sides, orders, cuts, strict=True))
    return Scores(*(expanded(side) @ weights for side in scored))


def _expanded(x: FloatArray) -> FloatArray:
    """With a constant, squares and products."""
    rows, columns = np.triu_indices(x.shape[1])
    return np.hstack([np.ones((len(x), 1)), x, x[:, rows] * x[:, columns]])


def _fitted(inside: FloatArray, outside: FloatArray) -> FloatArray:
    x = np.vstack([inside, -outside])
    share = np.concatenate([np.full(len(side), 0.5 / len(side)) for side in (inside, outside)])
    ridge = np.full(x.shape[1], _RIDGE / len(x))
    ridge[0] = 0.0

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        margins = x @ weights
        value = share @ np.logaddexp(0, -margins) + 0.5 * ridge @ weights**2
        slopes = -share * scipy.special.expit(-margins)
        return float(value), x.T @ slopes + ridge * weights

    start = np.zeros(x.shape[1])
    return np.asarray(scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x)
