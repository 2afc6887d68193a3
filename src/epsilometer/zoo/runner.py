"""Run the zoo: every program through a tool, and count what is missed."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from joblib import Parallel, delayed

from epsilometer.zoo.program import Program
from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.tool import Alarm, Report, Tool, check_program, isolate_torch

Listener: TypeAlias = Callable[["Outcome"], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a tool said of one program, from one seed.

    Attributes:
        program: Which.
        seed: Which.
        ran: Whether the tool could be run on it.
        alarms: What it flagged the program of, first come first.
        untested: Names of checks that could not be made.
        seconds: CPU seconds, those of the program among them.
    """

    program: Program
    seed: int
    ran: bool
    alarms: tuple[Alarm, ...]
    untested: tuple[str, ...]
    seconds: float

    @property
    def accused(self) -> bool:
        """Whether there was any alarm."""
        return bool(self.alarms)

    @property
    def correct(self) -> bool:
        """Whether a wrong program was found, or a right one spared."""
        return self.ran and self.accused != self.program.right

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that flagged it, first come first."""
        return tuple(alarm.check for alarm in self.alarms)

    @property
    def steps(self) -> int:
        """Steps until the first alarm; 0 where there was none."""
        return self.alarms[0].steps if self.alarms else 0


def run_program(program: Program, *, seed: int = 0, tool: Tool = check_program) -> Outcome:
    """Run one program through a tool, and say what it found."""
    start = time.process_time()
    with isolate_torch() if program.kind == "opacus" else nullcontext():
        answer = tool(program, seed)
    seconds = time.process_time() - start
    report = answer or Report()
    return Outcome(
        program=program,
        seed=seed,
        ran=answer is not None,
        alarms=report.alarms,
        untested=report.untested,
        seconds=seconds,
    )


def run_zoo(
    programs: Iterable[Program] | None = None,
    *,
    seed: int = 0,
    seeds: int = 1,
    jobs: int = 1,
    tool: Tool = check_program,
    listener: Listener = lambda _: None,
) -> tuple[Outcome, ...]:
    """Run programs through a tool, each from the same seeds.

    Guarantee: but for the seconds, the same seed gives the same outcomes, except for programs that
        draw from their own generator.

    Args:
        programs: Which; by default all that can run here.
        seed: Seed of all randomness.
        seeds: How many: each program is run with ``seed``, ``seed + 1`` and so on.
        jobs: Processes that share the work.
        tool: What checks a program. Another tool is compared by giving its function.
        listener: Called with every outcome as it comes.

    Example:
        >>> from epsilometer.zoo.programs import list_programs
        >>> [outcome.accused for outcome in run_zoo(list_programs("step")[:2])]
        [True, True]
    """
    outcomes = []
    run = delayed(run_program)
    work = (
        run(program, seed=seed + turn, tool=tool)
        for program in (list_programs() if programs is None else programs)
        for turn in range(seeds)
    )
    for outcome in Parallel(n_jobs=jobs, return_as="generator")(work):
        outcomes.append(outcome)
        listener(outcome)
    return tuple(outcomes)
