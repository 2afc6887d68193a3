"""Record what an audit found: one type per kind of finding, each with its meaning."""

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from epsilometer import _validate
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.plain import Plain, check_same_length
from epsilometer.errors import InvalidArgument

if TYPE_CHECKING:
    from epsilometer.core.judge import Conformance

Outcome: TypeAlias = Literal["pass", "fail", "unclear"]
Standing: TypeAlias = Literal["below", "above", "unclear"]
Swept: TypeAlias = Literal["samples", "unit"]
# Given by ``core.judge`` alone: ``judge_evidence`` and ``judge_limit``.
CheckOutcome: TypeAlias = Literal["violated", "conforms", "not tested", "remark"]


def _check_counts(name: str, counts: tuple[int, ...]) -> None:
    """Refuse anything but whole numbers from 0; hundreds of them in a few microseconds."""
    if not set(map(type, counts)) <= {int} or min(counts, default=0) < 0:
        for count in counts:
            _validate.whole(0, **{name: count})


class AttackSummary(Plain, frozen=True, kw_only=True):
    """How well the attack told the two worlds apart, before any bound.

    Attributes:
        auc: Chance that a score from inside exceeds one from outside, ties counted half.
        tpr_at_fpr: (FPR, TPR) pairs of the best single threshold at each FPR.
        n_in: Observations with the record.
        n_out: Observations without it.
    """

    auc: float
    tpr_at_fpr: tuple[tuple[float, float], ...]
    n_in: int
    n_out: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(auc=self.auc)
        _validate.whole(1, n_in=self.n_in, n_out=self.n_out)
        for fpr, tpr in self.tpr_at_fpr:
            _validate.probability(fpr=fpr, tpr=tpr)


class Curve(Plain, frozen=True, kw_only=True):
    """What some guarantee allows: the least FNR at each FPR, under its name."""

    name: str
    fpr: tuple[float, ...]
    fnr: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_same_length(self, "fpr", "fnr")


class Evidence(Plain, frozen=True, kw_only=True):
    """What the figures of a report are drawn from: some hundred numbers, whatever was observed.

    Attributes:
        fpr: False positive rates of the attack, rising.
        fnr: False negative rates beside them, falling.
        fpr_low: Lower limits of the band, beside them.
        fpr_high: Upper limits.
        fnr_low: Lower limits.
        fnr_high: Upper limits.
        band_confidence: With which all limits hold together.
        edges: Rising edges of the bins of scores; the outer bins also hold what lies beyond.
        inside_bins: Scores inside in each bin.
        outside_bins: Scores outside in each bin.
        growth: (observations, bound) pairs: what parts of the observations prove. Each holds at
            the bound's confidence alone, not all together.
        curves: What guarantees allow, beyond those that follow from the claim alone.
    """

    fpr: tuple[float, ...]
    fnr: tuple[float, ...]
    fpr_low: tuple[float, ...]
    fpr_high: tuple[float, ...]
    fnr_low: tuple[float, ...]
    fnr_high: tuple[float, ...]
    band_confidence: float
    edges: tuple[float, ...]
    inside_bins: tuple[int, ...]
    outside_bins: tuple[int, ...]
    growth: tuple[tuple[int, float], ...] = ()
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.open_unit(band_confidence=self.band_confidence)
        check_same_length(self, "fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high")
        check_same_length(self, "inside_bins", "outside_bins")
        if len(self.edges) != len(self.inside_bins) + 1:
            raise InvalidArgument(
                f"Expected one more edge than bins of scores, got {len(self.edges)} for "
                f"{len(self.inside_bins)}."
            )
        for name in ("inside_bins", "outside_bins"):
            _check_counts(name, getattr(self, name))
        for name in ("fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high"):
            rates = getattr(self, name)
            if rates and not 0 <= min(rates) <= max(rates) <= 1:
                raise InvalidArgument(f"Expected {name} in [0, 1], got {_validate.short(rates)}.")


class EpsilonFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What one adversary's view of the program proves about its ε.

    A claim is judged by ``bound`` and by what was computed without sampling: choosing the largest
    of several bounds would cost confidence that nobody paid for.

    Attributes:
        subject: What was attacked, and who sees what, in words.
        bound: The bound that decides.
        also: Further bounds on the same observations, for comparison only.
        estimates: ε by theory; each says by its ``role`` what it may decide.
        attack: How well the attack did.
        evidence: What its figures are drawn from.
        reach: The bound that a perfect attack would give on as many observations: no claim above
            it could have been refuted. None where nothing was claimed.
        power: The smallest true ε at which this audit refutes its claim with probability 0.8.
            None where nothing was claimed, infinite where no ε is large enough.
        units: Units of work that were planned for it; 1 where there was no run.
        used: Units whose observations it rests on; fewer where the run stopped early.
        failed: Units that raised or killed their worker. Their observations count against a
            refutation, and without one the claim cannot be judged.
    """

    subject: str
    bound: EpsilonLowerBound
    also: tuple[EpsilonLowerBound, ...] = ()
    estimates: tuple[EpsilonEstimate, ...] = ()
    attack: AttackSummary
    evidence: Evidence
    reach: float | None = None
    power: float | None = None
    units: int = 1
    used: int = 1
    failed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(0, units=self.units, used=self.used, failed=self.failed)
        if self.used + self.failed > self.units:
            raise InvalidArgument(
                f"Expected at most {self.units} units used and failed, "
                f"got {self.used} and {self.failed}."
            )
        for name, value in (("reach", self.reach), ("power", self.power)):
            if value is not None:
                _validate.at_least(0, **{name: value})
        if any(estimate.delta != self.bound.delta for estimate in self.estimates):
            raise InvalidArgument(f"Expected estimates at δ = {self.bound.delta!r}, got others.")

    @property
    def computed(self) -> EpsilonEstimate | None:
        """The largest ε that was computed without sampling, by its lower end."""
        exact = [e for e in self.estimates if e.confidence == 1 and e.role == "lower"]
        return max(exact, key=lambda estimate: estimate.low, default=None)

    @property
    def epsilon(self) -> float:
        """The largest ε that is proved; 0 where the bound is not valid and nothing was computed."""
        proved = [self.bound.epsilon] if self.bound.valid else []
        return max([*proved, *(estimate.lower for estimate in self.estimates)], default=0.0)


class SamplerFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What the sampler that was used costs, beside the one that was accounted for.

    Attributes:
        sampler: The one that was used, in words.
        accounted_epsilon: What accounting by Poisson sampling reports for these settings.
        needed_noise: Noise multiplier below which the claim is certainly false with this sampler;
            None where nothing was claimed.
        balls_in_bins: The ε of the same noise with balls in bins.
        published: The lower bound of Chua et al. for one epoch of shuffling; 0 for more epochs or
            other samplers, for which it is not stated.
    """

    sampler: str
    accounted_epsilon: float
    needed_noise: float | None
    balls_in_bins: EpsilonEstimate
    published: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.at_least(0, accounted_epsilon=self.accounted_epsilon, published=self.published)


class Check(Plain, frozen=True, kw_only=True):
    """What one check of conformance expected, and what it saw.

    Attributes:
        name: Of the check, as ``"noise scale"``.
        outcome: What follows. A remark is worth knowing, and breaks no claim.
        expected: What a right program shows, in words.
        seen: What this one showed, in words; the reason where it was not tested.
        value: The number that was measured; None where there is no single one.
        low: Lower limit on it; None where none was computed.
        high: Upper limit.
        log_e: Evidence against the program: natural logarithm of the largest e-value that the
            check had at any step. None where nothing was sampled.
        detail: Where it was seen, or what the test does, in a sentence.
        steps: Steps until it was violated; else those it was tested on.
    """

    name: str
    outcome: CheckOutcome
    expected: str
    seen: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    log_e: float | None = None
    detail: str = ""
    steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outcome not in get_args(CheckOutcome):
            raise InvalidArgument(
                f"Expected an outcome among {', '.join(get_args(CheckOutcome))}, "
                f"got {_validate.short(self.outcome)}."
            )
        _validate.whole(0, steps=self.steps)


class ConformanceFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """Whether the program that ran did what was accounted for.

    Guarantee: at most a share ``level`` of right programs is found violated, over a whole run and
        whenever it is stopped.
    Assumption: a right program adds independent Gaussian noise of at least the accounted scale.

    Attributes:
        checks: What was checked, and what could not be; the gravest first.
        steps: Steps that were seen.
        level: Chance of a violation on a right program, for all checks together.
        bound: The ε of what ran: of the noise that was measured, and of what a record was seen to
            add, by an adversary who inserts any gradient. None where that was not computed.
    """

    checks: tuple[Check, ...]
    steps: int
    level: float
    bound: EpsilonLowerBound | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(0, steps=self.steps)
        _validate.open_unit(level=self.level)
        names = [check.name for check in self.checks]
        if not names or len(set(names)) < len(names):
            raise InvalidArgument(
                f"Expected one check or more, each once, got {_validate.listed(names)}."
            )
        order = get_args(CheckOutcome)
        ordered = sorted(self.checks, key=lambda check: order.index(check.outcome))
        msgspec.structs.force_setattr(self, "checks", tuple(ordered))

    @property
    def verdict(self) -> "Conformance":
        """What follows from all checks, by ``epsilometer.core.judge`` alone."""
        from epsilometer.core.judge import judge_conformance

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


class RuleFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What one rule says.

    Attributes:
        rule: Which, in a few words ("no PDTP above 1").
        outcome: Whether it passes; unclear where the interval holds the limit, or more.
        finding: Why, in a sentence.
        value: What was measured; may be infinite.
        low: Lower end of the interval in which the truth lies.
        high: Upper end.
        limit: What the rule allows.
        confidence: That of both ends together; 1 where nothing was sampled.
    """

    rule: str
    outcome: Outcome
    finding: str
    value: float
    low: float
    high: float
    limit: float
    confidence: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.number(value=self.value, low=self.low, high=self.high, limit=self.limit)
        _validate.probability(confidence=self.confidence)


class LeaveOneOut(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
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
        super().__post_init__()
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
        _check_counts("bins", self.bins)
        _check_counts("floor_bins", self.floor_bins)


class MembershipFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
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
        super().__post_init__()
        _validate.probability(auc=self.auc, tpr=self.tpr, fpr=self.fpr)
        _validate.probability(tpr_low=self.tpr_low, tpr_high=self.tpr_high)
        _validate.open_unit(confidence=self.confidence)
        _validate.whole(1, n_in=self.n_in, n_out=self.n_out)
        check_same_length(self, "roc_fpr", "roc_tpr")


class GroupRisk(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
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
        super().__post_init__()
        _validate.whole(1, records=self.records)
        _validate.probability(exposed=self.exposed)


class RecordRisk(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """One record by its rank, and what makes it stand out. No value, label or name of it is here.

    Attributes:
        rank: Its place by risk, from 1; 0 where that is not known.
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
    """

    rank: int = 0
    row: int | None = None
    risk: float
    measure: str
    note: str
    shown: float
    unbinned: float
    floor: float | None = None
    edge_only: bool = False
    scores: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.number(risk=self.risk, shown=self.shown, unbinned=self.unbinned)
        _validate.whole(0, rank=self.rank)
        if self.row is not None:
            _validate.whole(0, row=self.row)


class RemovalPlan(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """Drop the riskiest, measure all again, stop when that no longer helps.

    Attributes:
        removed: Records dropped before each measurement, from 0.
        largest: The largest risk of those left.
        exposed: How many of those left are above the limit.
        accuracy: Share of those left that the model then predicts rightly.
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
        _check_counts("ranks", self.ranks)
        if self.ranks and len(self.ranks) != (self.removed[-1] if self.removed else 0):
            raise InvalidArgument(
                f"Expected as many ranks of records as were dropped, got {len(self.ranks)}."
            )


