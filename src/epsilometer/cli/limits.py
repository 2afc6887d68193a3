"""Offer limits of release rules as options of ``classifier`` and ``regressor``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    ReleaseRule,
)
from epsilometer.cli.options import Decorator, option

# Option → the rule and its field that it sets, and its help.
Limits: TypeAlias = Mapping[str, tuple[type[ReleaseRule], str, str]]
ATTACK_LIMITS: Limits = {
    "advantage_limit": (AdvantageAtMost, "limit", "Set the largest TPR − FPR allowed for attacks."),
    "caught_limit": (CaughtAtMost, "limit", "Set the largest TPR allowed for attacks at 1 % FPR."),
}


def limit_options(limits: Limits) -> Decorator:
    """Return the options by which limits are set."""

    def decorate(command: Any) -> Any:
        for name, (rule, field, text) in reversed([*limits.items()]):
            usual = f"{getattr(rule, field):g}"
            flag = f"--{name.replace('_', '-')}"
            command = option(flag, type=float, show_default=usual, help=text)(command)
        return command

    return decorate


def make_rules(
    limits: Limits, given: Mapping[str, float | None], usual: Sequence[ReleaseRule]
) -> tuple[ReleaseRule, ...]:
    """Return the rules with the given limits; none for the usual rules.

    Args:
        limits: The limits that can be set.
        given: The limits that were given.
        usual: The rules without given limits.
    """
    if all(value is None for value in given.values()):
        return ()
    fields: dict[type[ReleaseRule], dict[str, Any]] = {}
    for name, (rule, field, _) in limits.items():
        own, value = fields.setdefault(rule, {}), given[name]
        if value is not None:
            own[field] = value
    return tuple(replace(rule, **fields.get(type(rule), {})) for rule in usual)
