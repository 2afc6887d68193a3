"""Run a program repeatedly, given as a Python function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epsilometer import _validate
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Curve
from epsilometer.core.settings import DATA
from epsilometer.engine.engines import Local
from epsilometer.engine.fingerprints import name_of
from epsilometer.engine.request import Request
from epsilometer.engine.runs import (
    Play,
    Program,
    RunsJob,
    check_parameters,
    check_until,
    choose_block,
)
from epsilometer.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Runs:
    """Audit a program, given as a function that runs it with the record and without it.

    Guarantee: the same settings give the same audit, byte for byte, however the work was split,
        killed or resumed. The bound exceeds the true ε in at most ``1 - confidence`` of audits,
        even if a rule stops early. Runs that fail count against a refutation.
    Assumption: runs are independent given ``rng``, and all randomness of ``play`` comes from it.

    Attributes:
        play: ``play(runs, rng)`` returns the scores of that many runs with the record and as many
            without it. With processes or Dask it must be picklable.
        runs: Largest number of runs with the record, and of runs without it.
        also: Methods whose bounds are reported too but decide nothing; not with ``until``.
        block: Pairs of runs per unit of work; a hundredth of ``runs`` by default.
        title: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        curves: Trade-off curves to draw with the attack's.
        parameters: Everything else that determines what ``play`` does, as JSON values. They are
            written into results unchanged, so put no data here. A run directory is never continued
            with other parameters; those not named here cannot be checked.

    Example:
        >>> import epsilometer as em
        >>> def play(runs, rng):
        ...     return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
        >>> audit = em.audit(
        ...     em.Runs(play, runs=5_000), em.Claim(1.0, delta=1e-5),
        ...     until=em.UntilRefuted(), engine=em.InProcess(),
        ... )
        >>> audit.verdict, audit.provenance.used < audit.provenance.units
        ('refuted', True)
    """

    play: Play = field(metadata=DATA)
    runs: int
    also: tuple[str, ...] = ()
    block: int | None = None
    title: str = "training runs"
    adversary: str = "unstated"
    curves: tuple[Curve, ...] = field(default=(), metadata=DATA)
    parameters: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.play):
            raise InvalidArgument(f"Expected a function play(runs, rng), got {self.play!r}.")
        _validate.whole(2, runs=self.runs)
        _validate.whole(1, block=1 if self.block is None else self.block)
        check_parameters(self.parameters)


SUBJECTS = (Runs,)


def run_audit(subject: Runs, request: Request) -> Audit:
    """Run with the record and equally often without it, and judge the claim by the scores."""
    block = subject.block or choose_block(subject.runs)
    check_until(request, also=subject.also, blocks=-(-subject.runs // block))
    job = RunsJob(
        plan=request.make_plan(
            subject, units=-(-subject.runs // block), block=block, play=name_of(subject.play)
        ),
        subject=subject.title,
        claim=request.claim,
        programs=(
            Program(
                play=subject.play,
                subject=subject.title,
                adversary=subject.adversary,
                curves=tuple(subject.curves),
            ),
        ),
        runs=subject.runs,
        block=block,
        delta=request.known_delta,
        confidence=request.confidence,
        also=tuple(subject.also),
        until=request.until,
    )
    return request.execute(job, usual=Local())
