"""Static check of training code: is what draws the batches what the accountant assumes?

Sources are parsed, never imported or run. ``lint`` reads files and folders, ``lint_source`` one
text; both return a ``Report`` of findings, each with its reason, its remedy and the
``epsilometer shuffle`` call that says what ε really is.
"""

from epsilometer.lint.findings import Finding, Problem, Report
from epsilometer.lint.rules import RULES, Rule
from epsilometer.lint.run import lint, lint_source

__all__ = ["RULES", "Finding", "Problem", "Report", "Rule", "lint", "lint_source"]
