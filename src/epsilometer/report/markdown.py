"""A result as Markdown, for a comment on a pull request."""

import html
import re
import string
from collections.abc import Iterable

from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.audit import ReleaseAudit
from epsilometer.report import posterior_words, release_words, words
from epsilometer.report.fitting import cut, riskiest
from epsilometer.core.audit import AuditGroup, AuditResult, Provenance, Result
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import RecordRisk

_LONGEST = 300  # letters of a text; a comment holds 65,536 in all
_AUDITS = 20
_RECORDS = 10
_LISTED = 30
_ICONS = {
    "refuted": "❌",
    "not refuted": "⚪",
    "no claim": "ℹ️",
    "no verdict": "❓",
    "do not release": "❌",
    "release": "✅",
    "cannot tell": "❓",
}
_MARKS = re.compile(r"^\W|[\\`*_\[\]<>|~&$#@!^]")  # the first letter might begin a list
_LINKS = re.compile(r"@|#|:(?=//)|www(?=\.)|GH-", re.IGNORECASE)


def markdown(result: Result) -> str:
    """The verdict, the bounds in a table, and folded away what is needed to do it again."""
    match result:
        case EpsilonLowerBound():
            parts = [f"**{plain(words.bound_finding(result))}**", _bounds([result])]
            parts += _bullets(words.meaning(result))
        case AuditResult():
            parts = _audit(result, level=3)
        case AuditGroup():
            parts = _group(result)
        case ReleaseAudit():
            parts = _release(result)
        case PosteriorAudit():
            parts = _posterior(result)
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no links, nobody mentioned."""
    return _MARKS.sub(_escaped, _unlinked(text))


def _escaped(mark: re.Match[str]) -> str:
    return f"\\{mark[0]}" if mark[0] in string.punctuation else mark[0]


def _unlinked(text: str) -> str:
    """One line, with an invisible space wherever a site would make a link or call somebody."""
    return _LINKS.sub("\\g<0>\u200b", words.one_line(cut(text, _LONGEST)))


def _group(group: AuditGroup) -> list[str]:
    shown = group.results[:_AUDITS]
    rows = [
        (
            f"{_ICONS[audit.verdict]} {audit.verdict}",
            plain(audit.subject),
            "–" if audit.claim is None else words.promised(audit.claim.epsilon),
            _proved(audit.bound),
        )
        for audit in shown
    ]
    left = len(group.results) - len(shown)
    return [
        f"### {plain(group.subject)}",
        f"{words.group_finding(group)} {words.GROUP_RULE}",
        _table(("verdict", "audit", "promised ε", "proved ε"), rows),
        *([f"And {left:,} more audits."] if left else []),
        *(_folded(audit.subject, _audit(audit, level=4)) for audit in shown),
    ]


def _audit(result: AuditResult, *, level: int) -> list[str]:
    return [
        f"{'#' * level} {_ICONS[result.verdict]} {plain(result.subject)}",
        f"**{plain(words.verdict(result))}**",
        *_bullets(words.run_notes(result.provenance)),
        _bounds((result.bound, *result.also)),
        *_risks(result.records),
        _folded("What it means", _bullets(words.meaning(result.bound))),
        _folded("Do it again", _provenance(result.provenance, result.bound.seed)),
    ]


def _release(result: ReleaseAudit) -> list[str]:
    reasons = [
        (
            f"{_ICONS[reason.decision]} {reason.decision}",
            plain(reason.rule),
            plain(reason.finding),
            release_words.reason_confidence(reason),
        )
        for reason in result.reasons
    ]
    attacks = [tuple(map(plain, release_words.attack_row(a))) for a in result.attacks[:_LISTED]]
    records = [
        (plain(r.record), words.number(r.risk, 4), plain(r.group), plain(r.note))
        for r in result.records[:_RECORDS]
    ]
    return [
        f"### {_ICONS[result.verdict]} {plain(result.subject)}",
        f"**{plain(release_words.finding(result))}**",
        *_bullets(words.run_notes(result.provenance)),
        _table(("says", "rule", "why", "how sure"), reasons),
        *([_table(("attack", "AUC", "TPR − FPR", "caught", "ε"), attacks)] if attacks else []),
        *_bullets(result.advice),
        *(
            [_folded("Records at risk", [_table(("record", "risk", "class", "note"), records)])]
            if records
            else []
        ),
        _folded("What it means", _bullets(release_words.meaning(result))),
        _folded("Do it again", _provenance(result.provenance, result.seed)),
    ]


def _posterior(result: PosteriorAudit) -> list[str]:
    shown = result.forms[:_LISTED]
    forms = [tuple(map(plain, posterior_words.form_row(form))) for form in shown]
    utility = [tuple(map(plain, posterior_words.utility_row(form))) for form in shown]
    return [
        f"### {_ICONS[result.verdict]} {plain(result.subject)}",
        f"**{plain(posterior_words.finding(result))}**",
        *_bullets([*words.run_notes(result.provenance), *result.plan.advice]),
        _table(posterior_words.FORM_HEAD, forms),
        *([_table(posterior_words.UTILITY_HEAD, utility)] if result.tested else []),
        _folded("What it means", _bullets(posterior_words.meaning(result))),
        _folded("Do it again", _provenance(result.provenance, result.seed)),
    ]


def _bounds(bounds: Iterable[EpsilonLowerBound]) -> str:
    rows = [
        (
            plain(bound.method) + ("" if i else " (decides)"),
            _proved(bound),
            f"{bound.delta:g}",
            f"{bound.confidence:g}" if bound.valid else "none",
            f"{bound.n_in:,} + {bound.n_out:,}",
        )
        for i, bound in enumerate(bounds)
    ]
    return _table(("method", "proved ε", "δ", "confidence", "observations"), rows[:_LISTED])


def _proved(bound: EpsilonLowerBound) -> str:
    return f"≥ {words.number(bound.epsilon)}" + ("" if bound.valid else " (not a valid bound)")


def _risks(records: tuple[RecordRisk, ...]) -> list[str]:
    if not records:
        return []
    rows = [
        (plain(r.record), words.number(r.risk, 4), plain(r.measure), plain(r.group), plain(r.note))
        for r in riskiest(records, _RECORDS)
    ]
    table = _table(("record", "risk", "measured as", "group", "note"), rows)
    return [_folded(f"The riskiest of {len(records):,} records", [table])]


def _provenance(source: Provenance, seed: int) -> list[str]:
    rows = [("seed", str(seed))]
    if source.plan:
        rows.append(("plan", plain(source.plan)))
    rows.append(("units", f"{source.used:,} used of {source.units:,}, {source.failed:,} failed"))
    rows += [(plain(name), plain(version)) for name, version in source.versions[:_LISTED]]
    rows += [(plain(name), plain(sum_)) for name, sum_ in source.inputs[:_LISTED]]
    return [_fenced(source.command), _table(("", ""), rows)]


def _fenced(code: str) -> str:
    """Code between fences longer than any it holds."""
    code = words.one_line(cut(code, 10 * _LONGEST))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}text\n{code}\n{fence}"


def _folded(title: str, parts: list[str]) -> str:
    inner = "\n\n".join(parts)
    return f"<details><summary>{html.escape(_unlinked(title))}</summary>\n\n{inner}\n\n</details>"


def _bullets(lines: Iterable[str]) -> list[str]:
    listed = [f"- {plain(line)}" for line in lines]
    return ["\n".join(listed)] if listed else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
