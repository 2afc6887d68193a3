"""Write reports: text, JSON, SARIF, commands of GitHub Actions, JUnit."""

import os
import textwrap
from typing import Any
from urllib.parse import quote

from epsilometer.core.printing import one_line, to_json_text
from epsilometer.lint.findings import Finding, Problem, Report
from epsilometer.lint.rules import RULES, Rule

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_WIDTH = 100


def to_text(report: Report) -> str:
    """For people: a line each, with why, what to do and what to run below it."""
    blocks = [_block(finding) for finding in report.findings]
    blocks += [
        f"{_where(problem)}: not checked: {one_line(problem.message)}"
        for problem in report.problems
    ]
    blocks.append(_summary(report))
    return "\n".join(blocks)


def _block(finding: Finding) -> str:
    rule = finding.rule
    head = f"{_where(finding)}: {rule.id} {finding.severity}: {rule.title}"
    rows = [
        _indented("seen", finding.detail),
        _indented("why", rule.why),
        _indented("do", rule.remedy),
        f"  run:  {one_line(finding.command)}",  # never broken: it is to be copied
    ]
    return "\n".join([head, *rows])


def _indented(label: str, text: str) -> str:
    start = f"  {label}:".ljust(8)
    return textwrap.fill(one_line(text), _WIDTH, initial_indent=start, subsequent_indent=" " * 8)


def _where(what: Finding | Problem) -> str:
    parts = [one_line(what.path)]
    if what.cell is not None:
        parts.append(f"cell {what.cell}")
    if what.line is not None:
        parts.append(str(what.line))
    if isinstance(what, Finding):
        parts.append(str(what.column))
    return ":".join(parts)


def _summary(report: Report) -> str:
    errors = sum(finding.severity == "error" for finding in report.findings)
    said = [_count(report.files, "file"), _count(errors, "error")]
    said.append(_count(len(report.findings) - errors, "warning"))
    if report.problems:
        said.append(f"{len(report.problems)} not checked")
    return ", ".join(said) + "."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def to_json(report: Report) -> str:
    """For programs: see docs/lint.md for the fields."""
    plain = {
        "format": "epsilometer-lint",
        "version": 1,
        "files": report.files,
        "findings": [_plain_finding(finding) for finding in report.findings],
        "problems": [vars(problem) for problem in report.problems],
    }
    return to_json_text(plain)


def _plain_finding(finding: Finding) -> dict[str, Any]:
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
    }


def to_github(report: Report) -> str:
    """Return annotations of the lines in question, as GitHub Actions reads them."""
    # Here, so that whoever asks for text does not wait for what it imports.
    from epsilometer.core.annotations import to_github as annotate

    lines = []
    for finding in report.findings:
        # Lines of a notebook's cell are no lines of its file.
        line, column = (None, None) if finding.cell is not None else (finding.line, finding.column)
        cell = "" if finding.cell is None else f"Cell {finding.cell}, line {finding.line}: "
        lines.append(
            annotate(
                "error" if finding.severity == "error" else "warning",
                f"{cell}{finding.rule.title}. {finding.rule.remedy} Run: {finding.command}",
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
    return "\n".join([*lines, _summary(report)])


def to_junit(report: Report) -> str:
    """Return a JUnit report: a failure per finding, an error per file that was not checked."""
    from epsilometer.core.annotations import Case
    from epsilometer.core.annotations import to_junit as write_suite

    cases = [
        Case(
            name=f"{finding.rule.id} {_where(finding)}",
            outcome="failure",
            message=f"{finding.rule.title}. {finding.rule.remedy} Run: {finding.command}",
            file=finding.path,
        )
        for finding in report.findings
    ]
    cases += [
        Case(
            name=f"not checked {_where(problem)}",
            outcome="error",
            message=problem.message,
            file=problem.path,
        )
        for problem in report.problems
    ]
    if not cases:
        cases = [Case(name="lint", outcome="passed", message=_summary(report))]
    return write_suite("epsilometer lint", cases)


def to_sarif(report: Report, *, version: str) -> str:
    """For code-scanning services: SARIF 2.1.0."""
    order = list(RULES)
    run = {
        "tool": {
            "driver": {
                "name": "epsilometer",
                "version": version,
                "rules": [_sarif_rule(rule) for rule in RULES.values()],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [_notification(each) for each in report.problems],
            }
        ],
        "results": [
            _sarif_result(finding, order.index(finding.rule_id)) for finding in report.findings
        ],
    }
    plain = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return to_json_text(plain)


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.remedy},
        "defaultConfiguration": {"level": "error"},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    rule = finding.rule
    message = f"{rule.title}. {finding.detail} {rule.why} {rule.remedy} Run: {finding.command}"
    return {
        "ruleId": rule.id,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": message},
        "locations": [_location(finding)],
    }


def _notification(problem: Problem) -> dict[str, Any]:
    return {
        "level": "warning",
        "message": {"text": f"Not checked: {problem.message}"},
        "locations": [_location(problem)],
    }


def _location(what: Finding | Problem) -> dict[str, Any]:
    """Lines of a notebook's cell are no lines of its file, so that a cell is named instead."""
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(os.fsencode(what.path))}}
    location: dict[str, Any] = {"physicalLocation": physical}
    if what.cell is not None:
        line = f", line {what.line}" if what.line is not None else ""
        location["logicalLocations"] = [{"name": f"cell {what.cell}{line}"}]
    elif what.line is not None:
        physical["region"] = {"startLine": what.line}
        if isinstance(what, Finding):
            physical["region"]["startColumn"] = what.column
    return location
