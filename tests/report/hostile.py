"""Results full of everything, and the same with an attack in every text of theirs."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from epsilometer import AuditGroup, AuditResult, PrivacyClaim, RecordRisk
from epsilometer.claims import Adjacency
from tests.examples import a_bound, a_provenance, an_audit

PAYLOADS = [
    "<script>window.__xss = 1; alert(1)</script>",
    '"><img src=x onerror="window.__xss = 1; alert(1)">',
    "'><svg onload='window.__xss = 1'>",
    "</script><script>window.__xss = 1</script>",
    "<!--<script>",
    "</title></style></textarea><iframe src='javascript:alert(1)'></iframe>",
    "javascript:window.__xss=1",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "\u2028window.__xss = 1\u2029",
    "-->&lt;b&gt;<b>&amp;\x00\x1b[31m\ud800\u202e",
    "]]>\" onfocus=alert(1) autofocus tabindex=1 x='",
    "| a | b |\n\n# head\n\n@everyone [x](javascript:alert(1)) ![y](//evil.example/z) <b>https://evil.example",
]
_KEPT = {"adjacency", "cites"}  # checked where they are made: no other text gets in


def full_audit(**changed: Any) -> AuditResult:
    """An audit with something in every field."""
    adjacency: Adjacency = "add_remove"
    bound = {
        "adjacency": adjacency,
        "adversary": "sees every gradient",
        "cites": ("clopper1934", "kairouz2015"),
        "caveats": ("mind the gap",),
    }
    plain: dict[str, Any] = {
        "claim": PrivacyClaim(
            epsilon=1.0, delta=1e-5, adjacency=adjacency, sampler="Poisson", accountant="PLD"
        ),
        "bound": a_bound(**bound),
        "also": (a_bound(method="jeffreys", epsilon=2.5, valid=False, **bound),),
        "records": tuple(
            RecordRisk(record=f"r{i}", risk=float(i), measure="PDTP", group="g", note="n")
            for i in range(5)
        ),
        "provenance": a_provenance(plan="cd" * 32, units=8, used=6, failed=1),
    }
    return an_audit(**{**plain, **changed})


def full_group(**changed: Any) -> AuditGroup:
    kept = full_audit(claim=PrivacyClaim(epsilon=9.0, delta=1e-5), **changed)
    return AuditGroup(subject="a pair", results=(full_audit(**changed), kept))


def poisoned(value: Any, text: str) -> Any:
    """The value with ``text`` in place of every text that a user could have written."""
    if isinstance(value, str):
        return text
    if isinstance(value, tuple):
        return tuple(poisoned(part, text) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name not in _KEPT]
        return replace(value, **{name: poisoned(getattr(value, name), text) for name in names})
    return value
