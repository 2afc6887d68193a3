"""Check training code: does the run do what its accountant assumes?

Sources are parsed, never imported or run. ``lint`` reads files and folders as one project,
``lint_source`` one text. Both return a ``Report`` of findings, each with its reason, its remedy and
the ``epsilometer shuffle`` call that computes the real ε. A package adds another library by an
entry point of the group ``epsilometer.lint`` that names a ``Library``.

``module`` reads a file, ``project`` joins files by their names, ``flow`` follows values through
them, ``roles`` finds what calls do for privacy, ``programs`` what runs together. ``checks`` has the
rules, which use only these.
"""

from epsilometer.lint.libraries import DpCall, Library, Loader, Trainer
from epsilometer.lint.rules import RULES, Finding, Problem, Report, Rule, Understood
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
    "Trainer",
    "Understood",
    "lint",
    "lint_source",
]
