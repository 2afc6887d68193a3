"""RMIA of Privacy Meter 2, a repository of scripts: PRIVACY_METER names a checkout of it.

It gives no verdict. Its attack is offline, with as many models as the others train.
"""

import os
import sys
from logging import getLogger
from typing import Any

import numpy as np

sys.path.insert(0, os.environ["PRIVACY_METER"])
from attacks import run_rmia, tune_offline_a  # type: ignore[import-not-found]
from target import MODELS, Question, answer, score


def rmia(question: Question) -> dict[str, Any]:
    """The target is model 0; its pair is a model of the other records."""
    signals, members = question.shadows()
    target = question.own(question.target())
    mirror = question.make(99).fit(question.x[~question.member], question.y[~question.member])
    every = np.column_stack([target, question.own(mirror), signals])
    was_in = np.column_stack([question.member, ~question.member, members])
    best, _, _ = tune_offline_a(0, every, every, was_in, getLogger("quiet"))
    found = run_rmia(0, every, every, was_in, MODELS // 2, best)
    return {**score(found, question.member), "verdict": ""}


if __name__ == "__main__":
    answer({"RMIA, offline": rmia})
