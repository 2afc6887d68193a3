"""``epsilometer demo``."""

from collections.abc import Sequence
from pathlib import Path

import click

from epsilometer.audits.demo import RUNS, demo_job
from epsilometer.cli.printing import explain_option
from epsilometer.cli.running import finish, running
from epsilometer.cli.writing import html_option, write_page
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from epsilometer.integrations.sklearn import digits


@click.command()
@click.option("--runs", type=click.IntRange(min=2), default=RUNS, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--run",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("epsilometer-demo"),
    show_default=True,
    help="Directory of the run.",
)
@running
@explain_option
@html_option
def demo(
    runs: int,
    seed: int,
    directory: Path,
    explain: bool,
    html: Path | None,
    engine: Engine,
    listen: Sequence[Listener],
) -> None:
    """Audit DP training on real data, as promised and with a classic mistake.

    Trains softmax regression on handwritten digits thousands of times, with a mislabelled image and
    without it, and attacks every run. The exit code is 0 although one claim is refuted.

    Example: epsilometer demo --runs 500 --run demo-run
    """
    job = demo_job(*digits(), runs=runs, seed=seed)
    result = finish(job, directory, engine=engine, listen=listen, explain=explain)
    if html is not None:
        write_page(result, html)
