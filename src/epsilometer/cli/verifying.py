"""``epsilometer runs verify``, and what ``check --verify`` shares with it."""

from pathlib import Path

import click

from epsilometer.cli.calls import visit
from epsilometer.cli.options import data_option, run_argument, trust_option
from epsilometer.cli.saying import say
from epsilometer.cli.sources import look_here
from epsilometer.core import words
from epsilometer.core.audit import Audit
from epsilometer.core.chain import RESULT
from epsilometer.errors import InvalidArgument
from epsilometer.verification import verify as recompute


@click.command()
@run_argument
@trust_option
@data_option()
def verify(directory: Path, trust: bool, data: Path | None) -> None:
    """Recompute the result of RUN from its units, and compare.

    Computes no unit and writes nothing. A run whose data were supplied from Python is verified
    from there, by epsilometer.verification.verify.

    Exit code 2 if the result, the plan or a unit was changed or is missing.

    Example: epsilometer runs verify demo-run
    """
    found = verify_run(directory, trust=trust, data=data)
    units = found.provenance.used + found.provenance.failed
    say(f"Verified: {units:,} units give this result.")
    say(words.headline(found))


def verify_run(path: Path, *, trust: bool, data: Path | None) -> Audit:
    """Return the result of a run as its units give it; refuse one that differs.

    Args:
        path: The directory of the run, or the result in it.
        trust: Import functions that its plan names.
        data: Folder that its data are read from.
    """
    directory = (path.parent if path.name == RESULT else path).absolute()
    if not directory.is_dir():
        raise InvalidArgument(
            f"Expected the directory of a run to verify, got {str(path)!r}: a result alone has "
            "nothing to be recomputed from."
        )
    if trust:
        look_here()
    with visit(data):
        return recompute(directory, trust=trust)
