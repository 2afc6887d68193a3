"""Read ``attack_result_*.npz`` of Privacy Meter."""

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.files.tool_results.result import Opened, ToolResult, check_area, divide_by_member
from epsilometer.types import FloatArray

_TOOL = "Privacy Meter"
_FEWEST = 20  # records of a model for which opposite halves cannot be a coincidence


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return the scores of one target model; None if another tool wrote the file.

    Raises:
        InvalidArgument: Scores of several models are in one file.
    """
    if not {"scores", "memberships"} <= opened.names:
        return None
    memberships = opened.read("memberships")
    averaged = opened.path.stem == "attack_result_average"  # written of several models only
    if averaged or _has_pair(np.ravel(memberships)):
        raise InvalidArgument(
            f"Expected scores of one model, got those of several, which {_TOOL} trains in pairs: "
            "who is in one is out of the other. Give attack_result_0.npz, of the first."
        )
    attack = divide_by_member(opened.path.stem, opened.read("scores"), memberships)
    attack = check_area(attack, fpr=opened.find("fpr"), tpr=opened.find("tpr"))
    usual = (
        "run_mia.py trains on a random half (fixed), run_audit_dp.py tosses coins (coins; with "
        "num_experiments of 1 only)."
    )
    return ToolResult(_TOOL, (attack,), usual)


def _has_pair(memberships: FloatArray) -> bool:
    """Tell whether memberships begin with those of two models that divide the records.

    The first two models of the tool are always a pair, so any number of models begins so. Records
    of one model in order, all members first, are not a pair.
    """
    total = memberships.size
    return any(
        total % size == 0
        and np.unique(memberships[:size]).size > 1
        and np.array_equal(memberships[:size], 1 - memberships[size : 2 * size])
        for size in range(_FEWEST, total // 2 + 1)
    )
