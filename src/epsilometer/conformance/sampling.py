"""Compare the sampler that an accountant assumes with the one actually used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from epsilometer import _validate
from epsilometer.accounting.pld import poisson_epsilon_at_least, varied_poisson_epsilon
from epsilometer.accounting.shuffle import setting_in_words, shuffle_epsilon
from epsilometer.conformance.books import Booked, count_steps
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.findings import CheckOutcome
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler, is_poisson, label_sampler

_SAME = 1e-6  # relative, for two rates that were computed differently
_ALL = "taking all records in every step"


@dataclass(frozen=True, kw_only=True)
class SamplerCheck:
    """Compare what a loader does with what the accountant assumes.

    Attributes:
        loader: How the loader draws its batches, in words.
        rate: The smallest booked rate.
        accountant: Name of the accountant.
        conforms: Whether the loader draws as the accountant assumes, at the booked rate or below.
        epsilon_reported: The ε that the accountant reports, or will after the planned steps.
        epsilon_real: The ε of the loader's actual sampling: at least its ``low``. None if no
            accountant is known for it, or no step was taken.
        delta: δ of both.
        steps: Steps covered by the reported ε.
        missing: Steps that were taken, or are planned, and are not on the books.
        epochs: Whole epochs among the steps.
        planned: Whether these steps are planned rather than booked.
        assumed: What the accountant assumes, in words.
    """

    loader: str
    rate: float
    accountant: str
    conforms: bool
    epsilon_reported: float
    epsilon_real: EpsilonEstimate | None
    delta: float
    steps: int
    missing: int
    epochs: int
    planned: bool
    assumed: str

    @property
    def verdict(self) -> CheckOutcome:
        """Whether the reported ε holds; not tested if no private step is on the books."""
        wrong = bool(self.missing) or not self.conforms
        return judge.judge_limit(float(wrong) if wrong or self.steps else None, limit=0.0)

    @property
    def agrees(self) -> bool:
        """Whether the reported ε holds; for tests."""
        return self.verdict == judge.CONFORMS

    @property
    def sentence(self) -> str:
        """The result in a sentence or two."""
        if self.missing:
            return self._describe_missing()
        if self.steps == 0:
            return (
                f"No private step is on the books of the {self.accountant} accountant, so that no "
                f"ε can stand. {self._describe_loader()}. Give epochs= to check a plan."
            )
        return f"{self._describe_loader()}: {self._describe_epsilon()}"

    def __str__(self) -> str:
        return self.sentence

    def _describe_loader(self) -> str:
        first = f"The loader draws its batches by {self.loader}"
        if self.conforms:
            return f"{first}, as the {self.accountant} accountant assumes"
        return f"{first}, but the {self.accountant} accountant assumes {self.assumed}"

    def _describe_epsilon(self) -> str:
        epsilon, steps = self._reported, _count(self.steps, "step")
        span = f"a plan of {_count(self.epochs, 'epoch')} ({steps})"
        if self.conforms and self.planned:
            return f"for {span}, {epsilon} will stand."
        if self.conforms:
            return f"{epsilon} after {steps} stands."
        reports = f"it reports {epsilon} after {steps}"
        if self.planned:
            reports = f"for {span} it will report {epsilon}"
        if self.epsilon_real is None:
            return f"{reports}, which says nothing about this loader."
        verb = "will be" if self.planned else "is"
        return f"{reports}, while this loader's {verb} at least {self.epsilon_real.low:.4g}."

    def _describe_missing(self) -> str:
        taken = self.steps + self.missing
        booked = f"{self.steps} of them are" if self.steps else "none of them is"
        counts = "The loader has batches for" if self.planned else "The optimiser counts"
        lost = (
            f"{counts} {_count(taken, 'step')}, and {booked} on the books of the "
            f"{self.accountant} accountant: {self._reported} does not stand."
        )
        if self.epsilon_real is not None:
            lost += (
                f" With the noise on the books, all {taken} steps have an ε of at least "
                f"{self.epsilon_real.low:.4g}."
            )
        if self.planned:
            return lost
        return f"{lost} Load the accountant's state with the optimiser's when training is resumed."

    @property
    def _reported(self) -> str:
        return f"ε = {self.epsilon_reported:.4g} at δ = {self.delta:g}"


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
    assumed: Sampler | None = None,
) -> SamplerCheck:
    """Compare the ε of a sampler with what an accountant of Poisson sampling reports.

    Args:
        sampler: Sampler of the loader, ``Poisson`` with its rate; None if it is unknown.
        name: Name of the sampler.
        history: Booked or planned entries: (noise multiplier, sampling rate, steps). Steps may be 0
            if nothing was booked yet.
        delta: δ.
        reported: The ε that the accountant reports for this history.
        accountant: Its name.
        batch_size: Needed if the sampler's ε depends on it.
        planned: Whether the history is a plan.
        taken: Steps that the optimiser counts, or that are planned; None if unknown.
        assumed: What the accountant assumes, if it is not Poisson sampling.

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
    if assumed is not None:
        conforms = sampler == assumed
    else:
        conforms = all(
            _rate_of_step(sampler, booked) <= booked * (1 + _SAME) for _, booked, _ in history
        )
    full = rate > 1 - _SAME and sampler is not None  # all records, however ordered
    missing = 0 if taken is None else max(0, taken - steps)
    done = [part for part in (*history, (*history[-1][:2], missing)) if part[2]]
    return SamplerCheck(
        loader=_ALL if full else name,
        rate=rate,
        accountant=accountant,
        conforms=full or conforms,
        epsilon_reported=reported,
        epsilon_real=_compute_real(sampler, done, delta, batch_size),
        delta=delta,
        steps=steps,
        missing=missing,
        epochs=_count_epochs(history),
        planned=planned,
        assumed=f"Poisson sampling at rate {rate:.4g}"
        if assumed is None
        else getattr(assumed, "words", label_sampler(assumed)),
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)


def _rate_of_step(sampler: Sampler | None, booked: float) -> float:
    """Return the rate of a step, which may accumulate batches; infinite if there is none."""
    rate: float | None = getattr(sampler, "rate", None)
    if rate is None:
        return math.inf
    return min(1.0, rate * max(1, round(booked / rate)))


def _count_epochs(history: Sequence[Booked]) -> int:
    """Return a lower limit on the whole epochs in a history, at 1/rate steps per epoch.

    An epoch during which the rate changed does not count.
    """
    spans = [(rate, count_steps(same)) for rate, same in groupby(history, key=lambda part: part[1])]
    total = math.floor(float(sum(rate * count for rate, count in spans)) + _SAME)
    return max(0, total - (len(spans) - 1))


def _compute_real(
    sampler: Sampler | None, history: Sequence[Booked], delta: float, batch_size: int | None
) -> EpsilonEstimate | None:
    """Return the ε of the actual sampling; None if unknown."""
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
