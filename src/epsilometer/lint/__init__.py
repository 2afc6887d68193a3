"""Check training code: is what draws the batches what the accountant assumes?

Sources are parsed, never imported or run. ``lint`` reads files and folders, ``lint_source`` one
text; both return a ``Report`` of findings, each with its reason, its remedy and the
``epsilometer shuffle`` call that says what ε really is. A package teaches it another library by an
entry point of the group ``epsilometer.lint`` that names a ``Library``.
"""

from epsilometer.lint.libraries import DpCall, Library, Loader
from epsilometer.lint.rules import RULES, Finding, Problem, Report, Rule
from epsilometer.lint.run import lint, lint_source

__all__ = [
    "RULES",
    "DpCall",
    "Finding",
    "Library",
    "Loader",
    "Problem",
    "Report",
    "Rule",
    "lint",
    "lint_source",
]
