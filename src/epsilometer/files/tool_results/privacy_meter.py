"""Read ``attack_result_*.npz`` of Privacy Meter."""

from epsilometer.errors import InvalidArgument
from epsilometer.files.tool_results.result import Opened, ToolResult, check_area, divide_by_member

_TOOL = "Privacy Meter"


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return the scores of one target model; None where another tool wrote the file.

    Raises:
        InvalidArgument: Scores of several models are in one file.
    """
    if not {"scores", "memberships"} <= opened.names:
        return None
    if opened.path.stem == "attack_result_average":  # written of several models only
        raise InvalidArgument(
            f"Expected scores of one model, got those of several, which {_TOOL} trains in pairs: "
            "who is in one is out of the other. Give attack_result_0.npz, of the first."
        )
    attack = divide_by_member(opened.path.stem, opened.read("scores"), opened.read("memberships"))
    attack = check_area(attack, fpr=opened.find("fpr"), tpr=opened.find("tpr"))
    usual = (
        "run_mia.py trains on a random half (fixed), run_audit_dp.py tosses coins (coins; with "
        "num_experiments of 1 only)."
    )
    return ToolResult(_TOOL, (attack,), usual)
