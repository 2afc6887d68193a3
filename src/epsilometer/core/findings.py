"""Record what an audit found: one type per kind of finding, each with its meaning."""

from typing import Literal, TypeAlias, get_args

import msgspec

from epsilometer import _validate
from epsilometer.core.bound import (
    AttackSummary,
    BaseFinding,
    Check,
    CheckedRun,
    CheckOutcome,
    Curve,
    EpsilonEstimate,
    EpsilonFinding,
    EpsilonLowerBound,
    Evidence,
    Outcome,
    RuleFinding,
)
from epsilometer.core.judge import Conformance, judge_conformance
from epsilometer.core.memorisation import MemorisationFinding
from epsilometer.core.plain import (
    Confidence,
    Count,
    Nonnegative,
    Number,
    Plain,
    PositiveCount,
    Probability,
    check_counts,
    check_same_length,
)
from epsilometer.core.posterior_findings import (
    FormDifference,
    FormFinding,
    FormPlan,
    PosteriorRuns,
    Standing,
    SweepPoint,
    Swept,
)
from epsilometer.errors import InvalidArgument

__all__ = [  # of ``core.bound``, below the judge: offered here with all other findings
    "AttackSummary",
    "Check",
    "CheckOutcome",
    "Curve",
    "EpsilonFinding",
    "Evidence",
    "FormDifference",
    "FormFinding",
    "FormPlan",
    "MemorisationFinding",
    "Outcome",
    "PosteriorRuns",
    "RuleFinding",
    "Standing",
    "SweepPoint",
    "Swept",
]
GroupDifference: TypeAlias = Literal[
    "more exposed", "less exposed", "more attacked", "less attacked"
]


class SamplerNoise(Plain, frozen=True, kw_only=True):
    """How much noise keeps a claim, by proof, with a sampler.

    Attributes:
        sampler: Its name.
        noise: The noise multiplier; infinite where nothing is proved.
    """

    sampler: str
    noise: Number


class SamplerFinding(BaseFinding, frozen=True, kw_only=True):
    """The ε of the sampler that was used, compared with the one accounted for.

    Attributes:
        sampler: The one that was used, in words.
        accounted_epsilon: What accounting by Poisson sampling reports for these settings.
        needed_noise: Noise multiplier below which the claim is certainly false with this sampler:
            necessary. None where nothing was claimed.
        sufficient_noise: Noise multiplier from which the claim is certainly true with this sampler;
            infinite where nothing is proved, None where nothing was claimed.
        remedies: Samplers with the noise that keeps the claim by proof, the smallest noise first;
            empty where nothing was claimed.
        balls_in_bins: What the ε of the same noise with balls in bins is at most.
        published: The lower bound of Chua et al. for one epoch of shuffling; 0 for more epochs or
            other samplers, for which it is not stated.
    """

    sampler: str
    accounted_epsilon: Nonnegative
    needed_noise: float | None
    sufficient_noise: Number | None
    remedies: tuple[SamplerNoise, ...]
    balls_in_bins: EpsilonEstimate
    published: Nonnegative


class ConformanceFinding(BaseFinding, frozen=True, kw_only=True):
    """Whether the program that ran did what was accounted for.

    Guarantee: at most a share ``level`` of right programs is found violated, over a whole run and
        whenever it is stopped.
    Assumption: a right program adds independent Gaussian noise of at least the accounted scale.

    Attributes:
        checks: What was checked, and what could not be; the most severe first.
        steps: Steps that were seen.
        level: Chance of a violation on a right program, for all checks together.
        bound: The ε of what ran: of the noise that was measured, and of what a record was seen to
            add, by an adversary who inserts any gradient. None where that was not computed.
    """

    checks: tuple[Check, ...]
    steps: Count
    level: Confidence
    bound: EpsilonLowerBound | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [check.name for check in self.checks]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument(
                f"Expected one check or more, each once, got {_validate.listed(names)}."
            )
        order = get_args(CheckOutcome)
        ordered = sorted(self.checks, key=lambda check: order.index(check.outcome))
        msgspec.structs.force_setattr(self, "checks", tuple(ordered))

    @property
    def checked_run(self) -> CheckedRun:
        """Itself."""
        return self

    @property
    def verdict(self) -> Conformance:
        """What follows from all checks, by ``epsilometer.core.judge`` alone."""
        return judge_conformance(self.checks)

    def find(self, outcome: CheckOutcome) -> tuple[Check, ...]:
        """Return the checks of one outcome."""
        return tuple(check for check in self.checks if check.outcome == outcome)

    def check(self, name: str) -> Check:
        """Return a check by its name."""
        for each in self.checks:
            if each.name == name:
                return each
        listed = _validate.listed(each.name for each in self.checks)
        raise InvalidArgument(f"Expected one of the checks {listed}, got {name!r}.")


