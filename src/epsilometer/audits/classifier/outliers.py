"""What makes a record stand out: its neighbours, its class, its features. Names, never values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import family_of
from epsilometer.audits.classifier.leave_one_out.pipelines import unwrapped
from epsilometer.audits.classifier.leave_one_out.rounding import seen
from epsilometer.types import BoolArray, FloatArray, IntArray

_NEIGHBOURS = 5
_RARE = 10  # records of a class below which it is said to be rare
_WIDEST = 500  # features beyond which none is tried alone
_NAMED = 3
_WORTH = 0.1  # share of the risk below which a feature is not named


@dataclass(frozen=True, eq=False, kw_only=True)
class Data:
    """Records as explanations need them.

    Attributes:
        estimator: What is trained.
        X: Features.
        y: Labels.
        codes: Places of the labels.
        names: Of the features; empty where they have none.
        categorical: Which features are mere names of something; None: none are.
    """

    estimator: Any
    X: Any
    y: Any
    codes: IntArray
    names: Sequence[str]
    categorical: BoolArray | None


def explained(data: Data, records: IntArray, *, decimals: int | None, seed: int) -> tuple[str, ...]:
    """A sentence for each record, without anything of what is in it."""
    table = _numbers(data.X)
    counts = np.bincount(data.codes)
    spread = np.zeros(0) if table is None else np.nanstd(table, axis=0)
    trials = _Trials.of(data, table, seed=seed)
    told = []
    for record in records.tolist():
        parts = [_rarity(int(counts[data.codes[record]]))]
        if table is not None:
            parts.append(_neighbours(table, spread, data, record))
        if trials is not None:
            parts.append(trials.told(record, decimals=decimals))
        told.append("; ".join(part for part in parts if part))
    return tuple(told)


def _rarity(count: int) -> str:
    """Say that a class is rare; how rare would single people out."""
    return f"its class has fewer than {_RARE} records" if count < _RARE else ""


def _neighbours(table: FloatArray, spread: FloatArray, data: Data, record: int) -> str:
    """How many of the nearest records have another class."""
    distance = _distances(table, spread, data.categorical, record)
    distance[record] = np.inf
    nearest = np.argpartition(distance, min(_NEIGHBOURS, distance.size - 1))[:_NEIGHBOURS]
    others = int(np.sum(data.codes[nearest] != data.codes[record]))
    if 2 * others <= _NEIGHBOURS:
        return ""
    who = "all" if others == _NEIGHBOURS else f"{others}"
    return f"{who} of its {_NEIGHBOURS} nearest neighbours have another class"


def _distances(
    table: FloatArray, spread: FloatArray, categorical: BoolArray | None, record: int
) -> FloatArray:
    """Squared, of standardised numbers; a name that differs counts as 2, a gap as nothing."""
    names = np.zeros(table.shape[1], bool) if categorical is None else categorical
    scaled = (table - table[record]) / np.where(spread > 0, spread, 1.0)
    squared = np.where(names, 2.0 * (table != table[record]), np.nan_to_num(scaled) ** 2)
    return np.asarray(squared.sum(axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Trials:
    """A record's risk with one feature after the other as usual for its class."""

    data: Data
    table: FloatArray
    model: Any
    transform: Any

    @classmethod
    def of(cls, data: Data, table: FloatArray | None, *, seed: int) -> "_Trials | None":
        """Where a record can be taken out without fitting again; None elsewhere."""
        if table is None or table.shape[1] > _WIDEST or hasattr(data.X, "iloc"):
            return None  # a data frame is asked by names, which a changed row has lost
        way = unwrapped(data.estimator, data.X, data.y, preprocessing="fixed", seed=seed)
        family = family_of(way.estimator)
        if family is None or family.refuses(way.estimator, way.features, data.y) is not None:
            return None
        model = family.fit(way.estimator, way.features, data.y)
        return cls(data=data, table=table, model=model, transform=way.transform)

    def told(self, record: int, *, decimals: int | None) -> str:
        """The features without which the record would be less exposed."""
        own = self.table[self.data.codes == self.data.codes[record]]
        width = self.table.shape[1]
        queries = np.repeat(self.table[record][None], width + 1, axis=0)
        for feature in range(width):
            queries[feature, feature] = self._usual(own[:, feature], feature)
        asked = self.transform(queries)
        found = seen(
            self.model.log_proba(asked), self.model.without(record, asked), decimals=decimals
        )
        risk = found.unbinned if np.isinf(found.unbinned[-1]) else found.risk
        with np.errstate(invalid="ignore"):  # ∞ − ∞ is no reason
            less = np.nan_to_num(risk[-1] - risk[:-1], nan=0.0, posinf=np.inf)
        order = np.argsort(-less, kind="stable")[:_NAMED]
        named = [self._name(i) for i in order if less[i] > _WORTH * min(risk[-1], 1e9)]
        return f"mostly by {', '.join(named)}" if named else ""

    def _usual(self, values: FloatArray, feature: int) -> float:
        if self.data.categorical is not None and self.data.categorical[feature]:
            found, counts = np.unique(values, return_counts=True)
            return float(found[np.argmax(counts)])
        return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0

    def _name(self, feature: int) -> str:
        names = self.data.names
        return repr(names[feature]) if len(names) else f"feature {feature}"


def _numbers(X: Any) -> FloatArray | None:  # noqa: N803
    """The features as a matrix; None where they are something else."""
    try:
        table = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    return table if table.ndim == 2 else None
