"""Attack models through shadows: score how likely each record was trained on.

Every attack has one signature: ``attack(pool, target, rng)`` returns ``RecordScores``; options are
keywords. ``ATTACKS`` registers them by name.

- ``threshold``: is the target's confidence above the threshold that best separates members from
  non-members of the shadows? (Yeom et al. 2018)
- ``distance``: is the target closer to models with the record, or to those without it? and
  ``frequency``: how often do either predict what the target predicts? (Long et al. 2017)
- ``lira``: how likely is the target's confidence under models with the record, and without it?
  (Carlini et al. 2022)
- ``rmia``: did the target gain more on the record than on most others? (Zarifzadeh et al. 2024)
- ``untargeted``: one network learns membership from all shadows. (Shokri et al. 2017)
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.evaluation import RecordScores
from epsilometer.audits.classifier.attacks.normals import (
    LEAST_VARIANCE,
    Centre,
    Variance,
    count_models,
    divide_records,
    fit_normals,
)
from epsilometer.audits.classifier.attacks.shadows import (
    FLOOR,
    ShadowPool,
    count_side,
    own_and_rest,
)
from epsilometer.audits.classifier.leave_one_out.pdtp import bin_centres
from epsilometer.audits.classifier.sklearn_models import check_choice
from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

Rng: TypeAlias = np.random.Generator
Attack: TypeAlias = Callable[[ShadowPool, int | FloatArray, Rng], RecordScores]
Statistic: TypeAlias = Literal["loss", "confidence"]
_FEW = 10  # shadows' records per side below which a class uses the common threshold
_DIGITS = 6  # digits of p: errors of single precision must not cross the edge of a bin
_LEAST_P = 1e-12  # unbinned p count as at least this much
_ENOUGH = 32  # models per side from which each record gets its own variance
_HIDDEN, _RATE, _EPOCHS, _BATCH = 32, 0.01, 30, 256  # as in the paper, except the batch size
_MOMENTS = (0.9, 0.999)  # decay rates of Adam


def threshold(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng | None = None,
    *,
    statistic: Statistic = "loss",
    by_class: bool = False,
) -> RecordScores:
    """Score by how much the target's confidence exceeds a threshold; "in" iff above 0.

    Args:
        pool: The shadows, from which thresholds are chosen.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        statistic: ``"loss"``: ln p of the true label; ``"confidence"``: of the likeliest one, for
            an adversary who does not know the label.
        by_class: Whether each class has its own threshold. This changes how records of different
            classes compare, and so the AUC.

    Example:
        >>> p = np.array([[0.9, 0.6, 0.5], [0.6, 0.9, 0.9], [0.9, 0.9, 0.6], [0.5, 0.6, 0.9]])
        >>> member = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 2] = every[:, 2, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "a", "b"])
        >>> threshold(pool, np.log([[0.95, 0.05], [0.5, 0.5], [0.1, 0.9]])).values > 0
        array([ True, False,  True])
    """
    check_choice(Statistic, statistic=statistic)
    if statistic == "confidence" and pool.kept == "own":
        raise InvalidArgument(
            "Expected a pool with all classes for statistic='confidence', got one that kept own "
            "labels only. Train it with keep='all', or take statistic='loss'."
        )
    shadows, found = pool.against(target)
    if statistic == "loss":
        seen, others = _read_own(pool, found), shadows.own
    else:
        seen, others = found.max(axis=1), shadows.log_proba.max(axis=2)
    common = find_best_cut(others, shadows.member)
    cuts = np.full(pool.classes.size, common)
    if by_class:
        for place in range(pool.classes.size):
            at = pool.labels == place
            inside = int(shadows.member[:, at].sum())
            if min(inside, shadows.member[:, at].size - inside) >= _FEW:
                cuts[place] = find_best_cut(others[:, at], shadows.member[:, at])
    return RecordScores(
        attack=f"{statistic} threshold{', one per class' if by_class else ''}",
        values=seen - cuts[pool.labels],
        threshold=0.0,
        convention=f"best balanced accuracy on {shadows.models} shadows",
        cites=("yeom2018",),
    )


def find_best_cut(values: FloatArray, member: BoolArray) -> float:
    """Return the threshold between members and non-members with the highest balanced accuracy.

    Example:
        >>> find_best_cut(np.array([1.0, 2.0, 4.0, 5.0]), np.array([False, False, True, True]))
        3.0
    """
    flat, inside = np.ravel(values).astype(np.float64), np.ravel(member)
    order = np.argsort(flat, kind="stable")
    ordered, was_in = flat[order], inside[order]
    n_in = max(int(was_in.sum()), 1)
    n_out = max(was_in.size - int(was_in.sum()), 1)
    gain = np.cumsum(np.where(was_in, -1 / n_in, 1 / n_out))  # of a threshold just above each
    last = np.append(ordered[1:] > ordered[:-1], False)  # equal values stay together
    if not last.any():
        return float(ordered[-1])
    at = int(np.argmax(np.where(last, gain, -np.inf)))
    return float((ordered[at] + ordered[at + 1]) / 2)


def _read_own(pool: ShadowPool, log_proba: FloatArray) -> FloatArray:
    """Return ln p of each record's true label, at least ``FLOOR``."""
    return np.asarray(np.maximum(log_proba[np.arange(pool.records), pool.columns], FLOOR))


