"""``epsilometer lint``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType

import click

from epsilometer import __version__
from epsilometer.cli.output import count_columns, say
from epsilometer.core import judge
from epsilometer.errors import UnreadableFile
from epsilometer.lint import lint as lint_paths
from epsilometer.lint import writing
from epsilometer.lint.explaining import explain_rule
from epsilometer.lint.rules import RULES, Report

_FORMS: MappingProxyType[str, Callable[[Report], str]] = MappingProxyType(
    {
        "text": lambda report: writing.to_text(report, width=count_columns(100)),
        "json": writing.to_json,
        "github": writing.to_github,
        "junit": writing.to_junit,
        "sarif": partial(writing.to_sarif, version=__version__),
    }
)


def _explain(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        say(explain_rule(RULES[value]))
        context.exit()


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMS)),
    default="text",
    show_default=True,
    help="Choose the output format.",
)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Exclude matching files; may be repeated."
)
@click.option("--strict", is_flag=True, help="Exit with 4 if nothing could be checked.")
@click.option(
    "--explain", type=click.Choice(list(RULES), case_sensitive=False), metavar="RULE",
    expose_value=False, is_eager=True, callback=_explain,
    help="Explain a rule by an example, and exit.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Ignore cached results and check every file again.")
def lint(
    paths: tuple[Path, ...], form: str, exclude: tuple[str, ...], *, strict: bool, no_cache: bool
) -> None:
    """Find training code that breaks its accountant's assumptions.

    PATH is a Python file, a notebook, or a folder of them; all are checked as one project. Nothing
    is imported or run. The comment # epsilometer: ignore[SHUF001] reason disables a rule on its
    line.

    Exit code 1 if something is found. Files that cannot be read or parsed are named in the report;
    if nothing else is found, the exit code is then 2, never 0. With --strict it is 4 if no known DP
    library, or no sampler, is found.

    Example: epsilometer lint train.py
    """
    report = lint_paths(paths, exclude=exclude, cached=not no_cache)
    say(_FORMS[form](report))
    if report.findings:
        raise SystemExit(1)
    if report.problems:
        names = ", ".join(dict.fromkeys(repr(problem.path) for problem in report.problems))
        raise UnreadableFile(f"Could not check {names}.")
    if strict and report.blind:
        raise SystemExit(judge.exit_code(judge.CANNOT_JUDGE))
