"""Cut an audit to what one page can hold; the result is a correct audit, too."""

import heapq
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from epsilometer.core.audit import Audit
from epsilometer.core.findings import RecordRisk

_LONGEST = 2_000  # characters of a text; no one reads more on a page
_LONGEST_OF_RECORD = 300
_T = TypeVar("_T")


def fit_audit(audit: Audit, *, records: int) -> Audit:
    """Return the audit with its riskiest ``records``, and long texts shortened."""
    risks = {i: f for i, f in enumerate(audit.findings) if isinstance(f, RecordRisk)}
    count = max(records, 1) if len(risks) == len(audit.findings) else records  # some are left
    chosen = set(heapq.nsmallest(count, risks, key=lambda place: _order(risks[place])))
    findings = (
        cut(finding, _LONGEST_OF_RECORD) if place in chosen else finding
        for place, finding in enumerate(audit.findings)
        if place in chosen or place not in risks
    )
    return cut(replace(audit, findings=tuple(findings)))


def count_records(audit: Audit) -> int:
    """Count the records of an audit."""
    return len(audit.find(RecordRisk))


def find_riskiest(records: Iterable[RecordRisk], count: int) -> tuple[RecordRisk, ...]:
    """Return the ``count`` records at highest risk, the worst first."""
    return tuple(heapq.nsmallest(count, records, key=_order))


def _order(record: RecordRisk) -> tuple[float, float]:
    """Order records by rank, which counts attacks and not leave-one-out risk alone."""
    return record.rank, -record.risk


def cut(value: _T, longest: int = _LONGEST) -> _T:
    """Return the value with every text in it cut to ``longest`` letters."""
    return _cut(value, longest)  # type: ignore[no-any-return]


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= longest else value[: longest - 1] + "…"
    if isinstance(value, (tuple, list)):
        return type(value)(_cut(part, longest) for part in value)
    if isinstance(value, dict):
        return {_cut(key, longest): _cut(part, longest) for key, part in value.items()}
    if isinstance(value, Struct):
        names = value.__struct_fields__
        return replace(value, **{name: _cut(getattr(value, name), longest) for name in names})
    return value
