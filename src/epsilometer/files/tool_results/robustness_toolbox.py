"""Read the inferences of attacks of the Adversarial Robustness Toolbox, under their usual names."""

from epsilometer.files.tool_results.result import Attack, Opened, ToolResult, shorten, take_side

_TRAIN, _TEST = "inferred_train", "inferred_test"


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return attacks from arrays ``inferred_train…`` and ``inferred_test…``; None without them."""
    ends = sorted(
        name.removeprefix(_TRAIN)
        for name in opened.names
        if name.startswith(_TRAIN) and _TEST + name.removeprefix(_TRAIN) in opened.names
    )
    attacks = tuple(
        Attack(
            shorten(f"inferred{end}"),
            take_side(opened.read(_TRAIN + end), _TRAIN + end, classes=True),
            take_side(opened.read(_TEST + end), _TEST + end, classes=True),
        )
        for end in ends
    )
    usual = "Leave out the records that the attack was fitted on."
    return ToolResult("the Adversarial Robustness Toolbox", attacks, usual) if attacks else None
