"""``epsilometer audit``."""

from pathlib import Path

import click

from epsilometer._dispatch import read_call
from epsilometer.cli.calls import run_call, visit
from epsilometer.cli.options import Options, audit_options, data_option, trust_option
from epsilometer.cli.output import end_audit
from epsilometer.cli.sources import look_here


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@trust_option
@data_option()
@audit_options(asks=False, units=True)
def audit(file: Path, trust: bool, data: Path | None, options: Options) -> None:
    """Run the audit that FILE describes, or repeat one.

    FILE is .toml with one section per subject, or the .json of an audit. The same bytes come out
    of a second run. Data supplied from Python must be supplied from there again.

    Exit code 1 if it refutes the claim, 4 if it cannot judge it.

    Example: epsilometer audit audit.json --out again
    """
    if trust:
        look_here()
    file = file.absolute()
    with visit(data):
        call = read_call(file, trust=trust)
    end_audit(run_call(call, options, data=data), options)
