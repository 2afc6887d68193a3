"""Name the mistakes that are looked for, and what a check returns.

The rules are data: ``rules.toml`` has one table per mistake.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A mistake with its reason and its remedy.

    Attributes:
        id: How findings and suppression comments name it.
        name: The same in words, for tools that show names.
        title: What was found, in one line.
        why: Why ε does not hold.
        remedy: What to do about it.
    """

    id: str
    name: str
    title: str
    why: str
    remedy: str


def _read_rules() -> dict[str, Rule]:
    read = tomllib.loads(files("epsilometer.lint").joinpath("rules.toml").read_text("utf-8"))
    rules = [
        Rule(**{**row, "why": row["why"].replace("{shuffled}", read["shuffled"])})
        for row in read["rule"]
    ]
    return {rule.id: rule for rule in rules}


RULES = _read_rules()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A mistake at a place.

    Attributes:
        path: The file, as it was named or found.
        line: Line of the mistake, from 1; in a notebook, of its cell.
        column: Column, from 1, in characters.
        cell: Number of the code cell in a notebook, from 1; None in a module.
        rule_id: Which mistake, a key of ``RULES``.
        severity: ``error`` if the ε reported here does not hold, ``warning`` if that depends on
            what cannot be seen here.
        detail: What about this place was seen: which accountant, which numbers.
        command: The call of ``epsilometer shuffle`` that says what ε is.
        unknown: Placeholders in the command, to be filled by hand.
    """

    path: str
    line: int
    column: int
    cell: int | None = None
    rule_id: str
    severity: Severity
    detail: str
    command: str
    unknown: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule:
        """Return the rule in full."""
        return RULES[self.rule_id]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A file, or a cell of a notebook, that could not be checked."""

    path: str
    message: str
    line: int | None = None
    cell: int | None = None


@dataclass(frozen=True)
class Report:
    """All that was found in ``files`` files, by path and line."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    files: int
