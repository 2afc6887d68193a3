"""Run the zoo: every program through the checks at default settings, and count what is missed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from epsilometer.audits.step import Step, check_step
from epsilometer.core import judge
from epsilometer.core.findings import ConformanceFinding
from epsilometer.zoo.network import make_batch
from epsilometer.zoo.program import Program
from epsilometer.zoo.programs import PROGRAMS

Tool: TypeAlias = Callable[[Program, int], ConformanceFinding]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the checks said of one program.

    Attributes:
        program: Which.
        accused: Whether any check is violated.
        checks: Names of those that are, gravest evidence first.
        steps: Steps until the first of them was; 0 where none is.
        seconds: CPU seconds.
        untested: Names of checks that could not be made.
    """

    program: Program
    accused: bool
    checks: tuple[str, ...]
    steps: int
    seconds: float
    untested: tuple[str, ...]

    @property
    def correct(self) -> bool:
        """Whether a wrong program was found, or a right one spared."""
        return self.accused != self.program.right


def check_program(program: Program, seed: int) -> ConformanceFinding:
    """Check a program by ``epsilometer.Step`` at default settings. Another tool may stand here."""
    subject = Step(
        program.step,
        make_batch(),
        clip_norm=program.clip_norm,
        noise_multiplier=program.noise_multiplier,
        steady=program.steady,
    )
    return check_step(subject, seed=seed)


def run_program(program: Program, *, seed: int = 0, tool: Tool = check_program) -> Outcome:
    """Run one program through the checks, and say what they found."""
    start = time.process_time()
    finding = tool(program, seed)
    seconds = time.process_time() - start
    violated = finding.find(judge.VIOLATED)
    ordered = sorted(violated, key=lambda check: check.steps)
    return Outcome(
        program=program,
        accused=finding.verdict == judge.VIOLATED,
        checks=tuple(check.name for check in ordered),
        steps=ordered[0].steps if ordered else 0,
        seconds=seconds,
        untested=tuple(check.name for check in finding.find(judge.NOT_TESTED)),
    )


def run_zoo(
    programs: Iterable[Program] = PROGRAMS, *, seed: int = 0, tool: Tool = check_program
) -> tuple[Outcome, ...]:
    """Run programs through the checks, each from the same seed.

    Guarantee: but for the seconds, the same seed gives the same outcomes, except for programs that
        draw from a generator of their own.

    Args:
        programs: Which; all by default.
        seed: From which all randomness follows.
        tool: What checks a program; another tool is compared by giving its function.

    Example:
        >>> from epsilometer.zoo.programs import PROGRAMS
        >>> [outcome.accused for outcome in run_zoo(PROGRAMS[:2])]
        [True, True]
    """
    return tuple(run_program(program, seed=seed, tool=tool) for program in programs)


def count_outcomes(outcomes: Iterable[Outcome]) -> str:
    """Say in one sentence how many wrong programs were found, and how many right ones spared."""
    every = tuple(outcomes)
    wrong = [outcome for outcome in every if not outcome.program.right]
    right = [outcome for outcome in every if outcome.program.right]
    return (
        f"{sum(outcome.accused for outcome in wrong)} of {len(wrong)} wrong programs found, "
        f"{sum(not outcome.accused for outcome in right)} of {len(right)} right ones spared."
    )


def render_table(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes as tables in Markdown: wrong programs, then right ones."""
    every = tuple(outcomes)
    lines = [
        "| id | wrong program | breaks | found by | after steps |",
        "|---|---|---|---|---:|",
        *(
            f"| {o.program.id} | {o.program.title} | {o.program.breaks} | "
            f"{', '.join(o.checks) if o.accused else '**missed**'} | {o.steps or '–'} |"
            for o in every
            if not o.program.right
        ),
        "",
        "| id | right program | outcome | not tested |",
        "|---|---|---|---|",
        *(
            f"| {o.program.id} | {o.program.title} | "
            f"{'**accused**: ' + ', '.join(o.checks) if o.accused else 'spared'} | "
            f"{', '.join(name for name in o.untested if name != 'clipping') or '–'} |"
            for o in every
            if o.program.right
        ),
    ]
    return "\n".join(lines)
