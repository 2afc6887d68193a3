"""Run audits that options and files describe: ``epsilometer audit``, ``estimate``, ``methods``."""

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from importlib import import_module, resources
from pathlib import Path
from typing import Any, get_args

import click

from epsilometer._dispatch import Call, call_from_sections, read_call, read_sections
from epsilometer.cli.options import (
    RULE,
    Options,
    Suggested,
    audit_options,
    data_option,
    field_options,
    trust_option,
)
from epsilometer.cli.output import say, show, show_audit, show_explanation, show_line, write_page
from epsilometer.core import words
from epsilometer.core.audit import Audit
from epsilometer.core.printing import one_line
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.scores import Design, Scores
from epsilometer.core.settings import section_name
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.files.stamps import make_stamp, write_stamp
from epsilometer.stats.estimators import REGISTRY


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@trust_option
@data_option()
@audit_options(asks=False, units=True)
def audit(file: Path, data: Path | None, options: Options) -> None:
    """Run the audit that FILE describes, or repeat one.

    FILE is a .toml file with one section per subject, or the .json of an audit. Repeating an audit
    gives the same bytes. Data supplied from Python must be supplied from Python again.

    Exit code 1 if it refutes the claim, 4 if it cannot judge it.

    Example: epsilometer audit audit.json --out again
    """
    end_audit(run_file(file, options, data), options)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@field_options(
    Scores,
    {
        "design": "Declare the design: runs, coins, fixed or paired.",
        "inclusion": "Set the probability that a canary is included.",
        "method": "Compute the bound by this method; see epsilometer methods.",
        "rule": "Choose thresholds by this rule.",
        "also": "Also show the bounds of these methods.",
        "title": "Set the title of the report.",
        "adversary": "Describe what the adversary sees.",
    },
    into="settings",
    special={"rule": RULE, "method": Suggested(*REGISTRY), "design": Suggested(*get_args(Design))},
    defaults={"method": "calibrated; one_run for canaries", "rule": "the method's own"},
)
@click.option("--attack", help="Read this attack from another tool's result.")
@audit_options(config=True)
def estimate(
    file: Path | None, settings: dict[str, Any], attack: str | None, options: Options
) -> None:
    """Compute a lower bound on ε from attack scores in FILE.

    FILE is .csv, .parquet or .npz with columns score and member (1 inside, 0 outside), or inside
    and outside. A higher score must mean "was in". Scores are assumed to come from independent runs
    unless --design, or a column design, says that they belong to canaries of one run.

    Results of Privacy Meter, PrivacyGuard, SACRO-ML, ART, JAX-Privacy and TensorFlow Privacy are
    recognised; --design says how records were included.

    Exit code 1 if the claim is refuted, 4 if there are too few scores to judge it.

    Example: epsilometer estimate scores.csv --delta 1e-5 --claim 3
    """
    if (file is None) == (options.config is None):
        raise InvalidArgument("Expected FILE or --config FILE.toml, got neither or both.")
    if file is not None and options.delta is None:
        raise InvalidArgument("Expected --delta with FILE, got none. For example: --delta 1e-5.")
    source = None if file is None else {"type": "score-file", "path": str(file)}
    if attack is not None:
        if source is None:
            raise InvalidArgument("Expected FILE with --attack, got none.")
        source["attack"] = attack
    call = make_call("Scores", settings, options, source=source)
    end_audit(run_call(call, options), options)


@click.command()
def methods() -> None:
    """List the methods with their guarantees, assumptions and references.

    Example: epsilometer methods
    """
    from rich.table import Table
    from rich.text import Text

    for name, method in REGISTRY.items():
        table = Table.grid(padding=(0, 2))
        table.add_row("  guarantees", method.guarantees)
        table.add_row("  assumes", method.assumes)
        table.add_row("  designs", ", ".join(method.designs))
        table.add_row("  rules", ", ".join(rule.__name__ for rule in method.rules))
        table.add_row("  cites", ", ".join(method.cites))
        validity = ("valid", "green") if method.exact else ("NOT VALID", "red")
        show(Text.assemble((name, "bold"), "  ", validity), table, "")
    references = Table.grid(padding=(0, 2))
    for key in sorted({key for method in REGISTRY.values() for key in method.cites}):
        references.add_row(f"  {key}", BIBLIOGRAPHY[key])
    show(Text("References", style="bold"), references)


def run_file(file: Path, options: Options, data: Path | None) -> Audit:
    """Run the audit that a file or the directory of a run describes, with data from a folder."""
    file = file.absolute()
    with visit(data, trust=options.trust):
        call = read_call(file, trust=options.trust)
    return run_call(call, options, data=data)


def make_call(
    subject: str,
    settings: Mapping[str, Any],
    options: Options,
    *,
    source: Mapping[str, Any] | None = None,
    bundled: str | None = None,
    delta: float | None = None,
    seeded: bool = False,
) -> Call:
    """Return the call that a file describes; options override the file's settings.

    Args:
        subject: Name of the subject.
        settings: Fields that were given as options.
        options: The shared ones.
        source: Fields of the data's reference that were given as options.
        bundled: Name of the bundled file to use if none is given.
        delta: δ if neither options nor the file give one.
        seeded: Whether the source draws from the same seed.
    """
    config = options.config
    sections: Mapping[str, Any] = {}
    if config is not None:
        sections = read_sections(config)
    elif bundled is not None:
        text = resources.files("epsilometer").joinpath(f"data/{bundled}").read_text("utf-8")
        sections = tomllib.loads(text)
    name = section_name(subject)
    try:
        stated = _take_section(sections, name, config)
        reference = {**stated.get("source", {}), **(source or {})}
        if seeded and options.seed is not None:
            reference["seed"] = options.seed
        merged = {**stated, **settings, **({"source": reference} if reference else {})}
        asked = _merge_asked(sections, options, delta)
        with visit(None, trust=options.trust):
            return call_from_sections({**sections, **asked, name: merged}, trust=options.trust)
    except EpsilometerError as error:
        if config is None:
            raise
        raise InvalidArgument(f"{config}: {error}") from error


