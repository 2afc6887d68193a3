"""May this classifier be published? What was measured, what follows, what would help."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeAlias

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.plain import fields_of, plain_values, same_length, settle
from epsilometer.results import EpsilonLowerBound, Provenance, html_table, known_cites

Decision: TypeAlias = Literal["release", "do not release", "cannot tell"]
_GRAVEST_FIRST: tuple[Decision, ...] = ("do not release", "cannot tell", "release")


@dataclass(frozen=True, kw_only=True)
class Reason:
    """What one rule says.

    Attributes:
        rule: Which, in a few words ("no PDTP above 1").
        decision: What it says.
        finding: Why, in a sentence.
        value: What was measured; may be infinite.
        low: Lower end of the interval in which the truth lies.
        high: Upper end.
        limit: What the rule allows.
        confidence: That of both ends together; 1 where nothing was sampled.
    """

    rule: str
    decision: Decision
    finding: str
    value: float
    low: float
    high: float
    limit: float
    confidence: float

    def __post_init__(self) -> None:
        _validate.number(value=self.value, low=self.low, high=self.high, limit=self.limit)
        _validate.probability(confidence=self.confidence)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """How much predictions change when single records leave.

    PDTP of a record: the largest change of ln p of any class at that record, when it alone is
    left out of training.

    Attributes:
        path: How it was computed ("exact: Gaussian naive Bayes", "refits").
        measured: Records that were left out, one at a time.
        of: Records in all.
        decimals: With how many decimals probabilities are taken to be shown; None: all of them.
        limit: Above which a record counts as exposed.
        exposed: Records above it, by what is shown and at full precision both.
        hidden: Records above it at full precision alone.
        edge_only: Records above it only because a change of the last decimal was crossed.
        infinite: Records at which a class is impossible with them or without them, not both.
        median: Of what is shown.
        largest: Of what is shown.
        median_floor: Of refits with nothing removed and another seed; None where nothing is random.
        largest_floor: The largest of these.
        separation: One-sided p-value: are the values above their floor? (Mann-Whitney)
        coverage: What was measured says of those that were not, in a sentence.
        edges: Rising edges of bins of values, in ln; the last bin also holds what lies beyond.
        bins: Records in each bin.
        floor_bins: Floors in each bin; empty where there is none.
    """

    path: str
    measured: int
    of: int
    decimals: int | None
    limit: float
    exposed: int
    hidden: int
    edge_only: int
    infinite: int
    median: float
    largest: float
    median_floor: float | None
    largest_floor: float | None
    separation: float | None
    coverage: str
    edges: tuple[float, ...]
    bins: tuple[int, ...]
    floor_bins: tuple[int, ...]

    def __post_init__(self) -> None:
        _validate.whole(1, measured=self.measured, of=self.of)
        _validate.at_least(0, limit=self.limit, median=self.median, largest=self.largest)
        counts = {"exposed": self.exposed, "hidden": self.hidden, "infinite": self.infinite}
        _validate.whole(0, **counts, edge_only=self.edge_only)
        if max(self.measured - self.of, *(n - self.measured for n in counts.values())) > 0:
            raise InvalidArgument(f"Expected at most {self.of} records, got more.")
        if len(self.edges) != len(self.bins) + 1:
            raise InvalidArgument(
                f"Expected one more edge than bins of values, got {len(self.edges)} for "
                f"{len(self.bins)}."
            )
        for count in (*self.bins, *self.floor_bins):
            _validate.whole(0, bins=count)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class AttackFinding:
    """How well one attack tells who was trained on.

    Attributes:
        attack: Its name.
        auc: Chance that a record inside is scored above one outside, ties counted half.
        advantage: The largest TPR − FPR of any threshold.
        advantage_low: Lower limit on it.
        advantage_high: Upper limit.
        tpr: Share of those inside that it catches at ``fpr`` false positives.
        tpr_low: Lower limit on it.
        tpr_high: Upper limit.
        fpr: The false positive rate at which that is.
        confidence: Of each pair of limits.
        n_in: Scores inside.
        n_out: Scores outside.
        roc_fpr: False positive rates, rising, for drawing.
        roc_tpr: True positive rates beside them.
        bound: What the scores prove of ε, under the bound's own assumptions.
        caveats: What a reader must know before quoting it.
    """

    attack: str
    auc: float
    advantage: float
    advantage_low: float
    advantage_high: float
    tpr: float
    tpr_low: float
    tpr_high: float
    fpr: float
    confidence: float
    n_in: int
    n_out: int
    roc_fpr: tuple[float, ...]
    roc_tpr: tuple[float, ...]
    bound: EpsilonLowerBound | None = None
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate.probability(auc=self.auc, tpr=self.tpr, fpr=self.fpr)
        _validate.probability(tpr_low=self.tpr_low, tpr_high=self.tpr_high)
        _validate.open_unit(confidence=self.confidence)
        _validate.whole(1, n_in=self.n_in, n_out=self.n_out)
        same_length(self, "roc_fpr", "roc_tpr")
        settle(self)


@dataclass(frozen=True, kw_only=True)
class GroupRisk:
    """How exposed a class, or a group that the user named, is.

    Attributes:
        column: What it is a value of; ``class`` for the label.
        name: Its value.
        records: Measured records in it; of small groups only that they are few.
        exposed: Share of them above the limit.
        median: Median of what is shown.
        auc: Of the strongest attack, within the group; None where too few were attacked.
        auc_low: Lower limit on it.
        auc_high: Upper limit.
    """

    column: str
    name: str
    records: int
    exposed: float
    median: float
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None

    def __post_init__(self) -> None:
        _validate.whole(1, records=self.records)
        _validate.probability(exposed=self.exposed)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class ExposedRecord:
    """One record, and what makes it stand out. Its features are not here.

    Attributes:
        record: Its number in the data, or its name.
        risk: What decides: the smaller of ``shown`` and ``unbinned``.
        measure: What ``risk`` is, in words.
        group: Its class.
        note: What makes it stand out, in words.
        shown: PDTP by probabilities with the decimals that are shown.
        unbinned: PDTP at full precision.
        floor: What a refit with nothing removed changes there; None where nothing is random.
        edge_only: Whether ``shown`` is above the limit only through an edge of a bin.
        scores: (attack, score) pairs, higher means "was in".
    """

    record: str
    risk: float
    measure: str
    group: str
    note: str
    shown: float
    unbinned: float
    floor: float | None = None
    edge_only: bool = False
    scores: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _validate.number(risk=self.risk, shown=self.shown, unbinned=self.unbinned)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class RemovalPlan:
    """Drop the riskiest, measure all again, stop when that no longer helps.

    Attributes:
        removed: Records dropped before each measurement, from 0.
        largest: The largest risk of those left.
        exposed: How many of those left are above the limit.
        accuracy: Share of those left that the model then predicts rightly.
        records: Which were dropped, in order.
        best: At how many dropped the fewest were exposed.
        ended: Why it was stopped.
    """

    removed: tuple[int, ...]
    largest: tuple[float, ...]
    exposed: tuple[int, ...]
    accuracy: tuple[float, ...]
    records: tuple[str, ...]
    best: int
    ended: str

    def __post_init__(self) -> None:
        same_length(self, "removed", "largest", "exposed", "accuracy")
        if len(self.records) != (self.removed[-1] if self.removed else 0):
            raise InvalidArgument(
                "Expected as many names of dropped records as were dropped, got "
                f"{len(self.records)}."
            )


@dataclass(frozen=True, kw_only=True)
class RoundingStep:
    """Probabilities shown with so many decimals.

    Attributes:
        decimals: How many; None: all. −1: the predicted class alone.
        exposed: Records above the limit.
        largest: The largest risk.
        accuracy: Share of records predicted rightly from what is shown, ties broken by order.
        advantage: The largest advantage of an attack on what is shown; None where none was run.
    """

    decimals: int | None
    exposed: int
    largest: float
    accuracy: float
    advantage: float | None = None

    def __post_init__(self) -> None:
        _validate.probability(accuracy=self.accuracy)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class Variation:
    """How much predictions at the same records vary for reasons that are nobody's record.

    Attributes:
        cause: What was varied: the initialisation, or which records were drawn.
        models: How many were trained.
        deciles: Of the standard deviation of p(own class) over models, over records.
    """

    cause: str
    models: int
    deciles: tuple[float, ...]

    def __post_init__(self) -> None:
        _validate.whole(2, models=self.models)
        if len(self.deciles) != 11:
            raise InvalidArgument(f"Expected 11 deciles, 0 to 10, got {len(self.deciles)}.")


@dataclass(frozen=True, kw_only=True)
class ReleaseAudit:
    """One classifier: how exposed its records are, how attacks do, and whether to publish it.

    Attributes:
        subject: What was audited, in words.
        reasons: What each rule says; the verdict is the gravest of them.
        confidence: With which the verdict holds where it rests on samples.
        leaving: How much predictions change when single records leave.
        attacks: How well attacks do.
        groups: Classes, and groups that the user named.
        records: The riskiest records, the worst first; at most a thousand.
        removal: What dropping records would do; None where nothing was exposed.
        rounding: What showing fewer decimals would do.
        variation: How much predictions vary anyway, where that was asked.
        accuracy: Share of the records that the model predicts rightly.
        advice: What to do, in sentences.
        caveats: What a reader must know.
        seed: From which all randomness followed.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        provenance: How to do it again.
    """

    subject: str
    reasons: tuple[Reason, ...]
    confidence: float
    leaving: Leaving | None
    attacks: tuple[AttackFinding, ...]
    groups: tuple[GroupRisk, ...]
    records: tuple[ExposedRecord, ...]
    removal: RemovalPlan | None
    rounding: tuple[RoundingStep, ...]
    variation: tuple[Variation, ...]
    accuracy: float
    advice: tuple[str, ...]
    caveats: tuple[str, ...]
    seed: int
    cites: tuple[str, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        if not self.reasons:
            raise InvalidArgument("Expected at least one reason for a verdict, got none.")
        _validate.open_unit(confidence=self.confidence)
        _validate.probability(accuracy=self.accuracy)
        known_cites(self.cites)
        settle(self)

    @property
    def verdict(self) -> Decision:
        """``do not release`` if any rule says so, ``release`` only if all of them do.

        Where units of work failed, nothing that they could have found is ruled out, so that
        ``release`` becomes ``cannot tell``.
        """
        said = {reason.decision for reason in self.reasons}
        gravest = next(decision for decision in _GRAVEST_FIRST if decision in said)
        return "cannot tell" if gravest == "release" and self.provenance.failed else gravest

    @property
    def audits(self) -> tuple["ReleaseAudit", ...]:
        """Itself, so that it is read like any other audit or group."""
        return (self,)

    def _repr_html_(self) -> str:
        rows = ((reason.rule, reason.decision, reason.finding) for reason in self.reasons)
        return html_table(f"{self.subject}: {self.verdict}", rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = plain_values(asdict(self))
        for attack, finding in zip(parts["attacks"], self.attacks, strict=True):
            attack["bound"] = None if finding.bound is None else finding.bound.to_dict()
        return {"kind": "ReleaseAudit", "verdict": self.verdict, **parts}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The result that ``to_dict`` wrote."""
        without = {name: value for name, value in plain.items() if name != "verdict"}
        return cls(**fields_of(cls, without))
