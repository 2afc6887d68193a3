"""``epsilometer lint``."""

from pathlib import Path

import click

from epsilometer import __version__
from epsilometer.errors import UnreadableFile
from epsilometer.lint import lint as lint_paths
from epsilometer.lint import writing


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    show_default=True,
    help="For people, for programs, for code-scanning services.",
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these out; may be repeated.")
def lint(paths: tuple[Path, ...], form: str, exclude: tuple[str, ...]) -> None:
    """Check training code for batches that are not what the accountant assumes.

    PATH is a Python file, a notebook or a folder of them. Nothing is imported or run. A comment
    # epsilometer: ignore[SHUF001] keeps a rule from its line.

    Exit code 1 if it finds something. A file that cannot be read or parsed is told in the report;
    if nothing else is found the exit code is then 2, never a pass.

    Example: epsilometer lint train.py
    """
    report = lint_paths(paths, exclude=exclude)
    match form:
        case "json":
            click.echo(writing.to_json(report))
        case "sarif":
            click.echo(writing.to_sarif(report, version=__version__))
        case _:
            click.echo(writing.to_text(report))
    if report.findings:
        raise SystemExit(1)
    if report.problems:
        names = ", ".join(dict.fromkeys(repr(problem.path) for problem in report.problems))
        raise UnreadableFile(f"Could not check {names}.")
