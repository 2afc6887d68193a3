"""``epsilometer zoo``."""

import sys
from typing import Any, Literal

import click
from rich.text import Text

from epsilometer.cli.options import json_option, option, seed_option
from epsilometer.cli.output import make_table, say, show
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import to_json_text
from epsilometer.errors import InvalidArgument
from epsilometer.zoo.linting import list_sources, render_scores
from epsilometer.zoo.page import count_outcomes, list_mistakes
from epsilometer.zoo.program import Kind, Program
from epsilometer.zoo.programs import has_library, list_programs
from epsilometer.zoo.runner import Outcome, run_zoo

_WITHOUT: dict[Kind, str] = {
    "opacus": "The programs that train with Opacus were not run: it is not installed. "
    "Get it with: pip install 'epsilometer[opacus]'",
    "flower": "The federated programs were not run: Flower is not installed. "
    "Get it with: pip install 'epsilometer[flower]'",
}


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@option(
    "--kind",
    type=click.Choice(["step", "opacus", "flower", "source"]),
    help="Run programs of this kind only.",
)
@option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run each program with this many seeds.",
)
@option("--source", is_flag=True, help="Print the source of programs without running them.")
@seed_option
@json_option
def zoo(
    ids: tuple[str, ...],
    kind: Kind | Literal["source"] | None,
    seeds: int,
    source: bool,
    seed: int | None,
    as_json: bool,
) -> None:
    """Run the checks on known wrong and right programs.

    Counts wrong programs found and right ones reported. Runs all programs, or those with the given
    IDs. Exit code 1 if a right program is reported.

    Example: epsilometer zoo
    """
    if kind == "source":
        _show_sources(ids, source=source)
        return
    programs = _choose(ids, kind)
    if source:
        say("\n\n".join(_describe_source(program) for program in programs))
        return
    bar = click.progressbar(
        length=len(programs) * seeds, file=sys.stderr, hidden=not sys.stderr.isatty()
    )
    with bar as progress:
        outcomes = run_zoo(
            programs, seed=seed or 0, seeds=seeds, listener=lambda _: progress.update(1)
        )
    if as_json:
        rows = [_describe(outcome) for outcome in outcomes]
        say(to_json_text(to_plain(rows)))
    else:
        say(count_outcomes(outcomes))
        for line in list_mistakes(outcomes):
            say(line)
        head = ("id", "program", "truth", "found by", "steps", "CPU s", "")
        show(make_table(head, map(_make_row, outcomes)))
    for each, words in _WITHOUT.items():
        if kind is None and not ids and not has_library(each):
            say(words, err=as_json)
    if any(outcome.accused and outcome.program.right for outcome in outcomes):
        raise SystemExit(1)


def _show_sources(ids: tuple[str, ...], *, source: bool) -> None:
    """Print how lint does on programs that are only read, or these programs."""
    if source:
        known = {program.id: program for program in list_sources()}
        unknown = [each for each in ids if each not in known]
        if unknown:
            raise InvalidArgument(
                f"Expected ids from {min(known)} to {max(known)}, got {unknown[0]!r}."
            )
        chosen = [known[each] for each in ids] or list(known.values())
        say("\n\n".join(f"# {each.id}: {each.title}\n{each.source}" for each in chosen))
        return
    scores, accused = render_scores()
    say(scores)
    if accused:
        raise SystemExit(1)


def _choose(ids: tuple[str, ...], kind: Kind | None) -> tuple[Program, ...]:
    programs = list_programs(kind)
    known = {program.id: program for program in programs}
    unknown = [each for each in ids if each not in known]
    if unknown:
        raise InvalidArgument(
            f"Expected ids from {programs[0].id} to {programs[-1].id}, got {unknown[0]!r}. "
            "`epsilometer zoo --source` lists them."
        )
    return tuple(known[each] for each in ids) or programs


def _describe_source(program: Program) -> str:
    lines = [
        f"# {program.id}: {program.title}",
        f"# breaks: {program.breaks}" if program.breaks else "# right",
        f"# reported in: {program.seen}" if program.seen else "",
        f"# settings: {program.settings}" if program.settings else "",
        program.source.rstrip(),
    ]
    return "\n".join(filter(None, lines))


def _describe(outcome: Outcome) -> dict[str, object]:
    program = outcome.program
    names = ("id", "title", "kind", "right", "breaks", "seen")
    return {
        **{name: getattr(program, name) for name in names},
        "seed": outcome.seed,
        "accused": outcome.accused,
        "checks": list(outcome.checks),
        "call": outcome.alarms[0].call if outcome.alarms else "",
        "steps": outcome.steps,
        "untested": list(outcome.untested),
        "seconds": outcome.seconds,
    }


def _make_row(outcome: Outcome) -> tuple[Any, ...]:
    program, found = outcome.program, outcome.accused
    return (
        program.id,
        program.title,
        "right" if program.right else "wrong",
        outcome.checks[0] if found else "–",
        str(outcome.steps) if found else "–",
        f"{outcome.seconds:.2f}",
        _word_mistake(outcome),
    )


def _word_mistake(outcome: Outcome) -> Text:
    if outcome.correct:
        return Text()
    return Text("ACCUSED" if outcome.program.right else "MISSED", style="red")
