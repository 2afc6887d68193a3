"""Say what a tool found in the zoo: in a sentence, in tables, as a page."""

from collections.abc import Iterable, Sequence

from epsilometer.zoo.program import Program
from epsilometer.zoo.runner import Outcome

BEGIN, END = "<!-- seeds -->\n", "<!-- end of seeds -->\n"
KINDS = {"step": "Plain functions", "opacus": "Trainings with Opacus"}
_HEAD = """# The zoo

Programs that are known to be wrong, and right ones that look unusual. A wrong program that is
missed is a false all-clear, and is named here; a right one that is accused is a false alarm. There
are two kinds:

- **Plain functions** (EPS-0001 and EPS-1001 onwards): one step of DP-SGD on a network of 364
  parameters and 32 records, σ = 1 and C = 1 where nothing else is said, checked by
  `epsilometer.Step`.
- **Trainings with Opacus** (EPS-0101 and EPS-1101 onwards): 66 steps on a network of 1,764
  parameters and 255 records at rate 1/11. Each runs under `audited`, which is asked after 1, 2, 4,
  8, … updates and at the end. Where it finds nothing, `check`, `replay` and `replay_setup` are
  called after the training.

All settings are the defaults. *After steps* is the step at which the first alarm was certain. *CPU
s* counts the program and its checks, up to the alarm.

```
epsilometer zoo                     # all programs
epsilometer zoo EPS-0143            # one of them
epsilometer zoo --source EPS-0143   # its source
make zoo                            # writes this page
```

## Another tool

A tool is one function of a program and a seed. `program.make(seed)` is what it may look at: an
`epsilometer.Step` (`step`, `batch`, `clip_norm`, `noise_multiplier`), or a training (`engine`,
`model`, `optimizer`, `loader`, `loss`; `run()` trains). It returns its alarms, or None where it
cannot be run:

```python
from epsilometer.zoo.page import count_outcomes
from epsilometer.zoo.runner import run_zoo
from epsilometer.zoo.tool import Alarm, Report


def compare_loss(program, seed):
    \"\"\"Accuse trainings that end with a very small loss.\"\"\"
    if program.kind != "opacus":
        return None
    training = program.make(seed)
    training.run()
    loss = float(training.loss(training.model, *training.loader.dataset.tensors).detach())
    return Report(alarms=(Alarm(check="loss", steps=66),) if loss < 0.1 else ())


print(count_outcomes(run_zoo(tool=compare_loss)))
```
"""


def count_outcomes(outcomes: Iterable[Outcome]) -> str:
    """Say in one sentence how many wrong programs were found, and how many right ones spared.

    With several seeds a wrong program is found if every seed finds it, a right one spared if none
    accuses it.
    """
    by_program = _group(outcomes)
    ran = {program: runs for program, runs in by_program.items() if all(o.ran for o in runs)}
    wrong = [all(o.accused for o in runs) for program, runs in ran.items() if not program.right]
    right = [not any(o.accused for o in runs) for program, runs in ran.items() if program.right]
    told = (
        f"{sum(wrong)} of {len(wrong)} wrong programs found, "
        f"{sum(right)} of {len(right)} right ones spared"
    )
    seeds = max((len(runs) for runs in ran.values()), default=1)
    told += f", in each of {seeds} seeds" if seeds > 1 else ""
    left = len(by_program) - len(ran)
    return f"{told}; {left} not run." if left else f"{told}."


def list_mistakes(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Name what was missed, and what was accused and is right, a line each."""
    lines = []
    for program, runs in _group(outcomes).items():
        mistaken = [outcome for outcome in runs if outcome.ran and not outcome.correct]
        if mistaken:
            word = "accused" if program.right else "missed"
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


def render_page(outcomes: Sequence[Outcome], *, seeds: str = "") -> str:
    """Return the page of the documentation, as Markdown.

    Args:
        outcomes: Of one seed.
        seeds: What was found with many, in a paragraph.
    """
    missed = "".join(f"- {line}\n" for line in list_mistakes(outcomes))
    return (
        f"{_HEAD}\n## What was found\n\n**{count_outcomes(outcomes)}**\n\n"
        f"{missed or 'None is missed, and none is accused that is right.'}\n"
        f"{BEGIN}{seeds}{END}\n{render_tables(outcomes)}\n"
    )


def read_seeds(page: str) -> str:
    """Return the paragraph of a page about many seeds; empty where there is none."""
    return page.partition(BEGIN)[2].partition(END)[0]


def tell_seeds(outcomes: Sequence[Outcome], command: str) -> str:
    """Return the paragraph about right programs that were run with many seeds."""
    accused = [outcome for outcome in outcomes if outcome.accused]
    programs = len({outcome.program.id for outcome in outcomes})
    named = ", ".join(f"{o.program.id} with seed {o.seed}" for o in accused)
    return (
        f"Right programs with many seeds: {programs} programs × {len(outcomes) // programs} seeds, "
        f"{len(accused)} of {len(outcomes):,} runs accused{': ' + named if named else ''} "
        f"(`{command}`). One in 1,000 is allowed.\n"
    )


def _group(outcomes: Iterable[Outcome]) -> dict[Program, list[Outcome]]:
    groups: dict[Program, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.program, []).append(outcome)
    return groups


def _render_wrong(outcomes: Iterable[Outcome]) -> str:
    rows = [
        f"| {o.program.id} | {o.program.title} | {o.program.breaks} | {o.program.seen or '–'} | "
        f"{_tell_alarms(o)} | {o.steps if o.accused else '–'} | {o.seconds:.2f} |"
        for o in outcomes
        if not o.program.right
    ]
    return "\n".join(
        [
            "| id | wrong program | breaks | seen in | found by | after steps | CPU s |",
            "|---|---|---|---|---|---:|---:|",
            *rows,
        ]
    )


def _render_right(outcomes: Iterable[Outcome]) -> str:
    rows = [
        f"| {o.program.id} | {o.program.title} | {_tell_right(o)} | "
        f"{', '.join(o.untested) or '–'} | {o.seconds:.2f} |"
        for o in outcomes
        if o.program.right
    ]
    return "\n".join(
        ["| id | right program | outcome | not tested | CPU s |", "|---|---|---|---|---:|", *rows]
    )


def _tell_alarms(outcome: Outcome) -> str:
    if not outcome.ran:
        return "not run"
    if not outcome.accused:
        return "**missed**"
    call = outcome.alarms[0].call
    return f"`{call}`: {', '.join(outcome.checks)}" if call else ", ".join(outcome.checks)


def _tell_right(outcome: Outcome) -> str:
    if not outcome.ran:
        return "not run"
    return f"**accused**: {', '.join(outcome.checks)}" if outcome.accused else "spared"
