"""Define records of what is known about ε: bounds, estimates, and findings that hold them."""

from typing import Any, Literal, Protocol, TypeAlias, get_args

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.core.claim import Adjacency, check_adjacency
from epsilometer.core.plain import (
    Confidence,
    Count,
    Nonnegative,
    Number,
    Plain,
    PositiveCount,
    Probability,
    check_cites,
    check_counts,
    check_same_length,
    make_html_table,
    to_plain,
)
from epsilometer.core.scores import Design, describe_design
from epsilometer.errors import InvalidArgument

Direction: TypeAlias = Literal["present→absent", "absent→present", "both"]
Basis: TypeAlias = tuple[tuple[str, float], ...]
Outcome: TypeAlias = Literal["pass", "fail", "unclear"]
# Given by ``core.judge`` alone: ``judge_evidence`` and ``judge_limit``.
CheckOutcome: TypeAlias = Literal["violated", "conforms", "not tested", "remark"]
Role: TypeAlias = Literal["lower", "upper", "reference"]


class EpsilonLowerBound(Plain, frozen=True, kw_only=True):
    """With probability at least ``confidence``, no (ε, δ)-DP claim below ``epsilon`` is true.

    That sentence holds only where ``valid`` is true, and under what ``method`` assumes
    (``epsilometer methods`` prints it). A bound of 0 means that nothing was found, not that
    nothing is there.

    Attributes:
        epsilon: The bound.
        delta: The δ at which it holds.
        confidence: One-sided: the bound exceeds the true ε in at most ``1 - confidence`` of audits.
        method: A key of ``estimators.REGISTRY``; or ``poisson_family`` of ``accounting.family``,
            ``cosines`` and ``mean_cosine`` of ``stats.sphere_bounds``.
        threshold_rule: How the threshold was chosen, and so what the choice cost.
        valid: False when the method or rule gives no guarantee; ``caveats`` says why.
        direction: Which of the two directions of the definition gave the bound.
        threshold: The attack says "in" iff score ≥ threshold (the upper one, where two are used).
        n_in: Observations with the record.
        n_out: Observations without it; 0 where their distribution is known exactly.
        design: How the scores were drawn, as in ``Scores``; ``unstated`` if there are no scores.
        inclusion: The probability that each canary is included.
        adjacency: The neighbouring relation it was measured under.
        adversary: Whose view the scores were computed from, in words.
        seed: Seed of all randomness in the estimate.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs of the method's formula: counts at the threshold that gave the
            bound, and the level that was spent there. ``explain`` substitutes them.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(inside=[2.0] * 100, outside=[0.0] * 100)
        >>> print(em.epsilon_lower_bound(scores, delta=1e-5))
        ε ≥ 4.183 at δ = 1e-05 (0.95 confidence, calibrated)
    """

    epsilon: Nonnegative
    delta: Probability
    confidence: Confidence
    method: str
    threshold_rule: str
    valid: bool
    direction: Direction
    threshold: Number
    n_in: PositiveCount
    n_out: Count
    design: Design | Literal["unstated"] = "unstated"
    inclusion: Probability = 0.5
    adjacency: Adjacency = "unstated"
    adversary: str = "unstated"
    seed: int = 0
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adjacency(self.adjacency)
        if not isinstance(self.valid, (bool, np.bool_)):
            raise InvalidArgument(f"Expected valid to be True or False, got {self.valid!r}.")
        check_cites(self.cites)
        _normalise_basis(self)

    def refutes(self, claimed_epsilon: float) -> bool:
        """Tell whether a claim of ``claimed_epsilon`` at this δ is false; invalid bounds never."""
        return self.valid and self.epsilon > claimed_epsilon

    def __str__(self) -> str:
        sure = f"{self.confidence:.4g} confidence" if self.valid else "NOT A VALID BOUND"
        return f"ε ≥ {self.epsilon:.4g} at δ = {self.delta:g} ({sure}, {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def _repr_html_(self) -> str:
        counts = f"{self.n_in:,} with the record, {self.n_out:,} without it"
        rows = [("observations", counts), ("design", describe_design(self.design, self.inclusion))]
        rows += [("caveat", caveat) for caveat in self.caveats]
        return make_html_table(str(self), [row for row in rows if row[1]])


