"""What commands share that run units of work: where, on what, shown how, and how they end."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from epsilometer.cli.printing import show_explanation, show_result
from epsilometer.cli.progress import listener
from epsilometer.cli.writing import write_page
from epsilometer.engine.engines import Dask, Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Job, Terminated, run
from epsilometer.errors import InvalidArgument
from epsilometer.results import Audit

_ENGINES = ("local", "threads", "in-process", "dask")
_OPTIONS = (
    click.option(
        "--engine",
        "engine_name",
        type=click.Choice(_ENGINES),
        default="local",
        show_default=True,
        help="Processes or threads here, this process alone (for a GPU), or a Dask cluster.",
    ),
    click.option("--workers", type=click.IntRange(min=0), default=0, help="0: one a core."),
    click.option("--address", help="Of the Dask scheduler, as tcp://host:8786."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
    click.option("--log-json", is_flag=True, help="Progress as JSON events on standard error."),
)


def running(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a command that runs units, and hands it ``engine`` and ``listen``."""

    @functools.wraps(command)
    def with_engine(
        *args: Any,
        engine_name: str,
        workers: int,
        address: str | None,
        quiet: bool,
        log_json: bool,
        **kwargs: Any,
    ) -> None:
        chosen = _engine(engine_name, workers, address)
        listeners = [] if quiet else [listener(as_json=log_json)]
        command(*args, engine=chosen, listen=listeners, **kwargs)

    wrapped: Callable[..., None] = with_engine
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def described(*, bundled: str, fewest: int, home: str) -> Callable[[Any], Any]:
    """Adds the options of a command whose work is described in a file of TOML.

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
        click.option(
            "--run",
            "directory",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(home),
            show_default=True,
            help="Directory of the run.",
        ),
    )

    def with_options(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def finish(
    job: Job,
    directory: Path,
    *,
    engine: Engine,
    listen: Sequence[Listener],
    explain: bool = False,
    by: Callable[..., Audit] = run,
) -> Audit:
    """Runs a job to its end, writes its report and shows it; says how to go on if interrupted."""
    try:
        result = by(job, directory, engine=engine, listen=listen)
    except KeyboardInterrupt as interrupt:
        click.echo(
            f"\nInterrupted. What is finished is safe. Go on with: epsilometer resume {directory}",
            err=True,
        )
        raise SystemExit(143 if isinstance(interrupt, Terminated) else 130) from interrupt
    write_page(result, directory / "report.html")
    show_result(result)
    if explain:
        show_explanation(result)
    click.echo(f"Report: {directory / 'report.html'}")
    return result


def unchanged(job: Job, plan: Plan, where: str) -> None:
    """Refuses to go on with other records than a run began with."""
    if job.plan.inputs != plan.inputs:
        raise InvalidArgument(
            f"Expected the records with which the run began in {where!r}, found others. "
            "Put them back, or begin a new run in another directory."
        )


def refuted(result: Audit) -> bool:
    """Whether any claim fell, or a classifier should not be released."""
    return any(audit.verdict in ("refuted", "do not release") for audit in result.audits)


def _engine(name: str, workers: int, address: str | None) -> Engine:
    if (name == "dask") != (address is not None):
        raise InvalidArgument(
            "Expected --address with --engine dask and with no other: the scheduler's, "
            f"as tcp://host:8786. Got --engine {name} and --address {address}."
        )
    match name:
        case "dask":
            assert address is not None
            return Dask(address=address)
        case "in-process":
            return InProcess()
        case _:
            return Local(count=workers, kind="threads" if name == "threads" else "processes")
