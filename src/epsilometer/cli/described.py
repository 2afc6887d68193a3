"""What commands share whose work a file of TOML describes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from epsilometer.cli.running import in_directory
from epsilometer.engine.store import Store

_Audit = TypeVar("_Audit")


def described(*, bundled: str, fewest: int, home: str) -> Callable[[Any], Any]:
    """Adds their options: ``file``, ``runs``, ``seed`` and ``directory``.

    Args:
        bundled: What is audited where no file is given.
        fewest: Runs that it can do with.
        home: Directory of the run where none is named.
    """
    options = (
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help=f"What to audit, as TOML; by default {bundled}.",
        ),
        click.option("--runs", type=click.IntRange(min=fewest), help="In place of the file's."),
        click.option("--seed", type=click.IntRange(min=0), help="In place of the file's."),
        in_directory(home),
    )

    def with_options(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def in_place(audit: _Audit, *, runs: int | None, seed: int | None) -> _Audit:
    """The section ``[audit]`` with what options say in place of the file's."""
    given = {"runs": runs, "seed": seed}
    said = {name: value for name, value in given.items() if value is not None}
    return replace(audit, **said)  # type: ignore[type-var]


def at_once_in(directory: Path) -> int | None:
    """How many models the run that is there trains at once; None where there is none.

    Another number would be another run, and memory comes and goes.
    """
    if not (directory / "plan.json").exists():
        return None
    found = Store.open(directory).plan.parameters.get("at_once")
    return found if isinstance(found, int) else None
