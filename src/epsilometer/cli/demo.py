"""``epsilometer demo``."""

from pathlib import Path

import click

from epsilometer.audits.demo import RUNS, demo_job
from epsilometer.cli.running import Finish, in_directory, running
from epsilometer.integrations.sklearn import digits


@click.command()
@click.option("--runs", type=click.IntRange(min=2), default=RUNS, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@in_directory("epsilometer-demo")
@running
def demo(
    runs: int,
    seed: int,
    directory: Path,
    finish: Finish,
) -> None:
    """Audit DP training on real data, as promised and with a classic mistake.

    Trains softmax regression on handwritten digits thousands of times, with a mislabelled image and
    without it, and attacks every run. The exit code is 0 although one claim is refuted.

    Example: epsilometer demo --runs 500 --run demo-run
    """
    finish(demo_job(*digits(), runs=runs, seed=seed), directory)