def distance(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng | None = None,
    *,
    pairs: int | None = 5,
    binned: bool = True,
) -> RecordScores:
    """Score D(q ‖ mean without) − D(q ‖ mean with) of the target's q; "in" iff above 0.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        pairs: Number of models per side used for each record; None: all.
        binned: Whether predictions are put into bins of 0.01 first, as in the paper. Binned
            predictions are scaled to sum to 1, which the paper does not mention.

    Example:
        >>> p = np.array([[0.9, 0.6], [0.6, 0.9], [0.8, 0.9], [0.6, 0.6]])
        >>> member = [[1, 0], [0, 1], [1, 1], [0, 0]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> distance(pool, np.log([[0.9, 0.1], [0.4, 0.6]])).values > 0
        array([ True, False])
    """
    shadows, found = pool.against(target)
    inside, outside = (
        mean_prediction(shadows, choose_models(shadows, pairs, inside=side), binned=binned)
        for side in (True, False)
    )
    q = show_predictions(found, binned=binned)
    return RecordScores(
        attack="distance",
        values=np.sum(q * (np.log(inside) - np.log(outside)), axis=1),
        threshold=0.0,
        convention=f"Kullback–Leibler, {'bins of 0.01' if binned else 'full precision'}, "
        f"{'all' if pairs is None else pairs} models per side",
        cites=("long2017",),
    )


def show_predictions(log_proba: ArrayLike, *, binned: bool) -> FloatArray:
    """Return predictions as the adversary sees them: rows that sum to 1, without zeros."""
    p = np.exp(np.asarray(log_proba, np.float64))
    seen = _bin(p) if binned else np.maximum(p, _LEAST_P)
    return np.asarray(seen / seen.sum(axis=1, keepdims=True))


def choose_models(pool: ShadowPool, pairs: int | None, *, inside: bool) -> BoolArray:
    """Return which models are used for each record: the first per side, shape ``(models, n)``."""
    count_side(pool, inside=inside)
    where = pool.member if inside else ~pool.member
    if pairs is None:
        return where
    _validate.whole(1, pairs=pairs)
    return np.asarray(where & (np.cumsum(where, axis=0) <= pairs))


def mean_prediction(pool: ShadowPool, where: BoolArray, *, binned: bool) -> FloatArray:
    """Return the mean of shown predictions over chosen models, shape ``(n, classes)``."""
    total = np.zeros(pool.log_proba.shape[1:])
    for each, chosen in zip(pool.log_proba, where, strict=True):
        total[chosen] += show_predictions(each[chosen], binned=binned)
    return np.asarray(total / where.sum(axis=0)[:, None])


