"""Define the rules of lint, and what a check returns.

The rules are data: ``rules.toml`` has one table per mistake.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]
POISSON = "Poisson"  # how a sampler draws for which no shuffle is searched
KEEPS = "keeps the loader"  # what an engine without sampling does
NO_SAMPLER = "no sampler understood: how batches are drawn was not checked"
_MOST_NAMED = 3  # number of files in the sentence about what was not checked


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Describe a mistake, its reason and its remedy.

    Attributes:
        id: Its name in findings and suppression comments.
        name: The same in words, for tools that show names.
        title: The mistake in one line.
        why: Why ε does not hold.
        remedy: What to do about it.
        sampler: How batches are actually drawn, as an option of ``epsilometer shuffle``.
        answer: The output of that command for the example.
        wrong: An example.
        right: The corrected example.
    """

    id: str
    name: str
    title: str
    why: str
    remedy: str
    sampler: str = ""
    answer: str
    wrong: str
    right: str

    @property
    def page(self) -> str:
        """Its page on the site of the documentation."""
        return f"lint/{self.id}.md"


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
    """Report a mistake at a place.

    Attributes:
        path: The file, as given or found.
        line: Line of the mistake, from 1; in a notebook, of its cell.
        column: Column, from 1, in characters.
        cell: Number of the code cell in a notebook, from 1; None in a module.
        rule_id: Which mistake, a key of ``RULES``.
        severity: ``error`` if the ε reported here does not hold, ``warning`` if that depends on
            code that lint cannot see.
        detail: Observations at this place: which accountant, which numbers.
        command: The call of ``epsilometer shuffle`` that computes ε.
        unknown: Placeholders in the command that the user must fill.
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
        """The rule itself."""
        return RULES[self.rule_id]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Report a file, or a notebook cell, that could not be checked."""

    path: str
    message: str
    line: int | None = None
    cell: int | None = None


@dataclass(frozen=True, kw_only=True)
class Understood:
    """Report what was understood of a file.

    Attributes:
        path: The file.
        libraries: DP libraries that it imports.
        accountants: Calls that assume Poisson sampling, with their lines.
        samplers: Samplers, how they draw batches, and where.
        blind: Why its ε was not compared with any sampler; empty if it was, or if it computes none.
    """

    path: str
    libraries: tuple[str, ...] = ()
    accountants: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    blind: str = ""


@dataclass(frozen=True)
class Report:
    """Hold all findings in ``files`` files, by path and line.

    Attributes:
        findings: Mistakes.
        problems: What could not be checked.
        files: Number of checked files.
        understood: What was understood of each file related to privacy.
    """

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    files: int
    understood: tuple[Understood, ...] = ()

    @property
    def blind(self) -> str:
        """Why nothing, or too little, was checked; empty otherwise."""
        if not self.understood:
            return "no known DP library: nothing checked"
        unread = [each.path for each in self.understood if each.blind]
        if unread:
            more = len(unread) - _MOST_NAMED
            named = ", ".join(unread[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            return NO_SAMPLER.replace(":", f" in {named}:", 1)
        if not any(each.samplers for each in self.understood):
            return NO_SAMPLER
        drawn = (sampler for each in self.understood for sampler in each.samplers)
        engines = any(POISSON in sampler or KEEPS in sampler for sampler in drawn)
        if not engines and not any(each.accountants for each in self.understood):
            return "no accountant understood: nothing to compare batches with"
        return ""
