"""What an audit found. Frozen, with its meaning attached, to JSON and back without loss."""

import json
import math
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any, Literal, Self, TypeAlias

from epsilometer import _validate
from epsilometer.claims import Adjacency, PrivacyClaim, adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.references import BIBLIOGRAPHY

Direction: TypeAlias = Literal["present→absent", "absent→present", "both"]
Verdict: TypeAlias = Literal["refuted", "not refuted", "no claim", "no verdict"]


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
        method: A key of ``estimators.REGISTRY``.
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

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        _validate.open_unit(confidence=self.confidence)
        _validate.number(threshold=self.threshold)
        _validate.whole(1, n_in=self.n_in)
        _validate.whole(0, n_out=self.n_out)
        adjacency(self.adjacency)
        unknown = [key for key in self.cites if key not in BIBLIOGRAPHY]
        if unknown:
            raise InvalidArgument(f"Expected keys of the bibliography in cites, got {unknown}.")

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a claim of ``claimed_epsilon`` at this δ cannot be true. Invalid bounds never."""
        return self.valid and self.epsilon > claimed_epsilon

    def __str__(self) -> str:
        sure = f"{self.confidence:.4g} confidence" if self.valid else "NOT A VALID BOUND"
        return f"ε ≥ {self.epsilon:.4g} at δ = {self.delta:g} ({sure}, {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        return {"kind": "EpsilonLowerBound", **_plain(asdict(self))}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The bound that ``to_dict`` wrote."""
        return cls(**_fields_of(cls, plain))


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


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One audit: what was attacked, what was promised, what was found, and the verdict.

    The verdict rests on ``bound`` alone: choosing the largest of several bounds would cost
    confidence that nobody paid for. What else was computed stands in ``also``.

    Attributes:
        subject: What was audited, in words.
        claim: What was promised, if anything.
        bound: The bound that decides.
        also: Further bounds on the same observations, for comparison only.
        attack: How well the attack did.
        version: Version of epsilometer.
    """

    subject: str
    claim: PrivacyClaim | None
    bound: EpsilonLowerBound
    also: tuple[EpsilonLowerBound, ...] = ()
    attack: AttackSummary
    version: str

    def __post_init__(self) -> None:
        if self.claim is not None and self.claim.delta != self.bound.delta:
            raise InvalidArgument(
                f"Expected a bound at the claim's δ = {self.claim.delta!r}, "
                f"got one at {self.bound.delta!r}: an ε at another δ proves nothing about it."
            )

    @property
    def verdict(self) -> Verdict:
        """``refuted`` if the claim cannot be true; never from a bound that is not valid."""
        if self.claim is None:
            return "no claim"
        if not self.bound.valid:
            return "no verdict"
        return "refuted" if self.bound.refutes(self.claim.epsilon) else "not refuted"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": "AuditResult",
            "subject": self.subject,
            "verdict": self.verdict,
            "claim": None if self.claim is None else _plain(self.claim.to_dict()),
            "bound": self.bound.to_dict(),
            "also": [bound.to_dict() for bound in self.also],
            "attack": _plain(asdict(self.attack)),
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The result that ``to_dict`` wrote."""
        known = _fields_of(cls, {name: at for name, at in plain.items() if name != "verdict"})
        claim, attack = known["claim"], _fields_of(AttackSummary, known["attack"])
        attack["tpr_at_fpr"] = tuple(tuple(pair) for pair in attack["tpr_at_fpr"])
        return cls(
            subject=known["subject"],
            claim=None if claim is None else PrivacyClaim(**_fields_of(PrivacyClaim, claim)),
            bound=EpsilonLowerBound.from_dict(known["bound"]),
            also=tuple(EpsilonLowerBound.from_dict(bound) for bound in known.get("also", ())),
            attack=AttackSummary(**attack),
            version=known["version"],
        )


Result: TypeAlias = EpsilonLowerBound | AuditResult
_KINDS: dict[str, type[EpsilonLowerBound] | type[AuditResult]] = {
    "EpsilonLowerBound": EpsilonLowerBound,
    "AuditResult": AuditResult,
}


def to_json(result: Result) -> str:
    """The result as strict JSON text (no ``NaN``, no ``Infinity``)."""
    return json.dumps(result.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)


def from_json(text: str) -> Result:
    """The result that ``to_json`` wrote; anything else is an ``InvalidArgument``."""
    try:
        plain = json.loads(text)
        return _KINDS[plain["kind"]].from_dict(plain)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"Expected a result written by epsilometer as JSON, could not read it: {error!r}."
        ) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema that every result written by ``to_json`` satisfies."""
    text = resources.files("epsilometer").joinpath("schema/result.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case _:
            return value


def _fields_of(cls: type[Any], plain: dict[str, Any]) -> dict[str, Any]:
    """The values of ``plain`` as constructor arguments, with infinities and tuples restored."""
    names = {field.name for field in fields(cls)}
    extra = set(plain) - names - {"kind"}
    if extra:
        raise InvalidArgument(f"Expected the fields of {cls.__name__}, got also {sorted(extra)}.")
    return {name: _restored(item) for name, item in plain.items() if name in names}


def _restored(value: Any) -> Any:
    if value in ("inf", "-inf"):
        return float(value)
    return tuple(value) if isinstance(value, list) else value