def frequency(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng | None = None,
    *,
    pairs: int | None = 5,
    smoothing: float = 0.5,
) -> RecordScores:
    """Score by the log-ratio of how often each side agrees with the target; "in" iff above 0.

    For each class, the share of models with the record that put it into the target's bin is
    (count + s)/(models + 2s), and likewise for models without it. Without smoothing the ratio is
    0/0 for most records, which the paper does not mention.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        pairs: Number of models per side used for each record; None: all.
        smoothing: The pseudocount s.

    Example:
        >>> p = np.array([[0.9, 0.6], [0.6, 0.9], [0.9, 0.9], [0.6, 0.6]])
        >>> member = [[1, 0], [0, 1], [1, 1], [0, 0]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> frequency(pool, np.log([[0.9, 0.1], [0.3, 0.7]])).values.round(2)  # 2 of 2 against 0
        array([3.22, 0.  ])
    """
    _validate.positive(smoothing=smoothing)
    shadows, found = pool.against(target)
    seen = _bin(np.exp(found.astype(np.float64)))
    likely = []
    for side in (True, False):
        where = choose_models(shadows, pairs, inside=side)
        same = np.zeros(seen.shape)
        for each, chosen in zip(shadows.log_proba, where, strict=True):
            same[chosen] += _bin(np.exp(each[chosen].astype(np.float64))) == seen[chosen]
        used = where.sum(axis=0)[:, None]
        likely.append(np.log((same + smoothing) / (used + 2 * smoothing)).sum(axis=1))
    inside, outside = likely
    return RecordScores(
        attack="frequency",
        values=inside - outside,
        threshold=0.0,
        convention=f"bins of 0.01, {smoothing:g} added to every count, "
        f"{'all' if pairs is None else pairs} models per side",
        cites=("long2017",),
    )


def _bin(p: FloatArray) -> FloatArray:
    return bin_centres(np.round(p, _DIGITS))


def lira(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng | None = None,
    *,
    online: bool = True,
    variance: Variance = "auto",
    centre: Centre = "mean",
) -> RecordScores:
    """Score by the likelihood ratio of the target's confidence, ln p/(1−p) of the true label.

    Over models it is assumed to be normal, with a separate mean for each record.

    Online: ln density with the record − ln density without it, at the target's confidence; "in"
    iff above 0. Offline needs no models with the record: the score is how many standard deviations
    the target lies above models without it (monotone in 1 − Pr[model without > target]).

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        online: Whether models with the record are used.
        variance: ``"record"``: estimated for each record. ``"global"``: pooled over all records,
            about each one's centre, which is better with few models. ``"auto"``: ``"record"`` if
            every record has 32 models per side. The divisor is always the number of models, not
            one less.
        centre: Mean or median over a record's models.

    Example:
        >>> member = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], bool)
        >>> p = np.where(member, [[0.9], [0.8], [0.8], [0.9]], [[0.6], [0.5], [0.5], [0.6]])
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> lira(pool, np.log([[0.9, 0.1], [0.4, 0.6]])).values > 0
        array([ True, False])
    """
    check_choice(Variance, variance=variance)
    check_choice(Centre, centre=centre)
    shadows, found = pool.against(target)
    seen = shadows.margins_of(own_and_rest(found.astype(np.float32), shadows.columns))
    sides = (True, False) if online else (False,)
    if variance == "auto":
        fewest = min(count_models(shadows.member, inside=side).min() for side in sides)
        variance = "record" if fewest >= _ENOUGH else "global"
    fits = fit_normals(shadows.margins, shadows.member, sides, variance=variance, centre=centre)
    if online:
        inside, outside = fits
        values = inside.log_density(seen) - outside.log_density(seen)
    else:
        (outside,) = fits
        values = (seen - outside.mean) / np.sqrt(outside.variance + LEAST_VARIANCE)
    return RecordScores(
        attack=f"LiRA, {'online' if online else 'offline'}",
        values=break_ties(shadows, found, values, online=online, threshold=0.0),
        threshold=0.0,
        convention=f"ln p/(1−p) of the own label; {centre} and {variance} variance, "
        f"{shadows.models} shadows",
        cites=("carlini2022",),
    )


