"""Was each record in? What an attack says of all of them, and how often it is right."""

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, mean_by_side
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray, FloatArray

LEAST = 20  # records inside, and outside, below which a group has no figures
LOW_FPR = (0.001, 0.01)
DELTA = 1e-6  # of bounds, where none is given
_ALARM = 0.005  # chance, on either side, that a target like its shadows is said to be unlike
_CLEAREST = 0.005  # p of the lowest bin of 0.01: what is below it, nobody sees there
_NO_COINS = (
    "Not a valid bound: it needs every record to have been put in or left out by its own fair "
    "coin, which is not known of this target."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordScores:
    """What an attack says of every record.

    Attributes:
        attack: Which, in words.
        values: Scores, higher means "was in", shape ``(n,)``.
        threshold: The attack itself says "in" iff its score is above it.
        convention: What was chosen where descriptions of the attack differ.
        cites: Keys of ``references.BIBLIOGRAPHY``.
    """

    attack: str
    values: FloatArray
    threshold: float
    convention: str
    cites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _validate.scores(self.attack, self.values))

    def split(self, member: ArrayLike) -> Scores:
        """Scores of records that were in, and of those that were not.

        Example:
            >>> found = RecordScores(attack="mine", values=[3.0, 1.0, 2.0], threshold=1.5,
            ...     convention="")
            >>> found.split([True, False, True]).inside
            array([3., 2.])
        """
        was_in = _member(member, self.values.size)
        return Scores(inside=self.values[was_in], outside=self.values[~was_in])


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and the two ends between which the truth lies, each with its own error of α/2."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class RateAt:
    """True positive rate at a low false positive rate.

    Attributes:
        fpr: The false positive rate asked for.
        tpr: Share of records inside above the lowest threshold that keeps it, and its interval.
        fpr_high: Upper limit of the true false positive rate there.
    """

    fpr: float
    tpr: Interval
    fpr_high: float


@dataclass(frozen=True, kw_only=True)
class Performance:
    """How well an attack told records that were in from those that were not.

    Intervals hold one by one, with ``confidence``, for this target and records like these: they do
    not say what training again would give.

    Attributes:
        attack: Which, in words.
        n_in: Records inside.
        n_out: Records outside.
        auc: Chance that a record inside scores higher than one outside (DeLong's interval, which
            is an approximation).
        p_value: Chance of such an AUC if scores knew nothing of who was in (Mann–Whitney, normal
            approximation; one-sided).
        accuracy: Balanced, at the attack's own threshold.
        advantage: TPR − FPR at that threshold; Clopper–Pearson limits on both rates.
        precision: Share of its "in" that were in; nan where it says none.
        recall: TPR.
        f1: Harmonic mean of the two.
        at_low_fpr: TPR at low FPR.
        bound: ε that no claim can be below, from one run.
        confidence: Of each interval.
        caveats: What a reader must know.
    """

    attack: str
    n_in: int
    n_out: int
    auc: Interval
    p_value: float
    accuracy: Interval
    advantage: Interval
    precision: float
    recall: float
    f1: float
    at_low_fpr: tuple[RateAt, ...]
    bound: EpsilonLowerBound
    confidence: float
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupPerformance:
    """How well an attack does on a group of records; nothing where the group is too small."""

    group: str
    performance: Performance | None


