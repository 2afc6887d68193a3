"""Report what a tool found in the zoo: as a sentence, tables or a page."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from epsilometer.core import judge
from epsilometer.zoo.program import Program
from epsilometer.zoo.runner import Outcome

BEGIN, END = "<!-- seeds -->\n", "<!-- end of seeds -->\n"
KINDS = {
    "step": "Plain functions",
    "opacus": "Training runs with Opacus",
    "flower": "Federated runs with Flower",
}


def count_outcomes(outcomes: Iterable[Outcome]) -> str:
    """Return a sentence: how many wrong programs were found, and how many right ones passed.

    With several seeds a wrong program is found if every seed finds it, a right one passes if none
    flags it.
    """
    by_program = _group(outcomes)
    complete = {program: runs for program, runs in by_program.items() if all(o.ran for o in runs)}
    wrong = [all(o.accused for o in runs) for each, runs in complete.items() if not each.right]
    right = [not any(o.accused for o in runs) for each, runs in complete.items() if each.right]
    counts = (
        f"{sum(wrong)} of {len(wrong)} wrong programs found, "
        f"{sum(right)} of {len(right)} right ones passed"
    )
    seeds = max((len(runs) for runs in complete.values()), default=1)
    counts += f", in each of {seeds} seeds" if seeds > 1 else ""
    left = len(by_program) - len(complete)
    return f"{counts}; {left} not run." if left else f"{counts}."


def list_mistakes(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """List missed wrong programs and flagged right ones, one line per program."""
    lines = []
    for program, runs in _group(outcomes).items():
        mistaken = [outcome for outcome in runs if outcome.ran and not outcome.correct]
        if mistaken:
            word = "flagged" if program.right else "missed"
            by = f" by {', '.join(mistaken[0].checks)}" if program.right else ""
            often = f", {len(mistaken)} of {len(runs)} seeds" if len(runs) > 1 else ""
            lines.append(f"{word}: {program.id} ({program.title}){by}{often}")
    return tuple(lines)


def render_tables(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes as tables in Markdown, kind by kind: wrong programs, then right ones."""
    every = tuple(outcomes)
    parts = []
    for kind, title in KINDS.items():
        own = [outcome for outcome in every if outcome.program.kind == kind]
        if own:
            parts += [
                f"## {title}\n\n{count_outcomes(own)}",
                _render_wrong(own),
                _render_right(own),
            ]
    return "\n\n".join(parts)


def render_page(outcomes: Sequence[Outcome], *, seeds: str = "", scores: str = "") -> str:
    """Return the page of the documentation, as Markdown: what was found, and what was not.

    Args:
        outcomes: Outcomes of one seed.
        seeds: Paragraph about the outcomes with many seeds.
        scores: Scores of lint on the programs that are only read.
    """
    head = _read_text("page_head.md")
    missed = "".join(f"- {line}\n" for line in list_mistakes(outcomes))
    kinds = "".join(
        f"- {title}: {count_outcomes(o for o in outcomes if o.program.kind == kind)}\n"
        for kind, title in KINDS.items()
    )
    return (
        f"{head}\n## What was found\n\n**{count_outcomes(outcomes)}**\n\n"
        f"{missed or 'No wrong program is missed, and no right one is flagged.'}\n"
        f"By kind ([all programs](../tests/zoo/programs.md), by which check, after how many steps):"
        f"\n\n{kinds}\n{BEGIN}{seeds}{END}" + (f"\n{scores}\n" if scores else "")
    )


def render_list(outcomes: Iterable[Outcome]) -> str:
    """Return the list of all programs, as Markdown: by which check each was found."""
    return f"{_read_text('list_head.md')}\n{render_tables(outcomes)}\n"


def _read_text(name: str) -> str:
    return files("epsilometer.zoo").joinpath(name).read_text("utf-8")


def read_seeds(page: str) -> str:
    """Return the paragraph of a page about many seeds; empty if there is none."""
    return page.partition(BEGIN)[2].partition(END)[0]


def describe_seeds(outcomes: Sequence[Outcome], command: str) -> str:
    """Return the paragraph about right programs that were run with many seeds."""
    accused = [outcome for outcome in outcomes if outcome.accused]
    programs = len({outcome.program.id for outcome in outcomes})
    named = ", ".join(f"{o.program.id} with seed {o.seed}" for o in accused)
    return (
        f"Right programs with many seeds: {programs} programs × {len(outcomes) // programs} seeds, "
        f"{len(accused)} of {len(outcomes):,} runs flagged{': ' + named if named else ''} "
        f"(`{command}`). One in 1,000 is allowed.\n"
    )


def _group(outcomes: Iterable[Outcome]) -> dict[Program, list[Outcome]]:
    groups: dict[Program, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.program, []).append(outcome)
    return groups


def _render_wrong(outcomes: Iterable[Outcome]) -> str:
    return _render_table(
        ("id", "wrong program", "breaks", "reported in", "found by", "after steps", "CPU s"),
        [
            (
                o.program.id,
                o.program.title,
                o.program.breaks,
                o.program.seen,
                _name_alarms(o, "**missed**"),
                o.steps if o.accused else "",
                f"{o.seconds:.2f}",
            )
            for o in outcomes
            if not o.program.right
        ],
    )


def _render_right(outcomes: Iterable[Outcome]) -> str:
    return _render_table(
        ("id", "right program", "outcome", judge.NOT_TESTED, "CPU s"),
        [
            (
                o.program.id,
                o.program.title,
                f"**flagged**: {', '.join(o.checks)}" if o.accused else _name_alarms(o, "passed"),
                ", ".join(o.untested),
                f"{o.seconds:.2f}",
            )
            for o in outcomes
            if o.program.right
        ],
    )


def _render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; numbers of steps and seconds are right-aligned."""
    rules = ["---:" if name in ("after steps", "CPU s") else "---" for name in columns]
    lines = [f"| {' | '.join(str(cell) or '–' for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'|'.join(rules)}|", *lines])


def _name_alarms(outcome: Outcome, silent: str) -> str:
    """Name the checks that flagged a program; ``silent`` where none did."""
    if not outcome.ran:
        return "not run"
    if not outcome.accused:
        return silent
    call = outcome.alarms[0].call
    return f"`{call}`: {', '.join(outcome.checks)}" if call else ", ".join(outcome.checks)
