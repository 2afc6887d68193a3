"""Make calls of ``audit`` from options and files, and run them."""

import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, chdir, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

from epsilometer._dispatch import Call, call_from_sections, read_sections
from epsilometer.cli.options import Options
from epsilometer.cli.saying import say
from epsilometer.cli.sources import look_here
from epsilometer.core.audit import Audit
from epsilometer.core.printing import one_line
from epsilometer.core.settings import section_name
from epsilometer.engine.run import Terminated
from epsilometer.errors import EpsilometerError, InvalidArgument


def make_call(
    subject: str,
    settings: Mapping[str, Any],
    options: Options,
    *,
    config: Path | None = None,
    trust: bool = False,
    bundled: str | None = None,
    delta: float | None = None,
    seeded: bool = False,
) -> Call:
    """Return the call that a file describes, with what options say in place of the file's.

    Args:
        subject: Name of the subject.
        settings: Fields that were given as options; ``source`` may be given in part.
        options: The shared ones.
        config: The file.
        trust: Import functions that the file names.
        bundled: Name of the bundled file that stands for none.
        delta: δ where neither options nor the file give one.
        seeded: Whether the source draws from the same seed.
    """
    if config is not None:
        sections = read_sections(config)
    elif bundled is not None:
        text = resources.files("epsilometer").joinpath(f"data/{bundled}").read_text("utf-8")
        sections = tomllib.loads(text)
    else:
        sections = {}
    name = section_name(subject)
    try:
        given = _take_section(sections, name, config)
        source = {**given.get("source", {}), **settings.get("source", {})}
        if seeded and options.seed is not None:
            source["seed"] = options.seed
        merged = {**given, **settings, **({"source": source} if source else {})}
        asked = _merge_asked(sections, options, delta)
        if trust:
            look_here()
        return call_from_sections({**sections, **asked, name: merged}, trust=trust)
    except EpsilometerError as error:
        if config is None:
            raise
        raise InvalidArgument(f"{config}: {error}") from error


def run_call(call: Call, options: Options, *, data: Path | None = None) -> Audit:
    """Run a call as options say; if interrupted, say how to go on.

    Args:
        call: What is audited.
        options: Where and on what.
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


def visit(folder: Path | None) -> AbstractContextManager[None]:
    """Work in a folder, from which the files of a subject are named."""
    return nullcontext() if folder is None else chdir(folder)


def run_interruptibly(work: Callable[[], Audit], out: Path | None) -> Audit:
    """Do the work; where it is interrupted, say how to go on and exit as the signal asks."""
    try:
        return work()
    except KeyboardInterrupt as interrupt:
        where = one_line(str(out))
        said = f" What is finished is safe. Go on with: epsilometer runs resume {where}"
        say(f"\nInterrupted.{'' if out is None else said}", err=True)
        raise SystemExit(143 if isinstance(interrupt, Terminated) else 130) from interrupt


def _take_section(sections: Mapping[str, Any], name: str, config: Path | None) -> dict[str, Any]:
    others = [other for other in sections if other not in (name, "claim", "audit")]
    if others:
        raise InvalidArgument(
            f"Expected the sections [{name}], [claim] and [audit], got [{others[0]}]. "
            f"Run any kind of audit with: epsilometer audit {config}"
        )
    given = sections.get(name, {})
    if not isinstance(given, Mapping) or not isinstance(given.get("source", {}), Mapping):
        raise InvalidArgument(f"Expected a section [{name}] with its settings, got a value.")
    return dict(given)


def _merge_asked(
    sections: Mapping[str, Any], options: Options, delta: float | None
) -> dict[str, Any]:
    """Return the sections ``claim`` and ``audit`` with what options say."""
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