def evaluate(
    scores: RecordScores,
    member: ArrayLike,
    *,
    coins: bool = False,
    delta: float = DELTA,
    confidence: float = 0.95,
    fpr: tuple[float, ...] = LOW_FPR,
) -> Performance:
    """How well an attack does against what is true.

    The bound on ε is that of one run with many records in it (Steinke et al. 2023). Scores of one
    model's records are *not* independent runs, so no other method is valid for them, and this one
    only where membership was drawn by fair coins: say so by ``coins``.

    Guarantees: with ``coins``, the bound exceeds the true ε of training (a record added or removed)
        in at most ``1 − confidence`` of audits; without, its ``valid`` is false.
    Assumes: the attack saw nothing that depends on who was in, but the target.

    Args:
        scores: What the attack says.
        member: Who was in, shape ``(n,)``.
        coins: Whether each record was put in or left out by its own fair coin.
        delta: δ of the bound.
        confidence: Of the bound, one-sided, and of each interval.
        fpr: Low false positive rates to look at.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random(2000) < 0.5
        >>> found = RecordScores(attack="mine", values=rng.normal(2.0 * member, 1.0),
        ...     threshold=1.0, convention="")
        >>> result = evaluate(found, member, coins=True)
        >>> round(result.auc.value, 2), result.bound.valid, result.bound.epsilon > 1
        (0.93, True, True)
    """
    _validate.open_unit(confidence=confidence)
    parts = scores.split(member)
    curve = tradeoff_curve(parts)
    tail = (1 - confidence) / 2
    hits = int((parts.inside > scores.threshold).sum())
    alarms = int((parts.outside > scores.threshold).sum())
    advantage = _advantage(hits, parts.n_in, alarms, parts.n_out, tail)
    recall = hits / parts.n_in
    precision = hits / (hits + alarms) if hits + alarms else math.nan
    return Performance(
        attack=scores.attack,
        n_in=parts.n_in,
        n_out=parts.n_out,
        auc=_auc(parts, curve.auc, tail),
        p_value=_p_value(parts, curve.auc),
        accuracy=Interval(
            value=(1 + advantage.value) / 2,
            low=(1 + advantage.low) / 2,
            high=(1 + advantage.high) / 2,
        ),
        advantage=advantage,
        precision=precision,
        recall=recall,
        f1=2 * hits / (hits + alarms + parts.n_in),
        at_low_fpr=tuple(_rate_at(parts, rate, tail) for rate in fpr),
        bound=_bound(parts, coins=coins, delta=delta, confidence=confidence, who=scores.attack),
        confidence=confidence,
        caveats=tuple(
            f"With {parts.n_out:,} records outside, an FPR of {rate:g} is below one of them: "
            "the rate there is that of no false positives at all."
            for rate in fpr
            if rate * parts.n_out < 1
        ),
    )


def evaluate_groups(
    scores: RecordScores,
    member: ArrayLike,
    groups: ArrayLike,
    *,
    smallest: int = LEAST,
    **how: Any,
) -> tuple[GroupPerformance, ...]:
    """``evaluate`` for each group of records: its class, or whatever column a user names.

    Guarantees: a group with fewer than ``smallest`` records inside, or outside, has no figures, so
        that no figure is about a handful of people.

    Args:
        scores: What the attack says.
        member: Who was in, shape ``(n,)``.
        groups: The group of each record, shape ``(n,)``.
        smallest: Records on either side that a group needs.
        how: Handed on to ``evaluate``.

    Example:
        >>> member, group = np.arange(100) % 2 == 0, np.repeat(["many", "few"], [90, 10])
        >>> found = RecordScores(attack="mine", values=member * 1.0, threshold=0.5, convention="")
        >>> [(each.group, each.performance is None)
        ...  for each in evaluate_groups(found, member, group, smallest=20)]
        [('few', True), ('many', False)]
    """
    _validate.whole(1, smallest=smallest)
    was_in = _member(member, scores.values.size)
    names: NDArray[Any] = np.asarray(groups)
    if names.shape != was_in.shape:
        raise InvalidArgument(
            f"Expected a group for each of {was_in.size} records, got shape {names.shape}."
        )
    found = []
    for name in np.unique(names):
        at = names == name
        inside = int(was_in[at].sum())
        enough = min(inside, int(at.sum()) - inside) >= smallest
        part = replace(scores, values=scores.values[at])
        found.append(
            GroupPerformance(
                group=str(name),
                performance=evaluate(part, was_in[at], **how) if enough else None,
            )
        )
    return tuple(found)


