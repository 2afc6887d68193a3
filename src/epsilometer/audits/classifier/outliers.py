"""Explain why a record stands out: its neighbours, class and features, never its values."""

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import Removable, family_of
from epsilometer.audits.classifier.leave_one_out.pdtp import measure_changes
from epsilometer.audits.classifier.sklearn_models import unwrap_pipeline
from epsilometer.audits.classifier.subject import ClassifierTask
from epsilometer.types import FloatArray, IntArray

_NEIGHBOURS = 5
_RARE = 10  # records below which a class is called rare
_WIDEST = 500  # features beyond which they are not tested one by one
_NAMED = 3  # largest number of features to name
_WORTH = 0.1  # share of the risk below which a feature is not named


def explain_records(task: ClassifierTask, records: IntArray) -> tuple[str, ...]:
    """Return a sentence for each record, without any of its values."""
    try:
        table = np.asarray(task.subject.X, np.float64)
    except (TypeError, ValueError):
        table = np.zeros(0)
    explained = _Table(task, table) if table.ndim == 2 else None
    sizes = np.bincount(task.codes)
    sentences = []
    for record in records.tolist():
        rare = sizes[task.codes[record]] < _RARE  # the exact size would single people out
        parts = [f"its class has fewer than {_RARE} records" if rare else ""]
        if explained is not None:
            parts += [explained.describe_neighbours(record), explained.name_features(record)]
        sentences.append("; ".join(part for part in parts if part))
    return tuple(sentences)


class _Table:
    """Numeric records, and a model from which they can be removed, if there is one."""

    def __init__(self, task: ClassifierTask, table: FloatArray) -> None:
        self.task, self.table, self.spread = task, table, np.nanstd(table, axis=0)
        self.model: Removable | None = None
        subject = task.subject
        # Models of data frames need column names, which a changed row has lost
        if table.shape[1] <= _WIDEST and not hasattr(subject.X, "iloc"):
            inner = unwrap_pipeline(
                subject.estimator, subject.X, subject.y, preprocessing="fixed", seed=task.seed
            )
            family = family_of(inner.estimator)
            if family and family.refuses(inner.estimator, inner.features, subject.y) is None:
                self.model = family.fit(inner.estimator, inner.features, subject.y)
                self.transform = inner.transform

    def describe_neighbours(self, record: int) -> str:
        """Return how many of the nearest records have another class, as a phrase."""
        table, codes = self.table, self.task.codes
        names = self.task.categorical
        scaled = (table - table[record]) / np.where(self.spread > 0, self.spread, 1.0)
        squared = np.nan_to_num(scaled) ** 2  # a missing value counts as no difference
        if names is not None:  # different categories are as far apart as random values
            squared = np.where(names, 2.0 * (table != table[record]), squared)
        distance = squared.sum(axis=1)
        distance[record] = np.inf
        nearest = np.argpartition(distance, min(_NEIGHBOURS, distance.size - 1))[:_NEIGHBOURS]
        others = int(np.sum(codes[nearest] != codes[record]))
        if 2 * others <= _NEIGHBOURS:
            return ""
        who = "all" if others == _NEIGHBOURS else f"{others}"
        return f"{who} of its {_NEIGHBOURS} nearest neighbours have another class"

    def name_features(self, record: int) -> str:
        """Name the features without which the record would be less exposed.

        Each is replaced in turn by the typical value of the record's class.
        """
        if self.model is None:
            return ""
        own = self.table[self.task.codes == self.task.codes[record]]
        width = self.table.shape[1]
        queries = np.repeat(self.table[record][None], width + 1, axis=0)
        for feature in range(width):
            queries[feature, feature] = self._find_usual(own[:, feature], feature)
        at = self.transform(queries)
        found = measure_changes(
            self.model.log_proba(at),
            self.model.without(record, at),
            decimals=self.task.subject.shown,
        )
        risk = found.unbinned if np.isinf(found.unbinned[-1]) else found.risk
        with np.errstate(invalid="ignore"):  # ∞ − ∞ is no reason
            less = np.nan_to_num(risk[-1] - risk[:-1], nan=0.0, posinf=np.inf)
        order = np.argsort(-less, kind="stable")[:_NAMED]
        names = self.task.subject.feature_names
        named = [
            repr(names[i]) if names else f"feature {i}"
            for i in order
            if less[i] > _WORTH * min(risk[-1], 1e9)
        ]
        return f"mostly by {', '.join(named)}" if named else ""

    def _find_usual(self, values: FloatArray, feature: int) -> float:
        if self.task.categorical is not None and self.task.categorical[feature]:
            found, counts = np.unique(values, return_counts=True)
            return float(found[np.argmax(counts)])
        return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
