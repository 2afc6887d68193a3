"""Remove one record from logistic regression: Newton's method from the model with all records."""

import math
from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy.linalg

from epsilometer.audits.classifier.leave_one_out.families import (
    Family,
    Removable,
    class_weights,
    refuse_weights,
)
from epsilometer.audits.classifier.leave_one_out.logistic_problem import (
    Problem,
    descend,
    log_softmax,
)
from epsilometer.audits.classifier.leave_one_out.logistic_series import (
    MappedSeries,
    Series,
    count_block,
)
from epsilometer.audits.classifier.leave_one_out.mapped import MappedModel
from epsilometer.audits.classifier.leave_one_out.maps import Mapped, widen
from epsilometer.audits.classifier.leave_one_out.scaling import Peeled
from epsilometer.audits.classifier.sklearn_models import read_matrix
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

_MOST_COEFFICIENTS = 8000  # the factor of the Hessian then takes half a gigabyte
_MOST_MAPPED = 1000  # of which each record has its own Hessian
_BLOCK = 1 << 20  # entries of a working array
_PROVEN = 1e-6  # largest proven error of ln p from a series
_SAMPLED = 1000  # records by which it is estimated how many have a series
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
        self.intercept, self.penalty = 0.0, np.ones(self.features.shape[1])
        if estimator.fit_intercept:
            self.intercept = float(estimator.intercept_scaling) if penalised else 1.0
            self.penalty = np.append(self.penalty, float(penalised))
        self._cost, self.class_weight = float(estimator.C), estimator.class_weight
        self._design = self._add_intercept(self.features)
        self.all = _Start(self._problem(self.counts))
        self.block = self.all.block
        self._start_class = cache(
            lambda label: _Start(
                self._problem(self.count_without(label)), near=self.all.coefficients
            )
        )

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return self.all.problem.predict(self.read_queries(queries), self.all.coefficients)

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        design = self._design[records] if at is None else at
        if self.counts[label] == 1:
            return self._remove_class(int(records[0]), design)
        start = self.start(label)
        penalties = self.penalties_without(records)
        if at is not None:
            return start.problem.predict(at, start.without(records, penalties)[0])
        coefficients = start.move_own(records, penalties)
        logits = np.einsum("bd,bdm->bm", design, coefficients)
        return log_softmax(logits @ start.problem.code.T)

    def count_compared(self) -> int:
        """Return about how many records need all others, because their series is not proven."""
        return sum(
            self.start(label).count_far(records, self.penalties_without(records))
            for label in range(self.classes.size)
            for records in [np.flatnonzero(self.codes == label)]
        )

    def start(self, label: int) -> "_Start":
        """Return the minimiser with the weights that are right without a record of a class."""
        return self._start_class(label) if self.class_weight == "balanced" else self.all

    def read_queries(self, queries: Any) -> FloatArray:
        """Return the queries with a column for the intercept."""
        return self._add_intercept(super().read_queries(queries))

    def penalties_without(self, records: IntArray) -> FloatArray:
        """Return the penalties of the coefficients without each of these records."""
        return np.broadcast_to(self.penalty, (len(records), self.penalty.size))

    def _problem(self, counts: FloatArray) -> "Problem":
        weights = self._cost * class_weights(self.class_weight, self.classes, counts)
        return Problem(
            self._design, self.codes, weights[self.codes], self.penalty, self.classes.size
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
        weights = self._cost * class_weights(self.class_weight, self.classes[others], counts)
        codes = np.searchsorted(others, self.codes[rows])
        problem = Problem(self._design[rows], codes, weights[codes], self.penalty, others.size)
        result[:, others] = problem.predict(at, problem.minimise())
        return result

    def _add_intercept(self, X: FloatArray) -> FloatArray:  # noqa: N803
        if not self.intercept:
            return X
        return np.column_stack([X, np.full(len(X), self.intercept)])


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
        return np.asarray(self.penalty * np.column_stack([ratio**2, np.ones(len(records))]))


class _Start:
    """The minimiser with all records, from which each record can be removed."""

    def __init__(self, problem: Problem, near: FloatArray | None = None) -> None:
        self.problem = problem
        self.coefficients = problem.minimise(near)
        self._factor = problem.factor(self.coefficients)
        self.scale = np.sqrt(problem.objective(self.coefficients))
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
        lost = descend(
            shared,
            result,
            lambda at, which: problem.gradients(at, records[which], penalties[which]),
            scale=self.scale,
        )
        for place in lost:
            alone = problem.without(int(records[place]), penalties[place])
            result[place] = alone.minimise(self.coefficients)
        return result


class _SharedStep:
    """Newton steps without single records, from one factor of the full Hessian (Woodbury)."""

    def __init__(
        self, problem: Problem, coefficients: FloatArray, factor: Any, records: IntArray
    ) -> None:
        d, m = coefficients.shape
        b = len(records)
        self.shape: tuple[int, int, int] = (b, d, m)
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


class MappedLogistic(MappedModel):
    """Logistic regression behind a map: Newton steps in each record's own columns.

    Second derivatives over the map's fixed columns, at the minimiser with all records, give each
    record's Hessian there; gradients are exact. Where steps diverge, it is solved again.
    """

    plain: LogisticMinimiser

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        plain = LogisticMinimiser(estimator, mapped.map.compute(None), y)
        super().__init__(estimator, mapped, y, plain)
        n, width = self.features.shape
        self._fixed = cache(self._fix)
        self._classes = len(plain.all.problem.code)
        self._has_series = self._classes == 2 and n >= max(_SERIES_RECORDS, width**2)
        self._compared = max(1, _BLOCK // max(n, width * self._classes))
        size = len(plain.penalty) * plain.all.coefficients.shape[1]
        block = count_block(max(width, size))
        self.block = min(self.block, block if self._has_series else self._compared)

    def count_compared(self) -> int:
        """Return about how many records have no series with a proven error, from some of them."""
        if not self._has_series:
            return self.codes.size
        some = np.unique(np.linspace(0, self.codes.size - 1, _SAMPLED).astype(np.int64))
        far = 0
        for label in range(self.classes.size):
            records = some[self.codes[some] == label]
            for start in range(0, records.size, self.block):
                part = records[start : start + self.block]
                far += self._expand(label, part, self.map.weigh(part))[2].size
        return math.ceil(far / some.size * self.codes.size)

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        wide, result, far = self._expand(label, records, weights)
        fixed, safe = self._fix_for(label), np.ones(len(records), bool)
        for start in range(0, far.size, self._compared):
            some = far[start : start + self._compared]
            result[some], safe[some] = self._compare(fixed, records[some], wide[some])
        logits = np.einsum("bp,bpk,bkm->bm", self.features[records], wide, result, optimize=True)
        code = fixed.problem.code
        return log_softmax(logits @ code.T), safe

    def _fix_for(self, label: int) -> "_Fixed":
        return self._fixed(label if self.plain.class_weight == "balanced" else None)

    def _expand(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return maps, coefficients without each record, and which of these are not proven."""
        fixed, wide = self._fix_for(label), self._widen(weights)
        penalty = self.plain.penalty
        result = np.empty((len(records), wide.shape[2], fixed.coefficients.shape[1]))
        if not self._has_series:
            return wide, result, np.arange(len(records))
        shared = _MappedStep(fixed, wide, penalty, records)
        result[:, :, 0], errors = fixed.series.move(
            records, wide, shared.inverse, shared.first()[:, :, 0]
        )
        return wide, result, np.flatnonzero(~(errors <= _PROVEN))

    def _compare(
        self, fixed: "_Fixed", records: IntArray, wide: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return coefficients without each record from gradients over all others."""
        shared, penalty = _MappedStep(fixed, wide, self.plain.penalty, records), self.plain.penalty
        result, safe = shared.first(), np.ones(len(records), bool)

        def differentiate(at: FloatArray, which: IntArray) -> FloatArray:
            slopes = fixed.problem.gradients(wide[which] @ at, records[which])
            return np.asarray(np.swapaxes(wide[which], 1, 2) @ slopes + penalty[:, None] * at)

        for place in descend(shared, result, differentiate, scale=fixed.scale):
            alone = fixed.problem.without(int(records[place]), penalty)
            alone.design = self.features @ wide[place]
            try:
                result[place] = alone.minimise()
            except InvalidArgument:  # its Hessian is singular to rounding
                safe[place] = False
        return result, safe

    def _widen(self, weights: FloatArray) -> FloatArray:
        """Return maps with a column for the intercept, ``(b, p, coefficients)``."""
        rows, level = self.map.rows, self.plain.intercept
        width = self.features.shape[1]
        wide = widen(weights, rows, width)
        if not level:
            return wide
        if not self.plain.penalty[-1]:  # it absorbs what other columns add
            wide[:, 0] -= self.features.mean(axis=0) @ wide
        last = np.zeros((len(wide), width, 1))
        last[:, 0] = level
        return np.concatenate([wide, last], axis=2)

    def _fix(self, label: int | None) -> "_Fixed":
        plain = self.plain
        start = plain.all if label is None else plain.start(label)
        wide = widen(self.map.weigh(None), self.map.rows, self.features.shape[1])[0]
        coefficients = wide @ start.coefficients[: wide.shape[1]]
        if plain.intercept:
            coefficients[0] += plain.intercept * start.coefficients[-1]
        given = start.problem
        nothing = np.zeros(self.features.shape[1])
        problem = Problem(self.features, given.codes, given.weights, nothing, self._classes)
        whole = self._widen(self.map.weigh(None))[0]
        return _Fixed(problem, coefficients, start.scale, whole, plain.penalty)


class _Fixed:
    """Derivatives over a map's fixed columns, at the minimiser with all records."""

    def __init__(
        self,
        problem: Problem,
        coefficients: FloatArray,
        scale: float,
        wide: FloatArray,
        penalty: FloatArray,
    ) -> None:
        self.problem, self.coefficients, self.scale = problem, coefficients, scale
        self._wide, self._penalty = wide, penalty
        d, m = coefficients.shape
        self.hessian = problem.hessian(coefficients).reshape(d, m, d, m)
        self.slopes = problem.gradients(coefficients[None])[0]
        self.pulled = np.einsum("dmen,en->dm", self.hessian, coefficients)

    @cached_property
    def series(self) -> MappedSeries:
        """The series of two classes."""
        return MappedSeries(
            self.problem.design,
            self.problem.codes,
            self.problem.weights,
            at=self.coefficients[:, 0],
            slope=self.slopes[:, 0],
            hessian=self.hessian[:, 0, :, 0],
            wide=self._wide,
            penalty=self._penalty,
        )


class _MappedStep:
    """Newton steps without single records, with Hessians in their own columns."""

    def __init__(
        self, fixed: _Fixed, wide: FloatArray, penalty: FloatArray, records: IntArray
    ) -> None:
        problem, at = fixed.problem, fixed.coefficients
        m, (b, _, k) = at.shape[1], wide.shape
        self.shape: tuple[int, int, int] = (b, k, m)
        gone = problem.design[records]
        own = np.einsum("bp,bpk->bk", gone, wide, optimize=True)
        curvatures = problem.curvatures(at, records)
        hessian = np.empty((b, k, m, k, m))
        back = np.ascontiguousarray(np.swapaxes(wide, 1, 2))
        for one in range(m):
            for other in range(one, m):
                part = back @ (fixed.hessian[:, one, :, other] @ wide)
                part -= (curvatures[:, one, other, None] * own)[:, :, None] * own[:, None, :]
                if one == other:
                    part[:, np.arange(k), np.arange(k)] += penalty
                hessian[:, :, one, :, other] = part
                hessian[:, :, other, :, one] = np.swapaxes(part, 1, 2)
        self.inverse = np.linalg.inv(hessian.reshape(b, k * m, k * m))
        # The gradient of the quadratic without the record, at coefficients of 0
        seen = (gone @ at @ problem.code.T if m > 1 else gone @ at)[:, None, :]
        problem.residuals(seen, records)
        residuals = seen[:, 0] @ problem.code if m > 1 else seen[:, 0]
        residuals -= np.einsum("bac,bc->ba", curvatures, gone @ at)
        slopes = (fixed.slopes - fixed.pulled) - gone[:, :, None] * residuals[:, None, :]
        self._slopes = back @ slopes

    def first(self) -> FloatArray:
        """Return the minimisers of the quadratics."""
        return -self.solve(self._slopes, np.arange(self.shape[0]))

    def solve(self, gradients: FloatArray, which: IntArray) -> FloatArray:
        """Return the inverse Hessian times gradients of some of the records."""
        flat = gradients.reshape(len(gradients), -1, 1)
        return np.asarray((self.inverse[which] @ flat).reshape(gradients.shape))


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


def _refuse_mapped(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    classes = np.unique(np.asarray(y)).size
    if (np.shape(X)[1] + 1) * (classes if classes > 2 else 1) > _MOST_MAPPED:
        return f"more than {_MOST_MAPPED:,} coefficients"
    if reason := _refuse(estimator, X, y):
        return reason
    try:
        LogisticMinimiser(estimator, X, y)
    except InvalidArgument:
        return "a Hessian that is singular to rounding"
    return None


def _refuse_scaled(estimator: Any, peeled: Peeled) -> bool:
    """Tell whether what scaling subtracts is penalised: by liblinear, or without an intercept."""
    return estimator.solver == "liblinear" or not estimator.fit_intercept


LOGISTIC = Family(
    "logistic regression",
    LogisticMinimiser,
    _refuse,
    compares_all=True,
    fit_scaled=ScaledLogistic,
    fit_mapped=MappedLogistic,
    refuses_mapped=_refuse_mapped,
    refuses_scaled=_refuse_scaled,
)
