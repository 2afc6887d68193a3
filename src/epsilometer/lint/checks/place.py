"""Locate a mistake, and determine its severity with an accountant."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from epsilometer.lint.flow import Number
from epsilometer.lint.libraries import Kind
from epsilometer.lint.module import Module
from epsilometer.lint.programs import Beside, Programs
from epsilometer.lint.purposes import serves_other_ends
from epsilometer.lint.rules import Severity

# The sentence for each kind of accountant; for a node, the first kind takes precedence.
_SAYS: dict[Kind, str] = {
    "accountant": "assumes Poisson sampling.",
    "hedged": "prints two ε: the one that assumes Poisson sampling fails.",
    "training": "trains with DP; accountants for it assume Poisson sampling.",
}


@dataclass(frozen=True, eq=False)
class Place:
    """Locate a mistake: the call, and the part of it to report.

    Attributes:
        rule_id: The rule.
        severity: Its severity.
        module: Its file.
        call: The wrong node; a comment on its lines switches the rule off.
        line: Line to point at, from 1.
        column: Column to point at, in bytes from 0.
        detail: What was observed.
        beside: The module of the accountant, if it is another one.
        numbers: Options of the command that are known better than from the surrounding code.
    """

    rule_id: str
    severity: Severity
    module: Module
    call: ast.AST
    line: int
    column: int
    detail: str
    beside: Module | None = None
    numbers: tuple[tuple[str, Number], ...] = ()


def make_place(
    rule_id: str,
    severity: Severity,
    module: Module,
    call: ast.AST,
    detail: str,
    *,
    shown: ast.AST | None = None,
    beside: Module | None = None,
    numbers: dict[str, Number] | None = None,
) -> Place:
    """Return a place that points at ``shown``, or at the call."""
    shown = call if shown is None else shown
    line, column = getattr(shown, "lineno", 1), getattr(shown, "col_offset", 0)
    if isinstance(shown, ast.Attribute):  # the method's own name, on its own line of a chain
        line, column = shown.end_lineno or line, (shown.end_col_offset or 0) - len(shown.attr)
    given = tuple((numbers or {}).items())
    return Place(rule_id, severity, module, call, line, column, detail, beside, given)


def judge(beside: Beside, module: Module) -> tuple[Severity, str]:
    """Return the severity of a mistake with an accountant, and the accountant's assumption.

    It is an error only if a false ε is computed where the node runs.
    """
    accountant = beside.accountant
    place = f"{accountant.name} ({accountant.module.point_at(accountant.node, reader=module)})"
    apart = "" if beside.together else ", in another function,"
    sure = beside.together and accountant.kind == "accountant" and not accountant.own
    says = "is the project's own, and takes a sampling rate." if accountant.own else ""
    return (
        "error" if sure else "warning",
        f"{place}{apart} {says or _SAYS[accountant.kind]}",
    )


def report_beside(
    programs: Programs,
    rule_id: str,
    module: Module,
    call: ast.AST,
    *,
    shown: ast.AST,
    names: tuple[str, ...] = (),
    seen: str = "",
    replaced: bool = False,
    numbers: dict[str, Number] | None = None,
) -> Iterator[Place]:
    """Yield a mistake that is one only with an accountant, where private data are fed.

    Args:
        programs: What runs together.
        rule_id: The rule.
        module: Its file.
        call: The node that is wrong.
        shown: The part of it to point at.
        names: Names that say what it is for.
        seen: What was seen, before what is said of the accountant.
        replaced: Whether an engine in the program replaces what is wrong here.
        numbers: Options of the command that are known.
    """
    if serves_other_ends(module, call, *names):
        return
    graded = []
    for beside in programs.list_beside(module, call):
        if replaced and beside.engines:
            continue
        graded.append((judge(beside, module), beside.accountant.module))
    if graded:
        (severity, said), other = min(graded, key=lambda each: each[0])
        yield make_place(
            rule_id,
            severity,
            module,
            call,
            seen + said,
            shown=shown,
            beside=other,
            numbers=numbers,
        )
