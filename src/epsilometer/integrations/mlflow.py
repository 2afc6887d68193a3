"""Log audits to MLflow: metrics, parameters, tags and artifacts of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epsilometer._extras import needs
from epsilometer.core.audit import Audit
from epsilometer.core.findings import (
    AccuracyFinding,
    EpsilonFinding,
    Finding,
    FormFinding,
    LeaveOneOut,
)
from epsilometer.core.printing import one_line
from epsilometer.files.history.entries import Entry, list_entries
from epsilometer.report.page import page

_OF_A_BOUND = ("delta", "confidence", "method", "threshold_rule", "adjacency", "adversary")
_LONGEST = 500  # letters of a parameter, that every store takes


def log_audit(audit: Audit, *, prefix: str = "privacy.") -> str:
    """Log an audit to the active run, or to a new one; several views become nested runs.

    Guarantee: a bound that is not valid is never logged as ``epsilon_bound``. The whole audit is
        kept as ``result.json``, and its page as ``report.html``.
    Assumption: the tracking store is set, as MLflow expects it.

    Args:
        audit: Of any subject.
        prefix: Before all names, which else might be taken: a training run has a seed of its own.

    Returns:
        The id of the run.
    """
    with needs("mlflow", extra="mlflow"):
        import mlflow
    entries = list_entries(audit)
    views = [f for f in audit.findings if isinstance(f, (EpsilonFinding, FormFinding))]
    with _open_run(mlflow, audit) as run_id:
        client = mlflow.MlflowClient()
        client.log_text(run_id, audit.to_json() + "\n", f"{prefix}result.json")
        client.log_text(run_id, page(audit), f"{prefix}report.html")
        if len(entries) == 1:
            _log_entry(mlflow, prefix, audit, entries[0], views[0] if views else None)
        else:
            mlflow.log_metrics(_name(prefix, _keep_known(_measure_audit(audit))))
            tags = {**_tag_audit(audit), "subject": audit.subject, "views": len(entries)}
            mlflow.set_tags(_name(prefix, tags))
            for entry, view in zip(entries, views, strict=True):
                with mlflow.start_run(run_name=_shorten(entry.subject), nested=True):
                    _log_entry(mlflow, prefix, audit, entry, view)
    return run_id


@contextmanager
def _open_run(mlflow: Any, audit: Audit) -> Iterator[str]:
    """Give the active run, which stays active, or a new one that ends."""
    active = mlflow.active_run()
    if active is not None:
        yield active.info.run_id
        return
    with mlflow.start_run(run_name=_shorten(audit.subject)) as run:
        yield run.info.run_id


def _log_entry(
    mlflow: Any, prefix: str, audit: Audit, entry: Entry, finding: Finding | None
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
    mlflow.log_metrics(_name(prefix, _keep_known(measured)))
    bound = {} if view is None else {name: getattr(view.bound, name) for name in _OF_A_BOUND}
    source = audit.provenance
    asked = {"audit": source.subject, "confidence": entry.confidence, "seed": source.seed}
    mlflow.log_params(_name(prefix, {**asked, **bound}))
    tags = {**_tag_audit(audit), "subject": entry.subject, "valid": entry.valid}
    mlflow.set_tags(_name(prefix, tags))


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


def _keep_known(values: dict[str, float | None]) -> dict[str, float]:
    """Return numbers by name; what there is none of is left out."""
    return {name: float(value) for name, value in values.items() if value is not None}


def _name(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return values by their whole names, texts cut to what every store takes."""
    return {
        f"{prefix}{name}": value if isinstance(value, float) else _shorten(value)
        for name, value in values.items()
    }


def _shorten(value: Any) -> str:
    return one_line(str(value), _LONGEST)
