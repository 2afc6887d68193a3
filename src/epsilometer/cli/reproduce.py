"""``epsilometer reproduce``."""

from pathlib import Path

import click
from rich import box
from rich.table import Table

from epsilometer.cli.options import data_option, device_option, out_option
from epsilometer.cli.output import show
from epsilometer.cli.reproducing import Call, Item, Paper, measure, papers, side_by_side
from epsilometer.cli.reproducing import write_results as write
from epsilometer.cli.saying import say
from epsilometer.cli.sources import DATA_FOLDER
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument


@click.command()
@click.argument("name", required=False)
@click.option(
    "--quick/--full", "quick", default=True, help="Measure at small size, or as published."
)
@click.option("--only", multiple=True, help="Measure this table or figure; may be repeated.")
@data_option(envvar=DATA_FOLDER)
@device_option
@out_option("epsilometer-reproductions")
def reproduce(
    name: str | None, quick: bool, only: tuple[str, ...], data: Path | None, device: str, out: Path
) -> None:
    """Measure what a paper published, beside its numbers.

    NAME is one of the papers that are listed without it. Writes the published and the measured
    numbers as a page and as JSON. With --quick, sets of scikit-learn stand in for data that are
    not there. A call that was killed goes on in its folder.

    Example: epsilometer reproduce one-shot --only table-1
    """
    known = papers()
    if name is None:
        _list(known)
        return
    if name not in known:
        raise InvalidArgument(f"Expected one of {', '.join(known)}, got {name!r}.")
    paper = known[name]
    call = Call(full=not quick, data=data, device=device, out=out)
    for item in _chosen(paper, only):
        say(item.title)
        _show(item, measure(paper, item, call))
        page = write(paper, call)
    say(f"Page: {one_line(str(page))}")


def _list(known: dict[str, Paper]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "what", "quick", "full needs"):
        table.add_column(column)
    for paper in known.values():
        items = ", ".join(item.name for item in paper.items)
        table.add_row(paper.name, f"{paper.about}: {items}", paper.quick_takes, paper.full_needs)
    show(table, "epsilometer reproduce NAME [--full] [--only table-1] [--data FOLDER]")


def _chosen(paper: Paper, only: tuple[str, ...]) -> list[Item]:
    names = [item.name for item in paper.items]
    for name in only:
        if name not in names:
            raise InvalidArgument(f"Expected --only to be one of {', '.join(names)}, got {name!r}.")
    return [item for item in paper.items if not only or item.name in only]


def _show(item: Item, measured: dict[str, str]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "published", "measured", "full call found"):
        table.add_column(column)
    for cells in side_by_side(item, measured):
        table.add_row(*cells)
    show(table)
