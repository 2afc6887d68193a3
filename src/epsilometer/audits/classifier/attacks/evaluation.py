"""Evaluate membership attacks: what one says of every record, and how often it is right."""

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, mean_by_side
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import membership
from epsilometer.stats.clusters import advantage_at
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.membership import Limited, RateAt
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
        """Return scores of records that were in, and of those that were not.

        Example:
            >>> found = RecordScores(attack="mine", values=[3.0, 1.0, 2.0], threshold=1.5,
            ...     convention="")
            >>> found.split([True, False, True]).inside
            array([3., 2.])
        """
        was_in = _read_member(member, self.values.size)
        return Scores(inside=self.values[was_in], outside=self.values[~was_in])


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
        advantage: TPR − FPR at that threshold.
        precision: Share of its "in" that were in; nan where it says none.
        recall: TPR.
        f1: Harmonic mean of the two.
        at_low_fpr: TPR at low FPR.
        bound: ε that no claim can be below, from one run.
        confidence: Confidence of each interval.
        caveats: What a reader must know.
    """

    attack: str
    n_in: int
    n_out: int
    auc: Limited
    p_value: float
    accuracy: Limited
    advantage: Limited
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
    """Measure how well an attack does against what is true.

    The bound on ε is that of one run with many records in it (Steinke et al. 2023). Scores of one
    model's records are *not* independent runs, so no other method is valid for them, and this one
    only where membership was drawn by fair coins: say so by ``coins``.

    Guarantee: with ``coins``, the bound exceeds the true ε of training (a record added or removed)
        in at most ``1 − confidence`` of audits; without, its ``valid`` is false.
    Assumption: the attack saw nothing that depends on who was in, but the target.

    Args:
        scores: What the attack says.
        member: Who was in, shape ``(n,)``.
        coins: Whether each record was put in or left out by its own fair coin.
        delta: δ of the bound.
        confidence: Confidence of the bound, one-sided, and of each interval.
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
    parts = scores.split(member)
    hits = int((parts.inside > scores.threshold).sum())
    alarms = int((parts.outside > scores.threshold).sum())
    cut = float(np.nextafter(scores.threshold, np.inf))  # "in" is above, not at, the threshold
    advantage = advantage_at(parts, cut, confidence=confidence)
    return Performance(
        attack=scores.attack,
        n_in=parts.n_in,
        n_out=parts.n_out,
        auc=membership.approximate_auc(parts, confidence=confidence),
        # U moves in steps of 1: half a step is taken off as continuity correction
        p_value=membership.rank_sum_pvalue(parts.inside, parts.outside, continuity=0.5),
        accuracy=Limited(*((1 + each) / 2 for each in advantage)),
        advantage=advantage,
        precision=hits / (hits + alarms) if hits + alarms else math.nan,
        recall=hits / parts.n_in,
        f1=2 * hits / (hits + alarms + parts.n_in),
        at_low_fpr=tuple(membership.rate_at(parts, rate, confidence=confidence) for rate in fpr),
        bound=bound_one_run(scores, member, coins=coins, delta=delta, confidence=confidence),
        confidence=confidence,
        caveats=tuple(
            f"With {parts.n_out:,} records outside, an FPR of {rate:g} is below one of them: "
            "the rate there is that of no false positives at all."
            for rate in fpr
            if rate * parts.n_out < 1
        ),
    )


def bound_one_run(
    scores: RecordScores, member: ArrayLike, *, coins: bool, delta: float, confidence: float
) -> EpsilonLowerBound:
    """Return the bound of ``evaluate``: valid where membership was drawn by fair coins."""
    parts = replace(scores.split(member), design="coins" if coins else "fixed")
    bound = epsilon_lower_bound(
        parts,
        delta=delta,
        confidence=confidence,
        method="one_run",
        adjacency="add_remove",
        adversary=f"sees the target's predictions: {scores.attack}",
    )
    if coins:
        return bound
    return msgspec.structs.replace(bound, valid=False, caveats=(*bound.caveats, _NO_COINS))


def evaluate_groups(
    scores: RecordScores,
    member: ArrayLike,
    groups: ArrayLike,
    *,
    smallest: int = LEAST,
    **how: Any,
) -> tuple[GroupPerformance, ...]:
    """Evaluate an attack on each group of records: its class, or any column of groups.

    Guarantee: a group with fewer than ``smallest`` records inside, or outside, has no figures, so
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
    was_in = _read_member(member, scores.values.size)
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


def find_mismatch(pool: ShadowPool, target: int | ArrayLike, member: ArrayLike) -> tuple[str, ...]:
    """Say how the target differs from its shadows; nothing where it could be one of them.

    Compared are accuracy on the records inside, accuracy on those outside, the gap between them,
    and how many records were inside. Attacks through shadows that were trained in another way are
    weaker than what the target's makers, or a better-informed adversary, could do.

    Guarantee: a target trained as its shadows were is called unlike in about 1 % of cases for
        each of these (the interval is Student's, for one more of normal values).

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        member: Who was in the target, shape ``(n,)``.
    """
    was_in = _read_member(member, pool.records)
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
        # An accuracy is no finer than one record
        resolution = 1 / min(int(was_in.sum()), int((~was_in).sum()))
        low, high = membership.predict_next(others, alpha=_ALARM, resolution=resolution)
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
    """Estimate how much each record changes predictions at itself, from the shadows alone.

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


def _read_member(member: ArrayLike, n: int) -> BoolArray:
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
