"""MLflow: a result as metrics, parameters, tags and artifacts of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epsilometer._extras import needs
from epsilometer.history.entries import Entry, bound_of, entries_of, parts_of
from epsilometer.report.page import page
from epsilometer.core.audit import Result
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.serialisation import to_json

_OF_A_BOUND = ("delta", "confidence", "method", "threshold_rule", "adjacency", "adversary", "seed")
_LONGEST = 500  # letters of a parameter, that every store takes


def log_result(result: "Result | EpsilonEstimate", *, prefix: str = "privacy.") -> str:
    """Logs a result to the active run, or to a new one; several audits become nested runs.

    Guarantees: a bound that is not valid is never logged as ``epsilon_bound``. The whole result is
        kept as ``result.json``, and its page as ``report.html``.
    Assumes: the tracking store is set, as MLflow wants it.

    Args:
        result: Of any kind.
        prefix: Before all names, which else might be taken: a training run has a seed of its own.

    Returns:
        The id of the run.
    """
    with needs("mlflow", extra="mlflow"):
        import mlflow
    plain = result.to_dict()
    parts, entries = parts_of(plain), entries_of(plain)
    with _run(mlflow, plain) as run_id:
        client = mlflow.MlflowClient()
        client.log_text(run_id, to_json(result) + "\n", f"{prefix}result.json")
        if not isinstance(result, EpsilonEstimate):
            client.log_text(run_id, page(result), f"{prefix}report.html")
        if len(parts) == 1:
            _log(mlflow, prefix, parts[0], entries[0])
        else:
            mlflow.set_tags(_named(prefix, {"kind": plain["kind"], "audits": len(parts)}))
            for part, entry in zip(parts, entries, strict=True):
                with mlflow.start_run(run_name=_short(entry.subject), nested=True):
                    _log(mlflow, prefix, part, entry)
    return run_id


@contextmanager
def _run(mlflow: Any, plain: dict[str, Any]) -> Iterator[str]:
    """The active run, which stays active, or a new one that ends."""
    active = mlflow.active_run()
    if active is not None:
        yield active.info.run_id
        return
    with mlflow.start_run(run_name=_short(plain.get("subject", plain["kind"]))) as run:
        yield run.info.run_id


def _log(mlflow: Any, prefix: str, part: dict[str, Any], entry: Entry) -> None:
    mlflow.log_metrics(_named(prefix, _metrics(part, entry)))
    mlflow.log_params({name: _short(v) for name, v in _named(prefix, _params(part, entry)).items()})
    tags = {
        "kind": entry.kind,
        "subject": entry.subject,
        "verdict": entry.verdict,
        "valid": entry.valid,
        "version": entry.version,
    }
    mlflow.set_tags({name: _short(value) for name, value in _named(prefix, tags).items()})


def _metrics(part: dict[str, Any], entry: Entry) -> dict[str, float]:
    """Numbers by name; what there is none of is left out."""
    leaving, form = part.get("leaving") or {}, part.get("form") or {}
    estimates = [part] if entry.kind == "EpsilonEstimate" else part.get("estimates") or ()
    found = {
        "epsilon_bound" if entry.valid else "epsilon_no_bound": entry.epsilon,
        "claimed_epsilon": entry.claim,
        "attack_auc": entry.auc,
        "attack_advantage": entry.advantage,
        "observations": entry.observations,
        "failed_units": entry.failed,
        "records_exposed": leaving.get("exposed"),
        "largest_pdtp": leaving.get("largest"),
        "accuracy": form.get("accuracy", part.get("accuracy")),
    }
    if entry.kind == "EpsilonEstimate":
        del found["epsilon_no_bound"]
    for first in list(estimates)[:1]:
        found |= {
            "epsilon_estimate": first["epsilon"],
            "epsilon_estimate_low": first["low"],
            "epsilon_estimate_high": first["high"],
        }
    return {name: float(value) for name, value in found.items() if value is not None}


def _params(part: dict[str, Any], entry: Entry) -> dict[str, Any]:
    bound = bound_of(part)
    found = {name: bound[name] for name in _OF_A_BOUND if name in bound}
    source = part.get("provenance") or {}
    found |= {"seed": entry.seed, "confidence": entry.confidence, "command": source.get("command")}
    return {name: value for name, value in found.items() if value is not None}


def _named(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
