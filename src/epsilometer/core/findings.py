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

__all__ = [  # types from modules below the judge, offered here with all other findings
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
        sampler: Name of the sampler.
        noise: The noise multiplier; infinite where nothing is proved.

    Example:
        >>> SamplerNoise(sampler="BallsInBins", noise=0.873).noise
        0.873
    """

    sampler: str
    noise: Number


class SamplerFinding(BaseFinding, frozen=True, kw_only=True):
    """The ε of the sampler that was used, compared with the one accounted for.

    Attributes:
        sampler: The sampler that was used, in words.
        accounted_epsilon: The ε that accounting for Poisson sampling gives for these settings.
        needed_noise: Noise multiplier below which the claim is certainly false; None: no claim.
        sufficient_noise: Noise multiplier that provably keeps the claim, infinite if none does.
        remedies: Samplers with the noise that provably keeps the claim, the smallest noise first.
        balls_in_bins: Upper bound on the ε of balls in bins with the same noise.
        published: Lower bound of Chua et al. for one epoch of shuffling; 0 where it does not apply.

    Example:
        >>> import epsilometer as em
        >>> training = em.ShuffledSGD(noise_multiplier=1.0, steps=100, observations=1000)
        >>> found = em.audit(training, 1.0, delta=1e-5).one(em.findings.SamplerFinding)
        >>> found.sampler, round(found.accounted_epsilon, 2), round(found.needed_noise, 2)
        ('Shuffle', 0.72, 1.67)
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

    Guarantee: at most a share ``level`` of correct programs is ever found violated in a run.
    Assumption: a correct program adds independent Gaussian noise of at least the accounted scale.

    Attributes:
        checks: What was checked, and what could not be; the most severe first.
        steps: Number of observed steps.
        level: Chance of a violation on a correct program, for all checks together.
        bound: Bound on ε from the measured noise and the measured contribution of a record, for an
            adversary who inserts any gradient. None where it was not computed.

    Example:
        >>> clipping = Check(name="clipping", outcome="violated", expected="norm 1", seen="2")
        >>> ConformanceFinding(checks=(clipping,), steps=64, level=1e-3).verdict
        'violated'
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
        """This finding itself."""
        return self

    @property
    def verdict(self) -> Conformance:
        """The verdict that follows from all checks; only ``epsilometer.core.judge`` decides it."""
        return judge_conformance(self.checks)

    def find(self, outcome: CheckOutcome) -> tuple[Check, ...]:
        """Return the checks with this outcome."""
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

    PDTP of a record: largest change of ln p of any class at that record when it is left out.

    Attributes:
        path: How it was computed ("exact: Gaussian naive Bayes", "refits").
        measured: Number of records that were left out, one at a time.
        of: Number of all records.
        decimals: Decimals of published probabilities; None: all of them, −1: only the class.
        limit: Limit above which a record counts as exposed.
        exposed: Records above it, both as published and at full precision.
        hidden: Records above it at full precision only.
        edge_only: Records above it only because rounding crosses an edge of the last decimal.
        infinite: Records at which a class is impossible with them or without them, not both.
        median: Median of ``RecordRisk.risk``.
        largest: Largest ``RecordRisk.risk``.
        median_floor: Median change of refits with only another seed; None where nothing is random.
        largest_floor: The largest of these changes.
        separation: One-sided p-value: are the values above their floor? (Mann-Whitney)
        coverage: What the measured records say about the others, in a sentence.
        edges: Rising edges of bins of values, in ln; the last bin also holds all larger values.
        bins: Records in each bin.
        floor_bins: Changes of refits in each bin; empty where nothing is random.

    Example:
        >>> import epsilometer as em
        >>> from sklearn import datasets, naive_bayes
        >>> iris = datasets.load_iris(return_X_y=True)
        >>> subject = em.Classifier(naive_bayes.GaussianNB(), *iris, attacks=())
        >>> em.audit(subject, engine=em.InProcess()).one(em.findings.LeaveOneOut).exposed
        2
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
        measured: Number of records that were left out, one at a time.
        of: Number of all records.
        unit: Unit of the changes, in words.
        limit: Limit above which a record counts as exposed.
        exposed: Records above it, both as published and at full precision.
        median: Median change, in units.
        largest: Largest change, in units.
        median_floor: Median change of refits with only another seed; None where nothing is random.
        largest_floor: The largest of these changes.
        coverage: What the measured records say about the others, in a sentence.
        skill: 1 − mean absolute error without the record ÷ that of predicting the median label.

    Example:
        >>> import epsilometer as em
        >>> from sklearn import datasets, linear_model
        >>> people = datasets.load_diabetes(return_X_y=True)
        >>> subject = em.Regressor(linear_model.LinearRegression(), *people, attacks=())
        >>> em.audit(subject, engine=em.InProcess()).one(em.findings.PredictionChange).exposed
        0
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
    """How well one attack distinguishes records inside from records outside.

    Attributes:
        attack: Name of the attack.
        auc: Chance that a record inside is scored above one outside, ties counted half.
        advantage: The largest TPR − FPR of any threshold.
        advantage_low: Lower limit on the advantage.
        advantage_high: Upper limit.
        tpr: True positive rate at the false positive rate ``fpr``.
        tpr_low: Lower limit on the TPR.
        tpr_high: Upper limit.
        fpr: The false positive rate at which TPR is measured.
        confidence: Confidence of each pair of limits.
        n_in: Number of scores inside.
        n_out: Number of scores outside.
        roc_fpr: False positive rates of the ROC curve, rising.
        roc_tpr: True positive rates at these.
        bound: Lower bound on ε from the scores, under the bound's own assumptions.
        full_advantage: Advantage extrapolated to all records, from an eighth, a quarter and half.
        full_low: Lower limit on it, if the advantage is a power of the number of records.
        full_high: Upper limit.
        caveats: What a reader must know before quoting it.

    Example:
        >>> MembershipFinding(attack="LiRA", auc=0.6, advantage=0.2, advantage_low=0.1, tpr=0.05,
        ...     advantage_high=0.3, tpr_low=0.01, tpr_high=0.1, fpr=0.01, confidence=0.95, n_in=500,
        ...     n_out=500, roc_fpr=(0.0, 1.0), roc_tpr=(0.0, 1.0)).auc
        0.6
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
        column: The hidden column; may be empty.
        value: Share of right guesses inside minus outside (attribute), TPR − FPR (range), share of
            records singled out (structure), or error of an estimated share (usage).
        low: Lower limit on the value.
        high: Upper limit.
        inside: Share of right guesses about records inside, if there are guesses.
        outside: Share of right guesses about records outside.
        baseline: Share of right guesses from other columns and the label, without any model.
        confidence: Confidence of both limits together.
        note: What was found, in a sentence.

    Example:
        >>> ThreatFinding(threat="range", column="age", value=0.1, low=0.0, high=0.2, inside=None,
        ...     outside=None, baseline=None, confidence=0.95, note="TPR of 0.6 at FPR of 0.5").value
        0.1
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
        column: Column that defines the group; ``class`` for the label.
        name: Value of the column in this group.
        records: Measured records in the group; small groups are counted together as one.
        exposed: Share of them above the limit.
        exposed_low: Lower limit on this share in the population.
        exposed_high: Upper limit. All limits of all groups share the error rate of the audit.
        median: Median of ``RecordRisk.risk``.
        auc: AUC of the strongest attack, within the group; None where too few were attacked.
        auc_low: Lower limit on the AUC.
        auc_high: Upper limit.
        differs: How it differs from the rest of its column, within the same error rate.

    Example:
        >>> GroupRisk(column="class", name="rare", records=20, exposed=0.1, median=0.02).exposed
        0.1
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
    """One record by its rank, and what makes it stand out; without its values, label or name.

    Attributes:
        rank: Rank from 1, by success of attacks and then by risk; 0: not known.
        row: Its number in the data, on request: from 1 in a table, from 0 in an array.
        risk: The number that decides: over classes, the largest of the smaller change of both.
        measure: What ``risk`` is, in words.
        note: What makes it stand out, in words: never its values.
        shown: PDTP of probabilities rounded as published.
        unbinned: PDTP at full precision.
        floor: Change of a refit with only another seed; None where nothing is random.
        edge_only: Whether ``shown`` is above the limit only through an edge of rounding.
        scores: (attack, score) pairs, higher means "was in".
        attacked: Share of attacked models in which the strongest attack is right; None: no attack.

    Example:
        >>> RecordRisk(risk=2.5, measure="PDTP", note="a rare class", shown=2.5, unbinned=3.1).risk
        2.5
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
        largest: The largest risk of the remaining records.
        exposed: Number of remaining records above the limit.
        accuracy: Share of remaining records predicted correctly by a model without them.
        ranks: Ranks of the dropped records by their risk before, in order; 0: not known.
        best: Number of dropped records at which the fewest were exposed.
        ended: Why removal stopped.

    Example:
        >>> counts = {"removed": (0, 2), "exposed": (3, 0), "best": 2, "ended": "None is exposed."}
        >>> RemovalPlan(largest=(9.0, 0.5), accuracy=(0.9, 0.9), **counts).best
        2
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
    """Risk and accuracy of probabilities published with this many decimals.

    Attributes:
        decimals: Number of decimals; None: all, −1: only the predicted class.
        exposed: Records above the limit.
        largest: The largest risk.
        accuracy: Accuracy on records left out of training, as published; ties broken by order.
        advantage: Largest advantage of an attack on these probabilities; None where none was run.

    Example:
        >>> RoundingStep(decimals=2, exposed=3, largest=1.5, accuracy=0.9).exposed
        3
    """

    decimals: int | None
    exposed: int
    largest: float
    accuracy: Probability
    advantage: float | None = None


class RemedyFinding(BaseFinding, frozen=True, kw_only=True):
    """What became of the attacks after a remedy was carried out, and of accuracy.

    Attributes:
        action: What was done, as an imperative; empty: nothing, for comparison.
        caught: TPR of the strongest attack, at the false positive rate of the rules.
        advantage: The largest TPR − FPR of any attack.
        accuracy: Accuracy of models on records that they were not trained on.
        exposed: Records above the limit of PDTP; None where only the riskiest were measured again.
        in_file: Records that the model's file contains; None where the file is not published.
        outcome: The most severe outcome of any rule; unclear where one was not measured again.
        helps: Whether fewer rules fail, all pass, or attacks lose a quarter of their success.

    Example:
        >>> after = {"caught": 0.02, "advantage": 0.04, "accuracy": 0.9, "in_file": None}
        >>> RemedyFinding(action="", exposed=0, outcome="pass", helps=False, **after).outcome
        'pass'
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
        models: Number of trained models.
        deciles: Deciles, over records, of the standard deviation of p(own class) over models.

    Example:
        >>> Variation(cause="initialisation", models=4, deciles=(0.05,) * 11).deciles[5]
        0.05
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
    """Share of the records predicted correctly by a model that was trained without them.

    Example:
        >>> AccuracyFinding(accuracy=0.9).accuracy
        0.9
    """

    accuracy: Probability


class TheoryEpsilon(BaseFinding, frozen=True, kw_only=True):
    """The ε that an accountant gives for the training: an upper bound if its assumptions hold.

    Example:
        >>> TheoryEpsilon(method="RDP", epsilon=25.6, note="by Poisson sampling").epsilon
        25.6
    """

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
