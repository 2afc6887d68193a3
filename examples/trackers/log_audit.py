"""Audit scores of a membership attack, and log the audit where your runs are tracked.

pip install 'epsilometer[mlflow]'     # or epsilometer[wandb], or tensorboard and torch
python examples/trackers/log_audit.py mlflow
WANDB_MODE=offline python examples/trackers/log_audit.py wandb
python examples/trackers/log_audit.py tensorboard --folder runs/audit
"""

import argparse
from pathlib import Path

import numpy as np

import epsilometer as em


def audit_scores() -> em.Audit:
    """Return the audit of an attack whose scores in and out differ by one standard deviation."""
    rng = np.random.default_rng(0)
    scores = em.Scores(rng.normal(1, 1, 1000), rng.normal(0, 1, 1000), design="runs")
    return em.audit(scores, em.Claim(1.0, delta=1e-5))


def log(audit: em.Audit, tracker: str, folder: Path) -> None:
    """Log the audit in a new run of a tracker; ``folder`` is where TensorBoard's events are."""
    if tracker == "mlflow":
        import mlflow

        from epsilometer.integrations.mlflow import log_audit as log_to_mlflow

        with mlflow.start_run():
            log_to_mlflow(audit)
    elif tracker == "wandb":
        import wandb

        from epsilometer.integrations.wandb import log_audit as log_to_wandb

        with wandb.init(project="audits"):
            log_to_wandb(audit)
    else:
        from torch.utils.tensorboard import SummaryWriter

        from epsilometer.integrations.tensorboard import log_audit as log_to_tensorboard

        with SummaryWriter(str(folder)) as writer:
            log_to_tensorboard(audit, writer, step=1000)


def main() -> None:
    """Audit, log and print; exit as ``epsilometer`` does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tracker", choices=["mlflow", "wandb", "tensorboard"])
    parser.add_argument("--folder", type=Path, default=Path("runs/audit"))
    asked = parser.parse_args()
    audit = audit_scores()
    log(audit, asked.tracker, asked.folder)
    print(audit)
    raise SystemExit(audit.exit_code)


if __name__ == "__main__":
    main()