def run_call(call: Call, options: Options, *, data: Path | None = None) -> Audit:
    """Run a call with the shared options; if interrupted, print how to continue.

    Args:
        call: What is audited.
        options: The shared options.
        data: Folder that the subject's files are read from.
    """
    out = None if options.out is None else options.out.absolute()
    with visit(data):
        return run_interruptibly(
            lambda: call.run(
                out=out,
                engine=options.engine,
                listen=options.listen,
                accept_changes=options.accept_changes,
            ),
            options.out,
        )


def end_audit(
    audit: Audit,
    options: Options,
    *,
    advice: str = "",
    further: tuple[Any, ...] = (),
    code: bool = True,
) -> None:
    """Print an audit as the options require, and exit with its code.

    Args:
        audit: What was found.
        options: The shared options.
        advice: One line of advice for this case.
        further: Further text for ``--verbose``.
        code: Whether the verdict decides the exit code.
    """
    stamp = None if options.out is None else write_stamp(options.out)
    if options.out is not None:
        write_page(audit, options.out / "report.html", stamp)
    if options.html is not None:
        write_page(audit, options.html, stamp or make_stamp())
    if options.as_json:
        say(audit.to_json())
    elif options.quiet:
        show_line(words.headline(audit))
    else:
        show_audit(audit, verbose=options.verbose, advice=advice)
        if options.verbose:
            show(*further)
        if options.out is not None:
            say(f"Report: {one_line(str(options.out / 'report.html'))}")
        if options.html is not None:
            say(f"Also written: {one_line(str(options.html))}")
    if options.explain:
        show_explanation(audit, aside=options.as_json)
    if code and audit.exit_code:
        raise SystemExit(audit.exit_code)


def visit(folder: Path | None, *, trust: bool = False) -> AbstractContextManager[None]:
    """Change to a folder, to which the names of a subject's files are relative.

    Args:
        folder: The folder; None for the current one.
        trust: Let modules be imported from the current folder, as ``python -m`` does.
    """
    here = os.getcwd()
    if trust and here not in sys.path:  # workers inherit it
        sys.path.insert(0, here)
    return nullcontext() if folder is None else chdir(folder)


def import_function(text: str) -> Callable[..., Any]:
    """Import a function given as ``module:name``, also from the current folder."""
    module, _, name = text.partition(":")
    try:
        with visit(None, trust=True):
            function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected module:factory that can be imported, got {text!r}: {error}."
        ) from error
    if not callable(function):
        raise InvalidArgument(f"Expected a function as module:factory, got {text!r}.")
    return function


def run_interruptibly(work: Callable[[], Audit], out: Path | None) -> Audit:
    """Do the work; if interrupted, print how to continue and exit with the signal's code."""
    from epsilometer.engine.run import Terminated

    try:
        return work()
    except KeyboardInterrupt as interrupt:
        where = one_line(str(out))
        advice = f" Finished units are kept. Resume with: epsilometer runs resume {where}"
        say(f"\nInterrupted.{'' if out is None else advice}", err=True)
        raise SystemExit(143 if isinstance(interrupt, Terminated) else 130) from interrupt


def _take_section(sections: Mapping[str, Any], name: str, config: Path | None) -> dict[str, Any]:
    others = [other for other in sections if other not in (name, "claim", "audit")]
    if others:
        raise InvalidArgument(
            f"Expected the sections [{name}], [claim] and [audit], got [{others[0]}]. "
            f"Run any kind of audit with: epsilometer audit {config}"
        )
    section = sections.get(name, {})
    if not isinstance(section, Mapping) or not isinstance(section.get("source", {}), Mapping):
        raise InvalidArgument(f"Expected a section [{name}] with its settings, got a value.")
    return dict(section)


def _merge_asked(
    sections: Mapping[str, Any], options: Options, delta: float | None
) -> dict[str, Any]:
    """Return the sections ``claim`` and ``audit``, overridden by options."""
    claim, audit = sections.get("claim"), sections.get("audit", {})
    if not isinstance(audit, Mapping):
        return {}  # refused by whoever reads it
    audit = dict(audit)
    stated = dict(claim) if isinstance(claim, Mapping) else {}
    if claim is not None and not isinstance(claim, Mapping):
        stated["epsilon"] = claim
    if options.claim is not None:
        stated["epsilon"] = options.claim
    for name in ("delta", "confidence", "seed", "until"):
        if getattr(options, name) is not None:
            audit[name] = getattr(options, name)
    if "delta" not in audit and (known := stated.get("delta", delta)) is not None:
        audit["delta"] = known
    if not stated:
        return {"audit": audit}
    if options.delta is not None:
        stated["delta"] = options.delta
    elif "delta" in audit:  # where both give one they must agree; whoever reads it checks that
        stated.setdefault("delta", audit["delta"])
    return {"audit": audit, "claim": stated.get("epsilon") if len(stated) == 1 else stated}
