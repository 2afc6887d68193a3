"""Remove one record from logistic regression: Newton's method from the model with all records."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

from epsilometer.audits.classifier.leave_one_out.families import (
    Family,
    Removable,
    class_weights,
    refuse_weights,
)
from epsilometer.audits.classifier.leave_one_out.logistic_series import Series, count_block
from epsilometer.audits.classifier.leave_one_out.scaling import Peeled
from epsilometer.audits.classifier.sklearn_models import read_matrix
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_MOST_COEFFICIENTS = 8000  # the factor of the Hessian then takes half a gigabyte
_TOLERANCE = 1e-12  # relative to the root of the objective; rounding is four digits below
_SHARED_STEPS = 40  # with one Hessian for all; records that need more get their own
_PAIRS = 10  # steps that L-BFGS stores
_ROUNDING = 1e-8  # decrements below this that no longer fall are rounding
_NEWTON_STEPS = 200
_BLOCK = 1 << 20  # entries of a working array
_PROVEN = 1e-6  # largest proven error of ln p from a series
_SERIES_RECORDS = 1000  # records from which a series is worth computing its tensor


class LogisticMinimiser(Removable):
    r"""The minimiser of :math:`C \sum_i s_i \ell_i(W) + \frac12 \|W\|^2`, and without one record.

    Without record t the Hessian changes by its own term, of rank classes − 1. One factor of the
    Hessian with all records and Woodbury's formula give each record's first step. Further steps
    use exact gradients and their past changes (L-BFGS). A record for which that diverges gets
    damped Newton steps with its own Hessian. Either way the gradient vanishes to rounding: this is
    the minimiser, not an approximation.

    All that needs a pass over the data per record. With many records and two classes, a record's
    own prediction without it comes from a series, if its error is proven to be below 10⁻⁶.

    Removing a record changes all "balanced" weights, in the same way for all records of a class.
    So each class has its own start, with all records and the weights without one. The solver and
    its tolerance do not matter.
    """

    caveats = (
        "The exact minimisers are compared: a solver at its default tolerance adds noise of its "
        "own, often larger than a record's effect.",
    )

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(read_matrix(X), y)
        penalised = estimator.solver == "liblinear"  # the only solver to penalise the intercept
        self._intercept, self._penalty = 0.0, np.ones(self.features.shape[1])
        if estimator.fit_intercept:
            self._intercept = float(estimator.intercept_scaling) if penalised else 1.0
            self._penalty = np.append(self._penalty, float(penalised))
        self._cost, self._class_weight = float(estimator.C), estimator.class_weight
        self._design = self._add_intercept(self.features)
        self._all = _Start(self._problem(self.counts))
        self.block = self._all.block
        self._start_class = cache(
            lambda label: _Start(
                self._problem(self.count_without(label)), near=self._all.coefficients
            )
        )

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return self._all.problem.predict(self.read_queries(queries), self._all.coefficients)

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        design = self._design[records] if at is None else at
        if self.counts[label] == 1:
            return self._remove_class(int(records[0]), design)
        start = self._start(label)
        penalties = self.penalties_without(records)
        if at is not None:
            return start.problem.predict(at, start.without(records, penalties)[0])
        coefficients = start.move_own(records, penalties)
        logits = np.einsum("bd,bdm->bm", design, coefficients)
        return _log_softmax(logits @ start.problem.code.T)

    def count_compared(self) -> int:
        """Return about how many records need all others, because their series is not proven."""
        return sum(
            self._start(label).count_far(records, self.penalties_without(records))
            for label in range(self.classes.size)
            for records in [np.flatnonzero(self.codes == label)]
        )

    def _start(self, label: int) -> "_Start":
        return self._start_class(label) if self._class_weight == "balanced" else self._all

    def read_queries(self, queries: Any) -> FloatArray:
        """Return the queries with a column for the intercept."""
        return self._add_intercept(super().read_queries(queries))

    def penalties_without(self, records: IntArray) -> FloatArray:
        """Return the penalties of the coefficients without each of these records."""
        return np.broadcast_to(self._penalty, (len(records), self._penalty.size))

    def _problem(self, counts: FloatArray) -> "_Problem":
        weights = self._cost * class_weights(self._class_weight, self.classes, counts)
        return _Problem(
            self._design, self.codes, weights[self.codes], self._penalty, self.classes.size
        )

    def _remove_class(self, record: int, at: FloatArray) -> FloatArray:
        """Remove the only record of a class, which leaves a problem with fewer classes."""
        gone = int(self.codes[record])
        others = np.delete(np.arange(self.classes.size), gone)
        result = np.full((len(at), self.classes.size), -np.inf)
        if others.size == 1:
            result[:, others] = 0.0
            return result
        rows = np.delete(np.arange(len(self.codes)), record)
        counts = np.delete(self.counts, gone)
        weights = self._cost * class_weights(self._class_weight, self.classes[others], counts)
        codes = np.searchsorted(others, self.codes[rows])
        problem = _Problem(self._design[rows], codes, weights[codes], self._penalty, others.size)
        result[:, others] = problem.predict(at, problem.minimise())
        return result

    def _add_intercept(self, X: FloatArray) -> FloatArray:  # noqa: N803
        if not self._intercept:
            return X
        return np.column_stack([X, np.full(len(X), self._intercept)])


class ScaledLogistic(LogisticMinimiser):
    """Logistic regression behind scaling, which changes with each record.

    In columns scaled with all records, dividing by another number changes only the coefficient's
    penalty; subtracting another number changes only the intercept.
    """

    def __init__(self, estimator: Any, peeled: Peeled, y: Any) -> None:
        self._peeled = peeled
        super().__init__(estimator, peeled.scaled, y)

    def read_queries(self, queries: Any) -> FloatArray:
        """Return the scaled queries with a column for the intercept."""
        return super().read_queries(self._peeled.scale(read_matrix(queries, name="queries")))

    def penalties_without(self, records: IntArray) -> FloatArray:
        """Return the penalties of coefficients of columns scaled with all records."""
        ratio = self._peeled.spread_without(records) / self._peeled.spread
        return np.asarray(self._penalty * np.column_stack([ratio**2, np.ones(len(records))]))


class _Problem:
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
        return _log_softmax(at @ coefficients @ self.code.T)

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

    def without(self, record: int, penalty: FloatArray) -> "_Problem":
        """Return the same problem with weight 0 for a record, and this penalty."""
        weights = self.weights.copy()
        weights[record] = 0.0
        return _Problem(self.design, self.codes, weights, penalty, len(self.code))

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


class _Start:
    """The minimiser with all records, from which each record can be removed."""

    def __init__(self, problem: _Problem, near: FloatArray | None = None) -> None:
        self.problem = problem
        self.coefficients = problem.minimise(near)
        self._factor = problem.factor(self.coefficients)
        self._scale = np.sqrt(problem.objective(self.coefficients))
        n, (d, m) = len(problem.codes), self.coefficients.shape
        self._compared = max(1, _BLOCK // (max(n, d * m) * len(problem.code)))
        has_series = m == 1 and n >= max(_SERIES_RECORDS, d * d)
        self.block = max(self._compared, count_block(d)) if has_series else self._compared
        self._series = cache(self._expand) if has_series else None

    def _expand(self) -> Series:
        problem, at = self.problem, self.coefficients
        return Series(
            problem.design,
            problem.codes,
            problem.weights,
            problem.penalty,
            at=at[:, 0],
            slope=problem.gradients(at[None])[0, :, 0],
            factor=self._factor[0],
        )

    def count_far(self, records: IntArray, penalties: FloatArray) -> int:
        """Return about how many of these records have no series with a proven error."""
        if self._series is None:
            return len(records)
        return int(np.count_nonzero(self._series().estimate(records, penalties) > _PROVEN))

    def move_own(self, records: IntArray, penalties: FloatArray) -> FloatArray:
        """Return coefficients without each record, valid only for that record's prediction."""
        result = np.empty((len(records), *self.coefficients.shape))
        far = np.arange(len(records))
        if self._series is not None:
            result[:, :, 0], errors = self._series().move(records, penalties)
            far = np.flatnonzero(~(errors <= _PROVEN))
        for start in range(0, far.size, self._compared):
            some = far[start : start + self._compared]
            result[some] = self.without(records[some], penalties[some])
        return result

    def without(self, records: IntArray, penalties: FloatArray) -> FloatArray:
        """Return coefficients without each of these records, ``(records, features, m)``."""
        problem = self.problem
        shared = _SharedStep(problem, self.coefficients, self._factor, records)
        result = self.coefficients - shared.first(
            (penalties - problem.penalty)[:, :, None] * self.coefficients
        )
        going = np.arange(len(records))
        best = np.full(len(records), np.inf)
        lost: list[int] = []
        memory = _Memory(shared)
        gradients = problem.gradients(result, records, penalties)
        for _ in range(_SHARED_STEPS):
            steps = memory.step(gradients, going)
            squares = np.einsum("bdm,bdm->b", steps, gradients)
            decrements = np.sqrt(np.maximum(squares, 0.0)) / self._scale
            astray = ~(decrements < 2.0 * best[going])  # or nan
            lost.extend(going[astray])
            more = ~astray & (decrements > _TOLERANCE)
            best[going] = np.minimum(best[going], decrements)
            going, steps = going[more], steps[more]
            if not going.size:
                break
            result[going] -= steps
            later = problem.gradients(result[going], records[going], penalties[going])
            memory.add(-steps, later - gradients[more], going)
            gradients = later
        for place in (*lost, *going):
            alone = problem.without(int(records[place]), penalties[place])
            result[place] = alone.minimise(self.coefficients)
        return result