def mismatch(pool: ShadowPool, target: int | ArrayLike, member: ArrayLike) -> tuple[str, ...]:
    """How the target differs from its shadows, in words: nothing where it could be one of them.

    Compared are accuracy on the records inside, accuracy on those outside, the gap between them,
    and how many records were inside. Attacks through shadows that were trained in another way are
    weaker than what the target's makers, or a better-informed adversary, could do.

    Guarantees: a target trained as its shadows were is called unlike in about 1 % of cases for
        each of these (the interval is Student's, for one more of normal values).

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        member: Who was in the target, shape ``(n,)``.
    """
    was_in = _member(member, pool.records)
    shadows, _ = pool.against(target)
    if shadows.models < 3:
        return ("Too few shadows to say whether the target is like them: train some more.",)
    if isinstance(target, (int, np.integer)):
        train, test = float(pool.train_accuracy[target]), float(pool.test_accuracy[target])
    else:
        right = np.argmax(np.asarray(target), axis=1) == pool.labels
        train, test = float(right[was_in].mean()), float(right[~was_in].mean())
    sizes = shadows.member.sum(axis=1)
    compared = (
        ("accuracy on records inside", train, shadows.train_accuracy),
        ("accuracy on records outside", test, shadows.test_accuracy),
        ("gap between the two", train - test, shadows.train_accuracy - shadows.test_accuracy),
    )
    said = []
    for what, value, accuracies in compared:
        others = accuracies[np.isfinite(accuracies)]  # a shadow of all records has none outside
        if others.size < 3:
            continue
        low, high = _next(others, 1 / min(int(was_in.sum()), int((~was_in).sum())))
        if not low <= value <= high:
            said.append(
                f"The target's {what} is {value:.3f}, that of a model trained as the shadows were "
                f"lies between {low:.3f} and {high:.3f}: the target was trained in another way, "
                "and the attacks may be weaker than they could be."
            )
    inside = int(was_in.sum())
    if not 0.8 * sizes.min() <= inside <= 1.25 * sizes.max():
        said.append(
            f"The target was trained on {inside:,} of these records, the shadows on "
            f"{sizes.min():,} to {sizes.max():,}."
        )
    return tuple(said)


@dataclass(frozen=True, eq=False, kw_only=True)
class PoolRisk:
    """Risk of every record as a pool of shadows shows it. *An estimate*, with nothing proved of it.

    Attributes:
        values: Largest change over classes of the mean ln p at the record, models with it against
            models without it, shape ``(n,)``.
        floor: The same of models grouped at random, shape ``(n,)``: what chance alone gives.
        caveats: What a reader must know.
    """

    values: FloatArray
    floor: FloatArray
    caveats: tuple[str, ...]


def pool_pdtp(pool: ShadowPool, *, rng: np.random.Generator) -> PoolRisk:
    """Estimates how much each record changes predictions at itself, from the shadows alone.

    PDTP compares training on all records with training on all but one. Here both sides are means
    over models of half the records, so that what a record does is larger than it would be among
    all of them, and what the other records do averages out only as 1/√models: compare with
    ``floor``. p below 0.005 counts as 0.005, so no value is above ln 200.

    Args:
        pool: The shadows.
        rng: Groups models at random for the floor.
    """
    shuffled = rng.permuted(pool.member, axis=0)
    other = replace(pool, member=shuffled)
    values, floor = np.zeros(pool.records), np.zeros(pool.records)
    for column in range(pool.log_proba.shape[2]):
        seen = np.maximum(pool.log_proba[:, :, column], np.float32(math.log(_CLEAREST)))
        for grouped, into in ((pool, values), (other, floor)):
            inside, outside = (mean_by_side(grouped, seen, inside=side) for side in (True, False))
            np.maximum(into, np.abs(inside - outside), out=into)
    return PoolRisk(
        values=values,
        floor=floor,
        caveats=(
            f"An estimate from {pool.models} models of half the records each, not the risk of one "
            "record leaving all of them.",
        ),
    )


def _member(member: ArrayLike, n: int) -> BoolArray:
    found = np.asarray(member)
    if found.shape != (n,) or not np.isin(found, (0, 1)).all():
        raise InvalidArgument(
            f"Expected a truth value for each of {n} records, got {found.dtype} of shape "
            f"{found.shape}."
        )
    was_in = found.astype(bool)
    if was_in.all() or not was_in.any():
        raise InvalidArgument(
            f"Expected records inside and outside, got {n if was_in.all() else 0} of {n} inside. "
            "Hold some records out of the target."
        )
    return was_in


