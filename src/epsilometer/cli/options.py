"""Declare the options that commands share: names, help and parsing are defined only here."""

import dataclasses
import functools
import math
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from epsilometer._extras import needs
from epsilometer.cli.completion import complete_run
from epsilometer.cli.progress import listener
from epsilometer.core.registry import Registry
from epsilometer.core.settings import parse_choice
from epsilometer.engine.engines import ENGINES, Engine, make_engine
from epsilometer.engine.events import Listener
from epsilometer.errors import InvalidArgument

if TYPE_CHECKING:
    ParamType: TypeAlias = click.ParamType[Any]  # generic since click 8.4
else:
    ParamType = click.ParamType
Decorator: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the shared options of a command; None if an option was not given.

    Attributes:
        config: File of settings.
        trust: Import the functions that a file names.
        claim: The claimed ε.
        delta: δ.
        confidence: Confidence of all bounds together.
        seed: Seed of all randomness.
        until: When to stop early.
        out: Directory of the run.
        engine: What executes units of work; None for the subject's own choice.
        listen: Callbacks that receive events.
        accept_changes: Continue a run whose code has changed since it began.
        as_json: Print the audit as JSON.
        html: File of a further page.
        quiet: Print the verdict line only.
        verbose: Print bounds, evidence and threat model too.
        explain: Print how the result was computed.
    """

    config: Path | None = None
    trust: bool = False
    claim: float | None = None
    delta: float | None = None
    confidence: float | None = None
    seed: int | None = None
    until: str | None = None
    out: Path | None = None
    engine: Engine | None = None
    listen: tuple[Listener, ...] = ()
    accept_changes: bool = False
    as_json: bool = False
    html: Path | None = None
    quiet: bool = False
    verbose: bool = False
    explain: bool = False


class _Option(click.Option):
    """Define an option whose default is shown as written, and not in parentheses."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


option = functools.partial(click.option, cls=_Option)


class Named(ParamType):
    """Parse a choice by its short name and, after a colon, its number: ``partial:1000``."""

    name = "choice"

    def __init__(self, what: str, *shown: str, kind: str = "") -> None:
        """Take what is chosen, and the names as help shows them: ``partial:BUFFER``.

        Choices of other packages are entry points of the group ``epsilometer.<kind>``.
        """
        self.what, self.shown, self._others = what, shown, Registry[type](kind)
        self._known = {each.partition(":")[0].partition("[")[0]: ":" in each for each in shown}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the choice; for an unknown name, raise an error that lists all names."""
        if not isinstance(value, str):
            return value
        name, colon, _ = value.partition(":")
        try:
            if name in self._others:
                return parse_choice(value)
            if colon and not self._known.get(name):
                raise InvalidArgument(f"Expected no number after {name!r}.")
            with needs("torch", extra="torch"):  # some choices import it
                return parse_choice(value, among=tuple(self._known))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"Expected {self.what} of {', '.join(self.shown)}; got {value!r}."
            ) from error

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what help shows for the value."""
        return "NAME"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete to one of the names."""
        known = (each.partition("[")[0] for each in self.shown)
        names = (name.partition(":")[0] + (":" if ":" in name else "") for name in known)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Suggested(ParamType):
    """Accept any text, with names that a shell suggests; the caller refuses other names."""

    name = "name"

    def __init__(self, *names: str) -> None:
        """Take the names."""
        self.names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete to one of the names."""
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


class Whole(ParamType):
    """Parse a whole number, which may be written as 1e7."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; raise if it is not whole."""
        if isinstance(value, int):
            return value
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        if not math.isfinite(number) or number != int(number):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return int(number)


class Listed(ParamType):
    """Parse values separated by commas."""

    def __init__(self, each: ParamType) -> None:
        """Take the type of one value."""
        self.each = each
        self.name = f"{each.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the values; ``none`` means an empty list."""
        if not isinstance(value, str):
            return tuple(value)
        if value == "none":
            return ()
        return tuple(self.each.convert(part.strip(), param, ctx) for part in value.split(","))


SAMPLERS = ("shuffle", "partial:BUFFER", "batch-then-shuffle", "balls-in-bins", "sequential")
SAMPLER = Named("a sampler", *SAMPLERS, "poisson", "without-replacement", kind="samplers")
ORDERED_SAMPLER = Named("a sampler", *SAMPLERS, kind="samplers")  # each record once per epoch
RULE = Named(
    "a rule",
    "all-ranks",
    "rank-sum",
    "rank-grid[:RATIO]",
    "hold-out[:FRACTION]",
    "bonferroni",
    "fixed:THRESHOLD",
    "best",
    "published",
)
NOISE = Named("a kind of noise", "independent", "tree", "matrix")
OPTIMIZER = Named("an optimizer", "sgd[:MOMENTUM]", "adam")


