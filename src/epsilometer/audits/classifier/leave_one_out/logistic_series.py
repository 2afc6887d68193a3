"""Expand logistic regression without a record in a series, with a proven bound of its error."""

import numpy as np
import scipy.linalg
import scipy.special

from epsilometer.types import FloatArray, IntArray

_REACH = 0.25  # largest step, in the metric of the Hessian, for which the error is bounded
_STEPS = 8
_SETTLED = 1e-9  # gradient of a series, in that metric, at which its steps end
_BLOCK = 1 << 22  # entries of a working array


def count_block(coefficients: int) -> int:
    """Return how many records are moved at a time, so that working arrays stay small."""
    return max(1, _BLOCK // coefficients**2)


class Series:
    r"""The gradient without a record, to third order, and a bound on the remainder.

    With the Hessian :math:`H = U^T U`, :math:`z_j = U^{-T} x_j` and a move :math:`u` of all
    coefficients in these coordinates, the gradient with all records is

    .. math:: u + \tfrac12 \sum_j w_j \ell^{(3)}_j (z_j u)^2 z_j + R, \qquad
              |R| \le \tfrac16 |u|^3 \sqrt{A_0 A_4}, \qquad
              A_k = \lambda_{\max} \sum_j w_j c_j |z_j|^k z_j z_j^T,

    by the Cauchy–Schwarz inequality: third and fourth derivatives of the logistic loss are at most
    its second, which is at most :math:`c_j = \min(\tfrac14, \ell^{(2)}_j e^{r |z_j|})` wherever
    :math:`|u| \le r`. The record's own term is exact. Second derivatives without the record are
    there at least :math:`\kappa = 1 - r A_1 - w c |z|^2 - \tau`, with :math:`\tau` the largest
    share by which a penalty falls. So where the gradient is :math:`g` and
    :math:`|u| + |g| / \kappa \le r`, the minimiser is within :math:`|g| / \kappa`, and the
    record's logit within :math:`|z| |g| / \kappa`.

    Args:
        design: Features of all records, with their intercept.
        codes: Their classes, 0 or 1.
        weights: Weights of their losses.
        penalty: Penalty of the coefficients.
        at: The minimiser with all records.
        slope: The gradient there, which is 0 up to rounding.
        factor: Upper triangular factor U of the Hessian there.
    """

    def __init__(
        self,
        design: FloatArray,
        codes: IntArray,
        weights: FloatArray,
        penalty: FloatArray,
        *,
        at: FloatArray,
        slope: FloatArray,
        factor: FloatArray,
    ) -> None:
        self._codes, self._weights, self._penalty = codes, weights, penalty
        self._factor, self._at = factor, at
        self._moved = self._whiten(design)
        self._lengths = np.linalg.norm(self._moved, axis=1)
        self._logits = design @ self._at
        p = scipy.special.expit(self._logits)
        self._curvature = weights * p * (1 - p)
        self._third = self._curvature * (1 - 2 * p)
        self._bent = np.minimum(
            weights / 4, self._curvature * np.exp(np.minimum(_REACH * self._lengths, 700))
        )
        self._norms = {k: self._measure_norm(k) for k in (0, 1, 4)}
        self._slope = self._whiten(slope[None])[0]
        pairs = np.triu_indices(self._at.size)
        self._pairs = pairs[0], pairs[1]
        self._tensor: FloatArray | None = None

    def move(self, records: IntArray, penalties: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients without each record, and bounds on the error of its own ln p."""
        moves = np.zeros((len(records), self._at.size))
        errors = np.full(len(records), np.inf)
        near = np.arange(len(records))
        gradients = self._differentiate(records, penalties, moves)
        for _ in range(_STEPS):
            moves[near] -= self._solve(records[near], gradients)
            errors[near] = np.inf
            near = near[np.linalg.norm(moves[near], axis=1) < _REACH]
            some, changed = records[near], penalties[near]
            gradients = self._differentiate(some, changed, moves[near])
            left = np.linalg.norm(gradients, axis=1)
            errors[near] = self._bound(some, changed, moves[near], left)
            more = left > _SETTLED
            near, gradients = near[more], gradients[more]
            if not near.size:
                break
        return self._at + self._unwhiten(moves), errors

    def estimate(self, records: IntArray, penalties: FloatArray) -> FloatArray:
        """Estimate the bounds of ``move`` from the first step alone."""
        found = np.empty(len(records))
        block = count_block(self._at.size)
        for start in range(0, len(records), block):
            part = slice(start, start + block)
            some, changed = records[part], penalties[part]
            still = np.zeros((len(some), self._at.size))
            moves = -self._solve(some, self._differentiate(some, changed, still))
            found[part] = self._bound(some, changed, moves, np.zeros(len(some)))
        return found

    def _measure_norm(self, power: int) -> float:
        weights = self._bent * self._lengths**power
        return float(np.linalg.norm(self._moved.T @ (self._moved * weights[:, None]), 2))

    def _bound(
        self, records: IntArray, penalties: FloatArray, moves: FloatArray, left: FloatArray
    ) -> FloatArray:
        """Bound errors of ln p, given the remaining gradient of the series."""
        sizes, lengths = np.linalg.norm(moves, axis=1), self._lengths[records]
        penalised = self._penalty > 0
        share = 1 - penalties[:, penalised] / self._penalty[penalised]
        least = 1 - _REACH * self._norms[1] - self._bent[records] * lengths**2
        least = least - share.max(axis=1, initial=0.0)
        left = left + sizes**3 / 6 * np.sqrt(self._norms[0] * self._norms[4])
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = (least > 0) & (sizes + left / least <= _REACH)
            return np.where(inside, lengths * left / least, np.inf)

    def _solve(self, records: IntArray, gradients: FloatArray) -> FloatArray:
        """Return Newton steps, with the initial Hessian without each record."""
        own, curvature = self._moved[records], self._curvature[records]
        least = np.maximum(1 - curvature * self._lengths[records] ** 2, 1e-12)
        along = curvature * np.einsum("bd,bd->b", own, gradients) / least
        return np.asarray(gradients + along[:, None] * own)

    def _differentiate(
        self, records: IntArray, penalties: FloatArray, moves: FloatArray
    ) -> FloatArray:
        """Return gradients of the series without each record."""
        own = self._moved[records]
        logits = self._logits[records] + np.einsum("bd,bd->b", own, moves)
        slopes = self._weights[records] * (scipy.special.expit(logits) - self._codes[records])
        gradients = self._slope + moves - slopes[:, None] * own
        changed = penalties - self._penalty
        if changed.any():
            gradients += self._whiten(changed * (self._at + self._unwhiten(moves)))
        if moves.any():
            products = moves[:, self._pairs[0]] * moves[:, self._pairs[1]]
            gradients += products @ self._derive_third()
        return np.asarray(gradients)

    def _derive_third(self) -> FloatArray:
        """Return half the third derivatives, one row for each pair of coordinates."""
        if self._tensor is None:
            d = self._at.size
            whole = np.empty((d, d, d))
            for a in range(d):
                weights = self._third * self._moved[:, a]
                whole[a] = self._moved.T @ (self._moved * weights[:, None])
            self._tensor = (
                whole[self._pairs] * np.where(self._pairs[0] == self._pairs[1], 0.5, 1.0)[:, None]
            )
        return self._tensor

    def _whiten(self, rows: FloatArray) -> FloatArray:
        solved = scipy.linalg.solve_triangular(self._factor, rows.T, trans="T")
        return np.ascontiguousarray(solved.T)

    def _unwhiten(self, rows: FloatArray) -> FloatArray:
        result: FloatArray = scipy.linalg.solve_triangular(self._factor, rows.T).T
        return result
