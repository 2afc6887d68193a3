"""Attacks of SACRO-ML; an AUC that is significant at its own 5 % counts as its alarm."""

import logging
import tempfile
from typing import Any

import numpy as np
from sacroml.attacks.likelihood_attack import LIRAAttack
from sacroml.attacks.target import Target
from sacroml.attacks.worst_case_attack import WorstCaseAttack
from target import MODELS, Question, answer

SIGNIFICANT = 0.05  # its own P_VAL_THRESH


def attack(kind: Any, **options: Any) -> Any:
    """Run one of its attacks."""

    def run(question: Question) -> dict[str, Any]:
        logging.disable(logging.WARNING)
        member = question.member
        given = Target(
            model=question.target(),
            X_train=question.x[member],
            y_train=question.y[member],
            X_test=question.x[~member],
            y_test=question.y[~member],
        )
        with tempfile.TemporaryDirectory() as folder:
            said = kind(output_dir=folder, write_report=False, **options).attack(given)
        found = [*said["attack_experiment_logger"]["attack_instance_logger"].values()]
        auc = sum(one["AUC"] for one in found) / len(found)
        caught = [np.max(np.array(one["tpr"])[np.array(one["fpr"]) <= 0.01]) for one in found]
        share = sum(one["P_HIGHER_AUC"] < SIGNIFICANT for one in found) / len(found)
        verdict = "fail" if share > 0.1 else "pass"
        return {"auc": float(auc), "tpr": float(np.mean(caught)), "verdict": verdict}

    return run


if __name__ == "__main__":
    lira = attack(LIRAAttack, n_shadow_models=MODELS)
    answer({"LiRA": lira, "worst case": attack(WorstCaseAttack)})
