"""A command like ours on a job that needs no data: ``python -m tests.faults.command DIRECTORY``."""

from pathlib import Path

import click

from epsilometer.cli.running import Finish, running
from tests.faults.program import job


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@running
def command(directory: Path, finish: Finish) -> None:
    finish(job(), directory)


if __name__ == "__main__":
    command()
