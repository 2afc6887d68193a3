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
    """Hold what a tool reported about one program, with one seed.

    Attributes:
        program: The program.
        seed: The seed.
        ran: Whether the tool could run on it.
        alarms: Its alarms, in order.
        untested: Names of checks that could not be made.
        seconds: CPU seconds, including those of the program.
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
        """Whether a wrong program was found, or a right one passed."""
        return self.ran and self.accused != self.program.right

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that flagged it, in order."""
        return tuple(alarm.check for alarm in self.alarms)

    @property
    def steps(self) -> int:
        """Steps until the first alarm; 0 if there was none."""
        return self.alarms[0].steps if self.alarms else 0


def run_program(program: Program, *, seed: int = 0, tool: Tool = check_program) -> Outcome:
    """Run one program through a tool, and return the outcome."""
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

    Guarantee: except for the seconds, the same seed gives the same outcomes, unless programs draw
        from their own generator.

    Args:
        programs: Programs to run; by default all that can run here.
        seed: Seed of all randomness.
        seeds: Number of seeds: each program is run with ``seed``, ``seed + 1`` etc.
        jobs: Number of parallel processes.
        tool: Function that checks a program. Pass another one to compare tools.
        listener: Called with every outcome when it is ready.

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
