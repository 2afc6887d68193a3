"""Run a program repeatedly, with the record and without it, and bound ε by its scores."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim
from epsilometer.core.findings import Curve, EpsilonFinding
from epsilometer.core.printing import name_error
from epsilometer.core.scores import Scores, Sides, describe_design
from epsilometer.core.stopping import Until, UntilNarrow, UntilRefuted
from epsilometer.engine.events import Event
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Counts, Done
from epsilometer.engine.shards import Arrays
from epsilometer.errors import SHOW_ERRORS, InvalidArgument, shows_errors
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.reach import compute_power
from epsilometer.stats.score_finding import make_finding, measure_scores, name_scores
from epsilometer.stats.sequential import ConfidenceSequence
from epsilometer.stats.thresholds import Observed
from epsilometer.types import IntArray

Played: TypeAlias = Scores | Mapping[str, Scores | Sides]
Play: TypeAlias = Callable[[int, np.random.Generator], Played]
_UNITS = 100  # default number: enough to share among workers, to save and to watch
_PILOT = 0.05  # share of units that choose the thresholds if an audit stops at a narrow bound
_DRAWN = 60  # points of a growth curve
_LOOKS = 20  # at a simulated audit; an audit looks after every unit


@dataclass(frozen=True, kw_only=True)
class View:
    """Define one view of the runs of a program.

    Attributes:
        name: Name of its scores among those that ``play`` returns.
        subject: What is audited, in words.
        adversary: Whose view it is, in words.
        bound: Function that bounds ε from its scores, if the usual method does not apply; not with
            a rule to stop early.
        power: The power of that bound against a claim, given the scores.
        each: Largest number of scores per run; exactly one without such a ``bound``.
    """

    name: str
    subject: str
    adversary: str
    bound: Callable[[Scores], EpsilonLowerBound] | None = None
    power: Callable[[Claim, Scores], float] | None = None
    each: int = 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """Define a program to run, and its adversary.

    Attributes:
        play: ``play(runs, rng)`` returns the scores of that many runs with the record and as many
            without it; by the names of views, if there are several.
        subject: Description of the program.
        adversary: Whose view the scores are computed from, in words.
        curves: Trade-off curves to draw with the attack's.
        views: Views of the same runs, each with its own result; the first one is watched.
    """

    play: Play
    subject: str
    adversary: str
    curves: tuple[Curve, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def looks(self) -> tuple[View, ...]:
        """The views, or the default one."""
        return self.views or (View(name="", subject=self.subject, adversary=self.adversary),)


@dataclass(frozen=True, kw_only=True)
class RunsJob:
    """Run each program ``runs`` times in blocks: a block of a program is a unit of work.

    Attributes:
        plan: Everything that determines the result.
        subject: What is audited, in words.
        claim: The claim of all programs, if any.
        programs: The programs to run.
        runs: Largest number of runs with the record, and of runs without it.
        block: Pairs of runs per unit of work.
        delta: δ of all bounds.
        confidence: Confidence of all bounds together.
        also: Methods whose bounds are reported too but decide nothing.
        until: When to stop early.
        further: Number of bounds that are computed elsewhere and share the audit's confidence.
    """

    plan: Plan
    subject: str
    claim: Claim | None
    programs: tuple[Program, ...]
    runs: int
    block: int
    delta: float
    confidence: float = DEFAULT_CONFIDENCE
    also: tuple[str, ...] = ()
    until: Until | None = None
    further: int = 0

    @property
    def each_confidence(self) -> float:
        """Confidence of each bound, so that all of them hold together (Bonferroni)."""
        bounds = sum(len(program.looks) for program in self.programs) + self.further
        return share_confidence(self.confidence, bounds)

    @property
    def blocks(self) -> int:
        """Number of units of each program."""
        return -(-self.runs // self.block)

    def unit(self, index: int) -> Arrays:
        """Run one block of trials."""
        size, program = self._find_size(index), self.programs[index // self.blocks]
        played = program.play(size, self.plan.stream(index))
        arrays = {}
        for view in program.looks:
            scores = played if isinstance(played, Scores) else played[view.name]
            if isinstance(scores, Scores) and scores.design != "runs":
                raise InvalidArgument(
                    "Expected play to return scores of independent runs, one each, got "
                    f"{describe_design(scores.design, scores.inclusion)}. Audit those scores "
                    "themselves: epsilometer.audit(scores, …)."
                )
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
        """Return scores of failed runs, as if each had counted against the attack.

        Inside at −∞ and outside at +∞ raise both error counts at every threshold, so that the bound
        holds whatever the runs would have scored, and whatever made them fail.
        """
        size, worst = self._find_size(index), {"inside": -np.inf, "outside": np.inf}
        return {
            view.name + side: np.full(size * view.each, score)
            for view in self.programs[index // self.blocks].looks
            for side, score in worst.items()
        }

    def watch(self) -> "_ProgressWatch | _BettingWatch":
        """Return a watch that bets if the run may stop early, and otherwise reports a bound."""
        first = self.programs[0].looks[0].name
        return (
            _ProgressWatch(self) if self.until is None else _BettingWatch(self, self.until, first)
        )

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: one finding per view of each program."""
        return Audit(
            subject=self.subject,
            claim=self.claim,
            findings=tuple(self.findings(units, done)),
            provenance=done.provenance,
        )

    def findings(self, units: Iterable[Arrays], done: Done) -> list[EpsilonFinding]:
        """Return the finding of each view of each program, in order."""
        every = iter(units)
        found = []
        for program, start in zip(self.programs, self._list_starts(), strict=True):
            own = list(islice(every, self.blocks))
            counts = done.counts(range(start, start + self.blocks))
            found += [self._measure(program, view, own, counts) for view in program.looks]
        return found

    def _measure(
        self, program: Program, view: View, units: Sequence[Arrays], counts: Counts
    ) -> EpsilonFinding:
        scores = join_scores(units, view.name)
        if view.bound is not None:
            decide = view.bound
            bound = decide(scores)
            return make_finding(
                scores,
                [bound],
                prove=lambda part: decide(part).epsilon,  # type: ignore[arg-type]
                claim=self.claim,
                subject=view.subject,
                growth=[(scores.n_in + scores.n_out, bound.epsilon)],
                power=view.power(self.claim, scores) if view.power and self.claim else None,
                counted=False,
                **counts,
            )
        if self.until is None:
            return measure_scores(
                name_scores(scores, title=view.subject, adversary=view.adversary, also=self.also),
                delta=self.delta,
                claim=self.claim,
                confidence=self.each_confidence,
                seed=self.plan.seed,
                curves=program.curves,
                **counts,
            )
        bets = _BettingWatch(self, self.until, view.name)
        for arrays in units:
            bets.see(arrays)
        bound = replace(
            bets.bound(),
            adjacency="unstated" if self.claim is None else self.claim.adjacency,
            adversary=view.adversary,
            seed=self.plan.seed,
        )
        pairs, pilot = bound.n_in, scores.n_in - bound.n_in
        perfect = bound_perfect_attack(pairs, self.delta, self.each_confidence, pilot=pilot)
        reach = max(bound.epsilon, perfect)
        return make_finding(
            scores,
            [bound],
            prove=lambda part: bound.epsilon,
            claim=self.claim,
            subject=view.subject,
            growth=bets.growth[:: max(1, len(bets.growth) // _DRAWN)],
            curves=program.curves,
            reach=reach,
            power=None
            if self.claim is None
            else compute_watched_power(
                self.claim, pairs=pairs, confidence=self.each_confidence, reach=reach, pilot=pilot
            ),
            **counts,
        )

    def _list_starts(self) -> range:
        return range(0, len(self.programs) * self.blocks, self.blocks)

    def _find_size(self, index: int) -> int:
        start = index % self.blocks * self.block
        return min(self.block, self.runs - start)


def choose_block(runs: int) -> int:
    """Return the default number of pairs of runs per unit of work."""
    return -(-runs // _UNITS)


def share_confidence(confidence: float, bounds: int) -> float:
    """Return the confidence of each of several bounds, so that all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / bounds if bounds > 1 else confidence


def bound_perfect_attack(pairs: int, delta: float, confidence: float, *, pilot: int = 0) -> float:
    """Return the bound of an attack that never errs, on pairs watched one by one."""
    perfect = ConfidenceSequence([0.0] if pilot else None, delta=delta, confidence=confidence)
    perfect.update(np.ones(pairs), -np.ones(pairs))
    return perfect.lower_bound().epsilon


@functools.lru_cache(maxsize=1_000)
def compute_watched_power(
    claim: Claim, *, pairs: int, confidence: float, reach: float, pilot: int = 0
) -> float:
    """Return the smallest true ε at which watched pairs refute the claim 4 times in 5."""
    if claim.epsilon >= reach:
        return float("inf")

    def prove(scores: Observed) -> float:
        assert isinstance(scores, Scores)
        sequence = _start_sequence(
            Scores(scores.inside[:pilot], scores.outside[:pilot]) if pilot else None,
            delta=claim.delta,
            confidence=confidence,
        )
        for part in np.array_split(np.arange(pilot, pilot + pairs), min(pairs, _LOOKS)):
            sequence.update(scores.inside[part], scores.outside[part])
            if sequence.refuted(claim):
                return float("inf")
        return 0.0

    return compute_power(
        prove,
        claim=claim.epsilon,
        delta=claim.delta,
        n_in=pilot + pairs,
        n_out=pilot + pairs,
        counted=False,
    )


def _start_sequence(pilot: Scores | None, delta: float, confidence: float) -> ConfidenceSequence:
    if pilot is None:
        return ConfidenceSequence(delta=delta, confidence=confidence)
    return ConfidenceSequence.from_pilot(pilot, delta=delta, confidence=confidence)


def join_scores(units: Iterable[Arrays], view: str = "") -> Scores:
    """Return the scores of all units in a view, in their order."""
    parts = list(units)
    return Scores(
        inside=np.concatenate([part[f"{view}inside"] for part in parts]),
        outside=np.concatenate([part[f"{view}outside"] for part in parts]),
    )


class _ProgressWatch:
    """Recompute the bound whenever a tenth more has been seen; it decides nothing."""

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
            scores = join_scores(self._units, view.name)
            bound = epsilon_lower_bound(
                scores, delta=self._job.delta, confidence=self._job.each_confidence
            )
            self._computed, self._epsilon = len(self._units), bound.epsilon
        return self._epsilon

    def enough(self) -> str:
        return ""


class _BettingWatch:
    """Bet on the runs in their order.

    For a narrow bound, all thresholds are chosen at once by the first units, which are then not bet
    on. A refutation does not need this: the sequence chooses thresholds as it proceeds.
    """

    def __init__(self, job: RunsJob, until: Until, view: str) -> None:
        self._job, self._until, self._view = job, until, view
        self._pilot: list[Arrays] = []
        self._pilots = 0
        if isinstance(until, UntilNarrow):
            self._pilots = min(max(1, round(_PILOT * job.blocks)), job.blocks - 1)
        self._sequence: ConfidenceSequence | None = None
        self._hopeful: ConfidenceSequence | None = None  # for what failed runs might have shown
        self.growth: list[tuple[int, float]] = []

    def see(self, arrays: Arrays) -> None:
        if len(self._pilot) < self._pilots:
            self._pilot.append(arrays)
            return
        if self._sequence is None or self._hopeful is None:
            pilot = join_scores(self._pilot, self._view) if self._pilot else None
            self._sequence, self._hopeful = (
                _start_sequence(pilot, self._job.delta, self._job.each_confidence) for _ in range(2)
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
        match self._until, self._job.claim:
            case UntilRefuted(), Claim() as claim if self._sequence.refuted(claim):
                return f"the claim of ε = {claim.epsilon:g} is refuted"
            case UntilNarrow(width), _:
                ceiling, bound = self._hopeful.ceiling(), self.bound().epsilon
                if ceiling - bound <= width:
                    return f"the attack can prove ε = {ceiling:.3g} at most"
        return ""


def check_until(request: Request, *, also: Sequence[str], blocks: int) -> None:
    """Refuse a rule to stop early that the call's other arguments leave undecidable."""
    until = request.until
    if isinstance(until, UntilRefuted) and request.claim is None:
        raise InvalidArgument("Expected a claim with until=UntilRefuted(), got none to refute.")
    if until is not None and also:
        raise InvalidArgument(
            f"Expected no further methods with until={until!r}, got {tuple(also)}: "
            "they are not valid on runs that were stopped by looking at them."
        )
    if until is not None and blocks < 2:
        raise InvalidArgument(
            "Expected two units or more with until=…, got one: it leaves nothing to stop early. "
            "Reduce block."
        )


def check_parameters(parameters: Mapping[str, Any] | None) -> None:
    """Refuse parameters that a plan could not store, and so could not compare."""
    try:
        json.dumps(dict(parameters or {}), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"Expected parameters to be JSON values ({error}). Give numbers, texts and lists."
        ) from error


@dataclass
class Failures:
    """Collect failed units.

    Attributes:
        ending: An error that says the call is wrong: it ends the audit, raised again.
        reason: Error of the first unit that failed for another reason; empty if none did.
        kind: Type of that exception; its text may contain data, the type does not.
    """

    ending: type[InvalidArgument]
    reason: str = ""
    kind: str = ""

    def describe(self) -> str:
        """Describe why the first unit failed; its text, which may contain data, only on request."""
        if shows_errors():
            return f"one said: {self.reason}"
        return (
            f"one raised {self.kind}. What it said is in the run's directory (out=), and is shown "
            f"with {SHOW_ERRORS}=1."
        )

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.name != "failed":
            return
        error = str(event.details["error"])
        *_, last = error.strip().splitlines() or [""]
        kind, _, said = last.partition(": ")
        if kind.rpartition(".")[2] == self.ending.__name__:
            if self.ending is InvalidArgument:  # user code may have raised it, too
                raise InvalidArgument("A unit says that the call is wrong.", withheld=said)
            raise InvalidArgument(said)
        self.reason, self.kind = self.reason or last, self.kind or name_error(error)


def count_lost_scores(arrays: Arrays, view: str = "") -> IntArray:
    """Return how many scores diverged, with the target and without it."""
    inside, outside = arrays[f"{view}inside"], arrays[f"{view}outside"]
    return np.array([np.sum(inside == -np.inf), np.sum(outside == np.inf)])


def add_lost_caveat(finding: EpsilonFinding, lost: IntArray, what: str) -> EpsilonFinding:
    """Return the finding with a caveat about runs that diverged."""
    if not lost.any():
        return finding
    said = (
        f"Diverged: {lost[0]} of {finding.attack.n_in} {what} with the target, {lost[1]} of "
        f"{finding.attack.n_out} without it. They count against a refutation; with a smaller "
        "learning_rate there would be fewer."
    )
    bound = replace(finding.bound, caveats=(*finding.bound.caveats, said))
    return replace(finding, bound=bound)
