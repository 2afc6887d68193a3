"""Log audits to MLflow: metrics, parameters, tags and artifacts of a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epsilometer._extras import needs
from epsilometer.core.audit import Audit
from epsilometer.files.history.logged import log_to, shorten


def log_audit(audit: Audit, *, prefix: str = "privacy.") -> str:
    """Log an audit to the active run, or to a new one; several views become nested runs.

    Guarantee: a bound that is not valid is never logged as ``epsilon_bound``. The whole audit is
        saved as ``result.json``, and its report as ``report.html``.
    Assumption: MLflow's tracking store is configured.

    Args:
        audit: Audit of any subject.
        prefix: Prefix of all names, which avoids clashes: a training run has its own ``seed``.

    Returns:
        The id of the run.
    """
    with needs("mlflow", extra="mlflow"):
        import mlflow
    with _open_run(mlflow, audit) as run_id:
        log_to(_Run(mlflow, run_id), audit, prefix=prefix)
    return run_id


@contextmanager
def _open_run(mlflow: Any, audit: Audit) -> Iterator[str]:
    """Yield the active run, which stays active, or a new one that ends."""
    active = mlflow.active_run()
    if active is not None:
        yield active.info.run_id
        return
    with mlflow.start_run(run_name=shorten(audit.subject)) as run:
        yield run.info.run_id


class _Run:
    """The active run."""

    def __init__(self, mlflow: Any, run_id: str) -> None:
        self._mlflow, self._run_id = mlflow, run_id

    def log_metrics(self, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values))

    def log_params(self, values: Mapping[str, str]) -> None:
        self._mlflow.log_params(dict(values))

    def log_tags(self, values: Mapping[str, str]) -> None:
        self._mlflow.set_tags(dict(values))

    def log_text(self, name: str, content: str) -> None:
        self._mlflow.MlflowClient().log_text(self._run_id, content, name)

    @contextmanager
    def open_view(self, name: str, number: int) -> Iterator["_Run"]:
        del number
        with self._mlflow.start_run(run_name=name, nested=True) as run:
            yield _Run(self._mlflow, run.info.run_id)