class _Memory:
    """Past steps and changes of gradients, which improve the next steps (L-BFGS)."""

    def __init__(self, shared: "_SharedStep") -> None:
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


class _SharedStep:
    """Newton steps without single records, from one factor of the full Hessian (Woodbury)."""

    def __init__(
        self, problem: _Problem, coefficients: FloatArray, factor: Any, records: IntArray
    ) -> None:
        d, m = coefficients.shape
        b = len(records)
        self.shape = (b, d, m)
        self._factor, self._at = factor, problem.design[records]
        sides = np.einsum("bd,ac->dabc", self._at, np.eye(m)).reshape(d * m, b * m)
        solved = scipy.linalg.cho_solve(factor, sides, overwrite_b=True).reshape(d, m, b, m)
        self._solved = np.ascontiguousarray(solved.transpose(2, 3, 0, 1))  # (b, m, d, m)
        leverage = np.einsum("bd,bcda->bac", self._at, self._solved)
        curvatures = problem.curvatures(coefficients, records)
        self._inner = curvatures @ np.linalg.inv(np.eye(m) - leverage @ curvatures)
        wide = coefficients if m == 1 else coefficients @ problem.code.T
        own = (self._at @ wide)[:, None, :]
        problem.residuals(own, records)
        self._own = own[:, 0] if m == 1 else own[:, 0] @ problem.code

    def first(self, more: FloatArray) -> FloatArray:
        """Return the step from the full minimiser: the gradient is ``more`` minus the record's."""
        slopes = more - self._at[:, :, None] * self._own[:, None, :]
        return self.solve(slopes, np.arange(len(self._at)))

    def solve(self, gradients: FloatArray, which: IntArray) -> FloatArray:
        """Return (H − x xᵀ ⊗ curvature)⁻¹ times the gradients of some of the records."""
        b, d, m = gradients.shape
        flat = gradients.reshape(b, d * m).T
        plain = scipy.linalg.cho_solve(self._factor, flat).T.reshape(b, d, m)
        seen = np.einsum("bd,bda->ba", self._at[which], plain)
        ahead = np.einsum("bac,bc->ba", self._inner[which], seen)
        turned = ahead[:, None, :] @ self._solved[which].reshape(b, m, d * m)
        result: FloatArray = plain + turned.reshape(b, d, m)
        return result


