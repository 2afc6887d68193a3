"""Explain a rule: its example, reason, remedy, and the ε of the example."""

from importlib.resources import files

from epsilometer.lint.rules import Rule
from epsilometer.lint.run import lint_sources
from epsilometer.lint.sources import Source


def explain_rule(rule: Rule) -> str:
    """Return the page of a rule, in Markdown.

    Example:
        >>> from epsilometer.lint import RULES
        >>> explain_rule(RULES["SHUF001"]).splitlines()[0]
        '# SHUF001: poisson-sampling-off'
    """
    wrong, right = rule.wrong.strip(), rule.right.strip()
    found = lint_sources([Source("train.py", f"{wrong}\n")]).findings
    (finding,) = [each for each in found if each.rule_id == rule.id]
    title = rule.title
    if title.split()[0].isalpha():  # not code, as in poisson_sampling=False
        title = title[0].upper() + title[1:]
    page = files("epsilometer.lint").joinpath("rule_page.md").read_text("utf-8")
    return page.format(rule=rule, finding=finding, title=title, wrong=wrong, right=right)
