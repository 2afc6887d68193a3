"""``epsilometer report``."""

from pathlib import Path

import click

from epsilometer._files import read_plain
from epsilometer.cli.options import explain_option, html_option, json_option, verbose_option
from epsilometer.cli.output import say, show_audit, show_explanation, write_page, write_text
from epsilometer.core.audit import Audit
from epsilometer.core.printing import one_line
from epsilometer.core.serialisation import load
from epsilometer.errors import InvalidArgument
from epsilometer.files.stamps import read_stamp


@click.command()
@click.argument("source", metavar="RUN", type=click.Path(path_type=Path))
@html_option
@click.option(
    "--badge",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the verdict as a small SVG picture.",
)
@click.option(
    "--model-card",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a section and metadata into a model card.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown for a pull request.")
@json_option
@explain_option
@verbose_option
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every figure here as PNG and SVG (extra: figures).",
)
def report(
    source: Path,
    html: Path | None,
    badge: Path | None,
    model_card: Path | None,
    markdown: bool,
    as_json: bool,
    explain: bool,
    verbose: bool,
    figures: Path | None,
) -> None:
    """Write the report of RUN, a run directory or a saved audit.

    Without options, prints a summary and writes a page into the directory or next to the file. The
    exit code is 0 whatever the verdict; see epsilometer check.

    Example: epsilometer report demo-run --html demo.html
    """
    audit, stamp = load(source), read_stamp(source)
    if html is None and not (markdown or as_json or figures or badge or model_card):
        html = source / "report.html" if source.is_dir() else source.with_suffix(".html")
    if markdown:
        from epsilometer.report.markdown import as_markdown, plain

        say(as_markdown(audit))
        if stamp is not None:
            said = " · ".join(plain(f"{name}: {value}") for name, value in stamp.describe())
            say(f"<sub>{said}</sub>")
    elif as_json:
        say(audit.to_json())
    else:
        show_audit(audit, verbose=verbose)
    if explain:
        show_explanation(audit, aside=markdown or as_json)
    if badge is not None:
        from epsilometer.report.badge import badge as draw_badge

        write_text(draw_badge(audit), badge)
        say(f"Badge: {one_line(str(badge))}", err=markdown or as_json)
    if model_card is not None:
        _write_card(audit, model_card)
        say(f"Model card: {one_line(str(model_card))}", err=markdown or as_json)
    if figures is not None:
        _draw(audit, figures)
    if html is not None:
        write_page(audit, html, stamp)
        say(f"Report: {one_line(str(html))}", err=markdown or as_json)


def _write_card(audit: Audit, path: Path) -> None:
    from epsilometer.report.model_card import write_model_card

    try:
        card = read_plain(path).decode("utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"Expected UTF-8 in {str(path)!r}, got other bytes.") from error
    write_text(write_model_card(card, audit), path)


def _draw(audit: Audit, folder: Path) -> None:
    from epsilometer.report.build import build
    from epsilometer.report.drawing import save_figures

    try:
        save_figures(build(audit), folder)
    except OSError as error:
        raise InvalidArgument(f"Could not write into {str(folder)!r}: {error.strerror}.") from error