class RoundingStep(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
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
        super().__post_init__()
        _validate.probability(accuracy=self.accuracy)


class Variation(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
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
        super().__post_init__()
        _validate.whole(2, models=self.models)
        if len(self.deciles) != 11:
            raise InvalidArgument(f"Expected 11 deciles, 0 to 10, got {len(self.deciles)}.")


class AccuracyFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What share of its records the audited model predicts rightly."""

    accuracy: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.probability(accuracy=self.accuracy)


class PosteriorRuns(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What an audit of published predictions rests on.

    Attributes:
        delta: δ of all bounds.
        samples: Predictions drawn of every model.
        runs: Models trained with the record, and as many without it.
        diverged_inside: Of those with the record, that no longer predict numbers.
        diverged_outside: Of those without it.
        tested: Predictions of test records that utility was measured on.
    """

    delta: float
    samples: int
    runs: int
    diverged_inside: int
    diverged_outside: int
    tested: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.open_unit(delta=self.delta)
        _validate.whole(1, samples=self.samples, runs=self.runs)
        _validate.whole(
            0,
            diverged_inside=self.diverged_inside,
            diverged_outside=self.diverged_outside,
            tested=self.tested,
        )


class FormFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """One form of publishing: what it leaks of the record, and what it is worth to users.

    Attributes:
        form: In words, as ``"mean+std, to 0.01"``.
        shows: The kind of :class:`~epsilometer.audits.posterior.disclosure.ReleaseForm`.
        unit: To which numbers are rounded; None for as they are.
        samples: Predictions that it is made of.
        view: Its bound, of a learned attack on runs it was not learned from, decides. Beside
            it are valid bounds of joint thresholds, and the paper's, which are not valid.
        raw: The paper's estimate: the larger of its two decisions. No bound.
        advantage: TPR − FPR of the learned attack's own decision, on those runs.
        advantage_low: Lower limit on it.
        advantage_high: Upper limit on it and on its opposite's, also if lost runs had been hits.
        accuracy: Share of test records rightly labelled by what is published; None untested.
        ties: Share where two classes are largest, and no label can be given.
        calibration_error: Mean distance of confidence and accuracy.
        log_loss: Mean −ln of what is published for the true class.
        standing: On which side of the user's line it lies; it is no better than that of any form
            that can be made of it.
    """

    form: str
    shows: str
    unit: float | None
    samples: int
    view: EpsilonFinding
    raw: float
    advantage: float
    advantage_low: float
    advantage_high: float
    accuracy: float | None
    ties: float | None
    calibration_error: float | None
    log_loss: float | None
    standing: Standing

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(1, samples=self.samples)
        _validate.at_least(0, raw=self.raw)
        if self.log_loss is not None:
            _validate.at_least(0, log_loss=self.log_loss)
        _validate.at_least(
            -1,
            advantage=self.advantage,
            advantage_low=self.advantage_low,
            advantage_high=self.advantage_high,
        )

    @property
    def epsilon(self) -> float:
        """The bound that decides."""
        return self.view.bound.epsilon


class FormDifference(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """How much more one form leaks than another: the advantage of the first less the second's.

    The interval is a bootstrap's over the runs that attacks were not learned from, the same of both
    forms; each has its confidence alone.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    confidence: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.number(difference=self.difference, low=self.low, high=self.high)
        _validate.open_unit(confidence=self.confidence)


class SweepPoint(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """A form with another number of samples, or rounded to another unit; it decides nothing.

    Attributes:
        swept: What was varied.
        shows: The kind of the form.
        unit: To which numbers are rounded.
        samples: Predictions that it is made of.
        epsilon: Bound of the learned attack, at the audit's confidence alone.
        raw: The paper's estimate. No bound.
        advantage: Of the learned attack.
        accuracy: Of what is published.
        ties: Share of test records without a label.
    """

    swept: Swept
    shows: str
    unit: float | None
    samples: int
    epsilon: float
    raw: float
    advantage: float
    accuracy: float | None
    ties: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.whole(1, samples=self.samples)
        _validate.at_least(0, epsilon=self.epsilon, raw=self.raw)


class FormPlan(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """The finest form that stays below the user's line.

    Attributes:
        epsilon: The line: no form may be proved to leak more.
        advantage: And of none may the attack's advantage exceed this.
        forms: All forms that were audited, finest first.
        chosen: The first of these that stays below the line; None where none does.
        pareto: Forms that no other beats in both log loss and advantage.
        advice: What to do, in sentences.
    """

    epsilon: float
    advantage: float
    forms: tuple[str, ...]
    chosen: str | None
    pareto: tuple[str, ...]
    advice: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.at_least(0, epsilon=self.epsilon)
        _validate.probability(advantage=self.advantage)
        if self.chosen not in (None, *self.forms):
            raise InvalidArgument(
                f"Expected a form that was audited, got {_validate.short(self.chosen)}."
            )


class TheoryEpsilon(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """What an accountant says of the training: an upper bound, where its assumptions hold."""

    method: str
    epsilon: float
    note: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.at_least(0, epsilon=self.epsilon)


Finding: TypeAlias = (
    EpsilonFinding
    | ConformanceFinding
    | SamplerFinding
    | RuleFinding
    | LeaveOneOut
    | MembershipFinding
    | GroupRisk
    | RecordRisk
    | RemovalPlan
    | RoundingStep
    | Variation
    | AccuracyFinding
    | PosteriorRuns
    | FormFinding
    | FormDifference
    | SweepPoint
    | FormPlan
    | TheoryEpsilon
)