def rmia(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng | None = None,
    *,
    online: bool = True,
    a: float = 0.3,
    gamma: float = 1.0,
    population: ArrayLike | None = None,
) -> RecordScores:
    """Score each record x by the share of the population z with LR(x, z) ≥ γ; "in" iff above ½.

    LR(x, z) = (p(x | target)/p(x)) / (p(z | target)/p(z)), with p of the true label. Online, p(x)
    averages the mean over models with the record and the mean over models without it. Offline, it
    uses only models without it: ((1 + a) p_out(x) + (1 − a))/2.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        online: Whether models with the record are used.
        a: Offline: how well models without a record predict those with it, in [0, 1].
        gamma: γ, the factor by which x must have gained more than z. With one population for all
            records, γ does not change their order: above 1, as published, it only causes ties.
        population: Which records of the pool are z, shape ``(n,)``; by default all. A record is
            then compared with itself too, which adds the same to every score.

    Example:
        >>> p = np.full((4, 3, 2), 0.5)
        >>> member = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]
        >>> pool = ShadowPool.from_arrays(np.log(p), member, ["a", "b", "b"])
        >>> target = np.log([[0.99, 0.01], [0.5, 0.5], [0.7, 0.3]])
        >>> rmia(pool, target, gamma=1.5).values.round(2)  # the first gained on both others
        array([0.67, 0.33, 0.  ])
    """
    _validate.probability(a=a)
    _validate.positive(gamma=gamma)
    shadows, found = pool.against(target)
    gained: FloatArray = _read_own(pool, found) - reference(shadows, online=online, a=a)
    gained = break_ties(shadows, found, gained, online=online)
    return RecordScores(
        attack=f"RMIA, {'online' if online else 'offline'}",
        values=rank_below(gained, gained[_read_population(population, pool.records)], gamma=gamma),
        threshold=0.5,
        convention=f"γ = {gamma:g}{'' if online else f', a = {a:g}'}, {shadows.models} shadows",
        cites=("zarifzadeh2024",),
    )


def reference(
    pool: ShadowPool, *, online: bool, a: float, weights: FloatArray | None = None
) -> FloatArray:
    """Return ln p(x) of each record: how likely its label is under any model, shape ``(n,)``."""
    sides = (False, True) if online else (False,)
    for side in sides:
        count_side(pool, inside=side)
    heavy: FloatArray = np.ones(pool.models) if weights is None else weights
    means = np.empty((len(sides), pool.records))
    for block in divide_records(pool.member):
        likely = np.exp(pool.own_of(block)) * heavy[:, None]
        for mean, side in zip(means, sides, strict=True):
            where = pool.member[:, block] == side
            mean[block] = np.sum(likely, axis=0, where=where) / (heavy @ where)
    mixed = means.mean(axis=0) if online else ((1 + a) * means[0] + (1 - a)) / 2
    return np.asarray(np.log(np.maximum(mixed, math.exp(FLOOR))))


def break_ties(
    pool: ShadowPool,
    found: FloatArray,
    values: FloatArray,
    *,
    online: bool,
    threshold: float = -math.inf,
) -> FloatArray:
    """Return scores where equal ones are ordered by models that answer like the target.

    Every record is in equally many models. So where these vote, as trees do, scores take few
    values, and more records share the highest than a low FPR allows. Among them that one is
    higher whose label is less likely under models, each weighted by how near it is to the target.

    Guarantee: scores that differ keep their order, and none crosses the threshold. All stay as
        they are where some record is in all models, or in none.

    Example:
        >>> p = np.array([[0.9, 0.1, 0.9], [0.1, 0.1, 0.9], [0.9, 0.1, 0.1], [0.9, 0.9, 0.9]])
        >>> member = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 1, 1]]
        >>> pool = ShadowPool.from_arrays(np.log(np.stack([p, 1 - p], 2)), member, ["a", "a", "b"])
        >>> break_ties(pool, np.log([[0.9, 0.1]] * 3), np.ones(3), online=False).argmax()
        np.int64(1)
    """
    sides = (False, True) if online else (False,)
    there = all(count_models(pool.member, inside=side).all() for side in sides)
    if np.unique(values).size == values.size or not there:
        return values
    target, apart = np.exp(_read_own(pool, found)), np.zeros(pool.models)
    for block in divide_records(pool.member):
        apart += np.abs(np.exp(pool.own_of(block)) - target[block]).sum(axis=1)
    likely = reference(pool, online=online, a=1.0, weights=2 - apart / pool.records)
    other = np.round(-likely, 9)  # later digits depend on the order of sums
    order = np.lexsort((other, values))
    ordered, behind = values[order], other[order]
    first = np.append(True, ordered[1:] != ordered[:-1])
    step = np.cumsum(np.append(False, behind[1:] != behind[:-1]) & ~first)
    group = np.cumsum(first) - 1
    step -= step[first][group]
    following = np.append(ordered[first][1:], np.inf)[group]
    above = ordered + step * np.abs(np.spacing(ordered))
    moved = np.minimum(above, np.nextafter(following, -np.inf))
    broken = np.empty_like(values)
    broken[order] = np.where(ordered > threshold, moved, np.minimum(moved, threshold))
    return broken


