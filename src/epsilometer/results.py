"""What an audit found. Frozen, with its meaning attached, to JSON and back without loss."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer.claims import Adjacency, PrivacyClaim, adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.plain import fields_of, named, plain_values, restored, same_length, settle
from epsilometer.references import BIBLIOGRAPHY

if TYPE_CHECKING:
    from epsilometer.posterior import PosteriorAudit
    from epsilometer.release import ReleaseAudit

Direction: TypeAlias = Literal["present→absent", "absent→present", "both"]
Verdict: TypeAlias = Literal["refuted", "not refuted", "no claim", "no verdict"]
Basis: TypeAlias = tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class EpsilonLowerBound:
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
        threshold_rule: How the threshold was chosen, and so what was paid for it.
        valid: False when the method or rule gives no guarantee; ``caveats`` says why.
        direction: Which of the two directions of the definition gave the bound.
        threshold: The attack says "in" iff score ≥ threshold (the upper one, where two are used).
        n_in: Observations with the record.
        n_out: Observations without it; 0 where the law without it is known exactly.
        adjacency: The neighbouring relation it was measured under.
        adversary: Whose view the scores were computed from, in words.
        seed: Seed of whatever was random in the estimate.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs that the method's formula takes: what was counted where the
            bound was found, and the level that was spent there. ``explain`` puts them in.
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    threshold_rule: str
    valid: bool
    direction: Direction
    threshold: float
    n_in: int
    n_out: int
    adjacency: Adjacency = "unstated"
    adversary: str = "unstated"
    seed: int = 0
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.open_unit(confidence=self.confidence)
        _validate.number(threshold=self.threshold)
        _validate.whole(1, n_in=self.n_in)
        _validate.whole(0, n_out=self.n_out)
        adjacency(self.adjacency)
        if not isinstance(self.valid, (bool, np.bool_)):
            raise InvalidArgument(f"Expected valid to be True or False, got {self.valid!r}.")
        known_cites(self.cites)
        settle(self)
        settle_basis(self)

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a claim of ``claimed_epsilon`` at this δ cannot be true. Invalid bounds never."""
        return self.valid and self.epsilon > claimed_epsilon

    def __str__(self) -> str:
        sure = f"{self.confidence:.4g} confidence" if self.valid else "NOT A VALID BOUND"
        return f"ε ≥ {self.epsilon:.4g} at δ = {self.delta:g} ({sure}, {self.method})"

    def _repr_html_(self) -> str:
        seen = f"{self.n_in:,} with the record, {self.n_out:,} without it"
        beware = (("beware", caveat) for caveat in self.caveats)
        return html_table(str(self), [("observations", seen), *beware])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        return {"kind": "EpsilonLowerBound", **plain_values(asdict(self))}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The bound that ``to_dict`` wrote."""
        return cls(**fields_of(cls, plain))


@dataclass(frozen=True, kw_only=True)
class EpsilonEstimate:
    """What ε is, by computation or sampling; not a bound from an attack on a real run.

    Attributes:
        epsilon: The estimate.
        low: Lower end: of the numerical error where ``confidence`` is 1, else of the interval.
        high: Upper end.
        delta: The δ at which it holds.
        confidence: Two-sided confidence of the interval; 1 where nothing was sampled.
        method: How it was computed.
        direction: Which direction of the definition gave it; the larger where both were asked.
        subject: Whose ε it is, in words.
        adjacency: The neighbouring relation.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs that the method's formula takes.
    """

    epsilon: float
    low: float
    high: float
    delta: float
    confidence: float
    method: str
    direction: Direction
    subject: str
    adjacency: Adjacency = "unstated"
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon, low=self.low, high=self.high)
        _validate.probability(delta=self.delta, confidence=self.confidence)
        adjacency(self.adjacency)
        known_cites(self.cites)
        if not self.low <= self.epsilon <= self.high:
            raise InvalidArgument(
                f"Expected low ≤ epsilon ≤ high, got {self.low!r}, {self.epsilon!r}, {self.high!r}."
            )
        settle(self)
        settle_basis(self)

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a claim at this δ cannot be true. What was sampled never does; a bound may."""
        return self.confidence == 1 and self.low > claimed_epsilon

    def __str__(self) -> str:
        sure = "numerical error" if self.confidence == 1 else f"{self.confidence:.4g} confidence"
        ends = f"{self.low:.4g} to {self.high:.4g}, {sure}"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({ends}, {self.method})"

    def _repr_html_(self) -> str:
        return html_table(str(self), [("of", self.subject), *(("beware", c) for c in self.caveats)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        return {"kind": "EpsilonEstimate", **plain_values(asdict(self))}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The estimate that ``to_dict`` wrote."""
        return cls(**fields_of(cls, plain))


@dataclass(frozen=True, kw_only=True)
class AttackSummary:
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
        _validate.probability(auc=self.auc)
        _validate.whole(1, n_in=self.n_in, n_out=self.n_out)
        for fpr, tpr in self.tpr_at_fpr:
            _validate.probability(fpr=fpr, tpr=tpr)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What some guarantee allows: the least FNR at each FPR, under its name."""

    name: str
    fpr: tuple[float, ...]
    fnr: tuple[float, ...]

    def __post_init__(self) -> None:
        same_length(self, "fpr", "fnr")


@dataclass(frozen=True, kw_only=True)
class Evidence:
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
        _validate.open_unit(band_confidence=self.band_confidence)
        same_length(self, "fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high")
        same_length(self, "inside_bins", "outside_bins")
        if len(self.edges) != len(self.inside_bins) + 1:
            raise InvalidArgument(
                f"Expected one more edge than bins of scores, got {len(self.edges)} for "
                f"{len(self.inside_bins)}."
            )
        for inside, outside in zip(self.inside_bins, self.outside_bins, strict=True):
            _validate.whole(0, inside_bins=inside, outside_bins=outside)


@dataclass(frozen=True, kw_only=True)
class RecordRisk:
    """How exposed one record is.

    Attributes:
        record: Its name, as the user wrote it.
        risk: How exposed, larger is worse; may be infinite.
        measure: What ``risk`` is, in words ("PDTP", "attack score").
        group: Its class or group, where it has one.
        note: What a reader must know about this value.
    """

    record: str
    risk: float
    measure: str
    group: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        _validate.number(risk=self.risk)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """All that is needed to do it again. Holds nothing that a second run would not repeat.

    Attributes:
        command: The command or call.
        versions: (package, version) pairs.
        inputs: (name, SHA-256) pairs of what was read.
        plan: Hash of the run's plan; empty where there was no run.
        units: Units of work that were planned.
        used: Units whose observations the result rests on; fewer where the run stopped early.
        failed: Units that raised or killed their worker; their observations count against
            a refutation, and without one there is no verdict.
    """

    command: str
    versions: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, str], ...] = ()
    plan: str = ""
    units: int = 1
    used: int = 1
    failed: int = 0

    def __post_init__(self) -> None:
        _validate.whole(0, units=self.units, used=self.used, failed=self.failed)
        if self.used + self.failed > self.units:
            raise InvalidArgument(
                f"Expected at most {self.units} units used and failed, "
                f"got {self.used} and {self.failed}."
            )


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One audit: what was attacked, what was promised, what was found, and the verdict.

    The verdict rests on ``bound``, and on what was computed without sampling: choosing the largest
    of several bounds would cost confidence that nobody paid for. Other bounds stand in ``also``.

    Attributes:
        subject: What was audited, in words.
        claim: What was promised, if anything.
        bound: The bound that decides.
        also: Further bounds on the same observations, for comparison only.
        estimates: The ε of what was audited, by theory.
        attack: How well the attack did.
        evidence: What its figures are drawn from.
        records: Risks of single records, where they were measured.
        provenance: How to do it again.
    """

    subject: str
    claim: PrivacyClaim | None
    bound: EpsilonLowerBound
    also: tuple[EpsilonLowerBound, ...] = ()
    estimates: tuple[EpsilonEstimate, ...] = ()
    attack: AttackSummary
    evidence: Evidence
    records: tuple[RecordRisk, ...] = ()
    provenance: Provenance

    def __post_init__(self) -> None:
        if self.claim is not None and self.claim.delta != self.bound.delta:
            raise InvalidArgument(
                f"Expected a bound at the claim's δ = {self.claim.delta!r}, "
                f"got one at {self.bound.delta!r}: an ε at another δ proves nothing about it."
            )
        if any(estimate.delta != self.bound.delta for estimate in self.estimates):
            raise InvalidArgument(f"Expected estimates at δ = {self.bound.delta!r}, got others.")

    @property
    def computed(self) -> EpsilonEstimate | None:
        """The largest ε that was computed without sampling, by its lower end."""
        exact = [estimate for estimate in self.estimates if estimate.confidence == 1]
        return max(exact, key=lambda estimate: estimate.low, default=None)

    @property
    def verdict(self) -> Verdict:
        """``refuted`` if the claim cannot be true; never by a bound that is not valid.

        Where units failed, what they would have shown counts against a refutation; and if the
        claim stands, that may be because they failed, so there is no verdict.
        """
        if self.claim is None:
            return "no claim"
        computed = self.computed is not None and self.computed.refutes(self.claim.epsilon)
        if computed or self.bound.refutes(self.claim.epsilon):
            return "refuted"
        return "not refuted" if self.bound.valid and not self.provenance.failed else "no verdict"

    @property
    def audits(self) -> tuple["AuditResult", ...]:
        """Itself, so that one audit and a group of them are read alike."""
        return (self,)

    def _repr_html_(self) -> str:
        claim = self.claim
        promised = "nothing" if claim is None else f"ε = {claim.epsilon:.4g} at δ = {claim.delta:g}"
        rows = [("promised", promised), ("proved", str(self.bound))]
        rows += [("beside it", str(other)) for other in (*self.also, *self.estimates)]
        rows += [("beware", caveat) for caveat in self.bound.caveats]
        return html_table(f"{self.subject}: {self.verdict}", rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = plain_values(asdict(self))
        del parts["subject"]  # stands first
        parts["bound"] = self.bound.to_dict()
        parts["also"] = [bound.to_dict() for bound in self.also]
        parts["estimates"] = [estimate.to_dict() for estimate in self.estimates]
        return {"kind": "AuditResult", "subject": self.subject, "verdict": self.verdict, **parts}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The result that ``to_dict`` wrote."""
        without = {name: value for name, value in plain.items() if name != "verdict"}
        return cls(**fields_of(cls, without))