def _advantage(hits: int, n_in: int, alarms: int, n_out: int, tail: float) -> Interval:
    """TPR − FPR; each end pays half its error for either rate."""
    low, high = binomial.clopper_pearson_lower, binomial.clopper_pearson_upper
    each = tail / 2
    return Interval(
        value=hits / n_in - alarms / n_out,
        low=float(low(hits, n_in, alpha=each) - high(alarms, n_out, alpha=each)),
        high=float(high(hits, n_in, alpha=each) - low(alarms, n_out, alpha=each)),
    )


def _rate_at(parts: Scores, fpr: float, tail: float) -> RateAt:
    """The threshold is placed by outside scores alone, so those inside are fresh beside it."""
    allowed = math.floor(fpr * parts.n_out * (1 + 1e-12))
    barrier = np.partition(parts.outside, parts.n_out - 1 - allowed)[parts.n_out - 1 - allowed]
    hits = int((parts.inside > barrier).sum())
    alarms = int((parts.outside > barrier).sum())
    return RateAt(
        fpr=fpr,
        tpr=Interval(
            value=hits / parts.n_in,
            low=float(binomial.clopper_pearson_lower(hits, parts.n_in, alpha=tail)),
            high=float(binomial.clopper_pearson_upper(hits, parts.n_in, alpha=tail)),
        ),
        fpr_high=float(binomial.clopper_pearson_upper(alarms, parts.n_out, alpha=tail)),
    )


def _auc(parts: Scores, auc: float, tail: float) -> Interval:
    """DeLong's standard error, and never less than that of half a pair of records."""
    inside, outside = np.sort(parts.inside), np.sort(parts.outside)
    beaten = _placed(outside, parts.inside)
    beating = 1 - _placed(inside, parts.outside)
    variance = beaten.var() / max(parts.n_in - 1, 1) + beating.var() / max(parts.n_out - 1, 1)
    least = 0.5 / min(parts.n_in, parts.n_out)
    half = -float(scipy.special.ndtri(tail)) * max(math.sqrt(float(variance)), least)
    return Interval(value=auc, low=max(auc - half, 0.0), high=min(auc + half, 1.0))


def _placed(sorted_others: FloatArray, values: FloatArray) -> FloatArray:
    """Share of the others below each value, equal ones counted half."""
    below = np.searchsorted(sorted_others, values)
    upto = np.searchsorted(sorted_others, values, side="right")
    return np.asarray((below + upto) / (2 * sorted_others.size))


def _p_value(parts: Scores, auc: float) -> float:
    """Of the Mann–Whitney test, with ties and the continuity correction."""
    n_in, n_out = parts.n_in, parts.n_out
    n = n_in + n_out
    _, ties = np.unique(np.concatenate([parts.inside, parts.outside]), return_counts=True)
    t = ties.astype(np.float64)
    variance = n_in * n_out / 12 * (n + 1 - float((t**3 - t).sum()) / (n * (n - 1)))
    if variance <= 0:  # all scores are equal
        return 1.0
    z = ((auc - 0.5) * n_in * n_out - 0.5) / math.sqrt(variance)
    return float(scipy.special.ndtr(-z))


def _bound(
    parts: Scores, *, coins: bool, delta: float, confidence: float, who: str
) -> EpsilonLowerBound:
    bound = epsilon_lower_bound(
        parts,
        delta=delta,
        confidence=confidence,
        method="one_run",
        adjacency="add_remove",
        adversary=f"sees the target's predictions: {who}",
    )
    if coins:
        return bound
    return msgspec.structs.replace(bound, valid=False, caveats=(*bound.caveats, _NO_COINS))


def _next(others: FloatArray, resolution: float) -> tuple[float, float]:
    """Between which one more of these lies; an accuracy is no finer than one record."""
    m = others.size
    spread = math.hypot(float(others.std(ddof=1)), resolution) * math.sqrt(1 + 1 / m)
    half = -float(scipy.special.stdtrit(m - 1, _ALARM)) * spread
    return float(others.mean()) - half, float(others.mean()) + half