def rank_below(gained: FloatArray, population: FloatArray, *, gamma: float) -> FloatArray:
    """Return the share of a population whose ln ratio is at least ln γ below each of ``gained``.

    The population is sorted once and searched for every record: O(n log n), no n × n array.

    Example:
        >>> rank_below(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0]), gamma=1.0)
        array([0.5, 1. , 1. ])
    """
    ordered = np.sort(population)
    return np.searchsorted(ordered, gained - math.log(gamma), side="right") / ordered.size


def _read_population(population: ArrayLike | None, n: int) -> BoolArray:
    if population is None:
        return np.ones(n, bool)
    chosen = np.asarray(population, bool)
    if chosen.shape != (n,) or not chosen.any():
        raise InvalidArgument(
            f"Expected a truth value for each of {n} records in population, some of them true, "
            f"got shape {chosen.shape} with {chosen.sum()} true."
        )
    return chosen


def untargeted(
    pool: ShadowPool,
    target: int | ArrayLike,
    rng: Rng,
    *,
    features: ArrayLike | None = None,
    shadows: int = 20,
    rows: int = 200_000,
) -> RecordScores:
    """Score by the log-odds of "in" that a network gives each record; "in" iff above 0.

    It has 32 ReLU units, gets a record's label and prediction, and learns from all shadows.

    Args:
        pool: The shadows that it learns from.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        rng: Initialises the network and orders its batches.
        features: Numbers that describe the records, shape ``(n, …)``, as a further input.
        shadows: Largest number of models of the pool to learn from.
        rows: Largest number of (model, record) pairs; drawn at random if there are more.

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
    described = _describe(pool, features)
    total = used * pool.records
    chosen = np.arange(total) if total <= rows else np.sort(rng.choice(total, rows, replace=False))
    model, record = np.divmod(chosen, pool.records)
    seen = np.concatenate(
        [np.exp(others.log_proba[model, record]), described[record]], axis=1, dtype=np.float32
    )
    net = _train(seen, others.member[model, record], rng)
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
    """A network with one hidden layer and one output; inputs are scaled as in training."""

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
        """Return the gradient of the mean negative log-likelihood of a batch."""
        hidden = self.hidden(scaled)
        wrong = scipy.special.expit(hidden @ self.weights[2] + self.weights[3]) - was_in
        wrong = (wrong / len(was_in)).astype(np.float32)
        back = wrong[:, None] * self.weights[2] * (hidden > 0)
        return [scaled.T @ back, back.sum(axis=0), hidden.T @ wrong, wrong.sum(keepdims=True)]


def _train(seen: NDArray[np.float32], was_in: NDArray[np.bool_], rng: Rng) -> _Net:
    """Train the network with Adam."""
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


def _describe(pool: ShadowPool, features: ArrayLike | None) -> NDArray[np.float32]:
    """Return the inputs: one column per class, and the features."""
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


ATTACKS: Registry[Attack] = Registry(
    "attacks",
    {
        "loss": threshold,
        "lira": lira,
        "rmia": rmia,
        "lira-offline": functools.partial(lira, online=False),
        "distance": distance,
        "frequency": frequency,
        "untargeted": untargeted,
    },
)
