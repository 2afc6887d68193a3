"""What an audit found. Frozen, with its meaning attached, to JSON and back without loss."""

import json
import math
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any, Literal, Self, TypeAlias, get_args, get_origin

import numpy as np

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
        if not isinstance(self.valid, (bool, np.bool_)):
            raise InvalidArgument(f"Expected valid to be True or False, got {self.valid!r}.")
        unknown = [key for key in self.cites if key not in BIBLIOGRAPHY]
        if unknown:
            raise InvalidArgument(f"Expected keys of the bibliography in cites, got {unknown}.")
        _settle(self)

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

    def __post_init__(self) -> None:
        _validate.probability(auc=self.auc)
        _validate.whole(1, n_in=self.n_in, n_out=self.n_out)
        for fpr, tpr in self.tpr_at_fpr:
            _validate.probability(fpr=fpr, tpr=tpr)
        _settle(self)


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
        _named(cls, {name: value for name, value in plain.items() if name != "verdict"})
        if not isinstance(plain["also"], list):
            raise InvalidArgument("Expected a list of bounds in also.")
        claim = plain["claim"]
        return cls(
            subject=_restored("subject", plain["subject"], str),
            claim=None if claim is None else PrivacyClaim(**_fields_of(PrivacyClaim, claim)),
            bound=EpsilonLowerBound.from_dict(plain["bound"]),
            also=tuple(EpsilonLowerBound.from_dict(bound) for bound in plain["also"]),
            attack=AttackSummary(**_fields_of(AttackSummary, plain["attack"])),
            version=_restored("version", plain["version"], str),
        )


Result: TypeAlias = EpsilonLowerBound | AuditResult
_KINDS: dict[str, type[EpsilonLowerBound] | type[AuditResult]] = {
    "EpsilonLowerBound": EpsilonLowerBound,
    "AuditResult": AuditResult,
}


def to_json(result: Result) -> str:
    """The result as strict JSON text (no ``NaN``, no ``Infinity``)."""
    return json.dumps(result.to_dict(), indent=2, allow_nan=False)


def from_json(text: str) -> Result:
    """The result that ``to_json`` wrote; anything else is an ``InvalidArgument``."""
    try:
        plain = json.loads(text)
        return _KINDS[plain["kind"]].from_dict(plain)
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


def _fields_of(cls: type[Any], plain: Any) -> dict[str, Any]:
    """The values of ``plain`` as constructor arguments: of the right kind, nothing missing."""
    _named(cls, plain)
    return {
        field.name: _restored(field.name, plain[field.name], field.type) for field in fields(cls)
    }


def _named(cls: type[Any], plain: Any) -> None:
    """Refuses anything but a JSON object with the fields of ``cls``."""
    if not isinstance(plain, dict) or plain.get("kind", cls.__name__) != cls.__name__:
        raise InvalidArgument(f"Expected {cls.__name__} as a JSON object, got {str(plain)[:60]!r}.")
    odd = sorted((set(plain) - {"kind"}) ^ {field.name for field in fields(cls)})
    if odd:
        raise InvalidArgument(f"Expected the fields of {cls.__name__}; missing or unknown: {odd}.")


def _restored(name: str, value: Any, kind: Any) -> Any:
    """A value as its field holds it; ``InvalidArgument`` where it is of another kind."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (whole or isinstance(value, float) or value in ("inf", "-inf")):
        return float(value)
    if kind is int and whole:
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list):
        part = get_args(kind)
        inner = part[:1] * len(value) if part[-1] is Ellipsis else part
        if len(inner) == len(value):
            return tuple(_restored(name, v, k) for v, k in zip(value, inner, strict=True))
    raise InvalidArgument(f"Expected {name} to be {kind}, got {str(value)[:60]!r}.")


def _settle(result: Any) -> None:
    """Plain Python numbers in place of NumPy's, which JSON does not know."""
    for field in fields(result):
        if field.type in (float, int, bool):
            value = getattr(result, field.name)
            object.__setattr__(result, field.name, field.type(value))
