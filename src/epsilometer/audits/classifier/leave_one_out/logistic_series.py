"""Expand logistic regression without a record in a series, with a proven bound of its error."""

import numpy as np
import scipy.linalg
import scipy.special

from epsilometer.types import FloatArray, IntArray

_REACH = 0.25  # largest step, in the metric of the Hessian, for which the error is bounded
_STEPS = 8
_SETTLED = 1e-9  # gradient of a series, in that metric, at which its steps end
_RIDGE = 1e-9  # relative penalty of fixed columns, so that their Hessian has an inverse
_ALIKE = 20.0  # records whose second derivatives are added to those of a fixed column
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
        self.curvature = weights * p * (1 - p)
        self._third = self.curvature * (1 - 2 * p)
        self._bent = np.minimum(
            weights / 4, self.curvature * np.exp(np.minimum(_REACH * self._lengths, 700))
        )
        self.norms = {k: self._measure_norm(k) for k in (0, 1, 4)}
        self._slope = self._whiten(slope[None])[0]
        pairs = np.triu_indices(self._at.size)
        self._pairs = pairs[0], pairs[1]
        self._tensor: FloatArray | None = None

    def move(self, records: IntArray, penalties: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients without each record, and bounds on the error of its own ln p."""
        moves = np.zeros((len(records), self._at.size))
        errors = np.full(len(records), np.inf)
        near = np.arange(len(records))
        gradients = self.differentiate(records, penalties, moves)
        for _ in range(_STEPS):
            moves[near] -= self._solve(records[near], gradients)
            errors[near] = np.inf
            near = near[np.linalg.norm(moves[near], axis=1) < _REACH]
            some, changed = records[near], penalties[near]
            gradients = self.differentiate(some, changed, moves[near])
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
            moves = -self._solve(some, self.differentiate(some, changed, still))
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
        least = 1 - _REACH * self.norms[1] - self._bent[records] * lengths**2
        least = least - share.max(axis=1, initial=0.0)
        left = left + sizes**3 / 6 * np.sqrt(self.norms[0] * self.norms[4])
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = (least > 0) & (sizes + left / least <= _REACH)
            return np.where(inside, lengths * left / least, np.inf)

    def _solve(self, records: IntArray, gradients: FloatArray) -> FloatArray:
        """Return Newton steps, with the initial Hessian without each record."""
        own, curvature = self._moved[records], self.curvature[records]
        least = np.maximum(1 - curvature * self._lengths[records] ** 2, 1e-12)
        along = curvature * np.einsum("bd,bd->b", own, gradients) / least
        return np.asarray(gradients + along[:, None] * own)

    def differentiate(
        self, records: IntArray, penalties: FloatArray, moves: FloatArray
    ) -> FloatArray:
        """Return gradients of the series without each record, in coordinates of the metric."""
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


class MappedSeries:
    r"""The same where features without each record are a map of fixed ones, :math:`z = \phi A`.

    Let :math:`\theta = A \beta`, and u be its move in a metric :math:`G = H + T` of the fixed
    columns: H is their Hessian at the minimiser with all records, and T is diagonal. T is the
    penalty where a fixed column times a number is one mapped column, and the most that 20 records
    can add to H where the map with all records does not use it, so that single gaps do not matter.
    With P' the first part of the penalty P, and :math:`B = A^T (H - h_r) A + P`, the Hessian
    without the record's own :math:`h_r`,

    .. math:: A^T G A \le \sigma^2 B, \qquad
              \sigma^2 = 1 + \mathrm{tr}\, B^{-1} A^T h_r A + \|B^{-1} (A^T T A - P')\|_F,

    so second derivatives of the objective are at least :math:`\kappa B` with
    :math:`\kappa = 1 - r A_1 \sigma^2` wherever :math:`|u| \le r`. The remainder of the gradient
    is at most :math:`\sigma |R|` in the metric of :math:`B^{-1}`. The rest is as in ``Series``.

    Args:
        design: The fixed columns.
        codes: Classes of the records, 0 or 1.
        weights: Weights of their losses.
        at: Coefficients of the fixed columns at the minimiser with all records.
        slope: The gradient of the losses there.
        hessian: Their second derivatives there.
        wide: The map with all records, ``(p, columns)``.
        penalty: Penalty of the mapped coefficients.
    """

    def __init__(
        self,
        design: FloatArray,
        codes: IntArray,
        weights: FloatArray,
        *,
        at: FloatArray,
        slope: FloatArray,
        hessian: FloatArray,
        wide: FloatArray,
        penalty: FloatArray,
    ) -> None:
        sizes = np.diag(hessian)
        self._ridge = _RIDGE * np.where(sizes > 0, sizes, 1.0)
        used = wide[1:] != 0  # the first row is the constant
        self._ridge[1:][~used.any(axis=1)] = _ALIKE * weights.max() / 4
        column = used.argmax(axis=1)
        single = np.flatnonzero((used.sum(axis=1) == 1) & (used.sum(axis=0)[column] == 1))
        column, rows = column[single], 1 + single
        self._ridge[rows] += penalty[column] / wide[rows, column] ** 2
        self._penalty, self._counted = penalty, np.zeros_like(penalty)
        self._counted[column] = penalty[column]
        self._upper = scipy.linalg.cholesky(hessian + np.diag(self._ridge))
        self._at, self._design = at, design
        self._series = Series(
            design,
            codes,
            weights,
            self._ridge,
            at=at,
            slope=slope + self._ridge * at,
            factor=self._upper,
        )

    def move(
        self,
        records: IntArray,
        wide: FloatArray,
        inverse: FloatArray,
        coefficients: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return coefficients without each record, and bounds on the error of its own ln p.

        Args:
            records: Which records.
            wide: Their maps, ``(b, p, columns)``.
            inverse: Inverses of B.
            coefficients: Minimisers of the quadratics, ``(b, columns)``.
        """
        own = np.einsum("bp,bpk->bk", self._design[records], wide, optimize=True)
        lengths = np.einsum("bk,bkl,bl->b", own, inverse, own, optimize=True)
        stretch = 1 + self._series.curvature[records] * lengths
        excess = np.swapaxes(wide, 1, 2) @ (self._ridge[:, None] * wide) - np.diag(self._counted)
        stretch += np.linalg.norm(inverse @ excess, axis=(1, 2))
        least = 1 - _REACH * self._series.norms[1] * stretch
        rest = np.sqrt(stretch * self._series.norms[0] * self._series.norms[4]) / 6
        result, errors = coefficients.copy(), np.full(len(records), np.inf)
        near = np.flatnonzero(least > 0)
        for step in range(_STEPS):
            errors[near] = np.inf
            moved = (wide[near] @ result[near, :, None])[:, :, 0] - self._at
            moves = moved @ self._upper.T
            sizes = np.linalg.norm(moves, axis=1)
            close = sizes < _REACH
            near, moves, sizes = near[close], moves[close], sizes[close]
            if not near.size:
                break
            nothing = np.zeros_like(moves)
            slopes = self._series.differentiate(records[near], nothing, moves) @ self._upper
            gradients = np.einsum("bp,bpk->bk", slopes, wide[near], optimize=True)
            gradients += self._penalty * result[near]
            steps = (inverse[near] @ gradients[:, :, None])[:, :, 0]
            left = np.sqrt(np.maximum((steps * gradients).sum(axis=1), 0.0))
            error = left + rest[near] * sizes**3
            inside = sizes + np.sqrt(stretch[near]) * error / least[near] <= _REACH
            bound = np.sqrt(lengths[near]) * error / least[near]
            errors[near] = np.where(inside, bound, np.inf)
            more = left > _SETTLED
            near, steps = near[more], steps[more]
            if not near.size or step == _STEPS - 1:
                break
            result[near] -= steps
        return result, errors
