"""Evaluate membership attacks: hold their scores, and measure how often they are right."""

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

LEAST = 20  # members, and non-members, below which a group has no figures
LOW_FPR = (0.001, 0.01)
DELTA = 1e-6  # default δ of bounds
_ALARM = 0.005  # one-sided chance that a target like its shadows is called unlike them
_CLEAREST = 0.005  # centre of the lowest bin of 0.01: smaller p cannot be distinguished
_NO_COINS = (
    "Not a valid bound: it requires that every record was included by its own fair coin toss, "
    "which is not known for this model."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordScores:
    """Scores of an attack, one per record.

    Attributes:
        attack: Name of the attack.
        values: Scores, higher means "was in", shape ``(n,)``.
        threshold: The attack itself says "in" iff its score is above it.
        convention: Choices made where descriptions of the attack differ.
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
        """Return scores of members and of non-members.

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
    """Performance of an attack at separating members from non-members.

    Each interval holds on its own, with ``confidence``, for this target and records like these.
    It does not cover the variation between training runs.

    Attributes:
        attack: Name of the attack.
        n_in: Number of members.
        n_out: Number of non-members.
        auc: Chance that a member scores higher than a non-member (DeLong's interval, which is an
            approximation).
        p_value: Chance of such an AUC if scores were independent of membership (Mann–Whitney,
            normal approximation; one-sided).
        accuracy: Balanced accuracy at the attack's own threshold.
        advantage: TPR − FPR at that threshold.
        precision: Share of members among records called "in"; nan if there are none.
        recall: TPR.
        f1: Harmonic mean of the two.
        at_low_fpr: TPR at low FPR.
        bound: Lower bound on ε from one run.
        confidence: Confidence of each interval.
        caveats: Caveats for readers.
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
    """Performance of an attack on a group of records; None if the group is too small."""

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
    """Measure how well an attack's scores predict membership.

    The bound on ε is that of one run with many records (Steinke et al. 2023). Scores of one model's
    records are *not* independent runs, so no other method is valid for them. This one is valid only
    if membership was drawn by fair coin tosses: state that by ``coins``.

    Guarantee: with ``coins``, the bound exceeds the true ε of training (a record added or removed)
        in at most ``1 − confidence`` of audits; without, its ``valid`` is false.
    Assumption: the attack used nothing that depends on membership except the target.

    Args:
        scores: Scores of the attack.
        member: Whether each record was trained on, shape ``(n,)``.
        coins: Whether each record was included by an independent fair coin toss.
        delta: δ of the bound.
        confidence: Confidence of the bound, one-sided, and of each interval.
        fpr: Low false positive rates at which to measure TPR.

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
        # U moves in steps of 1: half a step is subtracted as continuity correction
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
            f"With {parts.n_out:,} records outside, an FPR of {rate:g} is less than one record: "
            "the TPR shown is that without any false positive."
            for rate in fpr
            if rate * parts.n_out < 1
        ),
    )


def bound_one_run(
    scores: RecordScores, member: ArrayLike, *, coins: bool, delta: float, confidence: float
) -> EpsilonLowerBound:
    """Return the bound of ``evaluate``: valid only if membership was drawn by fair coin tosses."""
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
    """Evaluate an attack on each group of records: classes, or any other grouping.

    Guarantee: a group with fewer than ``smallest`` members or non-members has no figures, so that
        no figure is about a handful of people.

    Args:
        scores: Scores of the attack.
        member: Whether each record was trained on, shape ``(n,)``.
        groups: The group of each record, shape ``(n,)``.
        smallest: Number of members, and of non-members, that a group needs.
        how: Further arguments for ``evaluate``.

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
    """Describe how the target differs from its shadows; empty if it could be one of them.

    It compares accuracy on members, accuracy on non-members, the gap between them, and the number
    of members. Attacks with shadows that were trained in another way are weaker than those of a
    better-informed adversary.

    Guarantee: a target trained like its shadows is called unlike in about 1 % of cases for each of
        the first three (by Student's prediction interval for one more normal value).

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        member: Which records the target was trained on, shape ``(n,)``.
    """
    was_in = _read_member(member, pool.records)
    shadows, _ = pool.against(target)
    if shadows.models < 3:
        return ("Too few shadow models to compare the target with: train more.",)
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
        others = accuracies[np.isfinite(accuracies)]  # a shadow of all records has no others
        if others.size < 3:
            continue
        # The resolution of an accuracy is one record
        resolution = 1 / min(int(was_in.sum()), int((~was_in).sum()))
        low, high = membership.predict_next(others, alpha=_ALARM, resolution=resolution)
        if not low <= value <= high:
            said.append(
                f"The target's {what} is {value:.3f}; for models trained like the shadow models "
                f"it is between {low:.3f} and {high:.3f}. The target was trained differently, so "
                "the attacks may be weaker than possible."
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
    """Risk of every record, estimated from a pool of shadows. *An estimate*, without guarantee.

    Attributes:
        values: Largest difference over classes of the mean ln p at the record, between models with
            it and models without it, shape ``(n,)``.
        floor: The same for models grouped at random, shape ``(n,)``: the effect of chance alone.
        caveats: Caveats for readers.
    """

    values: FloatArray
    floor: FloatArray
    caveats: tuple[str, ...]


def pool_pdtp(pool: ShadowPool, *, rng: np.random.Generator) -> PoolRisk:
    """Estimate how much each record changes the prediction at itself, from the shadows alone.

    PDTP compares training on all records with training on all but one. Here both sides are means
    over models of half the records. So a record's effect is larger than among all records, and
    effects of other records average out only as 1/√models: compare with ``floor``. p below 0.005
    counts as 0.005, so no value is above ln 200.

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
            f"An estimate from {pool.models} models trained on half of the records each, not the "
            "effect of removing one record from all of them.",
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
