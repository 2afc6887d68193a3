"""Remove one record from models behind preprocessing that is a linear map (``maps.Map``)."""

from abc import abstractmethod
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import Removable
from epsilometer.audits.classifier.leave_one_out.maps import (
    LEFT,
    Map,
    Mapped,
    pull,
    sandwich,
    widen,
)
from epsilometer.audits.classifier.sklearn_models import clone_estimator, predict_logs
from epsilometer.types import BoolArray, FloatArray, IntArray

_PENALISED = 1e-7  # penalty, relative to squares, that keeps equations far from singular
_LEAST = 1e-4  # smallest diagonal entry of a Cholesky factor of correlations


class MappedModel(Removable):
    """A model behind a map: with all records it is the family's own; without each, another.

    Args:
        estimator: The estimator.
        mapped: Its features.
        y: Labels.
        plain: The family's model of the features with all records.
    """

    refused: BoolArray

    def __init__(self, estimator: Any, mapped: Mapped, y: Any, plain: Any) -> None:
        super().__init__(mapped.map.basis, y)
        self.map, self.plain = mapped.map, plain
        if plain is not None:
            self.caveats, self.priors, self.counted = plain.caveats, plain.priors, plain.counted
        self.estimator = estimator
        self.block = self.map.block
        self.refused = np.zeros(len(self.codes), bool)

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records, at rows of the map's basis."""
        width = self.features.shape[1]
        wide = widen(self.map.weigh(None), self.map.rows, width)[0]
        return np.asarray(self.plain.log_proba(self.read_queries(queries) @ wide))

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        if at is not None:  # at any features, of one record: the last estimator is fitted again
            return self._refit(int(records[0]), at)
        weights = self.map.weigh(records)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where refused
            result, safe = self.score(label, records, weights)
        safe &= np.isfinite(result).any(axis=1) & ~np.isnan(result).any(axis=1)
        self.refused[records] = ~safe | self.map.unsure[records]
        return result

    @abstractmethod
    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each, and where that is free of rounding errors."""

    def _refit(self, record: int, at: FloatArray) -> FloatArray:
        others = np.delete(np.arange(len(self.codes)), record)
        weights = self.map.weigh(np.array([record]))
        wide = widen(weights, self.map.rows, self.features.shape[1])[0]
        model = clone_estimator(self.estimator)
        model.fit(self.features[others] @ wide, self.codes[others])
        return predict_logs(model, at @ wide, classes=np.arange(self.classes.size))


class MappedRidge:
    """Ridge regression behind a map: normal equations are solved for each record.

    An intercept has no penalty, which is the same as centred features and targets.

    Args:
        found: The features.
        targets: Targets of all records, ``(n, outputs)``.
        shares: Weights of all records.
        penalty: Penalty of each squared coefficient.
        intercept: Whether there is an intercept.
    """

    def __init__(
        self,
        found: Map,
        targets: FloatArray,
        shares: FloatArray,
        *,
        penalty: float,
        intercept: bool,
    ) -> None:
        self._map, self._shares, self._penalty = found, shares, penalty
        self._total = shares.sum() if intercept else np.inf
        self._mean = shares @ found.basis / self._total
        self._level = shares @ targets / self._total
        self._targets = targets - self._level
        centred = found.basis - self._mean
        weighed = shares[:, None] * centred
        self._gram, self._products = weighed.T @ centred, weighed.T @ self._targets

    def predict(self, records: IntArray, weights: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return predictions at records without each, and where they are free of rounding."""
        rows, share = self._map.rows, self._shares[records]
        left = 1.0 - share / self._total
        own = pull(weights, rows, self._map.basis[records] - self._mean)
        target, gone = self._targets[records], (share / left)[:, None] * own
        normal = sandwich(weights, rows, self._gram)
        before = np.einsum("bkk->bk", normal).copy()
        normal -= gone[:, :, None] * own[:, None, :]
        diagonal = np.arange(len(rows))
        normal[:, diagonal, diagonal] += self._penalty
        right = np.stack([pull(weights, rows, column) for column in self._products.T], axis=2)
        right -= gone[:, :, None] * target[:, None, :]
        size = np.sqrt(np.where(before > 0, np.einsum("bkk->bk", normal), 1.0))
        safe = (size**2 >= LEFT * before).all(axis=1)
        near = np.flatnonzero(self._penalty < _PENALISED * size.max(axis=1) ** 2)
        normal /= size[:, :, None] * size[:, None, :]
        safe[near] &= _is_well_conditioned(normal[near])
        normal[~safe] = np.eye(len(rows))
        slopes = np.linalg.solve(normal, right / size[:, :, None])
        moved = np.einsum("bk,bkt->bt", own / size, slopes)
        drop = (share / self._total)[:, None] * target
        return self._level + (moved - drop) / left[:, None], np.asarray(safe)


def _is_well_conditioned(correlations: FloatArray) -> BoolArray:
    """Tell which symmetric matrices with a diagonal of 1 are far from singular."""
    safe: BoolArray = np.asarray(np.isfinite(correlations).all(axis=(1, 2)))
    try:
        factors = np.linalg.cholesky(correlations[safe])
        safe[safe] = np.einsum("bkk->bk", factors).min(axis=1) > _LEAST
    except np.linalg.LinAlgError:  # one of them: look at each
        if len(correlations) == 1:
            return np.zeros(1, bool)
        safe[safe] = [_is_well_conditioned(one[None])[0] for one in correlations[safe]]
    return safe
