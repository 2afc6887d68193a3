"""A command like ours on a job that needs no data: ``python -m tests.faults.command DIRECTORY``."""

from collections.abc import Sequence
from pathlib import Path

import click

from epsilometer.cli.running import finish, running
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from tests.faults.program import job


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@running
def command(directory: Path, engine: Engine, listen: Sequence[Listener]) -> None:
    finish(job(), directory, engine=engine, listen=listen)


if __name__ == "__main__":
    command()
