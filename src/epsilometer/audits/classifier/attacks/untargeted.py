"""What do shadow models say of records they were trained on? One attack network for all records.

Shokri et al. 2017, as the training-privacy paper runs it: a network with 32 ReLU sees a record's
label and its prediction (and its features, where they are given), and learns from all shadows.
"""

from dataclasses import dataclass

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_HIDDEN, _RATE, _EPOCHS, _BATCH = 32, 0.01, 30, 256  # the paper's but for the batch, not given
_MOMENTS = (0.9, 0.999)  # of Adam


def untargeted(
    pool: ShadowPool,
    target: int | ArrayLike,
    *,
    rng: np.random.Generator,
    features: ArrayLike | None = None,
    shadows: int = 20,
    rows: int = 200_000,
) -> RecordScores:
    """ln odds of "in" that the attack network gives to each record; "in" iff above 0.

    Args:
        pool: The shadows that it learns from.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        rng: Starts the network and orders its batches.
        features: Numbers that describe the records, shape ``(n, …)``, as a further input.
        shadows: How many models of the pool are learned from, at most.
        rows: How many (model, record) pairs, at most; drawn at random where there are more.

    Example:
        >>> coins = np.random.default_rng(0).random((2, 100)) < 0.5
        >>> member = np.concatenate([coins, ~coins])  # two pairs of models
        >>> p = np.where(member, 0.9, 0.6)
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 50:] = every[:, 50:, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, np.repeat([0, 1], 50))
        >>> found = untargeted(pool, 0, rng=np.random.default_rng(0))
        >>> bool(((found.values > 0) == member[0]).all())
        True
    """
    _validate.whole(1, shadows=shadows, rows=rows)
    others, found = pool.against(target)
    used = min(shadows, others.models)
    described = _described(pool, features)
    total = used * pool.records
    chosen = np.arange(total) if total <= rows else np.sort(rng.choice(total, rows, replace=False))
    model, record = np.divmod(chosen, pool.records)
    seen = np.concatenate(
        [np.exp(others.log_proba[model, record]), described[record]], axis=1, dtype=np.float32
    )
    net = _learned(seen, others.member[model, record], rng)
    asked = np.concatenate([np.exp(found), described], axis=1, dtype=np.float32)
    return RecordScores(
        attack="untargeted",
        values=net.log_odds(asked).astype(np.float64),
        threshold=0.0,
        convention=f"{_HIDDEN} ReLU over prediction and label"
        f"{'' if features is None else ' and features'}, {used} shadows",
        cites=("shokri2017", "long2017"),
    )


@dataclass(eq=False)
class _Net:
    """One hidden layer, one output; inputs are scaled as those it was trained on."""

    centre: NDArray[np.float32]
    scale: NDArray[np.float32]
    weights: list[NDArray[np.float32]]  # (inputs, hidden), (hidden,), (hidden,), (1,)

    def hidden(self, scaled: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(np.maximum(scaled @ self.weights[0] + self.weights[1], 0), np.float32)

    def log_odds(self, seen: NDArray[np.float32]) -> FloatArray:
        hidden = self.hidden((seen - self.centre) / self.scale)
        return np.asarray(hidden @ self.weights[2] + self.weights[3])

    def gradient(
        self, scaled: NDArray[np.float32], was_in: NDArray[np.bool_]
    ) -> list[NDArray[np.float32]]:
        """Of the mean negative log-likelihood of a batch."""
        hidden = self.hidden(scaled)
        wrong = scipy.special.expit(hidden @ self.weights[2] + self.weights[3]) - was_in
        wrong = (wrong / len(was_in)).astype(np.float32)
        back = wrong[:, None] * self.weights[2] * (hidden > 0)
        return [scaled.T @ back, back.sum(axis=0), hidden.T @ wrong, wrong.sum(keepdims=True)]


def _learned(
    seen: NDArray[np.float32], was_in: NDArray[np.bool_], rng: np.random.Generator
) -> _Net:
    """Trains by Adam."""
    spread = seen.std(axis=0)
    net = _Net(
        centre=seen.mean(axis=0),
        scale=np.where(spread > 1e-6, spread, np.float32(1)),
        weights=[
            rng.normal(0, np.sqrt(2 / seen.shape[1]), (seen.shape[1], _HIDDEN)).astype(np.float32),
            np.zeros(_HIDDEN, np.float32),
            rng.normal(0, np.sqrt(1 / _HIDDEN), _HIDDEN).astype(np.float32),
            np.zeros(1, np.float32),
        ],
    )
    scaled = (seen - net.centre) / net.scale
    first = [np.zeros_like(part) for part in net.weights]
    second = [np.zeros_like(part) for part in net.weights]
    step = 0
    for _ in range(_EPOCHS):
        order = rng.permutation(len(scaled))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            step += 1
            for i, slope in enumerate(net.gradient(scaled[batch], was_in[batch])):
                first[i] += (1 - _MOMENTS[0]) * (slope - first[i])
                second[i] += (1 - _MOMENTS[1]) * (slope**2 - second[i])
                mean = first[i] / (1 - _MOMENTS[0] ** step)
                square = second[i] / (1 - _MOMENTS[1] ** step)
                net.weights[i] -= _RATE * mean / (np.sqrt(square) + 1e-8)
    return net


def _described(pool: ShadowPool, features: ArrayLike | None) -> NDArray[np.float32]:
    """A column for each class, and the features."""
    label = np.eye(pool.classes.size, dtype=np.float32)[pool.labels]
    if features is None:
        return label
    given = np.asarray(features, np.float32).reshape(len(np.asarray(features)), -1)
    if len(given) != pool.records or not np.isfinite(given).all():
        raise InvalidArgument(
            f"Expected finite features of {pool.records} records, got shape {given.shape}. "
            "Encode categories and fill in missing values first."
        )
    return np.concatenate([label, given], axis=1)
