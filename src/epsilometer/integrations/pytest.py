"""Extend pytest with the fixture ``assert_private``, two options, and a summary of all audits.

pytest loads this wherever epsilometer is installed, so it imports only pytest, and quotes type
names: older versions lack some of them.
"""

import functools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from epsilometer.core.audit import Audit
    from epsilometer.core.claim import Claim

_PROPERTY = "privacy audit"


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add options for all audits of a session, which override those of tests."""
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
def assert_private(request: "pytest.FixtureRequest") -> "Callable[..., Audit]":
    """Return ``epsilometer.testing.assert_private`` with --audit-runs and --audit-seed applied."""
    from epsilometer.testing import ClaimRefuted, summary
    from epsilometer.testing import assert_private as audit

    options = {name: request.config.getoption(f"--audit-{name}") for name in ("runs", "seed")}
    chosen = {name: value for name, value in options.items() if value is not None}

    def report(found: "Audit") -> None:
        # xdist's workers return properties, and JUnit files contain them.
        request.node.user_properties.append((_PROPERTY, summary(found)))

    @functools.wraps(audit)
    def audited(claim: "Claim | float", train: Any, **arguments: Any) -> "Audit":
        __tracebackhide__ = True
        try:
            found = audit(claim, train, **{**arguments, **chosen})
        except ClaimRefuted as refuted:
            found = refuted.audit
            report(found)
            again = (
                f"pytest {shlex.quote(request.node.nodeid)} "
                f"--audit-seed={found.provenance.seed} --audit-runs={found.provenance.units}"
            )
            raise ClaimRefuted(f"{refuted}\nOr: {again}", found) from None
        report(found)
        return found

    return audited


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print the result of each audit, if there was any."""
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
