"""Compare the sampler that an accountant assumes with the one that is really used."""

from dataclasses import dataclass

from epsilometer import _validate
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import setting_in_words, shuffle_epsilon
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import Poisson, Sampler


@dataclass(frozen=True, kw_only=True)
class SamplerCheck:
    """What a loader really does, beside what the accountant takes it to do.

    Attributes:
        loader: How the loader draws its batches, in words.
        assumed: What the accountant assumes, in words.
        epsilon_reported: The ε that the accountant reports, or will after these epochs.
        epsilon_real: The ε of what the loader does: at least its ``low``. None where no accountant
            is known for it.
        agrees: Whether the loader does what the accountant assumes.
        delta: δ of both.
        epochs: Epochs both are for.
        sentence: All that in one sentence.
    """

    loader: str
    assumed: str
    epsilon_reported: float
    epsilon_real: EpsilonEstimate | None
    agrees: bool
    delta: float
    epochs: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def compare_sampling(
    sampler: Sampler | None,
    *,
    name: str,
    noise_multiplier: float,
    rate: float,
    epochs: int,
    delta: float,
    reported: float,
    accountant: str,
    batch_size: int | None = None,
) -> SamplerCheck:
    """Put the ε of a sampler beside what an accountant of Poisson sampling reports.

    Args:
        sampler: What the loader does; None if it is none that we know. ``Poisson`` with its rate.
        name: The same in words.
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        rate: At which the accountant takes records to be sampled: 1/rate steps are an epoch.
        epochs: How many.
        delta: δ.
        reported: The ε that the accountant reports for this noise, rate and number of epochs.
        accountant: Its name.
        batch_size: Needed where the sampler's ε depends on it.

    Example:
        >>> from epsilometer.mechanisms.samplers import Shuffle
        >>> print(compare_sampling(Shuffle(), name="shuffling", noise_multiplier=1.0, rate=0.01,
        ...     epochs=1, delta=1e-5, reported=0.72, accountant="PLD"))  # doctest: +ELLIPSIS
        The loader draws its batches by shuffling, but ... while this loader's is at least 4.066.
    """
    _validate.whole(1, epochs=epochs)
    _validate.open_unit(delta=delta)
    steps = max(1, round(1 / rate))
    real = _real(sampler, noise_multiplier, steps, epochs, delta, batch_size)
    full = steps == 1 and sampler is not None  # all records in every step, however ordered
    agrees = full
    if isinstance(sampler, Poisson) and sampler.rate is not None:
        agrees = abs(sampler.rate / rate - 1) < 1e-6
    assumed = f"Poisson sampling at rate {rate:.4g}"
    return SamplerCheck(
        loader="taking all records in every step" if full else name,
        assumed=assumed,
        epsilon_reported=reported,
        epsilon_real=real,
        agrees=agrees,
        delta=delta,
        epochs=epochs,
        sentence=_sentence(
            "taking all records in every step" if full else name,
            assumed=assumed,
            accountant=accountant,
            reported=f"ε = {reported:.4g} at δ = {delta:g} after "
            + ("1 epoch" if epochs == 1 else f"{epochs} epochs"),
            real=real,
            agrees=agrees,
        ),
    )


def _sentence(
    name: str,
    *,
    assumed: str,
    accountant: str,
    reported: str,
    real: EpsilonEstimate | None,
    agrees: bool,
) -> str:
    first = f"The loader draws its batches by {name}, "
    if agrees:
        return f"{first}as the {accountant} accountant assumes: {reported} stands."
    believes = f"but the {accountant} accountant assumes {assumed}"
    if real is None:
        return f"{first}{believes}: it reports {reported}, which says nothing about this loader."
    return (
        f"{first}{believes}: it reports {reported}, while this loader's is at least {real.low:.4g}."
    )


def _real(
    sampler: Sampler | None,
    noise: float,
    steps: int,
    epochs: int,
    delta: float,
    batch_size: int | None,
) -> EpsilonEstimate | None:
    if noise == 0 or sampler is None:
        return None
    if not isinstance(sampler, Poisson):
        try:
            return shuffle_epsilon(
                noise_multiplier=noise,
                steps=steps,
                epochs=epochs,
                delta=delta,
                sampler=sampler,
                batch_size=batch_size,
            )
        except InvalidArgument:  # a sampler without an accountant
            return None
    epsilon = poisson_epsilon(
        noise_multiplier=noise,
        sampling_rate=sampler.rate or 1 / steps,
        steps=steps * epochs,
        delta=delta,
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=epsilon,
        high=epsilon,
        delta=delta,
        confidence=1.0,
        method="PLD",
        direction="both",
        subject=setting_in_words(sampler, noise, steps, epochs),
        role="reference",  # PLDs are rounded up: no lower bound
        adjacency="add_remove",
        cites=("doroshenko2022",),
        basis=(
            ("noise multiplier", noise),
            ("sampling rate", sampler.rate or 1 / steps),
            ("steps", steps * epochs),
        ),
    )