@dataclass(frozen=True, kw_only=True)
class AuditGroup:
    """Audits side by side. Each keeps its own confidence; nothing is concluded from the largest.

    Attributes:
        subject: What they have in common, in words.
        results: The audits, in the order they are shown.
    """

    subject: str
    results: tuple[AuditResult, ...]

    def __post_init__(self) -> None:
        if not self.results:
            raise InvalidArgument("Expected at least one audit in a group, got none.")

    @property
    def audits(self) -> tuple[AuditResult, ...]:
        """The audits."""
        return self.results

    def _repr_html_(self) -> str:
        rows = ((audit.subject, audit.verdict, str(audit.bound)) for audit in self.results)
        return html_table(self.subject, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        audits = [result.to_dict() for result in self.results]
        return {"kind": "AuditGroup", "subject": self.subject, "results": audits}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The group that ``to_dict`` wrote."""
        named(cls, plain)
        if not isinstance(plain["results"], list):
            raise InvalidArgument(
                f"Expected a list of audits in results, got {_validate.short(plain['results'])}."
            )
        return cls(
            subject=restored("subject", plain["subject"], str),
            results=tuple(AuditResult.from_dict(result) for result in plain["results"]),
        )


Audit: TypeAlias = "AuditResult | AuditGroup | ReleaseAudit | PosteriorAudit"
Result: TypeAlias = "EpsilonLowerBound | AuditResult | AuditGroup | ReleaseAudit | PosteriorAudit"


def to_json(result: "Result | EpsilonEstimate") -> str:
    """The result as strict JSON text (no ``NaN``, no ``Infinity``)."""
    return json.dumps(result.to_dict(), indent=2, allow_nan=False)


def from_json(text: str) -> "Result | EpsilonEstimate":
    """The result that ``to_json`` wrote; anything else is an ``InvalidArgument``."""
    try:
        plain = json.loads(text)
        return _kind(plain["kind"]).from_dict(plain)
    except InvalidArgument:
        raise
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InvalidArgument(
            "Expected a result that epsilometer wrote as JSON; this is something else, or damaged."
        ) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema that every result written by ``to_json`` satisfies."""
    text = resources.files("epsilometer").joinpath("schema/result.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _kind(name: str) -> "type[Result | EpsilonEstimate]":
    """The type of a result, by its name."""
    # Here, since they are made of what stands above.
    from epsilometer.posterior import PosteriorAudit
    from epsilometer.release import ReleaseAudit

    kinds: tuple[type[Result | EpsilonEstimate], ...] = (
        EpsilonLowerBound,
        EpsilonEstimate,
        AuditResult,
        AuditGroup,
        ReleaseAudit,
        PosteriorAudit,
    )
    return {kind.__name__: kind for kind in kinds}[name]


def html_table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A small table for notebooks, in which whatever somebody wrote stays text."""
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def settle_basis(result: EpsilonLowerBound | EpsilonEstimate) -> None:
    """Plain Python numbers in its basis too, none of them nan."""
    basis = tuple((name, float(value)) for name, value in result.basis)
    for name, value in basis:
        _validate.number(**{name: value})
    object.__setattr__(result, "basis", basis)


def known_cites(cites: tuple[str, ...]) -> None:
    """Refuses what the bibliography does not hold."""
    unknown = [key for key in cites if key not in BIBLIOGRAPHY]
    if unknown:
        raise InvalidArgument(
            f"Expected keys of the bibliography in cites, got {_validate.listed(unknown)}."
        )
