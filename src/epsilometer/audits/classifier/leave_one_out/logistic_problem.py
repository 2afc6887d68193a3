"""Minimise logistic regression: the objective, Newton's method, and steps for many records."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.linalg
import scipy.special

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_TOLERANCE = 1e-12  # relative to the root of the objective; rounding is four digits below
_SHARED_STEPS = 40  # with one Hessian for all; records that need more get their own
_PAIRS = 10  # steps that L-BFGS stores
_ROUNDING = 1e-8  # decrements below this that no longer fall are rounding
_NEWTON_STEPS = 200


class Problem:
    """Weighted records and a penalty: objective, gradient, Hessian and minimiser.

    Coefficients have shape ``(features, m)``; row k of ``code`` maps them to class k's logit. Two
    classes have one column of coefficients. More classes have orthonormal columns of ``code`` that
    sum to 0: a constant added to all logits changes nothing, so the minimiser with one column per
    class has this form, and here it is unique.
    """

    def __init__(
        self,
        design: FloatArray,
        codes: IntArray,
        weights: FloatArray,
        penalty: FloatArray,
        classes: int,
    ) -> None:
        self.design, self.codes, self.weights, self.penalty = design, codes, weights, penalty
        # For more than two classes, orthonormal columns that sum to 0
        self.code = np.array([[0.0], [1.0]]) if classes == 2 else scipy.linalg.helmert(classes).T

    def predict(self, at: FloatArray, coefficients: FloatArray) -> FloatArray:
        """Return ln p at rows of a design."""
        return log_softmax(at @ coefficients @ self.code.T)

    def objective(self, coefficients: FloatArray) -> float:
        """Return the objective at these coefficients."""
        log_proba = self.predict(self.design, coefficients)
        own = log_proba[np.arange(len(self.codes)), self.codes]
        penalty = 0.5 * float(self.penalty @ (coefficients**2).sum(axis=1))
        return penalty - float(self.weights @ own)

    def gradients(
        self,
        coefficients: FloatArray,
        left_out: IntArray | None = None,
        penalties: FloatArray | None = None,
    ) -> FloatArray:
        """Return gradients at ``(b, features, m)`` coefficients; each without a record if given."""
        b, d, m = coefficients.shape
        wide = coefficients if m == 1 else coefficients @ self.code.T
        across = np.ascontiguousarray(np.swapaxes(wide, 0, 1)).reshape(d, -1)
        residuals = (self.design @ across).reshape(len(self.codes), b, -1)
        self.residuals(residuals, np.arange(len(self.codes)))
        if left_out is not None:
            residuals[left_out, np.arange(b)] = 0.0
        slopes = self.design.T @ residuals.reshape(len(self.codes), -1)
        slopes = np.swapaxes(slopes.reshape(d, b, -1), 0, 1)
        if m > 1:
            slopes = slopes @ self.code
        penalised = self.penalty if penalties is None else penalties
        result: FloatArray = slopes + penalised[..., None] * coefficients
        return result

    def residuals(self, logits: FloatArray, records: IntArray) -> None:
        """Replace logits by the weighted derivatives of these records' losses, in place.

        Logits have shape ``(records, b, classes)``, or ``(records, b, 1)`` for two classes. For a
        record's own class it is minus the sum of the others: p − 1 loses digits where p is near 1.
        """
        codes, weights = self.codes[records], self.weights[records]
        if self.code.shape[1] == 1:
            signs = (2.0 * codes - 1.0)[:, None, None]
            logits *= signs
            with np.errstate(over="ignore"):  # e^η = inf: the derivative is 0
                np.exp(logits, out=logits)
            logits += 1.0
            np.divide(-signs * weights[:, None, None], logits, out=logits)
            return
        logits -= logits.max(axis=2, keepdims=True)
        np.exp(logits, out=logits)
        logits *= weights[:, None, None] / logits.sum(axis=2, keepdims=True)
        rows = np.arange(len(codes))
        logits[rows, :, codes] = 0.0
        logits[rows, :, codes] = -logits.sum(axis=2)

    def without(self, record: int, penalty: FloatArray) -> "Problem":
        """Return the same problem with weight 0 for a record, and this penalty."""
        weights = self.weights.copy()
        weights[record] = 0.0
        return Problem(self.design, self.codes, weights, penalty, len(self.code))

    def curvatures(self, coefficients: FloatArray, records: IntArray) -> FloatArray:
        """Return the weighted second derivatives of each record's loss, ``(b, m, m)``."""
        m = self.code.shape[1]
        result = np.empty((len(records), m, m))
        for a, b, values in self._curvatures(coefficients, records):
            result[:, a, b] = result[:, b, a] = values
        return result

    def hessian(self, coefficients: FloatArray) -> FloatArray:
        """Return second derivatives over coefficients in C order."""
        d, m = coefficients.shape
        result = np.empty((d, m, d, m))
        for a, b, values in self._curvatures(coefficients, np.arange(len(self.codes))):
            part = self.design.T @ (self.design * values[:, None])
            result[:, a, :, b] = result[:, b, :, a] = part
        flat = result.reshape(d * m, d * m)
        flat[np.diag_indices(d * m)] += np.repeat(self.penalty, m)
        return flat

    def _curvatures(
        self, coefficients: FloatArray, records: IntArray
    ) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield second derivatives pair by pair: all at once would take too much memory."""
        proba = np.exp(self.predict(self.design[records], coefficients))
        weights, m = self.weights[records], self.code.shape[1]
        if m == 1:
            yield 0, 0, weights * proba[:, 0] * proba[:, 1]
            return
        means = proba @ self.code
        for a in range(m):
            for b in range(a, m):
                products = proba @ (self.code[:, a] * self.code[:, b])
                yield a, b, weights * (products - means[:, a] * means[:, b])

    def minimise(self, start: FloatArray | None = None) -> FloatArray:
        """Minimise by Newton's method, with steps halved until the objective falls."""
        zero = np.zeros((self.design.shape[1], self.code.shape[1]))
        coefficients, last = zero if start is None else start, np.inf
        value = self.objective(coefficients)
        for _ in range(_NEWTON_STEPS):
            gradient = self.gradients(coefficients[None])[0]
            step = scipy.linalg.cho_solve(self.factor(coefficients), gradient.ravel())
            step = step.reshape(gradient.shape)
            decrement = np.sqrt(max(0.0, float(np.sum(step * gradient)))) / np.sqrt(value)
            if decrement <= _TOLERANCE or (decrement <= _ROUNDING and decrement > 0.5 * last):
                return coefficients
            # Near the minimum the objective no longer shows whether a step is good; it is
            share = 1.0
            while decrement > 1e-6 and share > 1e-10:
                if self.objective(coefficients - share * step) < value:
                    break
                share /= 2
            coefficients, last = coefficients - share * step, decrement
            value = self.objective(coefficients)
        raise _refuse_hessian()

    def factor(self, coefficients: FloatArray) -> Any:
        """Return the Cholesky factor of the Hessian."""
        try:
            return scipy.linalg.cho_factor(self.hessian(coefficients), overwrite_a=True)
        except scipy.linalg.LinAlgError as error:
            raise _refuse_hessian() from error


