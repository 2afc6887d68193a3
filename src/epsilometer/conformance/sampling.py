"""Compare the sampler that an accountant assumes with the one that is really used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from epsilometer import _validate
from epsilometer.accounting.pld import poisson_epsilon_at_least, varied_poisson_epsilon
from epsilometer.accounting.shuffle import setting_in_words, shuffle_epsilon
from epsilometer.conformance.books import Booked, count_steps
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler, is_poisson

_SAME = 1e-6  # relative, of two rates that were computed in different ways
_ALL = "taking all records in every step"


@dataclass(frozen=True, kw_only=True)
class SamplerCheck:
    """What a loader really does, beside what the accountant takes it to do.

    Attributes:
        loader: How the loader draws its batches, in words.
        assumed: What the accountant assumes, in words.
        epsilon_reported: The ε that the accountant reports, or will after the planned steps.
        epsilon_real: The ε of what the loader does: at least its ``low``. None where no accountant
            is known for it, or no step was taken.
        verdict: ``conforms`` where the reported ε stands, ``violated`` where it does not, and
            ``not tested`` where no private step is on the books.
        delta: δ of both.
        steps: Steps that the reported ε is for.
        epochs: Whole epochs among them.
        planned: Whether these steps are a plan, and not what is on the books.
        sentence: All that in a sentence or two.
    """

    loader: str
    assumed: str
    epsilon_reported: float
    epsilon_real: EpsilonEstimate | None
    verdict: judge.Conformance
    delta: float
    steps: int
    epochs: int
    planned: bool
    sentence: str

    @property
    def agrees(self) -> bool:
        """Whether the reported ε stands; for tests."""
        return self.verdict == judge.CONFORMS

    def __str__(self) -> str:
        return self.sentence


def compare_sampling(
    sampler: Sampler | None,
    *,
    name: str,
    history: Sequence[Booked],
    delta: float,
    reported: float,
    accountant: str,
    batch_size: int | None = None,
    planned: bool = False,
    taken: int | None = None,
) -> SamplerCheck:
    """Put the ε of a sampler beside what an accountant of Poisson sampling reports.

    Args:
        sampler: What the loader does; None if it is none that we know. ``Poisson`` with its rate.
        name: The same in words.
        history: What is on the books, or will be: (noise multiplier, sampling rate, steps). Steps
            may be 0, where nothing was booked yet.
        delta: δ.
        reported: The ε that the accountant reports for this history.
        accountant: Its name.
        batch_size: Needed where the sampler's ε depends on it.
        planned: Whether the history is a plan.
        taken: Steps that the optimiser counts; None where it counts none.

    Example:
        >>> from epsilometer.sampling.samplers import Shuffle
        >>> print(compare_sampling(Shuffle(), name="shuffling", history=[(1.0, 0.01, 100)],
        ...     delta=1e-5, reported=0.72, accountant="PLD"))  # doctest: +ELLIPSIS
        The loader draws its batches by shuffling, but ... while this loader's is at least 4.066.
    """
    _validate.open_unit(delta=delta)
    if not history:
        raise InvalidArgument("Expected a history of one entry or more, got none.")
    steps = count_steps(history)
    rate = min(rate for _, rate, _ in history)
    full = rate > 1 - _SAME and sampler is not None  # all records, however ordered
    agrees = full or all(
        _rate_of_step(sampler, booked) <= booked * (1 + _SAME) for _, booked, _ in history
    )
    missing = 0 if taken is None or planned else max(0, taken - steps)
    done = [part for part in (*history, (*history[-1][:2], missing)) if part[2]]
    real = _compute_real(sampler, done, delta, batch_size)
    words = _Words(
        loader=_ALL if full else name,
        rate=rate,
        accountant=accountant,
        epsilon=f"ε = {reported:.4g} at δ = {delta:g}",
        steps=steps,
        epochs=_count_epochs(history),
        planned=planned,
    )
    return SamplerCheck(
        loader=words.loader,
        assumed=words.assumed,
        epsilon_reported=reported,
        epsilon_real=real,
        verdict=_judge(agrees=agrees, steps=steps, missing=missing),
        delta=delta,
        steps=steps,
        epochs=words.epochs,
        planned=planned,
        sentence=_write(words, agrees=agrees, real=real, missing=missing),
    )


def _judge(*, agrees: bool, steps: int, missing: int) -> judge.Conformance:
    if missing or not agrees:
        return judge.VIOLATED
    return judge.CONFORMS if steps else judge.NOT_TESTED


class _Words(NamedTuple):
    loader: str
    rate: float
    accountant: str
    epsilon: str
    steps: int
    epochs: int
    planned: bool

    @property
    def assumed(self) -> str:
        return f"Poisson sampling at rate {self.rate:.4g}"

    @property
    def span(self) -> str:
        """How long the ε is for."""
        steps = _count(self.steps, "step")
        return f"a plan of {_count(self.epochs, 'epoch')} ({steps})" if self.planned else steps


def _write(words: _Words, *, agrees: bool, real: EpsilonEstimate | None, missing: int) -> str:
    if missing:
        return _write_missing(words, real, missing)
    if words.steps == 0:
        return (
            f"No private step is on the books of the {words.accountant} accountant, so that no ε "
            f"can stand. {_write_loader(words, agrees)}. Give epochs= to check a plan."
        )
    loader = _write_loader(words, agrees)
    if words.planned:
        reported = f"for {words.span} it will report {words.epsilon}"
        stands, theirs = f"for {words.span}, {words.epsilon} will stand.", "will be at least"
    else:
        reported = f"it reports {words.epsilon} after {words.span}"
        stands, theirs = f"{words.epsilon} after {words.span} stands.", "is at least"
    if agrees:
        return f"{loader}: {stands}"
    if real is None:
        return f"{loader}: {reported}, which says nothing about this loader."
    return f"{loader}: {reported}, while this loader's {theirs} {real.low:.4g}."


def _write_loader(words: _Words, agrees: bool) -> str:
    first = f"The loader draws its batches by {words.loader}"
    if agrees:
        return f"{first}, as the {words.accountant} accountant assumes"
    return f"{first}, but the {words.accountant} accountant assumes {words.assumed}"


def _write_missing(words: _Words, real: EpsilonEstimate | None, missing: int) -> str:
    taken = words.steps + missing
    booked = f"{words.steps} of them are" if words.steps else "none of them is"
    said = (
        f"The optimiser counts {_count(taken, 'step')}, and {booked} on the books of the "
        f"{words.accountant} accountant: {words.epsilon} does not stand."
    )
    if real is not None:
        said += (
            f" With the noise on the books, all {taken} steps have an ε of at least {real.low:.4g}."
        )
    return said + " Load the accountant's state beside the optimiser's when a training is resumed."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def _rate_of_step(sampler: Sampler | None, booked: float) -> float:
    """Return the rate of a step, which may accumulate batches; infinite where there is none."""
    rate: float | None = getattr(sampler, "rate", None)
    if rate is None:
        return math.inf
    return min(1.0, rate * max(1, round(booked / rate)))


def _count_epochs(history: Sequence[Booked]) -> int:
    """Return how many whole epochs certainly lie in a history, where each step took 1/rate.

    An epoch in which the rate changed is not whole.
    """
    spans = [(rate, count_steps(same)) for rate, same in groupby(history, key=lambda part: part[1])]
    total = math.floor(float(sum(rate * count for rate, count in spans)) + _SAME)
    return max(0, total - (len(spans) - 1))


def _compute_real(
    sampler: Sampler | None, history: Sequence[Booked], delta: float, batch_size: int | None
) -> EpsilonEstimate | None:
    """Return the ε of what was done, None where it is not known."""
    if sampler is None or not history or any(noise == 0 for noise, _, _ in history):
        return None
    try:
        if is_poisson(sampler):
            return _compute_poisson(sampler, history, delta)
        epochs = _count_epochs(history)
        if epochs == 0:
            return None
        # At least this much: the most noise, the most steps per epoch, and whole epochs alone,
        # since who forgets the rest knows less.
        return shuffle_epsilon(
            noise_multiplier=max(noise for noise, _, _ in history),
            steps=max(1, round(1 / min(rate for _, rate, _ in history))),
            epochs=epochs,
            delta=delta,
            sampler=sampler,
            batch_size=batch_size,
        )
    except InvalidArgument:  # a sampler without an accountant, or too little noise for one
        return None


def _compute_poisson(sampler: Sampler, history: Sequence[Booked], delta: float) -> EpsilonEstimate:
    parts = [
        (noise, _rate_of_step(sampler, booked) if getattr(sampler, "rate", None) else booked, count)
        for noise, booked, count in history
    ]
    rates = {rate for _, rate, _ in parts}
    steps = count_steps(parts)
    low = poisson_epsilon_at_least(parts, delta=delta)
    high = varied_poisson_epsilon(
        [(noise, count) for noise, _, count in parts], sampling_rate=max(rates), delta=delta
    )
    most = max(noise for noise, _, _ in parts)
    return EpsilonEstimate(
        epsilon=high if len(rates) == 1 else low,
        low=min(low, high),
        high=high,
        delta=delta,
        confidence=1.0,
        method="PLD",
        direction="both",
        subject=setting_in_words(sampler, most, steps, 1),
        role="reference",  # what the loader would do, whatever was done
        adjacency="add_remove",
        cites=("doroshenko2022",),
        basis=(("noise multiplier", most), ("sampling rate", max(rates)), ("steps", steps)),
    )
