"""A command like ours on a job that needs no data: ``python -m tests.faults.command DIRECTORY``."""

from dataclasses import replace
from pathlib import Path

import click

from epsilometer.cli.audit import end_audit, run_interruptibly
from epsilometer.cli.options import Options, audit_options
from epsilometer.engine.engines import Local
from epsilometer.engine.run import run
from tests.faults.program import job


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@audit_options(asks=False, units=True, out=False)
def command(directory: Path, options: Options) -> None:
    engine = options.engine or Local()
    audit = run_interruptibly(
        lambda: run(job(), directory, engine=engine, listen=options.listen), directory
    )
    audit.save(directory / "report.html")
    end_audit(audit, replace(options, out=directory), code=False)


if __name__ == "__main__":
    command()
