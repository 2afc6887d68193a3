"""Render an audit as one HTML file that needs nothing else: no network, no other file."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import (
    AttackSummary,
    ConformanceFinding,
    EpsilonFinding,
    FormPlan,
    MembershipFinding,
    RecordRisk,
)
from epsilometer.core.judge import Tone, Verdict
from epsilometer.core.serialisation import to_object
from epsilometer.core.words import word_finding, word_reach
from epsilometer.errors import InvalidArgument
from epsilometer.report import words
from epsilometer.report.explaining import explain_if_known
from epsilometer.report.figures import Figure, compare_views, view_figures
from epsilometer.report.fitting import fit_audit, riskiest
from epsilometer.report.frame import FIRST_RECORDS, LARGEST, framed
from epsilometer.report.posterior_figures import posterior_figures
from epsilometer.report.release_figures import release_figures
from epsilometer.report.scale import Scale, scale
from epsilometer.report.tables import advice_of, facts_of, rule_rows, tables_of
from epsilometer.report.tones import rule_tone
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.estimators.method import Method

# How much is kept, until the page is small enough: records, and whether figures are drawn.
_ATTEMPTS = ((5_000, True), (1_000, True), (100, True), (0, True), (0, False))
_Numbered: TypeAlias = tuple[tuple[int, Figure], ...]  # place among all figures of the page


@dataclass(frozen=True, kw_only=True)
class _Section:
    """One view of the adversary as the template shows it."""

    key: str
    subject: str
    verdict: Verdict
    tone: Tone
    finding: str
    reach: str
    notes: tuple[str, ...]
    failed: int
    scale: Scale | None
    threat: tuple[tuple[str, str], ...]
    attack: AttackSummary
    figures: _Numbered
    meaning: tuple[str, ...]
    bounds: tuple[tuple[EpsilonLowerBound, Method | None], ...]
    estimates: tuple[tuple[str, str], ...]


def page(audit: Audit) -> str:
    """Return the audit as one HTML page of at most 1.5 MB; the same audit gives the same bytes.

    Of very many records the riskiest are shown, of very many views no figures; the page then says
    so. What still does not fit is an ``InvalidArgument``.
    """
    found = len(audit.find(RecordRisk))
    for records, drawn in _ATTEMPTS:
        if drawn and found <= records < _ATTEMPTS[0][0]:
            continue  # would change nothing
        text = _page(audit, records=records, drawn=drawn)
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected an audit whose page fits into {LARGEST:,} bytes; this one has too many views "
        "or inputs. Save it as .md or .json."
    )


def _page(audit: Audit, *, records: int, drawn: bool) -> str:
    kept = fit_audit(audit, records=records)
    numbers = count()
    together = _numbered(compare_views(kept) if drawn else (), numbers)
    sections = [
        _section(kept, view, key=f"view-{i}", numbers=numbers, drawn=drawn)
        for i, view in enumerate(words.own_views(kept), start=1)
    ]
    further = _numbered(
        (*release_figures(kept), *posterior_figures(kept)) if drawn else (), numbers
    )
    figures = [*together, *(pair for section in sections for pair in section.figures), *further]
    risks, meaning, plan = kept.find(RecordRisk), words.meaning(kept), kept.one(FormPlan)
    reach = word_reach(kept) if kept.verdict == judge.NOT_REFUTED else ""
    return framed(
        "page.html",
        title=kept.subject,
        plain=to_object(kept),
        figures=[figure for _, figure in figures],
        cites=_cites(kept, (figure for _, figure in figures)),
        is_cut=kept != audit,
        drawn=drawn,
        verdict=kept.verdict,
        tone=judge.tone(kept.verdict),
        finding=word_finding(kept),
        lead=reach or next(iter(meaning), ""),
        notes=words.run_notes(kept.provenance),
        scale=scale(kept),
        verdicts=_word_verdicts(kept, sections),
        sections=sections,
        threat=words.once(row for section in sections for row in section.threat),
        rules=[(rule, outcome, sure, rule_tone(rule)) for rule, outcome, sure in rule_rows(kept)],
        advice_title=_advice_title(plan),
        advice=advice_of(kept),
        facts=facts_of(kept),
        tables=tables_of(kept),
        together=together,
        further=further,
        first_records=riskiest(risks, FIRST_RECORDS),
        records_kept=len(risks),
        records_found=len(audit.find(RecordRisk)),
        shows_rows=any(record.row is not None for record in risks),
        meaning=meaning,
        explanation=explain_if_known(kept),
        provenance=kept.provenance,
        again=words.again(kept.provenance),
        again_command=words.again_command(kept.provenance),
        settings=words.settings_rows(kept.provenance),
    )


def _word_verdicts(audit: Audit, sections: Sequence[_Section]) -> list[tuple[Verdict, Tone]]:
    """Return the verdict on each row of the scale, where there are several; see ``scale``."""
    if len(sections) < 2 or audit.claim is None:
        return []
    ran = [
        judge.judge_finding(audit.claim, finding)
        for finding in audit.find(ConformanceFinding)
        if finding.bound is not None
    ]
    rows = [(verdict, judge.tone(verdict)) for verdict in ran]
    return [*rows, *((section.verdict, section.tone) for section in sections)]


def _section(
    audit: Audit, view: EpsilonFinding, *, key: str, numbers: Iterator[int], drawn: bool
) -> _Section:
    alone = words.take_view(audit, view)
    return _Section(
        key=key,
        subject=view.subject,
        verdict=alone.verdict,
        tone=judge.tone(alone.verdict),
        finding=word_finding(alone),
        reach=word_reach(alone),
        notes=tuple(words.run_notes(view)),
        failed=view.failed,
        scale=scale(alone),
        threat=tuple(words.threat_model(view.bound, audit.claim)),
        attack=view.attack,
        figures=_numbered(view_figures(view, audit.claim) if drawn else (), numbers),
        meaning=tuple(words.bound_meaning(view.bound)),
        bounds=tuple((bound, REGISTRY.get(bound.method)) for bound in (view.bound, *view.also)),
        estimates=tuple(
            (estimate.subject, f"{words.word_estimate(estimate)}, by {estimate.method}")
            for estimate in view.estimates
        ),
    )


def _advice_title(plan: FormPlan | None) -> str:
    if plan is None:
        return "What to do"
    return "What may be published" if plan.chosen else "Nothing is known to stay below the limit"


def _numbered(figures: Iterable[Figure], numbers: Iterator[int]) -> _Numbered:
    return tuple((next(numbers), figure) for figure in figures)


def _cites(audit: Audit, figures: Iterable[Figure]) -> list[str]:
    attacks = (attack.bound for attack in audit.find(MembershipFinding))
    bounds = [bound for view in audit.views for bound in (view.bound, *view.also)]
    bounds += [bound for bound in attacks if bound is not None]
    return [
        *audit.cites,
        *(key for bound in bounds for key in bound.cites),
        *(key for estimate in audit.estimates for key in estimate.cites),
        *(key for figure in figures for key in figure.cites),
    ]
