"""pytest: the fixture ``assert_private``, two options, and what audits found below the tests.

pytest loads this for everybody who has epsilometer installed, so it imports nothing but pytest, and
names its types in quotes: older versions do not have them all.
"""

import functools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from epsilometer.core.claim import Claim
    from epsilometer.core.audit import AuditResult

_PROPERTY = "privacy audit"


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Options that all audits of a session share, in place of what tests say."""
    group = parser.getgroup("epsilometer", "privacy audits")
    group.addoption(
        "--audit-runs",
        type=int,
        metavar="N",
        help="Runs of every audit, at most: few while you write, many at night.",
    )
    group.addoption(
        "--audit-seed",
        type=int,
        metavar="SEED",
        help="Seed of every audit; the same seed and runs give the same outcome.",
    )


@pytest.fixture
def assert_private(request: "pytest.FixtureRequest") -> "Callable[..., AuditResult]":
    """``epsilometer.testing.assert_private``, heeding --audit-runs and --audit-seed."""
    from epsilometer.testing import PromiseBroken, summary
    from epsilometer.testing import assert_private as audit

    options = {name: request.config.getoption(f"--audit-{name}") for name in ("runs", "seed")}
    chosen = {name: value for name, value in options.items() if value is not None}

    def say(result: "AuditResult") -> None:
        # Reports carry properties from xdist's workers home, and into JUnit's files.
        request.node.user_properties.append((_PROPERTY, summary(result)))

    @functools.wraps(audit)
    def audited(claim: "Claim", train: Any, **arguments: Any) -> "AuditResult":
        __tracebackhide__ = True
        try:
            result = audit(claim, train, **{**arguments, **chosen})
        except PromiseBroken as broken:
            found = broken.result
            say(found)
            again = (
                f"pytest {shlex.quote(request.node.nodeid)} --audit-seed={found.bound.seed} "
                f"--audit-runs={found.provenance.units}"
            )
            raise PromiseBroken(f"{broken}\nOr: {again}", found) from None
        say(result)
        return result

    return audited


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """What each audit found, where there was any."""
    reports = (report for some in terminalreporter.stats.values() for report in some)
    said = {
        (report.nodeid, text)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == _PROPERTY
    }
    if said:
        terminalreporter.section("privacy audits")
        for nodeid, text in sorted(said):
            terminalreporter.write_line(f"{nodeid}: {text}")
