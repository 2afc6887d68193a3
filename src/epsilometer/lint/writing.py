"""Write reports: text, JSON, SARIF, commands of GitHub Actions, JUnit."""

import os
import textwrap
from typing import Any
from urllib.parse import quote

from epsilometer.core.printing import one_line, to_json_text
from epsilometer.lint.rules import RULES, Finding, Problem, Report

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_WIDTH = 100
_SHOWN = 4  # accountants or samplers of a file to list in a line


def to_text(report: Report, *, width: int = _WIDTH) -> str:
    """Write text of a width: one line per finding, with its reason, remedy and command."""
    lines: list[str] = []
    for finding in report.findings:
        rule = finding.rule
        lines += [
            f"{_locate(finding)}: {rule.id} {finding.severity}: {rule.title}",
            _indent("seen", finding.detail, width),
            _indent("why", rule.why, width),
            _indent("do", rule.remedy, width),
            f"  run:  {one_line(finding.command)}",  # never wrapped, so that it can be copied
            f"  more: epsilometer lint --explain {rule.id}",
        ]
    for problem in report.problems:
        lines.append(f"{_locate(problem)}: not checked: {one_line(problem.message)}")
    return "\n".join([*lines, *_list_understood(report), _summarise(report)])


def _list_understood(report: Report) -> list[str]:
    """Return one line per file: its libraries, accountants and samplers, with their places."""
    lines = ["understood:"] if report.understood else []
    for each in report.understood:
        parts = [
            f"library {', '.join(each.libraries)}" if each.libraries else "",
            f"accountant {_shorten(each.accountants)}" if each.accountants else "",
            f"sampler {_shorten(each.samplers)}" if each.samplers else "sampler not found",
        ]
        lines.append("  " + one_line(f"{each.path}: {'; '.join(filter(None, parts))}"))
    return lines


def _shorten(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _indent(label: str, text: str, width: int) -> str:
    start = f"  {label}:".ljust(8)
    return textwrap.fill(one_line(text), width, initial_indent=start, subsequent_indent=" " * 8)


def _locate(what: Finding | Problem) -> str:
    parts = [one_line(what.path)]
    if what.cell is not None:
        parts.append(f"cell {what.cell}")
    if what.line is not None:
        parts.append(str(what.line))
    if isinstance(what, Finding):
        parts.append(str(what.column))
    return ":".join(parts)


def _summarise(report: Report) -> str:
    errors = sum(finding.severity == "error" for finding in report.findings)
    counts = {"file": report.files, "error": errors, "warning": len(report.findings) - errors}
    said = [f"{count} {what}" + ("" if count == 1 else "s") for what, count in counts.items()]
    if report.problems:
        said.append(f"{len(report.problems)} not checked")
    blind = one_line(report.blind)
    return ", ".join(said) + "." + (f" {blind[0].upper()}{blind[1:]}." if blind else "")


def to_json(report: Report) -> str:
    """Write JSON: see docs/lint.md for the fields."""
    plain = {
        "format": "epsilometer-lint",
        "version": 1,
        "files": report.files,
        "findings": [_to_plain(finding) for finding in report.findings],
        "problems": [vars(problem) for problem in report.problems],
        "understood": [vars(each) for each in report.understood],
        "blind": report.blind,
    }
    return to_json_text(plain)


def _to_plain(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "path": finding.path,
        "cell": finding.cell,
        "line": finding.line,
        "column": finding.column,
        "rule": rule.id,
        "name": rule.name,
        "severity": finding.severity,
        "title": rule.title,
        "seen": finding.detail,
        "why": rule.why,
        "do": rule.remedy,
        "run": finding.command,
        "unknown": list(finding.unknown),
        "page": rule.page,
    }


def to_github(report: Report) -> str:
    """Write annotations of lines for GitHub Actions."""
    # Imported here, so that text output does not wait for it.
    from epsilometer.core.annotations import to_github as annotate

    lines = []
    for finding in report.findings:
        # Lines of a notebook's cell are not lines of its file.
        line, column = (None, None) if finding.cell is not None else (finding.line, finding.column)
        cell = "" if finding.cell is None else f"Cell {finding.cell}, line {finding.line}: "
        lines.append(
            annotate(
                finding.severity,
                f"{cell}{_advise(finding)}",
                file=finding.path,
                line=line,
                col=column,
                title=finding.rule.id,
            )
        )
    lines += [
        annotate("warning", f"Not checked: {problem.message}", file=problem.path)
        for problem in report.problems
    ]
    return "\n".join([*lines, _summarise(report)])


def to_junit(report: Report) -> str:
    """Write a JUnit report: a failure per finding, an error per file that was not checked."""
    from epsilometer.core.annotations import Case
    from epsilometer.core.annotations import to_junit as write_suite

    cases = [
        Case(
            name=f"{finding.rule.id} {_locate(finding)}",
            outcome="failure",
            message=_advise(finding),
            file=finding.path,
        )
        for finding in report.findings
    ]
    cases += [
        Case(
            name=f"not checked {_locate(problem)}",
            outcome="error",
            message=problem.message,
            file=problem.path,
        )
        for problem in report.problems
    ]
    passed = Case(name="lint", outcome="passed", message=_summarise(report))
    if report.blind:
        passed = Case(name="lint", outcome="skipped", message=_summarise(report))
    return write_suite("epsilometer lint", cases or [passed])


def _advise(finding: Finding) -> str:
    return f"{finding.rule.title}. {finding.rule.remedy} Run: {finding.command}"


def to_sarif(report: Report, *, version: str) -> str:
    """Write SARIF 2.1.0 for code-scanning services."""
    rules = [
        {
            "id": rule.id,
            "name": "".join(word.capitalize() for word in rule.name.split("-")),
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.remedy},
            "defaultConfiguration": {"level": "error"},
        }
        for rule in RULES.values()
    ]
    notes: list[dict[str, Any]] = [
        _make_result(problem, "warning", f"Not checked: {problem.message}")
        for problem in report.problems
    ]
    if report.blind:
        notes.append({"level": "note", "message": {"text": report.blind}})
    results = []
    for each in report.findings:
        rule, index = each.rule, list(RULES).index(each.rule_id)
        message = f"{rule.title}. {each.detail} {rule.why} {rule.remedy} Run: {each.command}"
        named = {"ruleId": rule.id, "ruleIndex": index}
        results.append({**named, **_make_result(each, each.severity, message)})
    run = {
        "tool": {"driver": {"name": "epsilometer", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": not report.problems, "toolExecutionNotifications": notes}
        ],
        "results": results,
    }
    return to_json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _make_result(what: Finding | Problem, level: str, message: str) -> dict[str, Any]:
    """Return a result of SARIF.

    Lines of a notebook's cell are not lines of its file, so that a cell is named instead.
    """
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(os.fsencode(what.path))}}
    location: dict[str, Any] = {"physicalLocation": physical}
    if what.cell is not None:
        line = f", line {what.line}" if what.line is not None else ""
        location["logicalLocations"] = [{"name": f"cell {what.cell}{line}"}]
    elif what.line is not None:
        physical["region"] = {"startLine": what.line}
        if isinstance(what, Finding):
            physical["region"]["startColumn"] = what.column
    return {"level": level, "message": {"text": message}, "locations": [location]}