class LeaveOneOut(BaseFinding, frozen=True, kw_only=True):
    """How much predictions change when single records are left out.

    PDTP of a record: the largest change of ln p of any class at that record, when it alone is
    left out of training.

    Attributes:
        path: How it was computed ("exact: Gaussian naive Bayes", "refits").
        measured: Records that were left out, one at a time.
        of: Records in all.
        decimals: With how many decimals probabilities are taken to be shown; None: all of them.
            −1: the predicted class alone.
        limit: Limit above which a record counts as exposed.
        exposed: Records above it, by what is shown and at full precision both.
        hidden: Records above it at full precision alone.
        edge_only: Records above it only because a change of the last decimal was crossed.
        infinite: Records at which a class is impossible with them or without them, not both.
        median: Of what is shown.
        largest: Of what is shown.
        median_floor: Median change of refits with nothing removed and another seed; None where
            nothing is random.
        largest_floor: The largest of these.
        separation: One-sided p-value: are the values above their floor? (Mann-Whitney)
        coverage: What was measured says of those that were not, in a sentence.
        edges: Rising edges of bins of values, in ln; the last bin also holds what lies beyond.
        bins: Records in each bin.
        floor_bins: Floors in each bin; empty where there is none.
    """

    path: str
    measured: PositiveCount
    of: PositiveCount
    decimals: int | None
    limit: Nonnegative
    exposed: Count
    hidden: Count
    edge_only: Count
    infinite: Count
    median: Nonnegative
    largest: Nonnegative
    median_floor: float | None
    largest_floor: float | None
    separation: float | None
    coverage: str
    edges: tuple[float, ...]
    bins: tuple[int, ...]
    floor_bins: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = {"exposed": self.exposed, "hidden": self.hidden, "infinite": self.infinite}
        if max(self.measured - self.of, *(n - self.measured for n in counts.values())) > 0:
            raise InvalidArgument(f"Expected at most {self.of} records, got more.")
        if len(self.edges) != len(self.bins) + 1:
            raise InvalidArgument(
                f"Expected one more edge than bins of values, got {len(self.edges)} for "
                f"{len(self.bins)}."
            )
        check_counts("bins", self.bins)
        check_counts("floor_bins", self.floor_bins)


class PredictionChange(BaseFinding, frozen=True, kw_only=True):
    """How much predicted numbers change when single records leave, in a stated unit.

    Attributes:
        path: How it was computed ("exact: least squares", "refits").
        measured: Records that were left out, one at a time.
        of: Records in all.
        unit: What changes are counted in, in words.
        limit: Limit above which a record counts as exposed.
        exposed: Records above it, by what is shown and at full precision both.
        median: Change, in units.
        largest: Change, in units.
        median_floor: Median change from another seed with nothing removed; None where nothing is
            random.
        largest_floor: The largest of these.
        coverage: What was measured says of those that were not, in a sentence.
        skill: 1 − the mean absolute error of models without the record, over that of the median of
            all records: 1 is perfect, 0 no better than knowing nothing of the record.
    """

    path: str
    measured: PositiveCount
    of: PositiveCount
    unit: str
    limit: Nonnegative
    exposed: Count
    median: Nonnegative
    largest: Nonnegative
    median_floor: float | None
    largest_floor: float | None
    coverage: str
    skill: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.measured - self.of, self.exposed - self.measured) > 0:
            raise InvalidArgument(f"Expected at most {self.of} records, got more.")


