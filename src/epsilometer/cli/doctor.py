"""``epsilometer doctor``."""

import textwrap
from dataclasses import asdict

import click

from epsilometer.cli.examining import Check, examine, works_without
from epsilometer.cli.saying import say, say_marked, say_title
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.errors import InvalidArgument

_MARKS = {"works": "✓", "missing": "–", "broken": "✕", "slow": "?", "note": "·"}
_COLOURS = {"works": "green", "missing": "yellow", "broken": "red", "slow": "yellow", "note": None}
_WIDTH = 100


@click.command()
@click.option("--address", help="Reach the Dask scheduler at tcp://host:8786.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(address: str | None, as_json: bool) -> None:
    """Check what is installed and works here.

    Imports every package in a process of its own, computes a bound, and has two workers run a
    unit each. Exit code 0 if epsilometer works, whatever extras are missing; 3 if it does not; 2
    if no scheduler answers at --address.

    Example: epsilometer doctor
    """
    checks = examine(address=address)
    healthy = all(check.state not in ("missing", "broken") for check in checks if check.vital)
    sentences = works_without(checks)
    if as_json:
        plain = {
            "works": healthy,
            "checks": [asdict(check) for check in checks],
            "sentences": sentences,
        }
        say(to_json_text(plain))
    else:
        _show(checks)
        say()
        for sentence in sentences:
            say(textwrap.fill(sentence, _WIDTH, subsequent_indent="  "))
    if not healthy:
        say("epsilometer does not work here: see what is broken above.", err=True)
        raise SystemExit(3)
    if any(check.name.startswith("Dask at") and check.state != "works" for check in checks):
        raise InvalidArgument(f"Expected a Dask scheduler with workers at {address!r}, found none.")


def _show(checks: list[Check]) -> None:
    """Without rich, which may be what is broken."""
    part, widest = "", max(len(check.name) for check in checks)
    for check in checks:
        if check.part != part:
            part = check.part
            if check is not checks[0]:
                say()
            say_title(part)
        indent = " " * (widest + 6)
        says = textwrap.fill(
            one_line(check.says), _WIDTH, initial_indent=indent, subsequent_indent=indent
        ).strip()
        line = f"{one_line(check.name):<{widest}}  {says}"
        say_marked(_MARKS[check.state], line, colour=_COLOURS[check.state], indent=2)
        if check.advice and (check.state != "missing" or check.vital):  # extras are told below
            say(f"{indent}→ {one_line(check.advice)}")
