"""Read the data frames of scores of PrivacyGuard, saved as two files."""

from typing import Any

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.files.tool_results.result import Attack, Opened, ToolResult, say_none, take_side
from epsilometer.types import FloatArray

_TOOL = "PrivacyGuard"
_SIDES = ("train", "test")
_OF_A_RESULT = {"eps", "eps_lb", "auc", "data_size"}
_ADVICE = (
    "Save the scores: df_train_user.to_csv('df_train_user.csv') and df_test_user.to_csv("
    "'df_test_user.csv') of the analysis input, and give either file."
)


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return scores of ``df_train_user`` and ``df_test_user``; None if another tool wrote the file.

    A frame has the columns ``user_id`` and ``score``. Only its name tells which side it is.

    Raises:
        InvalidArgument: A user has several rows, there are no scores, or the side is unclear.
    """
    if isinstance(opened.tree, dict) and set(opened.tree) >= _OF_A_RESULT:
        reason = "Its eps and eps_lb are ends of a bootstrap, its eps_cp a maximum: no bounds."
        raise say_none(_TOOL, [reason], _ADVICE)
    if not opened.names >= {"user_id", "score"} or "member" in opened.names:
        return None
    name = opened.path.name
    if sum(name.count(each) for each in _SIDES) != 1:
        raise InvalidArgument(
            f"Expected 'train' or 'test' once in the name of {name!r}, whose columns are those of "
            f"a frame of {_TOOL}: nothing else says which side it is. {_ADVICE}"
        )
    side, other = _SIDES if _SIDES[0] in name else _SIDES[::-1]
    twin = opened.open_beside(name.replace(side, other))
    found = {side: opened, other: twin}
    inside, outside = (_read_scores(found[each]) for each in _SIDES)
    beside = (twin.path,)
    _refuse_shared(opened.find("user_id"), twin.find("user_id"))
    return ToolResult(_TOOL, (Attack("score", inside, outside),), beside=beside)


def _refuse_shared(*sides: Any) -> None:
    """Refuse users who are on both sides; those of ``LossAttack`` are row numbers, which say none.

    Raises:
        InvalidArgument: A user was trained on, and was not.
    """
    if any(side is None for side in sides):
        return
    numbered = all(np.array_equal(side, np.arange(side.size)) for side in sides)
    if not numbered and np.isin(*sides).any():
        raise InvalidArgument(
            "Expected other users in the test frame than in the training frame, found some in "
            "both. One file is a copy, or of another run; or these users were trained on in part."
        )


def _read_scores(opened: Opened) -> FloatArray:
    if "score" not in opened.names:
        raise InvalidArgument(f"Expected a column 'score' in {opened.path.name!r}, found none.")
    if "user_id" in opened.names:
        users = opened.read("user_id")
        if np.unique(users).size < users.size:
            raise InvalidArgument(
                f"Expected one score per user in {opened.path.name!r}, got several of some: they "
                "came in together. Save df_train_user and df_test_user, aggregated by user."
            )
    return take_side(opened.read("score"), "score")
