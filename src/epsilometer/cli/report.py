"""``epsilometer report``."""

from pathlib import Path

import click

from epsilometer.cli.printing import explain_option, show_explanation, show_result
from epsilometer.cli.reading import read_result
from epsilometer.cli.writing import html_option, write_page
from epsilometer.errors import InvalidArgument
from epsilometer.report.markdown import markdown as as_markdown
from epsilometer.core.audit import Result
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.serialisation import to_json


@click.command()
@click.argument("source", metavar="RUN", type=click.Path(path_type=Path))
@html_option
@click.option("--markdown", is_flag=True, help="Print it as Markdown, for a pull request.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@explain_option
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write every figure into this folder, as PNG and SVG (extra: figures).",
)
def report(
    source: Path,
    html: Path | None,
    markdown: bool,
    as_json: bool,
    explain: bool,
    figures: Path | None,
) -> None:
    """Make the report of RUN, the directory of a run or a result as JSON.

    Without options: a summary here, and a page in the directory or beside the file.

    Example: epsilometer report demo-run --html demo.html
    """
    result = read_result(source)
    if html is None and not (markdown or as_json or figures):
        html = source / "report.html" if source.is_dir() else source.with_suffix(".html")
    if markdown or as_json:
        click.echo(as_markdown(result) if markdown else to_json(result))
    elif isinstance(result, EpsilonLowerBound):
        click.echo(str(result))
    else:
        show_result(result)
    if explain:
        show_explanation(result, aside=markdown or as_json)
    if figures is not None:
        _draw(result, figures)
    if html is not None:
        write_page(result, html)
        click.echo(f"Report: {html}", err=markdown or as_json)


def _draw(result: Result, folder: Path) -> None:
    from epsilometer.report.drawing import save_figures

    if isinstance(result, EpsilonLowerBound):
        raise InvalidArgument("Expected an audit to draw, got a bound alone.")
    try:
        save_figures(result, folder)
    except OSError as error:
        raise InvalidArgument(f"Could not write into {str(folder)!r}: {error.strerror}.") from error
