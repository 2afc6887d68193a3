"""Audits full of everything, and the same with an attack in every text of theirs."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.findings import EpsilonFinding
from tests.examples import (
    a_bound,
    a_provenance,
    a_record,
    a_view,
    an_audit,
    an_estimate,
    several_views,
)

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
# Checked where they are made or read: no other text gets in.
_KEPT = {
    *("adjacency", "cites", "unit", "direction", "role", "outcome", "standing", "swept", "format"),
}
_ADJACENCY: Adjacency = "add_remove"
_CLAIM = Claim(
    1.0, delta=1e-5, adjacency=_ADJACENCY, sampler="Poisson", accountant="PLD", unit="record"
)


def full_view(**changed: Any) -> EpsilonFinding:
    """A view with something in every field."""
    bound = {
        "adjacency": _ADJACENCY,
        "adversary": "sees every gradient",
        "cites": ("clopper1934", "kairouz2015"),
        "caveats": ("mind the gap",),
    }
    plain: dict[str, Any] = {
        "bound": a_bound(**bound),
        "also": (a_bound(method="jeffreys", epsilon=2.5, valid=False, **bound),),
        "estimates": (an_estimate(1.5, role="reference", caveats=("no bound",)),),
        "units": 8,
        "used": 6,
        "failed": 1,
    }
    return a_view(**{**plain, **changed})


def full_audit(**changed: Any) -> Audit:
    """An audit of one view with something in every field."""
    view = full_view()
    plain: dict[str, Any] = {
        "claim": _CLAIM,
        "bound": view.bound,
        "also": view.also,
        "estimates": view.estimates,
        "more": tuple(
            a_record(rank=5 - i, risk=float(i), measure="PDTP", note="n") for i in range(5)
        ),
        "advice": ("add noise",),
        "caveats": ("mind the audit",),
        "provenance": a_provenance(
            plan="cd" * 32, units=8, used=6, failed=1, until={"type": "UntilRefuted"}
        ),
    }
    return an_audit(**{**plain, **changed})


def full_views(**changed: Any) -> Audit:
    """An audit of two views with something in every field, of which one refutes the claim."""
    spared = full_view(bound=a_bound(epsilon=0.5, adversary="sees the model"), subject="the model")
    plain: dict[str, Any] = {
        "subject": "a pair",
        "claim": _CLAIM,
        "advice": ("add noise",),
        "provenance": full_audit().provenance,
    }
    records = full_audit().findings[1:]
    return several_views(full_view(), spared, *records, **{**plain, **changed})


def poisoned(value: Any, text: str) -> Any:
    """The value with ``text`` in place of every text that a user could have written."""
    if isinstance(value, str):
        return text
    if isinstance(value, (tuple, list)):
        return type(value)(poisoned(part, text) for part in value)
    if isinstance(value, dict):
        return {poisoned(key, text): poisoned(part, text) for key, part in value.items()}
    if isinstance(value, Struct):
        names = [name for name in value.__struct_fields__ if name not in _KEPT]
        return replace(value, **{name: poisoned(getattr(value, name), text) for name in names})
    return value
