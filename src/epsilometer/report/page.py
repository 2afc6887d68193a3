"""A result as one HTML file that needs nothing else: no network, no other file."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from epsilometer.errors import InvalidArgument
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.report import words
from epsilometer.report.figures import COLOURS, Figure, figures, group_figures
from epsilometer.report.fitting import fitted, riskiest
from epsilometer.report.scale import Scale, scale
from epsilometer.results import (
    AttackSummary,
    AuditGroup,
    AuditResult,
    EpsilonLowerBound,
    Provenance,
    RecordRisk,
    Result,
    Verdict,
)
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.estimators.method import Method

LARGEST = 1_500_000  # bytes of a page
# How much is kept, until the page is small enough: records, and whether figures are drawn.
_ATTEMPTS = ((5_000, True), (1_000, True), (100, True), (0, True), (0, False))
_FIRST_RECORDS = 20  # shown without JavaScript
_ICONS: dict[Verdict, str] = {
    "refuted": "✕",
    "not refuted": "–",
    "no claim": "i",
    "no verdict": "?",
}


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


def page(result: Result) -> str:
    """The result as one HTML page of at most 1.5 MB; the same result gives the same bytes.

    Of very many records the riskiest are shown, of a very large group no figures; the page then
    says so. What still does not fit is an ``InvalidArgument``.
    """
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


def _records_of(result: Result) -> int:
    match result:
        case AuditGroup():
            return sum(len(audit.records) for audit in result.results)
        case AuditResult():
            return len(result.records)
        case EpsilonLowerBound():
            return 0


def _page(result: Result, *, records: int, drawn: bool) -> str:
    kept = fitted(result, records=records)
    sections = _sections(result, kept, drawn=drawn)
    group = kept if isinstance(kept, AuditGroup) else None
    together = group_figures(group) if group and drawn else ()
    script, style = _read("vendor/uplot/uPlot.iife.min.js"), _read("vendor/uplot/uPlot.min.css")
    scripts = [script, _read("templates/page.js")] if drawn else [_read("templates/page.js")]
    styles = [style, _role_colours() + _read("templates/page.css")]
    return _TEMPLATE.render(
        title=kept.subject if isinstance(kept, AuditResult | AuditGroup) else kept.method,
        group=group,
        group_finding=words.group_finding(group) if group else "",
        group_rule=words.GROUP_RULE,
        group_scale=scale(kept) if group else None,
        group_figures=together,
        threat=_once(row for section in sections for row in section.threat),
        sections=sections,
        references=_references(sections),
        is_cut=kept != result,
        drawn=drawn,
        icons=_ICONS,
        policy=_policy(scripts, styles),
        # Ours, not a user's: their sums are in the policy.
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(text) for text in styles],
        result_json=_embedded(kept.to_dict()),
        licence=_read("vendor/uplot/LICENSE"),
        figures_json=_embedded(
            [
                asdict(figure)
                for some in (together, *(s.figures for s in sections))
                for figure in some
            ]
        ),
    )


def _sections(result: Result, kept: Result, *, drawn: bool) -> list[_Section]:
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
        first_records=riskiest(result.records, _FIRST_RECORDS),
        records_kept=len(result.records),
        records_found=records_found,
        provenance=result.provenance,
        notes=tuple(words.run_notes(result.provenance)),
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
    )


def _with_method(bound: EpsilonLowerBound) -> tuple[EpsilonLowerBound, Method | None]:
    return bound, REGISTRY.get(bound.method)


def _references(sections: Iterable[_Section]) -> list[str]:
    keys = [
        key
        for section in sections
        for cites in (*(b.cites for b, _ in section.bounds), *(f.cites for f in section.figures))
        for key in cites
    ]
    return sorted(BIBLIOGRAPHY[key] for key in set(keys))


def _once(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(rows))


def _embedded(plain: Any) -> Markup:
    """JSON that cannot end its script element: pure ASCII without ``<``, ``>`` and ``&``."""
    text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Nothing may be loaded, and nothing may run but what is embedded here."""
    return (
        f"default-src 'none'; script-src {_sums(scripts)}; style-src {_sums(styles)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )


def _sums(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _role_colours() -> str:
    rules = "".join(
        f"--{role}: light-dark({day}, {night});" for role, (day, night) in COLOURS.items()
    )
    used = "".join(f".role-{role} {{ color: var(--{role}); }}\n" for role in COLOURS)
    return f":root {{ {rules} }}\n{used}"


def _read(name: str) -> str:
    return resources.files("epsilometer.report").joinpath(name).read_text("utf-8").strip()


def _printable(value: object) -> object:
    """What a template prints, without letters that a page cannot hold."""
    return words.printable(value) if type(value) is str else value


def _unbroken(text: str) -> str:
    """No line ends within "ε ≥ 4"."""
    return re.sub(r"([εδμ]) ([=≥]) ", "\\1\u00a0\\2\u00a0", text)


_ENVIRONMENT = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printable,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"number": words.number, "short": words.short, "unbroken": _unbroken}
_TEMPLATE = _ENVIRONMENT.from_string(_read("templates/page.html"))