def _check_writable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before the work begins."""
    if path is not None and not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"Expected a folder to write {str(path)!r} in, found none.")
    return path


json_option = option("--json", "as_json", is_flag=True, help="Print one JSON object.")
html_option = option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=_check_writable,
    help="Write the report to this file.",
)
explain_option = option("--explain", is_flag=True, help="Explain how each number was computed.")
quiet_option = option("-q", "--quiet", is_flag=True, help="Print only the verdict line.")
verbose_option = option(
    "-v", "--verbose", is_flag=True, help="Print bounds, evidence and threat model too."
)
seed_option = option(
    "--seed",
    type=click.IntRange(min=0),
    show_default="0",
    help="Draw all randomness from this seed.",
)
confidence_option = option(
    "--confidence",
    type=float,
    show_default="0.95",
    help="Set the joint confidence of all bounds.",
)
policy_option = option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Check results against this policy file.",
)
claim_option = option("--claim", type=float, metavar="EPS", help="Judge this claimed ε.")
until_option = option(
    "--until", metavar="refuted|narrow:WIDTH", help="Stop early when this is reached."
)
trust_option = option(
    "--trust", is_flag=True, help="Import and run the Python functions named in the file."
)
device_option = option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Compute on this device.",
)
_config_option = option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Read settings from this file; options replace them.",
)
_engine_options = (
    option(
        "--engine",
        "engine_name",
        type=click.Choice(tuple(ENGINES)),
        show_default="local",
        help="Run units in processes, threads, this process, on GPUs or on Dask.",
    ),
    option(
        "--workers",
        type=click.IntRange(min=0),
        default=0,
        help="Set the number of workers; 0 means one per core.",
    ),
    option("--address", help="Connect to the Dask scheduler at tcp://host:8786."),
    option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        show_default="30 times the median",
        help="Stop and retry units that take longer.",
    ),
    option("--log-json", is_flag=True, help="Log progress as JSON to standard error."),
    option("--accept-changes", is_flag=True, help="Continue a run although its code has changed."),
)
run_argument = click.argument(
    "directory", metavar="RUN", type=click.Path(path_type=Path), shell_complete=complete_run
)


def delta_option(*, default: float | None = None) -> Decorator:
    """Return the option ``--delta``; with a default, one that gives way to a file's."""
    return option(
        "--delta",
        type=float,
        show_default=False if default is None else f"{default:g}",
        help="Bound ε at this δ.",
    )


def data_option(*, envvar: str | None = None) -> Decorator:
    """Return the option ``--data``: the folder of data files; ``envvar`` names it otherwise."""
    return option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        envvar=envvar,
        show_envvar=envvar is not None,
        help="Read data files from this folder.",
    )


def out_option(home: str | None) -> Decorator:
    """Return the option ``--out``: the directory of a run; ``home`` where none is named."""
    return option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        default=None if home is None else Path(home),
        show_default=home is not None,
        help="Write the run, its result and its report here.",
    )


def audit_options(
    *,
    config: bool = False,
    claim: bool = True,
    delta: float | None = None,
    asks: bool = True,
    until: bool = False,
    units: bool = False,
    home: str | None = None,
    out: bool = True,
) -> Decorator:
    """Add the options of a command that audits, and pass them to it as ``options``.

    Args:
        config: Whether a file may hold its settings.
        claim: Whether a claimed ε can be judged.
        delta: δ if neither an option nor a file gives one.
        asks: Whether δ, confidence and seed can be chosen here.
        until: Whether it may stop early.
        units: Whether it runs units of work.
        home: Directory of the run if none is named.
        out: Whether there is ``--out``.
    """
    declared: list[Decorator] = [_config_option, trust_option] if config else []
    if asks:
        declared += [claim_option] if claim else []
        declared += [delta_option(default=delta)]
        declared += [confidence_option, seed_option]
    declared += [until_option] if until else []
    declared += [out_option(home)] if out else []
    declared += _engine_options if units else ()

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_options(
            *args: Any,
            engine_name: str | None = None,
            workers: int = 0,
            address: str | None = None,
            timeout: float | None = None,
            log_json: bool = False,
            **given: Any,
        ) -> Any:
            names = [field.name for field in dataclasses.fields(Options)]
            shared = {name: given.pop(name) for name in names if name in given}
            shared.setdefault("quiet", False)
            shared.setdefault("verbose", False)
            options = Options(
                engine=make_engine(engine_name, workers, address, timeout) if units else None,
                listen=() if shared["quiet"] or not units else (listener(as_json=log_json),),
                **shared,
            )
            return command(*args, options=options, **given)

        declared.extend((json_option, html_option, quiet_option, verbose_option, explain_option))
        return _add(with_options, *declared)

    return decorate


def field_options(
    cls: type,
    helps: Mapping[str, str],
    *,
    into: str,
    special: Mapping[str, ParamType] = types.MappingProxyType({}),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    repeated: Sequence[str] = (),
) -> Decorator:
    """Add one option per field of a subject, and pass the given ones as one dictionary.

    The name, the type and the default of an option are the field's own.

    Args:
        cls: The subject's class, or that of a reference.
        helps: Help by the field's name.
        into: Name of the dictionary among the command's arguments.
        special: Types of fields that are not plain values.
        defaults: Defaults to show in help if the class has none.
        repeated: Fields of several values, each given by its own option.
    """
    hints = typing.get_type_hints(cls)
    known = {field.name: field.default for field in dataclasses.fields(cls)}
    declared = [
        option(
            f"--{name.replace('_', '-')}",
            name,
            type=click.STRING
            if name in repeated
            else special.get(name) or _parameter_type(hints[name]),
            default=None,
            show_default=_show_default(defaults.get(name, known[name])),
            help=text,
            is_flag=hints[name] is bool,
            multiple=name in repeated,
        )
        for name, text in helps.items()
    ]

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_fields(*args: Any, **given: Any) -> Any:
            said = {name: given.pop(name) for name in helps}
            given[into] = {
                name: value
                for name, value in said.items()
                if value is not None and not (name in repeated and value == ())
            }
            return command(*args, **given)

        return _add(with_fields, *declared)

    return decorate


def _add(command: Any, *options: Decorator) -> Any:
    for decorate in reversed(options):
        command = decorate(command)
    return command


def _parameter_type(hint: Any) -> ParamType:
    """Return click's type for a field's."""
    if get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in get_args(hint) if part is not types.NoneType)
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return Listed(_parameter_type(get_args(hint)[0]))
    known: dict[Any, ParamType] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return known.get(hint, click.STRING)


def _show_default(value: Any) -> str | bool:
    if value is None or value is dataclasses.MISSING or value in ("", False, ()):
        return False
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
