"""Log audits to experiment trackers: one protocol, one choice of names and numbers."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from epsilometer.core.audit import Audit
from epsilometer.core.findings import (
    AccuracyFinding,
    EpsilonFinding,
    Finding,
    FormFinding,
    LeaveOneOut,
)
from epsilometer.core.printing import one_line
from epsilometer.core.renderers import render
from epsilometer.files.history.entries import Entry, list_entries

_OF_A_BOUND = ("delta", "confidence", "method", "threshold_rule", "adjacency", "adversary")
_LONGEST = 500  # letters of a text, that every store takes


class Tracker(Protocol):
    """Define a tracker of audits: a run of MLflow or W&B, or a writer of TensorBoard.

    Must keep: every value is stored under its name; a view is stored with its audit.
    """

    def log_metrics(self, values: Mapping[str, float]) -> None:
        """Log measured numbers, including infinite ones."""

    def log_params(self, values: Mapping[str, str]) -> None:
        """Log the settings."""

    def log_tags(self, values: Mapping[str, str]) -> None:
        """Log tags to find runs by, such as the verdict."""

    def log_text(self, name: str, content: str) -> None:
        """Log a text file."""

    def open_view(self, name: str, number: int) -> "AbstractContextManager[Tracker]":
        """Return a tracker for one of several views of an audit."""


def log_to(tracker: Tracker, audit: Audit, *, prefix: str = "privacy.") -> None:
    """Log an audit: numbers, settings, the verdict, and the audit itself with its page.

    Guarantee: a bound that is not valid is never logged as ``epsilon_bound``. No content of a
        record is logged.
    Assumption: that of the tracker.

    Args:
        tracker: Tracker to log to.
        audit: Audit of any subject.
        prefix: Prefix of all names, to avoid collisions: a training run has its own ``seed``.
    """
    entries = list_entries(audit)
    views = [f for f in audit.findings if isinstance(f, (EpsilonFinding, FormFinding))]
    tracker.log_text(f"{prefix}result.json", audit.to_json() + "\n")
    tracker.log_text(f"{prefix}report.html", render(audit, ".html").decode("utf-8"))
    if len(entries) == 1:
        _log_entry(tracker, prefix, audit, entries[0], views[0] if views else None)
        return
    tracker.log_metrics(_name_numbers(prefix, _measure_audit(audit)))
    tags = {**_tag_audit(audit), "subject": audit.subject, "views": len(entries)}
    tracker.log_tags(_name_words(prefix, tags))
    for number, (entry, view) in enumerate(zip(entries, views, strict=True), start=1):
        with tracker.open_view(shorten(entry.subject), number) as part:
            _log_entry(part, prefix, audit, entry, view)


def shorten(value: Any) -> str:
    """Return a text in one line, cut to the length that every store accepts."""
    return one_line(str(value), _LONGEST)


def _log_entry(
    tracker: Tracker, prefix: str, audit: Audit, entry: Entry, finding: Finding | None
) -> None:
    view = finding.view if isinstance(finding, FormFinding) else finding
    assert view is None or isinstance(view, EpsilonFinding)  # as the caller chose
    measured = {
        **_measure_audit(audit),
        "attack_auc": entry.auc,
        "attack_advantage": entry.advantage,
        "observations": entry.observations,
        "failed_units": entry.failed,
        **(_measure_classifier(audit) if view is None else _measure_view(view)),
    }
    if isinstance(finding, FormFinding):
        measured["accuracy"] = finding.accuracy
    tracker.log_metrics(_name_numbers(prefix, measured))
    bound = {} if view is None else {name: getattr(view.bound, name) for name in _OF_A_BOUND}
    source = audit.provenance
    asked = {"audit": source.subject, "confidence": entry.confidence, "seed": source.seed}
    tracker.log_params(_name_words(prefix, {**asked, **bound}))
    tags = {**_tag_audit(audit), "subject": entry.subject, "valid": entry.valid}
    tracker.log_tags(_name_words(prefix, tags))


def _measure_audit(audit: Audit) -> dict[str, float | None]:
    return {
        "claimed_epsilon": None if audit.claim is None else audit.claim.epsilon,
        "reach": audit.reach,
        "power": audit.power,
    }


def _measure_view(view: EpsilonFinding) -> dict[str, float | None]:
    valid = bool(view.bound.valid)
    found: dict[str, float | None] = {
        "epsilon_bound" if valid else "epsilon_no_bound": view.bound.epsilon
    }
    for first in view.estimates[:1]:
        found |= {
            "epsilon_estimate": first.epsilon,
            "epsilon_estimate_low": first.low,
            "epsilon_estimate_high": first.high,
        }
    if view.computed is not None:
        found["epsilon_computed"] = view.computed.low
    return found


def _measure_classifier(audit: Audit) -> dict[str, float | None]:
    left_out, right = audit.one(LeaveOneOut), audit.one(AccuracyFinding)
    return {
        "records_exposed": None if left_out is None else left_out.exposed,
        "largest_pdtp": None if left_out is None else left_out.largest,
        "accuracy": None if right is None else right.accuracy,
    }


def _tag_audit(audit: Audit) -> dict[str, str]:
    source = audit.provenance
    return {
        "kind": source.subject,
        "verdict": audit.verdict,
        "version": dict(source.versions).get("epsilometer", ""),
    }


def _name_numbers(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers by their full names; missing ones are left out."""
    return {f"{prefix}{name}": float(n) for name, n in values.items() if n is not None}


def _name_words(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    return {f"{prefix}{name}": shorten(value) for name, value in values.items()}
