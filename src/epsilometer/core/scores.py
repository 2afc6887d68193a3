"""Define attack scores: single values, or counts at thresholds fixed in advance."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from epsilometer import _validate
from epsilometer.core.settings import DATA
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Design: TypeAlias = Literal["runs", "coins", "fixed", "paired"]
CANARIES: tuple[Design, ...] = ("coins", "fixed", "paired")  # of one run
_DESIGNS = {
    "runs": "independent runs, one score each",
    "coins": "canaries of one run, each included by its own fair coin toss",
    "fixed": "canaries of one run, a fixed number of them included at random",
    "paired": "pairs of canaries of one run, one of each pair included by a fair coin toss",
}


def describe_design(design: str, inclusion: float = 0.5) -> str:
    """Describe a design in words; empty if it is unstated.

    Example:
        >>> describe_design("coins", 0.25)
        'canaries of one run, each included by its own coin toss with probability 0.25'
    """
    said = _DESIGNS.get(design, "")
    if inclusion == 0.5:
        return said
    return f"{said.replace('fair coin', 'coin')} with probability {inclusion:g}"


class Sides(NamedTuple):
    """Scores of a part of an audit; a side may be empty."""

    inside: FloatArray
    outside: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Observations:
    """Settings of an audit of observations of any kind.

    Attributes:
        design: How the scores were drawn. ``runs``: independent runs, one score each. The others
            are canaries of one run: ``coins``, each included by its own coin toss; ``fixed``, a
            fixed number included at random; ``paired``, one of each pair included by a fair coin
            toss, both sides in the order of the pairs.
        inclusion: The probability that each canary is included, for ``coins``.
        method: The method that decides, by its name in ``epsilometer methods``; by default
            ``calibrated`` for runs, or ``clopper_pearson`` with a rule that chooses one
            threshold; ``one_run`` for canaries.
        rule: How thresholds are chosen; by default ``epsilometer.rules.AllRanks()`` for
            ``calibrated`` and ``one_run``, ``RankSum()`` for ``gdp``, ``HoldOut()`` for
            many canaries with ``one_run_fdp``, otherwise ``RankGrid()``.
        also: Methods whose bounds are shown for comparison and decide nothing.
        title: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        source: The file they were read from, if any.
    """

    design: Design = "runs"
    inclusion: float = 0.5
    method: str | None = None
    rule: Any = None
    also: tuple[str, ...] = ()
    title: str = "attack scores"
    adversary: str = "unstated"
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        if self.design not in get_args(Design):
            known = ", ".join(get_args(Design))
            raise InvalidArgument(
                f"Expected design to be one of {known}, got {_validate.short(self.design)}."
            )
        _validate.open_unit(inclusion=self.inclusion)
        if self.inclusion != 0.5 and self.design != "coins":
            raise InvalidArgument(
                f"Expected inclusion = 0.5 with design = {self.design!r}, got {self.inclusion!r}. "
                "Only canaries included by coin tosses (design = 'coins') have another inclusion."
            )


@dataclass(frozen=True, eq=False)
class Scores(Observations):
    """Attack scores; *higher means "was in"*, so negate losses.

    ±inf are legal scores and keep their order: use them for diverged runs. nan is refused.
    Lists, float32 and float64 arrays, memory-mapped arrays and torch tensors are accepted; floats
    are not copied.

    Guarantee: scores are read-only and contain no nan.
    Assumption: none here; each method states its own.

    Attributes:
        inside: Scores of runs or canaries with the record, shape ``(n_in,)``.
        outside: Scores of runs or canaries without it, shape ``(n_out,)``.
        design: How they were drawn. ``runs``: independent runs, one score each. The others are
            canaries of one run: ``coins``, each included by its own coin toss; ``fixed``, a fixed
            number included at random; ``paired``, one of each pair included by a fair coin toss,
            both sides in the order of the pairs.
        inclusion: The probability that each canary is included, for ``coins``.
        method: The method that decides, by its name in ``epsilometer methods``; by default
            ``calibrated`` for runs, or ``clopper_pearson`` with a rule that chooses one
            threshold; ``one_run`` for canaries.
        rule: How thresholds are chosen; by default ``epsilometer.rules.AllRanks()`` for
            ``calibrated`` and ``one_run``, ``RankSum()`` for ``gdp``, ``HoldOut()`` for
            many canaries with ``one_run_fdp``, otherwise ``RankGrid()``.
        also: Methods whose bounds are shown for comparison and decide nothing.
        title: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        source: The file they were read from, if any.

    Example:
        >>> import epsilometer as em
        >>> em.Scores(inside=[2.0, 3.0], outside=[0.0, 1.0, 2.0]).errors_at(2.0)
        (1, 0)
        >>> em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5).verdict
        'refuted'
    """

    inside: FloatArray = field(metadata=DATA)
    outside: FloatArray = field(metadata=DATA)

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = _validate.scores("inside", self.inside)
        outside = _validate.scores("outside", self.outside)
        if inside.dtype != outside.dtype:  # so that a threshold means the same for both
            inside, outside = (
                _validate.frozen(array.astype(np.float64)) for array in (inside, outside)
            )
        object.__setattr__(self, "inside", inside)
        object.__setattr__(self, "outside", outside)
        if self.design == "paired" and inside.size != outside.size:
            raise InvalidArgument(
                "Expected as many scores inside as outside, in the order of the pairs (design = "
                f"'paired'), got {inside.size:,} and {outside.size:,}."
            )

    @property
    def n_in(self) -> int:
        """Number of scores with the record."""
        return self.inside.size

    @property
    def n_out(self) -> int:
        """Number of scores without the record."""
        return self.outside.size

    def errors_at(self, threshold: float) -> tuple[int, int]:
        """Count false positives and false negatives of the rule "in iff score ≥ threshold"."""
        at = np.float64(threshold)  # a bare float would be rounded to float32 for such scores
        return int(np.sum(self.outside >= at)), int(np.sum(self.inside < at))


@dataclass(frozen=True, eq=False)
class ScoreCounts(Observations):
    """Scores counted at thresholds fixed in advance: 10⁹ observations in a few hundred numbers.

    Bin ``j`` holds the scores in ``[thresholds[j-1], thresholds[j])``; bin 0 those below all
    thresholds, the last bin those at or above the highest. Counts are added with ``+``, in any
    order. Every bound equals the one of the raw scores rounded down to their bin.

    Attributes:
        thresholds: Strictly increasing, shape ``(j,)``; chosen before looking at the scores.
        inside_bins: Counts of scores with the record, shape ``(j + 1,)``.
        outside_bins: Counts of scores without it, shape ``(j + 1,)``.

    Example:
        >>> empty = ScoreCounts.at([0.0, 1.0])
        >>> counts = empty.add(inside=[0.5, 2.0], outside=[-1.0, 0.0])
        >>> (counts + counts).errors_at(1.0)
        (0, 2)
    """

    thresholds: FloatArray = field(metadata=DATA)
    inside_bins: IntArray = field(metadata=DATA)
    outside_bins: IntArray = field(metadata=DATA)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.design == "paired":
            raise InvalidArgument(
                "Expected design runs, coins or fixed of counts, got 'paired': counts have lost "
                "which scores are a pair. Give Scores."
            )
        thresholds = _validate.scores("thresholds", self.thresholds)
        thresholds = _validate.frozen(thresholds.astype(np.float64))
        fallen = np.flatnonzero(thresholds[1:] <= thresholds[:-1])
        if fallen.size:
            before, after = thresholds[fallen[0] : fallen[0] + 2].tolist()
            raise InvalidArgument(
                f"Expected strictly increasing thresholds, got {before!r} and then {after!r}. "
                "np.unique sorts them and drops twins."
            )
        object.__setattr__(self, "thresholds", thresholds)
        for name in ("inside_bins", "outside_bins"):
            object.__setattr__(self, name, _bins(name, getattr(self, name), thresholds.size + 1))

    @classmethod
    def at(cls, thresholds: Any, **stated: Any) -> "ScoreCounts":
        """Return empty counts at these thresholds.

        Args:
            thresholds: Strictly increasing.
            stated: Further attributes, such as ``design="coins"``.
        """
        fixed = _validate.scores("thresholds", thresholds)
        bins = np.zeros(fixed.size + 1, np.int64)
        return cls(fixed, bins, bins, **stated)

    @property
    def n_in(self) -> int:
        """Number of scores with the record."""
        return int(self.inside_bins.sum())

    @property
    def n_out(self) -> int:
        """Number of scores without the record."""
        return int(self.outside_bins.sum())

    def add(self, *, inside: Any = None, outside: Any = None) -> "ScoreCounts":
        """Return these counts plus those of another block of scores."""
        return replace(
            self,
            inside_bins=self.inside_bins + self._count("inside", inside),
            outside_bins=self.outside_bins + self._count("outside", outside),
        )

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        if not np.array_equal(self.thresholds, other.thresholds):
            raise InvalidArgument(
                f"Expected counts at the same thresholds, got {self.thresholds.size} and "
                f"{other.thresholds.size} that are not the same. Begin both with ScoreCounts.at()."
            )
        if (self.design, self.inclusion) != (other.design, other.inclusion):
            raise InvalidArgument(
                f"Expected counts of one design, got {describe_design(self.design, self.inclusion)}"
                f"; and {describe_design(other.design, other.inclusion)}."
            )
        return replace(
            self,
            inside_bins=self.inside_bins + other.inside_bins,
            outside_bins=self.outside_bins + other.outside_bins,
        )

    def errors_at(self, threshold: float) -> tuple[int, int]:
        """Count false positives and false negatives of the rule "in iff score ≥ threshold"."""
        index = int(np.searchsorted(self.thresholds, threshold))
        if index == self.thresholds.size or self.thresholds[index] != threshold:
            raise InvalidArgument(
                f"Expected one of the {self.thresholds.size} thresholds that were counted at, "
                f"got {threshold!r}. The scores between them are gone."
            )
        return int(self.outside_bins[index + 1 :].sum()), int(self.inside_bins[: index + 1].sum())

    def _count(self, name: str, block: Any) -> IntArray:
        if block is None or (hasattr(block, "__len__") and len(block) == 0):
            return np.zeros(self.thresholds.size + 1, np.int64)
        scores = _validate.scores(name, block)
        at = np.searchsorted(self.thresholds, scores, side="right")
        return np.bincount(at, minlength=self.thresholds.size + 1)


def _bins(name: str, value: Any, size: int) -> IntArray:
    bins = np.asarray(value)
    if bins.shape != (size,) or bins.dtype.kind not in "iu" or np.any(bins < 0):
        raise InvalidArgument(
            f"Expected {size} counts of 0 or more in {name} (one bin more than thresholds), "
            f"got shape {bins.shape} of {bins.dtype}."
        )
    bins = bins.astype(np.int64)
    bins.flags.writeable = False
    return bins
