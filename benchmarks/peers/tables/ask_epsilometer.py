"""Attacks of this package, and its rules: shadows once, then three attacks.

An AUC that is significant at 5 %, shared by the three attacks, counts as an alarm. The time of our
rules, which no other tool has, is not counted.
"""

import time
from typing import Any

import numpy as np
from target import MODELS, Question, answer, score

from epsilometer import InProcess
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import shadow_pool
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    Attacked,
    CaughtAtMost,
    Measured,
    apply_rules,
)
from epsilometer.audits.classifier.sklearn_models import predict_logs
from epsilometer.stats.membership import rank_sum_pvalue

NAMES = ("loss", "lira", "rmia")
SIGNIFICANT = 0.05 / len(NAMES)


def attack(name: str) -> Any:
    """One attack on the shadows of all, whose time each of them pays."""

    def run(question: Question) -> dict[str, Any]:
        x, y, paid = question.x, question.y, 0.0
        if question.kept is None:
            start = time.process_time()
            made = shadow_pool(question.make(0), x, y, models=MODELS, seed=1, engine=InProcess())
            question.kept = made, time.process_time() - start
        else:
            paid = question.kept[1]
        pool = question.kept[0]
        logs = predict_logs(question.target(), x, classes=np.unique(y))
        found = ATTACKS[name](pool, logs, np.random.default_rng(0))
        scores = found.split(question.member)
        alarms = rank_sum_pvalue(scores.inside, scores.outside, continuity=0.5) < SIGNIFICANT
        start = time.process_time()
        measured = Measured(
            risk=None,
            floor=None,
            of=y.size,
            drawn=False,
            attacks=[Attacked(name=name, scores=scores)],
        )
        rules, _ = apply_rules(measured, (AdvantageAtMost(), CaughtAtMost()))
        paid -= time.process_time() - start
        return {
            **score(found.values, question.member),
            "verdict": "fail" if alarms else "pass",
            "rules": "fail" if any(rule.outcome == "fail" for rule in rules) else "",
            "paid": paid,
        }

    return run


if __name__ == "__main__":
    answer({name: attack(name) for name in NAMES})
