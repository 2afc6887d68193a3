"""What commands share that run units of work: where, on what, shown how, and how they end."""

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from epsilometer.cli.printing import explain_option, show_explanation, show_result
from epsilometer.cli.progress import listener
from epsilometer.cli.writing import html_option, write_page
from epsilometer.engine.engines import Dask, Engine, InProcess, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Job, Terminated, run
from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import Audit

Finish: TypeAlias = Callable[..., Audit]  # of a job and its directory, as options say; ``finish``
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
    explain_option,
    html_option,
)


def running(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a command that runs units, and hands it ``finish``, which heeds them."""

    @functools.wraps(command)
    def with_options(
        *args: Any,
        engine_name: str,
        workers: int,
        address: str | None,
        quiet: bool,
        log_json: bool,
        explain: bool,
        html: Path | None,
        **kwargs: Any,
    ) -> None:
        how: Finish = functools.partial(
            finish,
            engine=_engine(engine_name, workers, address),
            listen=[] if quiet else [listener(as_json=log_json)],
            explain=explain,
            html=html,
        )
        command(*args, finish=how, **kwargs)

    wrapped: Callable[..., None] = with_options
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def in_directory(home: str) -> Callable[[Any], Any]:
    """Adds the option of where the run lies, ``directory``; ``home`` where none is named."""
    return click.option(
        "--run",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(home),
        show_default=True,
        help="Directory of the run.",
    )


def finish(
    job: Job,
    directory: Path,
    *,
    engine: Engine,
    listen: Sequence[Listener],
    explain: bool = False,
    html: Path | None = None,
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
    if html is not None:
        write_page(result, html)
        click.echo(f"Also written: {html}")
    return result


def call_again(command: str, options: Mapping[str, Any], *arguments: str) -> str:
    """The call that does it again, wherever its run lies.

    Example:
        >>> call_again("classifier", {"drop": ("id", "name"), "seed": 3, "quick": True}, "my.csv")
        'epsilometer classifier my.csv --drop id --drop name --quick --seed 3'
    """
    words = [shlex.quote(argument) for argument in arguments]
    for name, value in sorted(options.items()):
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            each = value if isinstance(value, (list, tuple)) else [value]
            words += [f"{option} {shlex.quote(str(one))}" for one in each]
    return " ".join(["epsilometer", command, *words])


def kept(plan: Plan, what: str) -> Mapping[str, Any]:
    """What a plan holds of the call that began its run: ``config`` or ``settings``."""
    plain = plan.parameters.get(what)
    if not isinstance(plain, Mapping):
        raise InvalidArgument(
            f"Expected a plan that holds the {what} of its run, found none. Begin a new run in "
            "another directory."
        )
    return plain


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