def _log_softmax(logits: FloatArray) -> FloatArray:
    result: FloatArray = scipy.special.log_softmax(logits, axis=-1)
    return result


def _refuse_hessian() -> InvalidArgument:
    return InvalidArgument(
        "Expected features from which the minimiser can be computed, got a Hessian that is "
        "singular to rounding. Scale the features, or lower C."
    )


def _refuse(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    several = np.unique(np.asarray(y)).size
    coefficients = (np.shape(X)[1] + 1) * max(1, several - (several > 2))
    l1 = estimator.penalty in {"l1", "elasticnet"}
    no_penalty = estimator.penalty is None or np.isinf(estimator.C)
    one_by_one = getattr(estimator, "multi_class", "auto") not in {"deprecated", "auto"}
    reasons = {
        "an l1 penalty": l1 or (estimator.penalty == "deprecated" and estimator.l1_ratio),
        "no penalty: separable classes have no minimiser": no_penalty,
        "one model for each class against the rest": one_by_one
        or (estimator.solver == "liblinear" and several > 2),
        refuse_weights(estimator): refuse_weights(estimator),
        "sparse features": hasattr(X, "toarray"),
        f"more than {_MOST_COEFFICIENTS:,} coefficients": coefficients > _MOST_COEFFICIENTS,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _refuse_scaled(estimator: Any, peeled: Peeled) -> bool:
    """Tell whether what scaling subtracts is penalised: by liblinear, or without an intercept."""
    return estimator.solver == "liblinear" or not estimator.fit_intercept


LOGISTIC = Family(
    "logistic regression",
    LogisticMinimiser,
    _refuse,
    compares_all=True,
    fit_scaled=ScaledLogistic,
    refuses_scaled=_refuse_scaled,
)
