"""Questions to SACRO-ML: ``stopwatch.answer``."""

import logging
import tempfile
from typing import Any

import stopwatch
import subjects
from sacroml.attacks.likelihood_attack import LIRAAttack
from sacroml.attacks.target import Target
from sacroml.attacks.worst_case_attack import WorstCaseAttack
from stopwatch import BoolArray

SIGNIFICANT = 0.05  # its own P_VAL_THRESH; its report speaks against release where > 10 % are


def membership_worst_case(member: BoolArray, leaks: bool, seed: int) -> dict[str, float]:
    return {"worst_case": _share(WorstCaseAttack, member, leaks, seed)}


def membership_lira(member: BoolArray, leaks: bool, seed: int) -> dict[str, float]:
    return {"lira": _share(LIRAAttack, member, leaks, seed)}


def _share(attack: Any, member: BoolArray, leaks: bool, seed: int) -> float:
    """Share of its AUCs that are significant."""
    logging.disable(logging.WARNING)
    x, y = subjects.records()
    given = Target(
        model=subjects.target(member, leaks, seed),
        X_train=x[member],
        y_train=y[member],
        X_test=x[~member],
        y_test=y[~member],
    )
    with tempfile.TemporaryDirectory() as folder:
        said = attack(output_dir=folder, write_report=False).attack(given)
    found = said["attack_experiment_logger"]["attack_instance_logger"].values()
    return sum(one["P_HIGHER_AUC"] < SIGNIFICANT for one in found) / len(found)


if __name__ == "__main__":
    stopwatch.answer(
        {"membership_worst_case": membership_worst_case, "membership_lira": membership_lira},
        tool="sacroml",
    )
