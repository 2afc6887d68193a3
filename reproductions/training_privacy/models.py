"""The classifiers of the tables: each trained on many sets, and on each without single records."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from nets import Nets, Training, answers
from records import Records
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB

from epsilometer.audits.classifier.leave_one_out.families import Removable, family_of
from epsilometer.audits.classifier.leave_one_out.naive_bayes import normalise
from epsilometer.types import BoolArray, FloatArray, IntArray

_FRESH = 1_000_000  # seeds from here on start networks that share nothing with others


class Classifier(Protocol):
    """Trains on sets of candidates; predictions have a column for every class."""

    random: bool  # whether training is

    def everywhere(self, records: Records, member: BoolArray, sets: IntArray) -> FloatArray:
        """ln p of models of ``sets`` at all candidates, single precision, ``(sets, n, classes)``.

        Args:
            records: The candidates.
            member: Who is in which set, ``(all sets, n)``.
            sets: Which sets.
        """
        ...

    def without(
        self, records: Records, member: BoolArray, twins: IntArray, *, fresh: bool = False
    ) -> FloatArray:
        """ln p at a record of the model of a set without it, ``(twins, classes)``.

        Args:
            records: The candidates.
            member: Who is in which set.
            twins: Rows of (set, record).
            fresh: Whether random training has random numbers of its own, or those of the model
                with the record.
        """
        ...


@dataclass(frozen=True)
class Networks:
    """One hidden layer of 64 tanh."""

    how: Training
    random: bool = True

    def everywhere(self, records: Records, member: BoolArray, sets: IntArray) -> FloatArray:
        """As of :class:`Classifier`."""
        nets = Nets(members=sets, seeds=sets, left_out=np.full(sets.size, -1))
        asked = np.arange(records.labels.size)
        return self._answers(nets, records, member, asked)

    def without(
        self, records: Records, member: BoolArray, twins: IntArray, *, fresh: bool = False
    ) -> FloatArray:
        """As of :class:`Classifier`."""
        own = _FRESH + np.arange(len(twins)) if fresh else twins[:, 0]
        nets = Nets(members=twins[:, 0], seeds=own, left_out=twins[:, 1])
        return self._answers(nets, records, member, None)[:, 0]

    def _answers(
        self, nets: Nets, records: Records, member: BoolArray, asked: IntArray | None
    ) -> FloatArray:
        return answers(
            self.how,
            nets,
            records.features,
            records.labels,
            member,
            classes=records.classes,
            asked=asked,
        )


@dataclass(frozen=True)
class NaiveBayes:
    """Loses a record without being fitted again."""

    random: bool = False

    def everywhere(self, records: Records, member: BoolArray, sets: IntArray) -> FloatArray:
        """As of :class:`Classifier`."""
        found = np.empty((sets.size, records.labels.size, records.classes), np.float32)
        for into, place in zip(found, sets, strict=True):
            into[:] = _Fitted(records, member[place], *_bayes(records)).everywhere()
        return found

    def without(
        self, records: Records, member: BoolArray, twins: IntArray, *, fresh: bool = False
    ) -> FloatArray:
        """As of :class:`Classifier`."""
        return _exactly(_bayes(records), records, member, twins)


@dataclass(frozen=True)
class Logistic:
    """An l2 penalty of 1/2; fitted so far that p is right to 1e-6.

    Without a record: exactly for two classes; for more, whose Hessian has thousands of rows, by
    fitting again from the coefficients with it.
    """

    random: bool = False

    def everywhere(self, records: Records, member: BoolArray, sets: IntArray) -> FloatArray:
        """As of :class:`Classifier`."""
        found = np.empty((sets.size, records.labels.size, records.classes), np.float32)
        for into, place in zip(found, sets, strict=True):
            fitted = _logistic().fit(records.features[member[place]], records.labels[member[place]])
            into[:] = _everything(fitted, records.features, records.classes)
        return found

    def without(
        self, records: Records, member: BoolArray, twins: IntArray, *, fresh: bool = False
    ) -> FloatArray:
        """As of :class:`Classifier`."""
        if records.classes == 2:
            return _exactly(([_logistic()], [records.features]), records, member, twins)
        x, y = records.features, records.labels
        found = np.empty((len(twins), records.classes), np.float32)
        for place in np.unique(twins[:, 0]):
            whole = _logistic().fit(x[member[place]], y[member[place]])
            for twin in np.flatnonzero(twins[:, 0] == place):
                record = twins[twin, 1]
                rows = np.flatnonzero(member[place])
                left = _logistic().set_params(warm_start=True)
                left.coef_, left.intercept_ = whole.coef_.copy(), whole.intercept_.copy()
                left.classes_ = whole.classes_
                left.fit(x[rows[rows != record]], y[rows[rows != record]])
                found[twin] = _everything(left, x[[record]], records.classes)[0]
        return found


def _exactly(
    parts: tuple[list[Any], list[Any]], records: Records, member: BoolArray, twins: IntArray
) -> FloatArray:
    found = np.empty((len(twins), records.classes), np.float32)
    for place in np.unique(twins[:, 0]):
        at = twins[:, 0] == place
        found[at] = _Fitted(records, member[place], *parts).own(twins[at, 1])
    return found


def _everything(fitted: Any, x: FloatArray, classes: int) -> FloatArray:
    """ln p with a column for every class, also those that the model never saw."""
    found = np.full((len(x), classes), -np.inf)
    with np.errstate(divide="ignore"):
        found[:, fitted.classes_] = np.log(fitted.predict_proba(x))
    return found


def _logistic() -> Any:
    return LogisticRegression(C=1.0, solver="newton-cg", tol=1e-8, max_iter=1000)


class _Fitted:
    """The product of models of parts of the features, as naive Bayes has it; of one, that one."""

    def __init__(
        self, records: Records, inside: BoolArray, estimators: list[Any], features: list[Any]
    ) -> None:
        rows = np.flatnonzero(inside)
        self._records, self._rows, self._features = records, rows, features
        self._labels = records.labels[rows]
        self._models: list[Removable] = []
        for estimator, part in zip(estimators, features, strict=True):
            family = family_of(estimator)
            if family is None or family.refuses(estimator, part[rows], self._labels):
                raise ValueError(f"Expected an exact path for {estimator}, there is none.")
            self._models.append(family.fit(estimator, part[rows], self._labels))
        self._counts = np.bincount(self._labels, minlength=records.classes).astype(np.float64)

    def everywhere(self) -> FloatArray:
        """ln p at all candidates."""
        parts = [m.log_proba(part) for m, part in zip(self._models, self._features, strict=True)]
        return self._joined(parts, self._counts)

    def own(self, records: IntArray) -> FloatArray:
        """ln p at each of these without it."""
        places = np.searchsorted(self._rows, records)
        less = self._counts - np.eye(self._records.classes)[self._records.labels[records]]
        return self._joined([model.own(places) for model in self._models], less)

    def _joined(self, parts: list[FloatArray], counts: FloatArray) -> FloatArray:
        """The prior is in every part, and counts once."""
        seen = self._models[0].classes  # a rare class may be absent from a set
        joint = np.full((len(parts[0]), self._records.classes), -np.inf)
        joint[:, seen] = sum(parts)
        if len(parts) > 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                joint -= (len(parts) - 1) * np.log(counts)
        return normalise(joint)


def _bayes(records: Records) -> tuple[list[Any], list[Any]]:
    """Laplace smoothing for categories; numbers are normal within a class."""
    if records.numbers.size == 0:
        return [BernoulliNB()], [records.categories.astype(np.float64)]
    values = records.categories.max(axis=0) + 1
    return [CategoricalNB(min_categories=values), GaussianNB()], [
        records.categories,
        records.numbers,
    ]
