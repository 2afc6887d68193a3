"""Log audits to Weights & Biases: summary, configuration and an artifact of a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epsilometer._extras import needs
from epsilometer.core.audit import Audit
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.logged import log_to

KIND = "privacy-audit"  # of the artifact


def log_audit(audit: Audit, *, run: Any = None, prefix: str = "privacy.") -> None:
    """Log an audit to a run: the result to its summary, the settings to its config.

    Guarantee: a bound that is not valid is never logged as ``epsilon_bound``. The whole audit is
        saved in an artifact, as ``result.json`` and ``report.html``.
    Assumption: W&B is set up, or offline (``WANDB_MODE=offline``).

    Args:
        audit: Audit of any subject. Several views are named ``privacy.view-1.epsilon_bound`` etc.
        run: The run from ``wandb.init``; by default the active run.
        prefix: Prefix of all names, which avoids clashes: a training run has its own ``seed``.
    """
    with needs("wandb", extra="wandb"):
        import wandb
    active = wandb.run if run is None else run
    if active is None:
        raise InvalidArgument("Expected a run of W&B, got none. Call wandb.init() first.")
    artifact = wandb.Artifact(f"{KIND}-{active.id}", type=KIND)
    log_to(_Run(active, artifact), audit, prefix=prefix)
    active.log_artifact(artifact)


class _Run:
    def __init__(self, run: Any, artifact: Any, view: str = "") -> None:
        self._run, self._artifact, self._view = run, artifact, view

    def log_metrics(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(self._name(values))

    def log_params(self, values: Mapping[str, str]) -> None:
        self._run.config.update(self._name(values), allow_val_change=True)

    def log_tags(self, values: Mapping[str, str]) -> None:
        self._run.summary.update(self._name(values))

    def log_text(self, name: str, content: str) -> None:
        with self._artifact.new_file(name, mode="w", encoding="utf-8") as file:
            file.write(content)

    @contextmanager
    def open_view(self, name: str, number: int) -> Iterator["_Run"]:
        del name  # it is the view's subject, which is among the words
        yield _Run(self._run, self._artifact, f"view-{number}.")

    def _name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {_put_view(name, self._view): value for name, value in values.items()}


def _put_view(name: str, view: str) -> str:
    """Return a name with that of the view before its last part."""
    head, dot, last = name.rpartition(".")
    return f"{head}{dot}{view}{last}"
