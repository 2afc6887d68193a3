"""``epsilometer demo``."""

import json
from pathlib import Path

import click

from epsilometer.audits.demo import RUNS
from epsilometer.audits.demo import demo as run_demo
from epsilometer.cli.printing import show
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import digits
from epsilometer.report.terminal import summary


@click.command()
@click.option("--runs", type=click.IntRange(min=2), default=RUNS, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("epsilometer-demo.json"),
    show_default=True,
    help="Where the results are written as JSON.",
)
def demo(runs: int, seed: int, out: Path) -> None:
    """Audit DP training on real data, as promised and with a classic mistake.

    Trains softmax regression on handwritten digits thousands of times, with a mislabelled image and
    without it, and attacks every run.

    Example: epsilometer demo
    """
    try:
        file = out.open("a", encoding="utf-8")  # told before the work, and nothing there is lost
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(out)!r}: {error.strerror}.") from error
    with file:
        results = run_demo(*digits(), runs=runs, seed=seed)
        show(*(summary(result) for result in results))
        file.truncate(0)
        json.dump([result.to_dict() for result in results], file, indent=2)
        file.write("\n")
    click.echo(f"Report: {out}")