class EpsilonEstimate(Plain, frozen=True, kw_only=True):
    """An ε by computation or sampling; not a bound from an attack on a real run.

    Attributes:
        epsilon: The estimate.
        low: Lower end of the numerical error where ``confidence`` is 1, else of the interval.
        high: Upper end.
        delta: The δ at which it holds.
        confidence: Two-sided confidence of the interval; 1 where nothing was sampled.
        method: How it was computed.
        direction: Which direction of the definition gave it; the larger if both were computed.
        subject: What the ε is of, in words.
        role: What it may decide. ``lower``: ``low`` is at most the ε of what was audited.
            ``upper``: ``high`` is at least that, by assumptions that were checked on this run.
            ``reference``: the ε of something else, or an estimate; it decides nothing.
        adjacency: The neighbouring relation.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs of the method's formula.

    Example:
        >>> import epsilometer as em
        >>> print(em.shuffle_epsilon(noise_multiplier=1.0, steps=100, delta=1e-5))
        ε = 4.066 at δ = 1e-05 (4.066 to 4.066, numerical error, exact)
    """

    epsilon: Nonnegative
    low: Nonnegative
    high: Nonnegative
    delta: Probability
    confidence: Probability
    method: str
    direction: Direction
    subject: str
    role: Role = "lower"
    adjacency: Adjacency = "unstated"
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adjacency(self.adjacency)
        check_cites(self.cites)
        if not self.low <= self.epsilon <= self.high:
            raise InvalidArgument(
                f"Expected low ≤ epsilon ≤ high, got {self.low!r}, {self.epsilon!r}, {self.high!r}."
            )
        _normalise_basis(self)

    @property
    def lower(self) -> float:
        """The computed lower bound on the audited program's ε; 0 where unknown."""
        return self.low if self.confidence == 1 and self.role == "lower" else 0.0

    @property
    def upper(self) -> float:
        """The computed upper bound on the audited program's ε; ∞ where unknown."""
        return self.high if self.confidence == 1 and self.role == "upper" else float("inf")

    def refutes(self, claimed_epsilon: float) -> bool:
        """Tell whether a claim at this δ is false; sampled estimates never refute one."""
        return self.lower > claimed_epsilon

    def __str__(self) -> str:
        sure = "numerical error" if self.confidence == 1 else f"{self.confidence:.4g} confidence"
        ends = f"{self.low:.4g} to {self.high:.4g}, {sure}"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({ends}, {self.method})"


class CheckedRun(Protocol):
    """Results of checking a run: its checks, and the ε that follows from measurements."""

    @property
    def checks(self) -> "tuple[Check, ...]":
        """What was checked, the most severe first."""
        ...

    @property
    def bound(self) -> EpsilonLowerBound | None:
        """A bound on the ε of the run; None where it was not computed."""
        ...