class MembershipFinding(BaseFinding, frozen=True, kw_only=True):
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
        confidence: Confidence of each pair of limits.
        n_in: Scores inside.
        n_out: Scores outside.
        roc_fpr: False positive rates, rising, for drawing.
        roc_tpr: True positive rates beside them.
        bound: What the scores prove of ε, under the bound's own assumptions.
        full_advantage: What ``advantage`` would be of a model of all records, by the trend over
            models of an eighth, a quarter and half of them; None where that was not checked.
        full_low: Lower limit on it, if the advantage is a power of the number of records.
        full_high: Upper limit.
        caveats: What a reader must know before quoting it.
    """

    attack: str
    auc: Probability
    advantage: float
    advantage_low: float
    advantage_high: float
    tpr: Probability
    tpr_low: Probability
    tpr_high: Probability
    fpr: Probability
    confidence: Confidence
    n_in: PositiveCount
    n_out: PositiveCount
    roc_fpr: tuple[float, ...]
    roc_tpr: tuple[float, ...]
    bound: EpsilonLowerBound | None = None
    full_advantage: float | None = None
    full_low: float | None = None
    full_high: float | None = None
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_same_length(self, "roc_fpr", "roc_tpr")


class ThreatFinding(BaseFinding, frozen=True, kw_only=True):
    """How strong a threat other than membership is.

    Attributes:
        threat: ``attribute``, ``range``, ``structure`` or ``usage``.
        column: The hidden column; empty where there is none.
        value: For an attribute, the share of right guesses about records inside less that about
            others. Of a range: TPR − FPR. Of structure: share of records singled out. Of usage: by
            how much an estimated share is off.
        low: Lower limit on it.
        high: Upper limit.
        inside: Share of right guesses about records inside, where there are guesses.
        outside: About records outside.
        baseline: Baseline of guesses from other columns and the label, without any model.
        confidence: Confidence of both limits together.
        note: What was found, in a sentence.
    """

    threat: str
    column: str
    value: float
    low: float
    high: float
    inside: float | None
    outside: float | None
    baseline: float | None
    confidence: Probability
    note: str


class GroupRisk(BaseFinding, frozen=True, kw_only=True):
    """How exposed a class, or a group that the user named, is.

    Attributes:
        column: What it is a value of; ``class`` for the label.
        name: Its value.
        records: Measured records in it; of small groups only that they are few.
        exposed: Share of them above the limit.
        exposed_low: Lower limit on it, of people like these.
        exposed_high: Upper limit. All limits of all groups share the error of the audit.
        median: Median of what is shown.
        auc: AUC of the strongest attack, within the group; None where too few were attacked.
        auc_low: Lower limit on it.
        auc_high: Upper limit.
        differs: How it differs from all others of its column; these statements share that error
            too.
    """

    column: str
    name: str
    records: PositiveCount
    exposed: Probability
    exposed_low: Probability = 0.0
    exposed_high: Probability = 1.0
    median: float
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    differs: tuple[GroupDifference, ...] = ()


class RecordRisk(BaseFinding, frozen=True, kw_only=True):
    """One record by its rank, and what makes it stand out. No value, label or name of it is here.

    Attributes:
        rank: Its place from 1, by what attacks find of it and then by risk; 0: not known.
        row: Its number in the data where the user asked for it: from 1 in a table, from 0 in an
            array.
        risk: What decides: the smaller of ``shown`` and ``unbinned``.
        measure: What ``risk`` is, in words.
        note: What makes it stand out, in words: never its values.
        shown: PDTP by probabilities with the decimals that are shown.
        unbinned: PDTP at full precision.
        floor: What a refit with nothing removed changes there; None where nothing is random.
        edge_only: Whether ``shown`` is above the limit only through an edge of a bin.
        scores: (attack, score) pairs, higher means "was in".
        attacked: Share of attacked models of which the strongest attack says rightly whether the
            record was in; None where there was no attack.
    """

    rank: Count = 0
    row: Count | None = None
    risk: Number
    measure: str
    note: str
    shown: Number
    unbinned: Number
    floor: float | None = None
    edge_only: bool = False
    scores: tuple[tuple[str, float], ...] = ()
    attacked: Probability | None = None


class RemovalPlan(BaseFinding, frozen=True, kw_only=True):
    """Drop the riskiest, measure all again, stop when that no longer helps.

    Attributes:
        removed: Records dropped before each measurement, from 0.
        largest: The largest risk of those left.
        exposed: How many of those left are above the limit.
        accuracy: Share of those left that a model without them predicts rightly.
        ranks: Which were dropped, in order, by their rank of risk before; 0 where one had none.
        best: At how many dropped the fewest were exposed.
        ended: Why it was stopped.
    """

    removed: tuple[int, ...]
    largest: tuple[float, ...]
    exposed: tuple[int, ...]
    accuracy: tuple[float, ...]
    ranks: tuple[int, ...] = ()
    best: int
    ended: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_same_length(self, "removed", "largest", "exposed", "accuracy")
        check_counts("ranks", self.ranks)
        if self.ranks and len(self.ranks) != (self.removed[-1] if self.removed else 0):
            raise InvalidArgument(
                f"Expected as many ranks of records as were dropped, got {len(self.ranks)}."
            )


class RoundingStep(BaseFinding, frozen=True, kw_only=True):
    """Probabilities shown with this many decimals.

    Attributes:
        decimals: How many; None: all. −1: the predicted class alone.
        exposed: Records above the limit.
        largest: The largest risk.
        accuracy: Share of records predicted rightly, from what is shown, by a model trained
            without them; ties broken by order.
        advantage: The largest advantage of an attack on what is shown; None where none was run.
    """

    decimals: int | None
    exposed: int
    largest: float
    accuracy: Probability
    advantage: float | None = None


class RemedyFinding(BaseFinding, frozen=True, kw_only=True):
    """What became of the attacks after a remedy was carried out, and of accuracy.

    Attributes:
        action: What was done, as an order; empty: nothing, for comparison.
        caught: Share of those inside that the strongest attack finds at the false positives of
            the rules.
        advantage: The largest TPR − FPR of any attack.
        accuracy: Accuracy of models on records that they were not trained on.
        exposed: Records above the limit of PDTP; None where only the riskiest were measured again.
        in_file: Records that the model's file tells of; None where no one is given it.
        outcome: The most severe outcome of any rule; unclear where one was not measured again.
        helps: Whether fewer rules fail, or an attack loses a quarter of its success at least.
    """

    action: str
    caught: Probability
    advantage: float
    accuracy: Probability
    exposed: Count | None
    in_file: Count | None
    outcome: Outcome
    helps: bool


class Variation(BaseFinding, frozen=True, kw_only=True):
    """How much predictions at the same records vary for reasons other than a record.

    Attributes:
        cause: What was varied: the initialisation, or which records were drawn.
        models: How many were trained.
        deciles: Deciles of the standard deviation of p(own class) over models, over records.
    """

    cause: str
    models: int
    deciles: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(2, models=self.models)
        if len(self.deciles) != 11:
            raise InvalidArgument(f"Expected 11 deciles, 0 to 10, got {len(self.deciles)}.")


class AccuracyFinding(BaseFinding, frozen=True, kw_only=True):
    """What share of the records a model predicts rightly that was trained without them."""

    accuracy: Probability


class TheoryEpsilon(BaseFinding, frozen=True, kw_only=True):
    """What an accountant says of the training: an upper bound, where its assumptions hold."""

    method: str
    epsilon: Nonnegative
    note: str


Finding: TypeAlias = (
    EpsilonFinding
    | ConformanceFinding
    | SamplerFinding
    | RuleFinding
    | LeaveOneOut
    | PredictionChange
    | MembershipFinding
    | ThreatFinding
    | GroupRisk
    | RecordRisk
    | RemovalPlan
    | RoundingStep
    | RemedyFinding
    | Variation
    | AccuracyFinding
    | PosteriorRuns
    | FormFinding
    | FormDifference
    | SweepPoint
    | FormPlan
    | TheoryEpsilon
    | MemorisationFinding
)
