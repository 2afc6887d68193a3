"""A result in a line. Read from plain JSON by name, so that results of older versions are too."""

import json
import math
import re
from dataclasses import dataclass, fields
from typing import Any, get_args

from epsilometer.errors import InvalidArgument
from epsilometer.core.judge import Decision
from epsilometer.core.judge import Verdict

KINDS = (
    "EpsilonLowerBound",
    "EpsilonEstimate",
    "AuditResult",
    "AuditGroup",
    "ReleaseAudit",
    "PosteriorAudit",
)
_VERDICTS = (*get_args(Verdict), *get_args(Decision))
BAD = ("refuted", "do not release")
_COMMAND = re.compile(r"epsilometer (\w+)|(\w+)\(")
_HEAD = re.compile(rb'\s*\{\s*"kind"\s*:\s*"(\w+)"')


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One audit of a result.

    Attributes:
        path: The file, as seen from the folder.
        part: Which audit of the file, from 1.
        written: When the file was written, in seconds since 1970.
        kind: The type of the result.
        audit: The command or function that made it; empty where the result does not say.
        subject: What was audited, in words.
        claim: The promised ε.
        epsilon: The bound that decides, or the estimate; a classifier has none.
        low: Lower end of an estimate.
        high: Upper end of an estimate.
        delta: The δ at which it holds.
        confidence: Of the bound or interval.
        valid: Whether the bound is one.
        method: How it was computed.
        adversary: Whose view it is, in words.
        observations: With the record and without it, together.
        auc: Of the attack.
        advantage: The largest TPR − FPR of the attack that was seen.
        verdict: As the result says.
        seed: From which all randomness followed.
        failed: Units of work that failed.
        version: Of epsilometer, where the result says.
    """

    path: str
    part: int
    written: float
    kind: str
    audit: str
    subject: str
    claim: float | None
    epsilon: float | None
    low: float | None
    high: float | None
    delta: float | None
    confidence: float | None
    valid: bool
    method: str
    adversary: str
    observations: int | None
    auc: float | None
    advantage: float | None
    verdict: str
    seed: int | None
    failed: int
    version: str

    @property
    def label(self) -> str:
        """The run: its directory, or its file without the ending."""
        run, _, name = self.path.rpartition("/")
        return (run or ".") if name == "result.json" else self.path.removesuffix(".json")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinities as the string ``"inf"``."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: "inf" if isinstance(v, float) and v == math.inf else v for k, v in plain.items()}


def begins_a_result(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a result."""
    kind = _HEAD.match(head)
    return kind is not None and kind[1].decode() in KINDS


def plain_result(text: str) -> dict[str, Any]:
    """The JSON object of a result; ``InvalidArgument`` where it is none."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("Expected a result as JSON; this is damaged.") from error
    if not isinstance(plain, dict) or plain.get("kind") not in KINDS:
        raise InvalidArgument("Expected a result of epsilometer's, got something else.")
    return plain


def entries_of(plain: dict[str, Any], *, path: str = "", written: float = 0.0) -> list[Entry]:
    """The audits of a result, in its order. What an older version did not write is left open."""
    try:
        return [
            Entry(path=path, part=number, written=written, **_values(part))
            for number, part in enumerate(parts_of(plain), start=1)
        ]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected what a result holds, got something else ({type(error).__name__}: {error})."
        ) from error


def parts_of(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """The audits inside a result, each with the kind of the whole."""
    match plain["kind"]:
        case "AuditGroup":
            parts = list(plain["results"])
        case "PosteriorAudit":
            parts = [
                {"provenance": plain.get("provenance"), **form["audit"], "form": form}
                for form in plain["forms"]
            ]
        case _:
            parts = [plain]
    return [{**part, "kind": plain["kind"]} for part in parts]


def bound_of(part: dict[str, Any]) -> dict[str, Any]:
    """What says ε in a part: its bound, the estimate itself, or nothing."""
    if part["kind"] in ("EpsilonLowerBound", "EpsilonEstimate"):
        return part
    bound = {} if part["kind"] == "ReleaseAudit" else part["bound"]
    if not isinstance(bound, dict):
        raise TypeError("a bound is an object")
    return bound


def _values(part: dict[str, Any]) -> dict[str, Any]:
    bound, source = bound_of(part), part.get("provenance") or {}
    claim = part.get("claim") or {}
    command = str(source.get("command", ""))
    named = _COMMAND.match(command)
    versions = dict(source.get("versions") or [("epsilometer", part.get("version", ""))])
    attack = part.get("attack") or {}
    epsilon = None if part["kind"] == "ReleaseAudit" else _number(bound["epsilon"])
    values = {
        "kind": part["kind"],
        "audit": "" if named is None else named[1] or named[2],
        "subject": _text(part.get("subject", bound.get("method", ""))),
        "claim": _number(claim.get("epsilon")),
        "epsilon": epsilon,
        "low": _number(part.get("low")),
        "high": _number(part.get("high")),
        "delta": _number(bound.get("delta")),
        "confidence": _number(bound.get("confidence", part.get("confidence"))),
        "valid": bool(bound.get("valid", part["kind"] != "EpsilonEstimate")),
        "method": _text(bound.get("method", "")),
        "adversary": _text(bound.get("adversary", "")),
        "observations": _whole(bound.get("n_in"), bound.get("n_out")),
        "auc": _number(attack.get("auc")),
        "advantage": _advantage(part),
        "seed": _whole(bound.get("seed", part.get("seed"))),
        "failed": _whole(source.get("failed", 0)),
        "version": _text(versions.get("epsilometer", "")),
    }
    if part["kind"] == "ReleaseAudit" and part.get("verdict") not in get_args(Decision):
        raise ValueError("it has no verdict")
    return {**values, "verdict": _verdict(part, values)}


def _verdict(part: dict[str, Any], values: dict[str, Any]) -> str:
    said = part.get("verdict")
    if said in _VERDICTS:
        return str(said)
    if values["claim"] is None:
        proves = values["valid"] or part["kind"] == "EpsilonEstimate"
        return "no claim" if proves else "no verdict"
    if values["valid"] and values["epsilon"] > values["claim"]:
        return "refuted"
    return "not refuted" if values["valid"] and not values["failed"] else "no verdict"


def _advantage(part: dict[str, Any]) -> float | None:
    """What the attack was seen to gain over guessing; of several attacks, the strongest."""
    if "form" in part:
        return _number(part["form"].get("advantage"))
    if part["kind"] == "ReleaseAudit":
        found = [_number(attack.get("advantage")) for attack in part.get("attacks") or ()]
        return max((each for each in found if each is not None), default=None)
    curve = part.get("evidence") or {}
    rates = zip(curve.get("fpr") or (), curve.get("fnr") or (), strict=True)
    return max((1 - float(fpr) - float(fnr) for fpr, fnr in rates), default=None)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    number = float(value)
    if math.isnan(number):
        raise ValueError("nan is no number")
    return number


def _whole(*values: Any) -> int | None:
    """Their sum, where all are there."""
    if any(value is None for value in values):
        return None
    if not all(isinstance(value, int) for value in values):
        raise TypeError(f"{values!r} are no whole numbers"[:60])
    return int(sum(values))


def _text(value: Any) -> str:
    """Text that every encoding can write: halves of letters are replaced."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