class BaseFinding(Plain, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """Base of all findings; the judge ignores those that override no property."""

    @property
    def views(self) -> "tuple[EpsilonFinding, ...]":
        """Findings that bound ε, including nested ones."""
        return ()

    @property
    def checked_run(self) -> CheckedRun | None:
        """The checked run, if this finding says whether the program did what was accounted for."""
        return None

    @property
    def release_rule(self) -> "RuleFinding | None":
        """The rule, if this finding says whether something may be published."""
        return None


class AttackSummary(Plain, frozen=True, kw_only=True):
    """How well the attack distinguished runs with the record from runs without it.

    Attributes:
        auc: Chance that a score from inside exceeds one from outside, ties counted half.
        tpr_at_fpr: (FPR, TPR) pairs of the best single threshold at each FPR.
        n_in: Observations with the record.
        n_out: Observations without it.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5)
        >>> audit.views[0].attack.auc, audit.views[0].attack.n_in
        (1.0, 90)
    """

    auc: Probability
    tpr_at_fpr: tuple[tuple[float, float], ...]
    n_in: PositiveCount
    n_out: PositiveCount

    def __post_init__(self) -> None:
        super().__post_init__()
        for fpr, tpr in self.tpr_at_fpr:
            _validate.probability(fpr=fpr, tpr=tpr)


class Curve(Plain, frozen=True, kw_only=True):
    """A named trade-off curve: the smallest FNR that a guarantee allows at each FPR.

    Example:
        >>> import epsilometer as em
        >>> em.findings.Curve(name="perfect privacy", fpr=(0.0, 1.0), fnr=(1.0, 0.0)).fnr
        (1.0, 0.0)
    """

    name: str
    fpr: tuple[float, ...]
    fnr: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_same_length(self, "fpr", "fnr")


class Evidence(Plain, frozen=True, kw_only=True):
    """Data of a report's figures: some hundred numbers, however many observations there were.

    Attributes:
        fpr: False positive rates of the attack, rising.
        fnr: False negative rates at these, falling.
        fpr_low: Lower limits on the false positive rates.
        fpr_high: Upper limits.
        fnr_low: Lower limits on the false negative rates.
        fnr_high: Upper limits.
        band_confidence: Confidence with which all limits hold together.
        edges: Rising edges of the bins of scores; the outer bins also hold all scores beyond them.
        inside_bins: Number of scores inside in each bin.
        outside_bins: Number of scores outside in each bin.
        growth: (observations, bound) pairs for parts of the observations. Each bound holds at its
            own confidence, not all together.
        curves: Trade-off curves of guarantees other than the claim.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([2.0, 1.0] * 90, [0.0, 1.0] * 90), 1.0, delta=1e-5)
        >>> audit.evidence[0].fpr, audit.evidence[0].fnr
        ((0.0, 0.0, 0.5, 1.0), (1.0, 0.5, 0.0, 0.0))
    """

    fpr: tuple[float, ...]
    fnr: tuple[float, ...]
    fpr_low: tuple[float, ...]
    fpr_high: tuple[float, ...]
    fnr_low: tuple[float, ...]
    fnr_high: tuple[float, ...]
    band_confidence: Confidence
    edges: tuple[float, ...]
    inside_bins: tuple[int, ...]
    outside_bins: tuple[int, ...]
    growth: tuple[tuple[int, float], ...] = ()
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_same_length(self, "fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high")
        check_same_length(self, "inside_bins", "outside_bins")
        if len(self.edges) != len(self.inside_bins) + 1:
            raise InvalidArgument(
                f"Expected one more edge than bins of scores, got {len(self.edges)} for "
                f"{len(self.inside_bins)}."
            )
        for name in ("inside_bins", "outside_bins"):
            check_counts(name, getattr(self, name))
        for name in ("fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high"):
            rates = getattr(self, name)
            if rates and not 0 <= min(rates) <= max(rates) <= 1:
                raise InvalidArgument(f"Expected {name} in [0, 1], got {_validate.short(rates)}.")


class EpsilonFinding(BaseFinding, frozen=True, kw_only=True):
    """What one adversary's view of the program proves about its ε.

    A claim is judged by ``bound`` and by estimates computed without sampling. The largest of
    several bounds would not hold at the stated confidence.

    Attributes:
        subject: What was attacked, and who sees what, in words.
        bound: The bound that decides.
        also: Further bounds on the same observations, for comparison only.
        estimates: ε by theory; the ``role`` of each says what it may decide.
        attack: How well the attack performed.
        evidence: Data of the figures.
        reach: The bound that a perfect attack would give on as many observations: no claim above
            it could have been refuted. None without a claim.
        power: The smallest true ε at which this audit refutes its claim with probability 0.8.
            None without a claim, infinite where no ε is large enough.
        units: Planned units of work; 1 where there was no run.
        used: Units whose observations were used; fewer where the run stopped early.
        failed: Units that raised or killed their worker. Their observations count against a
            refutation, and without one the claim cannot be judged.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5)
        >>> found = audit.one(em.findings.EpsilonFinding)
        >>> round(found.epsilon, 2), round(found.power, 2)
        (4.08, 5.78)
    """

    subject: str
    bound: EpsilonLowerBound
    also: tuple[EpsilonLowerBound, ...] = ()
    estimates: tuple[EpsilonEstimate, ...] = ()
    attack: AttackSummary
    evidence: Evidence
    reach: Nonnegative | None = None
    power: Nonnegative | None = None
    units: Count = 1
    used: Count = 1
    failed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.used + self.failed > self.units:
            raise InvalidArgument(
                f"Expected at most {self.units} units used and failed, "
                f"got {self.used} and {self.failed}."
            )
        if any(estimate.delta != self.bound.delta for estimate in self.estimates):
            raise InvalidArgument(f"Expected estimates at δ = {self.bound.delta!r}, got others.")

    @property
    def views(self) -> "tuple[EpsilonFinding, ...]":
        """This finding itself."""
        return (self,)

    @property
    def computed(self) -> EpsilonEstimate | None:
        """The estimate computed without sampling that has the largest lower end."""
        exact = [e for e in self.estimates if e.confidence == 1 and e.role == "lower"]
        return max(exact, key=lambda estimate: estimate.low, default=None)

    @property
    def epsilon(self) -> float:
        """The largest proved ε; 0 where the bound is not valid and nothing was computed."""
        proved = [self.bound.epsilon] if self.bound.valid else []
        return max([*proved, *(estimate.lower for estimate in self.estimates)], default=0.0)


class Check(Plain, frozen=True, kw_only=True):
    """What one conformance check expected, and what it measured.

    Attributes:
        name: Name of the check, as ``"noise scale"``.
        outcome: Outcome of the check. A remark is worth knowing, and breaks no claim.
        expected: What a correct program shows, in words.
        seen: What this program showed, in words; the reason where it was not tested.
        value: The measured number; None where there is no single one.
        low: Lower limit on it; None where it was not computed.
        high: Upper limit.
        log_e: Evidence against the program: natural logarithm of the largest e-value of the check
            at any step. None where nothing was sampled.
        detail: Where it was found, or what the test does, in a sentence.
        steps: Steps until the violation, otherwise all steps of the check.

    Example:
        >>> import epsilometer as em
        >>> noise = em.findings.Check(
        ...     name="noise scale", outcome="violated", expected="noise of the accounted scale",
        ...     seen="0.5 of the accounted scale", value=0.5, low=0.47, high=0.52, steps=2,
        ... )
        >>> noise.outcome, noise.value
        ('violated', 0.5)
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
    steps: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outcome not in get_args(CheckOutcome):
            raise InvalidArgument(
                f"Expected an outcome among {', '.join(get_args(CheckOutcome))}, "
                f"got {_validate.short(self.outcome)}."
            )


class RuleFinding(BaseFinding, frozen=True, kw_only=True):
    """The result of one release rule.

    Attributes:
        rule: The rule in a few words ("no PDTP above 1").
        outcome: Whether it passes; unclear where the interval does not decide.
        finding: The reason, in a sentence.
        value: The measured number; may be infinite.
        low: Lower end of the interval in which the truth lies.
        high: Upper end.
        limit: What the rule allows.
        confidence: Confidence of both ends together; 1 where nothing was sampled.

    Example:
        >>> import epsilometer as em
        >>> rule = em.findings.RuleFinding(
        ...     rule="PDTP at most 1", outcome="fail", finding="3 of 40 records are above 1.",
        ...     value=0.075, low=0.075, high=0.075, limit=0.0, confidence=1.0,
        ... )
        >>> rule.outcome
        'fail'
    """

    rule: str
    outcome: Outcome
    finding: str
    value: Number
    low: Number
    high: Number
    limit: Number
    confidence: Probability

    @property
    def release_rule(self) -> "RuleFinding":
        """This finding itself."""
        return self


def _normalise_basis(result: EpsilonLowerBound | EpsilonEstimate) -> None:
    """Convert the checked numbers of a basis to Python floats."""
    basis = tuple((name, float(value)) for name, value in result.basis)
    msgspec.structs.force_setattr(result, "basis", basis)