class Shared(Protocol):
    """Approximate inverse Hessians, one for each record."""

    shape: tuple[int, int, int]

    def solve(self, gradients: FloatArray, which: IntArray) -> FloatArray:
        """Return the steps for gradients of some of the records."""


def descend(
    shared: Shared,
    coefficients: FloatArray,
    differentiate: Callable[[FloatArray, IntArray], FloatArray],
    *,
    scale: float,
) -> list[int]:
    """Minimise many objectives in place, and return those for which that failed.

    Args:
        shared: Approximate inverse Hessians.
        coefficients: Where to begin, ``(b, features, m)``.
        differentiate: Returns gradients at coefficients of some of them.
        scale: Root of the objective, to which decrements are relative.
    """
    going = np.arange(len(coefficients))
    best = np.full(len(coefficients), np.inf)
    lost: list[int] = []
    memory = _Memory(shared)
    gradients = differentiate(coefficients, going)
    for _ in range(_SHARED_STEPS):
        steps = memory.step(gradients, going)
        squares = np.einsum("bdm,bdm->b", steps, gradients)
        decrements = np.sqrt(np.maximum(squares, 0.0)) / scale
        astray = ~(decrements < 2.0 * best[going])  # or nan
        lost.extend(going[astray])
        more = ~astray & (decrements > _TOLERANCE)
        best[going] = np.minimum(best[going], decrements)
        going, steps = going[more], steps[more]
        if not going.size:
            break
        coefficients[going] -= steps
        later = differentiate(coefficients[going], going)
        memory.add(-steps, later - gradients[more], going)
        gradients = later
    return [*lost, *going]


class _Memory:
    """Past steps and changes of gradients, which improve the next steps (L-BFGS)."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._pairs: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        self._size = shared.shape

    def add(self, moves: FloatArray, changes: FloatArray, which: IntArray) -> None:
        """Store steps of some of the records; a pair that is only rounding has weight 0."""
        products = np.einsum("bdm,bdm->b", moves, changes)
        worth = np.zeros(self._size[0])
        good = products > 0
        worth[which[good]] = 1.0 / products[good]
        pair = np.zeros((2, *self._size))
        pair[0, which], pair[1, which] = moves, changes
        self._pairs = [*self._pairs[1 - _PAIRS :], (pair[0], pair[1], worth)]

    def step(self, gradients: FloatArray, which: IntArray) -> FloatArray:
        """Return the approximate inverse Hessian times gradients of some records."""
        left, shares = gradients.copy(), []
        for moves, changes, worth in reversed(self._pairs):
            share = worth[which] * np.einsum("bdm,bdm->b", moves[which], left)
            left -= share[:, None, None] * changes[which]
            shares.append(share)
        result = self._shared.solve(left, which)
        for (moves, changes, worth), share in zip(self._pairs, reversed(shares), strict=True):
            back = worth[which] * np.einsum("bdm,bdm->b", changes[which], result)
            result += (share - back)[:, None, None] * moves[which]
        return result


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return ln p from logits."""
    result: FloatArray = scipy.special.log_softmax(logits, axis=-1)
    return result


def _refuse_hessian() -> InvalidArgument:
    return InvalidArgument(
        "Expected features from which the minimiser can be computed, got a Hessian that is "
        "singular to rounding. Scale the features, or lower C."
    )
