"""Does training keep its promise? It is run again and again, with the record and without it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer.audits.scores import audit_scores, judged
from epsilometer.claims import PrivacyClaim
from epsilometer.engine.engines import Engine, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, run
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.observations import Scores, Sides
from epsilometer.results import AuditGroup, AuditResult, Curve, EpsilonLowerBound, Provenance
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.sequential import ConfidenceSequence

Played: TypeAlias = Scores | Mapping[str, Scores | Sides]
Play: TypeAlias = Callable[[int, np.random.Generator], Played]
_LOCAL = Local()
_UNITS = 100  # by default: enough to share among workers, to save and to watch
_PILOT = 0.05  # of the units place the thresholds of an audit that may stop early
_DRAWN = 60  # points of a growth curve


@dataclass(frozen=True)
class UntilRefuted:
    """Stops as soon as the claim has fallen. What is reported holds although it was watched."""


@dataclass(frozen=True)
class UntilNarrow:
    """Stops when further runs of the same attack could raise the bound by ``width`` at most.

    That is known as the bound is: at every moment together, with its confidence.
    It takes many runs: a threshold that few outsiders pass leaves open how many do.
    """

    width: float

    def __post_init__(self) -> None:
        _validate.positive(width=self.width)


Until: TypeAlias = UntilRefuted | UntilNarrow


@dataclass(frozen=True, kw_only=True)
class View:
    """One way of looking at the runs of a program.

    Attributes:
        name: Of its scores among those that ``play`` returns.
        subject: What is looked at, in words.
        adversary: Whose view it is, in words.
        bound: Bounds ε from its scores, where another method than the usual is the right one; not
            with a rule to stop early.
        each: How many scores a run gives at most; exactly one where there is no such ``bound``.
    """

    name: str
    subject: str
    adversary: str
    bound: Callable[[Scores], EpsilonLowerBound] | None = None
    each: int = 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is run, what it promises, and who attacks it.

    Attributes:
        play: ``play(runs, rng)`` returns the scores of that many runs with the record and as many
            without it; by the names of views, where there are several.
        subject: What it is, in words.
        claim: What it promises.
        adversary: Whose view the scores are computed from, in words.
        curves: Trade-off curves to draw beside the attack's.
        views: Ways of looking at the same runs, each with its own result; the first is the one that
            is watched.
    """

    play: Play
    subject: str
    claim: PrivacyClaim | None
    adversary: str
    curves: tuple[Curve, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def looks(self) -> tuple[View, ...]:
        """The views, or the only one there is."""
        return self.views or (View(name="", subject=self.subject, adversary=self.adversary),)


@dataclass(frozen=True, kw_only=True)
class RunsJob:
    """Programs, each played ``runs`` times in blocks: a block of a program is a unit of work."""

    plan: Plan
    subject: str
    programs: tuple[Program, ...]
    runs: int
    block: int
    delta: float
    confidence: float = 0.95
    also: tuple[str, ...] = ()
    until: Until | None = None

    @property
    def blocks(self) -> int:
        """Units of each program."""
        return -(-self.runs // self.block)

    def unit(self, index: int) -> Arrays:
        """Plays one block."""
        size, program = self._size(index), self.programs[index // self.blocks]
        played = program.play(size, self.plan.stream(index))
        arrays = {}
        for view in program.looks:
            scores = played if isinstance(played, Scores) else played[view.name]
            counts = len(scores.inside), len(scores.outside)
            if view.bound is None and counts != (size, size):
                raise InvalidArgument(
                    f"Expected play to return {size} scores inside and {size} outside, "
                    f"got {counts[0]} and {counts[1]}."
                )
            arrays[f"{view.name}inside"] = scores.inside
            arrays[f"{view.name}outside"] = scores.outside
        return arrays

    def missing(self, index: int) -> Arrays:
        """Runs that failed, scored as if each had spoken against the attack.

        Inside at −∞ and outside at +∞ raise both error counts at every threshold, so that the
        bound holds whatever the runs would have shown, and whatever made them fail.
        """
        size, worst = self._size(index), {"inside": -np.inf, "outside": np.inf}
        return {
            view.name + side: np.full(size * view.each, score)
            for view in self.programs[index // self.blocks].looks
            for side, score in worst.items()
        }

    def watch(self) -> "_Shown | _Bets":
        """Bets where the run may stop early; else only computes what is shown."""
        first = self.programs[0].looks[0].name
        return _Shown(self) if self.until is None else _Bets(self, self.until, first)

    def result(self, units: Iterable[Arrays], done: Done) -> AuditResult | AuditGroup:
        """The audit of each program; a group where there are several."""
        every = iter(units)
        audits = []
        for program, start in zip(self.programs, self._starts(), strict=True):
            own = list(islice(every, self.blocks))
            provenance = done.provenance(range(start, start + self.blocks))
            audits += [self._audit(program, view, own, provenance) for view in program.looks]
        if len(audits) == 1:
            return audits[0]
        return AuditGroup(subject=self.subject, results=tuple(audits))

    def _audit(
        self, program: Program, view: View, units: Sequence[Arrays], provenance: Provenance
    ) -> AuditResult:
        scores = joined(units, view.name)
        if view.bound is not None:
            bound = view.bound(scores)
            return judged(
                scores,
                [bound],
                claim=program.claim,
                subject=view.subject,
                growth=[(scores.n_in + scores.n_out, bound.epsilon)],
                provenance=provenance,
            )
        if self.until is None:
            return audit_scores(
                scores,
                delta=self.delta,
                claim=program.claim,
                confidence=self.confidence,
                also=self.also,
                seed=self.plan.seed,
                subject=view.subject,
                adversary=view.adversary,
                curves=program.curves,
                provenance=provenance,
            )
        bets = _Bets(self, self.until, view.name)
        for arrays in units:
            bets.see(arrays)
        bound = replace(
            bets.bound(),
            adjacency="unstated" if program.claim is None else program.claim.adjacency,
            adversary=view.adversary,
            seed=self.plan.seed,
        )
        return judged(
            scores,
            [bound],
            claim=program.claim,
            subject=view.subject,
            growth=bets.growth[:: max(1, len(bets.growth) // _DRAWN)],
            curves=program.curves,
            provenance=provenance,
        )

    def _starts(self) -> range:
        return range(0, len(self.programs) * self.blocks, self.blocks)

    def _size(self, index: int) -> int:
        start = index % self.blocks * self.block
        return min(self.block, self.runs - start)


def pilots(blocks: int) -> int:
    """How many of the first blocks place the thresholds, where a rule may stop early."""
    return min(max(1, round(_PILOT * blocks)), blocks - 1)


def joined(units: Iterable[Arrays], view: str = "") -> Scores:
    """The scores of all units in a view, in their order."""
    parts = list(units)
    return Scores(
        inside=np.concatenate([part[f"{view}inside"] for part in parts]),
        outside=np.concatenate([part[f"{view}outside"] for part in parts]),
    )


class _Shown:
    """Computes the bound anew when a tenth more has been seen; it decides nothing."""

    def __init__(self, job: RunsJob) -> None:
        self._job, self._units, self._seen = job, list[Arrays](), 0
        self._computed = 0
        self._epsilon: float | None = None

    def see(self, arrays: Arrays) -> None:
        if self._seen % self._job.blocks == 0:  # the next program begins
            self._units, self._computed, self._epsilon = [], 0, None
        self._units.append(arrays)
        self._seen += 1

    def epsilon(self) -> float | None:
        view = self._job.programs[(self._seen - 1) // self._job.blocks].looks[0]
        if view.bound is None and len(self._units) > 1.1 * self._computed:
            scores = joined(self._units, view.name)
            bound = epsilon_lower_bound(
                scores, delta=self._job.delta, confidence=self._job.confidence
            )
            self._computed, self._epsilon = len(self._units), bound.epsilon
        return self._epsilon

    def enough(self) -> str:
        return ""


class _Bets:
    """Bets on the runs in their order; the first of them only place the thresholds."""

    def __init__(self, job: RunsJob, until: Until, view: str) -> None:
        self._job, self._until, self._view = job, until, view
        self._pilot: list[Arrays] = []
        self._pilots = pilots(job.blocks)
        self._sequence: ConfidenceSequence | None = None
        self._hopeful: ConfidenceSequence | None = None  # for what failed runs might have shown
        self.growth: list[tuple[int, float]] = []

    def see(self, arrays: Arrays) -> None:
        if len(self._pilot) < self._pilots:
            self._pilot.append(arrays)
            return
        if self._sequence is None or self._hopeful is None:
            self._sequence, self._hopeful = (
                ConfidenceSequence.from_pilot(
                    joined(self._pilot, self._view),
                    delta=self._job.delta,
                    confidence=self._job.confidence,
                )
                for _ in range(2)
            )
        inside, outside = arrays[f"{self._view}inside"], arrays[f"{self._view}outside"]
        self._sequence.update(inside, outside)
        if np.all(inside == -np.inf) and np.all(outside == np.inf):  # as ``missing`` says
            inside, outside = outside, inside
        self._hopeful.update(inside, outside)
        # Asked for after every unit, so that it depends on the units alone.
        self.growth.append((2 * self._sequence.pairs, self.bound().epsilon))

    def bound(self) -> EpsilonLowerBound:
        assert self._sequence is not None  # units follow the pilot
        return self._sequence.lower_bound()

    def epsilon(self) -> float | None:
        return self.growth[-1][1] if self.growth else None

    def enough(self) -> str:
        if self._sequence is None or self._hopeful is None:
            return ""
        match self._until, self._job.programs[0].claim:
            case UntilRefuted(), PrivacyClaim() as claim if self._sequence.refuted(claim):
                return f"the claim of ε = {claim.epsilon:g} is refuted"
            case UntilNarrow(width), _:
                ceiling, bound = self._hopeful.ceiling(), self.bound().epsilon
                if ceiling - bound <= width:
                    return f"the attack can prove ε = {ceiling:.3g} at most"
        return ""


def audit_runs(
    play: Play,
    *,
    runs: int,
    delta: float,
    claim: PrivacyClaim | None = None,
    confidence: float = 0.95,
    also: Sequence[str] = (),
    until: Until | None = None,
    seed: int = 0,
    subject: str = "training runs",
    adversary: str = "unstated",
    curves: Sequence[Curve] = (),
    block: int | None = None,
    parameters: dict[str, Any] | None = None,
    directory: Path | str | None = None,
    engine: Engine = _LOCAL,
    listen: Sequence[Listener] = (),
) -> AuditResult:
    """Plays ``runs`` runs with the record and as many without it, and judges the claim by them.

    Guarantees: the same arguments give the same result, byte for byte, however the work was split,
        killed or resumed; a bound that exceeds the true ε in at most ``1 - confidence`` of audits,
        also where a rule stops early. Runs that fail count against a refutation.
    Assumes: runs are independent given ``rng``, and all randomness of ``play`` comes from it.

    Args:
        play: ``play(runs, rng)`` returns the scores of that many runs with the record and as many
            without it. With processes or Dask it must be a function that can be pickled.
        runs: Runs of either kind, at most.
        delta: δ of the bound; must be the claim's.
        claim: What was promised.
        confidence: One-sided confidence of the bound.
        also: Methods whose bounds are shown beside it and decide nothing; not with ``until``.
        until: When to stop early; the bound is then anytime-valid, and smaller for as many runs.
        seed: From which the stream of every unit of work is derived.
        subject: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        curves: Trade-off curves to draw beside the attack's.
        block: Runs of either kind that make a unit of work; a hundredth of ``runs`` by default.
        parameters: Whatever else determines what ``play`` does, as JSON values. A run directory is
            never continued with other parameters; what is not named here cannot be checked.
        directory: Where the run lives, so that the same call can finish it after a crash.
        engine: What executes the runs.
        listen: Who is told what happens.

    Example:
        >>> from epsilometer import InProcess, PrivacyClaim, Scores
        >>> def play(runs, rng):
        ...     return Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
        >>> claim = PrivacyClaim(epsilon=1.0, delta=1e-5)
        >>> result = audit_runs(
        ...     play, runs=5_000, delta=1e-5, claim=claim, until=UntilRefuted(), engine=InProcess()
        ... )
        >>> result.verdict, result.provenance.used < result.provenance.units
        ('refuted', True)
    """
    _validate.whole(2, runs=runs)
    _validate.whole(1, block=1 if block is None else block)
    block = block or -(-runs // _UNITS)
    stoppable(until, claim=claim, also=also, blocks=-(-runs // block))
    name = f"{getattr(play, '__module__', '')}.{getattr(play, '__qualname__', type(play).__name__)}"
    plan = Plan(
        audit="audit_runs",
        parameters={
            "play": name,
            "runs": runs,
            "block": block,
            "delta": delta,
            "confidence": confidence,
            "claim": None if claim is None else asdict(claim),
            "also": list(also),
            "until": repr(until),
            "subject": subject,
            "adversary": adversary,
            "parameters": parameters or {},
        },
        units=-(-runs // block),
        seed=seed,
        command=f"audit_runs({name}, {runs=}, {delta=}, {seed=})",
    )
    job = RunsJob(
        plan=plan,
        subject=subject,
        programs=(
            Program(
                play=play,
                subject=subject,
                claim=claim,
                adversary=adversary,
                curves=tuple(curves),
            ),
        ),
        runs=runs,
        block=block,
        delta=delta,
        confidence=confidence,
        also=tuple(also),
        until=until,
    )
    where = None if directory is None else Path(directory)
    result = run(job, where, engine=engine, listen=listen)
    assert isinstance(result, AuditResult)  # one program, one audit
    return result


def stoppable(
    until: Until | None, *, claim: PrivacyClaim | None, also: Sequence[str], blocks: int
) -> None:
    """Refuses rules to stop early that the rest of a call leaves nothing to decide by."""
    if isinstance(until, UntilRefuted) and claim is None:
        raise InvalidArgument("Expected a claim with until=UntilRefuted(), got none to refute.")
    if until is not None and also:
        raise InvalidArgument(
            f"Expected no further methods with until={until!r}, got {tuple(also)}: "
            "they are not valid on runs that were stopped by looking at them."
        )
    if until is not None and blocks < 2:
        raise InvalidArgument(
            "Expected two units or more with until=…, got one: the first places the thresholds. "
            "Give a smaller block."
        )
