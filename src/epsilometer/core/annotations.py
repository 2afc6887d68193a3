"""Write findings as CI services read them: commands of GitHub Actions, and JUnit XML."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from epsilometer.core.printing import printable

Level: TypeAlias = Literal["error", "warning", "notice"]
Outcome: TypeAlias = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test case of a JUnit report.

    Attributes:
        name: Name of the case.
        outcome: ``failure``: something was found; ``error``: it could not be judged; ``skipped``:
            there was nothing to judge.
        message: What was found.
        file: The file in which it was found, if any.
    """

    name: str
    outcome: Outcome
    message: str = ""
    file: str = ""


def to_github(level: Level, message: str, **where: str | int | None) -> str:
    """Return a workflow command that annotates a run, or a line of a file.

    Args:
        level: Severity of the annotation.
        message: Text of the annotation.
        where: ``file``, ``line``, ``col`` and ``title``; None where unknown.

    Example:
        >>> to_github("error", "50 % of it\\nis wrong", file="a,b.py", line=3, col=None)
        '::error file=a%2Cb.py,line=3::50 %25 of it%0Ais wrong'
    """
    known = [f"{key}={_escape_property(str(value))}" for key, value in where.items() if value]
    return f"::{level}{' ' if known else ''}{','.join(known)}::{_escape_data(message)}"


def to_junit(suite: str, cases: Sequence[Case]) -> str:
    """Return a JUnit report of one suite.

    Example:
        >>> print(to_junit("s", [Case(name="a", outcome="failure", message="1 < 2")]))
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuite name="s" tests="1" failures="1" errors="0">
          <testcase classname="s" name="a">
            <failure message="1 &lt; 2">1 &lt; 2</failure>
          </testcase>
        </testsuite>
    """
    failures = sum(case.outcome == "failure" for case in cases)
    errors = sum(case.outcome == "error" for case in cases)
    head = (
        f"<testsuite name={_attribute(suite)} "
        f'tests="{len(cases)}" failures="{failures}" errors="{errors}">'
    )
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', head]
    for case in cases:
        where = f" file={_attribute(case.file)}" if case.file else ""
        lines.append(
            f"  <testcase classname={_attribute(suite)} name={_attribute(case.name)}{where}>"
        )
        if case.outcome != "passed":
            body = escape(printable(case.message))
            lines.append(
                f"    <{case.outcome} message={_attribute(case.message)}>{body}</{case.outcome}>"
            )
        elif case.message:
            lines.append(f"    <system-out>{escape(printable(case.message))}</system-out>")
        lines.append("  </testcase>")
    return "\n".join([*lines, "</testsuite>"])


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def _escape_data(text: str) -> str:
    clean = printable(text.replace("\r", " "))
    return clean.replace("%", "%25").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
