"""A result cut to what one page can hold: still a result, and still true."""

import heapq
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from epsilometer.core.audit import AuditGroup, AuditResult
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import RecordRisk

_LONGEST = 2_000  # letters of a text; nobody reads more on a page
_LONGEST_OF_RECORD = 120
_T = TypeVar("_T")
_Fitted: TypeAlias = EpsilonLowerBound | AuditResult | AuditGroup


def fitted(result: _Fitted, *, records: int) -> _Fitted:
    """The result with its riskiest ``records`` and no text longer than a reader takes."""
    match result:
        case EpsilonLowerBound():
            return cut(result)
        case AuditResult():
            return _fitted_audit(result, records)
        case AuditGroup():
            sharing = sum(bool(audit.records) for audit in result.results)
            each = records // max(sharing, 1)
            kept = tuple(_fitted_audit(audit, each) for audit in result.results)
            return AuditGroup(subject=cut(result.subject), results=kept)


def riskiest(records: Iterable[RecordRisk], count: int) -> tuple[RecordRisk, ...]:
    """The ``count`` records at most risk, the worst first."""
    return tuple(heapq.nlargest(count, records, key=lambda record: record.risk))


def cut(value: _T, longest: int = _LONGEST) -> _T:
    """The value with every text in it cut to ``longest`` letters."""
    return _cut(value, longest)  # type: ignore[no-any-return]


def _fitted_audit(result: AuditResult, records: int) -> AuditResult:
    every = result.records
    kept = every if len(every) <= records else riskiest(every, records)
    shortened = tuple(cut(record, _LONGEST_OF_RECORD) for record in kept)
    return replace(cut(replace(result, records=())), records=shortened)


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= longest else value[: longest - 1] + "…"
    if isinstance(value, tuple):
        return tuple(_cut(part, longest) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _cut(getattr(value, f.name), longest) for f in fields(value)}
        )
    return value
