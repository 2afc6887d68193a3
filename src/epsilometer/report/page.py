"""A result as one HTML file that needs nothing else: no network, no other file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.audit import ReleaseAudit
from epsilometer.report import words
from epsilometer.report.explaining import Explanation, explained
from epsilometer.report.figures import Figure, figures, group_figures
from epsilometer.report.fitting import fitted, riskiest
from epsilometer.report.frame import FIRST_RECORDS, LARGEST, framed
from epsilometer.report.posterior_page import posterior_page
from epsilometer.report.release_page import release_page
from epsilometer.report.scale import Scale, scale
from epsilometer.core.audit import AuditGroup, AuditResult, Provenance, Result
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import AttackSummary, RecordRisk
from epsilometer.core.judge import Verdict
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.estimators.method import Method

_Shown: TypeAlias = EpsilonLowerBound | AuditResult | AuditGroup
# How much is kept, until the page is small enough: records, and whether figures are drawn.
_ATTEMPTS = ((5_000, True), (1_000, True), (100, True), (0, True), (0, False))


@dataclass(frozen=True, kw_only=True)
class _Section:
    """One audit as the template shows it; a lone bound is an audit with most parts empty."""

    key: str
    subject: str
    verdict: Verdict
    finding: str
    bounds: tuple[tuple[EpsilonLowerBound, Method | None], ...]
    meaning: tuple[str, ...]
    threat: tuple[tuple[str, str], ...]
    scale: Scale
    attack: AttackSummary | None = None
    figures: tuple[Figure, ...] = ()
    first_records: tuple[RecordRisk, ...] = ()
    records_kept: int = 0
    records_found: int = 0
    provenance: Provenance | None = None
    notes: tuple[str, ...] = ()
    explanation: Explanation | None = None


def page(result: Result) -> str:
    """The result as one HTML page of at most 1.5 MB; the same result gives the same bytes.

    Of very many records the riskiest are shown, of a very large group no figures; the page then
    says so. What still does not fit is an ``InvalidArgument``.
    """
    if isinstance(result, ReleaseAudit):
        return release_page(result)
    if isinstance(result, PosteriorAudit):
        return posterior_page(result)
    found = _records_of(result)
    for records, drawn in _ATTEMPTS:
        if drawn and found <= records < _ATTEMPTS[0][0]:
            continue  # would change nothing
        text = _page(result, records=records, drawn=drawn)
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected a result whose page fits into {LARGEST:,} bytes. "
        "Make a page of each audit instead of one of the whole group."
    )


def _records_of(result: _Shown) -> int:
    match result:
        case AuditGroup():
            return sum(len(audit.records) for audit in result.results)
        case AuditResult():
            return len(result.records)
        case EpsilonLowerBound():
            return 0


def _page(result: _Shown, *, records: int, drawn: bool) -> str:
    kept = fitted(result, records=records)
    sections = _sections(result, kept, drawn=drawn)
    group = kept if isinstance(kept, AuditGroup) else None
    together = group_figures(group) if group and drawn else ()
    return framed(
        "page.html",
        title=kept.method if isinstance(kept, EpsilonLowerBound) else kept.subject,
        plain=kept.to_dict(),
        figures=[*together, *(figure for section in sections for figure in section.figures)],
        cites=_cites(sections),
        is_cut=kept != result,
        drawn=drawn,
        group=group,
        group_finding=words.group_finding(group) if group else "",
        group_rule=words.GROUP_RULE,
        group_scale=scale(kept) if group else None,
        group_figures=together,
        threat=_once(row for section in sections for row in section.threat),
        sections=sections,
    )


def _sections(result: _Shown, kept: _Shown, *, drawn: bool) -> list[_Section]:
    match kept, result:
        case AuditGroup(), AuditGroup():
            pairs = zip(kept.results, result.results, strict=True)
            return [
                _audit(audit, f"audit-{i}", len(whole.records), drawn=drawn)
                for i, (audit, whole) in enumerate(pairs, start=1)
            ]
        case AuditResult(), AuditResult():
            return [_audit(kept, "audit-1", len(result.records), drawn=drawn)]
        case EpsilonLowerBound(), _:
            return [_lone(kept)]
    raise InvalidArgument(f"Expected a result, got {type(result).__name__}.")


def _audit(result: AuditResult, key: str, records_found: int, *, drawn: bool) -> _Section:
    return _Section(
        key=key,
        subject=result.subject,
        verdict=result.verdict,
        finding=words.finding(result),
        bounds=tuple(_with_method(bound) for bound in (result.bound, *result.also)),
        meaning=tuple(words.meaning(result.bound)),
        threat=tuple(words.threat_model(result.bound, result.claim)),
        scale=scale(result),
        attack=result.attack,
        figures=figures(result) if drawn else (),
        first_records=riskiest(result.records, FIRST_RECORDS),
        records_kept=len(result.records),
        records_found=records_found,
        provenance=result.provenance,
        notes=tuple(words.run_notes(result.provenance)),
        explanation=explained(result),
    )


def _lone(bound: EpsilonLowerBound) -> _Section:
    return _Section(
        key="audit-1",
        subject=bound.method,
        verdict="no claim" if bound.valid else "no verdict",
        finding=words.bound_finding(bound),
        bounds=(_with_method(bound),),
        meaning=tuple(words.meaning(bound)),
        threat=tuple(words.threat_model(bound, None)),
        scale=scale(bound),
        explanation=explained(bound),
    )


def _with_method(bound: EpsilonLowerBound) -> tuple[EpsilonLowerBound, Method | None]:
    return bound, REGISTRY.get(bound.method)


def _cites(sections: Iterable[_Section]) -> list[str]:
    return [
        key
        for section in sections
        for cites in (*(b.cites for b, _ in section.bounds), *(f.cites for f in section.figures))
        for key in cites
    ]


def _once(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(rows))
