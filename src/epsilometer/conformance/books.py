"""Compare the books of an accountant with the steps actually taken."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from epsilometer import _validate
from epsilometer.core import judge
from epsilometer.core.findings import Check, CheckOutcome

Booked: TypeAlias = tuple[float, float, int]  # noise multiplier, sampling rate, steps
_Taken: TypeAlias = tuple[float, float | None, int]
STEPS = "steps on the books"
NOISE = "noise on the books"
RATE = "rate on the books"
EARLIER = "steps before the audit"
_TOLERANCE = 1e-6  # relative, for rates that were computed differently
_NOTHING = "no step to compare"
# Place in an entry, sign, what is expected, and words. Little noise is bad, a high rate is: with
# the sign turned one comparison serves both.
_COMPARED: dict[str, tuple[int, int, str, str, str]] = {
    NOISE: (
        *(0, -1, "noise of at least the booked multiplier"),
        *("noise multiplier at least", "noise multiplier"),
    ),
    RATE: (
        *(1, 1, "records drawn at the booked rate at most"),
        *("rate at most", "records drawn at rate"),
    ),
}


class Books:
    """Record what actually happened in every step, and compare it with an accountant's history.

    Guarantee: exact. A check is violated only where the books hold fewer steps, more noise or a
        smaller rate than was used. Too much on the books is a remark, as it leaks nothing.
    Assumption: what is recorded here was observed at the optimiser, not read from the books.

    Example:
        >>> books = Books()
        >>> for _ in range(60):
        ...     books.take_step(1.0, 0.05)
        >>> for check in books.check([(1.0, 0.05, 20)]):
        ...     print(f"{check.name}: {check.outcome} ({check.seen})")
        steps on the books: violated (60 steps taken, 20 booked)
        noise on the books: conforms (noise multiplier at least 1 in 60 steps)
        rate on the books: conforms (rate at most 0.05 in 60 steps)
        steps before the audit: not tested (the optimiser does not count its steps)
    """

    def __init__(self) -> None:
        self._taken: list[_Taken] = []

    def take_step(self, noise_multiplier: float, rate: float | None) -> None:
        """Record one step.

        Args:
            noise_multiplier: Noise multiplier of the noise drawn in this step.
            rate: Rate at which its records were drawn; None if unknown.
        """
        _validate.at_least(0, noise_multiplier=noise_multiplier)
        if rate is not None:
            _validate.probability(rate=rate)
        if self._taken and self._taken[-1][:2] == (noise_multiplier, rate):
            self._taken[-1] = (noise_multiplier, rate, self._taken[-1][2] + 1)
        else:
            self._taken.append((noise_multiplier, rate, 1))

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return count_steps(self._taken)

    def check(
        self,
        history: Sequence[Booked],
        *,
        before: Sequence[Booked] = (),
        taken_before: int | None = None,
    ) -> tuple[Check, ...]:
        """Compare the books with what happened.

        Args:
            history: History of the accountant now: (noise multiplier, rate, steps), in order.
            before: The same, when the watch began.
            taken_before: Steps that the optimiser's state counted then; None if it counts none.
        """
        booked = list(skip_steps(history, count_steps(before)))
        return (
            self._check_steps(count_steps(booked), lost=count_steps(history) < count_steps(before)),
            self._compare(NOISE, booked),
            self._compare(RATE, booked),
            _check_earlier(count_steps(before), taken_before),
        )

    def _check_steps(self, booked: int, *, lost: bool) -> Check:
        taken = self.steps
        seen = f"{_count(taken)} taken, {booked} booked"
        detail = ""
        if taken == 0:
            seen = "no private step was taken"
        elif lost:
            detail = "The books were replaced by shorter ones while the run was watched."
        elif booked == 0:
            detail = "The hook that books a step was replaced, or belongs to another engine."
        # The watch may have missed steps, never the accountant: extra booked steps are no fault.
        short = max(0, taken - booked)
        outcome = judge.judge_limit(short if taken else None, limit=0)
        return Check(
            name=STEPS,
            outcome=_remark(outcome, booked > taken),
            expected="every step is on the books",
            seen=seen,
            value=float(booked),
            detail=detail,
            steps=taken,
        )

    def _compare(self, name: str, booked: Sequence[Booked]) -> Check:
        """Compare the value used in every step with the value booked for it."""
        column, sign, expected, most_words, used_words = _COMPARED[name]
        used, theirs = (
            [(sign * value, part[2]) for part in side if (value := part[column]) is not None]
            for side in (self._taken, booked)
        )
        pairs = list(_pair(used, theirs))
        worst = max(pairs, key=_excess, default=(0.0, 0.0))
        most = sign * max((value for value, _ in used), default=0.0)
        outcome = _judge_pairs(pairs)
        seen = f"{most_words} {most:.4g} in {_count(sum(steps for _, steps in used))}"
        if outcome == judge.VIOLATED:
            seen = f"{used_words} {sign * worst[0]:.4g} where {sign * worst[1]:.4g} is booked"
        missing = "the rate of records is not known" if self._taken and not used else _NOTHING
        return Check(
            name=name,
            outcome=outcome,
            expected=expected,
            seen=seen if pairs else missing,
            value=most if pairs else None,
            steps=self.steps,
        )


def count_steps(history: Iterable[tuple[float, float | None, int]]) -> int:
    """Return how many steps a history holds.

    Example:
        >>> count_steps([(1.0, 0.05, 20), (2.0, 0.05, 15)])
        35
    """
    return sum(int(steps) for _, _, steps in history)


def skip_steps(history: Iterable[Booked], skipped: int) -> Iterator[Booked]:
    """Return a history without its first steps.

    Example:
        >>> list(skip_steps([(1.0, 0.05, 20), (2.0, 0.05, 15)], 25))
        [(2.0, 0.05, 10)]
    """
    for noise, rate, steps in history:
        left = int(steps) - skipped
        skipped = max(0, -left)
        if left > 0:
            yield float(noise), float(rate), left


def _check_earlier(booked: int, taken: int | None) -> Check:
    """Check that a resumed run still has the books of its first part."""
    seen, detail = "the optimiser does not count its steps", ""
    if taken is not None:
        seen = f"the optimiser's state counts {_count(taken)}, {booked} booked"
        if taken > booked:
            detail = (
                "Load the accountant's state with the optimiser's. If those steps saw no private "
                "record, begin with a new optimiser."
            )
    return Check(
        name=EARLIER,
        outcome=judge.judge_limit(None if taken is None else max(0, taken - booked), limit=0),
        expected="what the optimiser did before is on the books",
        seen=seen,
        value=None if taken is None else float(taken),
        detail=detail,
        steps=taken or 0,
    )


def _pair(
    used: Sequence[tuple[float, int]], booked: Sequence[tuple[float, int]]
) -> Iterator[tuple[float, float]]:
    """Pair used with booked values, larger being worse: in order if all steps are booked.

    If steps are missing on one side, their positions are unknown. Then the pairing is the one most
    favourable to the program.
    """
    counts = [sum(steps for _, steps in side) for side in (used, booked)]
    if counts[0] != counts[1]:
        worst_first = counts[1] > counts[0]
        used, booked = (sorted(side, reverse=worst_first) for side in (used, booked))
    mine, theirs = deque(used), deque(booked)
    while mine and theirs:
        (value, left), (limit, room) = mine.popleft(), theirs.popleft()
        yield value, limit
        if left > room:
            mine.appendleft((value, left - room))
        elif room > left:
            theirs.appendleft((limit, room - left))


def _excess(pair: tuple[float, float]) -> float:
    return pair[0] - pair[1]


def _judge_pairs(pairs: Sequence[tuple[float, float]]) -> CheckOutcome:
    over = [_excess(pair) - _TOLERANCE * abs(pair[1]) for pair in pairs]
    outcome = judge.judge_limit(max(over, default=None), limit=0)
    return _remark(outcome, any(_excess(pair) < -_TOLERANCE * abs(pair[1]) for pair in pairs))


def _remark(outcome: CheckOutcome, worth_saying: bool) -> CheckOutcome:
    return judge.REMARK if outcome == judge.CONFORMS and worth_saying else outcome


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"
