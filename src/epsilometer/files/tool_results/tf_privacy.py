"""Read attack results of TensorFlow Privacy: pickles, without running them, and arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from epsilometer.files.tool_results.result import (
    Attack,
    Opened,
    ToolResult,
    check_area,
    say_none,
    shorten,
    take_side,
)

_TOOL = "TensorFlow Privacy"
_ARRAYS = ("loss", "entropy")
_WHOLE = (int, np.integer)
_ADVICE = "Run AttackType.THRESHOLD_ATTACK or THRESHOLD_ENTROPY_ATTACK, and save() its result."
_LEARNT = (
    "Attackers that were trained have learnt from who was in, by cross-validation: their scores "
    "depend on each other."
)
_PROBABILITIES = "Membership probabilities were computed from who was in."
_TABLE = "A table of metrics has no scores."


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return the threshold attacks of a result; None if another tool wrote the file.

    Raises:
        InvalidArgument: It has no scores, or scores that depend on each other.
    """
    if {"slice feature", "attack type"} <= opened.names:
        raise say_none(_TOOL, [_TABLE], _ADVICE)
    pairs = [kind for kind in _ARRAYS if {f"{kind}_train", f"{kind}_test"} <= opened.names]
    if pairs and opened.path.suffix == ".npz":  # elsewhere they are curves over epochs
        return ToolResult(_TOOL, tuple(_read_arrays(opened, kind) for kind in pairs))
    if not type(opened.tree).__module__.startswith("tensorflow_privacy"):
        return None
    attacks: list[Attack] = []
    reasons: list[str] = []
    for result in _list_results(opened.tree):
        kind = type(result).__name__
        if kind == "SingleMembershipProbabilityResult":
            reasons.append(_PROBABILITIES)
            continue
        name = _name_attack(result)
        if not name.startswith("threshold"):
            reasons.append(_LEARNT)
            continue
        sides = [getattr(result, f"membership_scores_{side}", None) for side in ("train", "test")]
        if all(side is not None for side in sides):
            inside, outside = (take_side(side, name) for side in sides)
            attack = Attack(shorten(name), inside, outside)
            curve = getattr(result, "roc_curve", None)
            fpr, tpr = getattr(curve, "fpr", None), getattr(curve, "tpr", None)
            attacks.append(check_area(attack, fpr=fpr, tpr=tpr))
    if not attacks:
        raise say_none(_TOOL, reasons, _ADVICE)
    return ToolResult(_TOOL, tuple(attacks))


def _read_arrays(opened: Opened, kind: str) -> Attack:
    """Return negated losses or entropies, since these are lower inside."""
    train, test = (
        -take_side(opened.read(f"{kind}_{side}"), f"{kind}_{side}") for side in ("train", "test")
    )
    return Attack(kind, train, test)


def _list_results(tree: Any) -> Iterator[Any]:
    """Yield the single results of a saved result, in order."""
    for field in ("single_attack_results", "membership_prob_results"):
        found = getattr(tree, field, None)
        if isinstance(found, (list, tuple)):
            yield from found
            return
    if type(tree).__name__.startswith("Single"):
        yield tree


def _name_attack(result: Any) -> str:
    """Return its kind and slice as words, as ``threshold, entire dataset``."""
    kind, part = getattr(result, "attack_type", None), getattr(result, "slice_spec", None)
    words = _read_word(kind).replace("-", " ") or "unknown"
    feature, value = getattr(part, "feature", None), getattr(part, "value", None)
    if feature is None:
        return f"{words}, entire dataset"
    # What else users slice by may name records
    parts = value if isinstance(value, tuple) else (value,)
    shown = "-".join(map(str, parts)) if all(isinstance(p, _WHOLE) for p in parts) else ""
    return f"{words}, {_read_word(feature)} {shown}".rstrip()


def _read_word(member: Any) -> str:
    """Return the value of a member of an enumeration, which stands as its only argument."""
    arguments = getattr(member, "", ())
    return str(arguments[0]) if arguments else ""
