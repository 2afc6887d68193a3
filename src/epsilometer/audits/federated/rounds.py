"""Define the rules of a federated round: who takes part, and to which norm updates are clipped."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.settings import DATA
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Poisson, Sampler, Shuffle, WithoutReplacement
from epsilometer.types import IntArray


class Clipping(Protocol):
    """Define the clipping norm of every round.

    Must keep: a part of the noise makes private what :meth:`after` learns of the clients, and
    :meth:`value_noise` returns the rest for the updates themselves. A class that sets
    ``fixed = True`` has the same norm in all rounds, as correlated noise requires.
    """

    @property
    def first(self) -> float:
        """Return the norm of the first round."""
        ...

    def value_noise(self, noise_multiplier: float) -> float:
        """Return the noise multiplier of the sum of updates."""
        ...

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """Return the norm of the next round.

        Args:
            norm: Norm of this round.
            unclipped: Number of updates that were not longer than that.
            members: Number of updates.
            mean: Configured mean number of updates per round.
            normal: A standard normal variable, for the noise of the count.
        """
        ...


@dataclass(frozen=True)
class FixedClip:
    """Use the same clipping norm in all rounds.

    Attributes:
        norm: S.

    Example:
        >>> FixedClip(0.5).value_noise(noise_multiplier=1.2)
        1.2
    """

    norm: float = 1.0
    fixed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.positive(norm=self.norm)

    @property
    def first(self) -> float:
        """Return S."""
        return self.norm

    def value_noise(self, noise_multiplier: float) -> float:
        """Return all of the noise: nothing is learned of the clients' norms."""
        return noise_multiplier

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """Return S again."""
        return norm


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    r"""Adapt the clipping norm to a quantile of the clients' norms (Andrew et al. 2021).

    :math:`S_{t+1} = S_t \exp(-\eta (\tilde b_t - \gamma))`, where :math:`\tilde b_t` is the share
    of updates that were not clipped: the sum of :math:`b_i - ½`, which one client moves by ½ at
    most, plus :math:`N(0, \sigma_b^2)`, over the mean number of members, shifted back by ½, and
    kept within [0, 1].

    Guarantees: count and sum together cost what a sum with the whole noise multiplier z would,
        :math:`z_\Delta = (z^{-2} - (2\sigma_b)^{-2})^{-1/2}`.

    Attributes:
        initial: S of the first round.
        quantile: γ, the target share of unclipped updates.
        learning_rate: η.
        count_noise: σ_b.

    Example:
        >>> clip = AdaptiveClip(initial=1.0, quantile=0.5, learning_rate=0.2, count_noise=10.0)
        >>> round(clip.after(1.0, unclipped=100, members=100, mean=100.0, normal=0.0), 4)
        0.9048
        >>> round(clip.value_noise(1.0), 4)
        1.0013
    """

    initial: float = 0.1
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float

    def __post_init__(self) -> None:
        _validate.positive(initial=self.initial, learning_rate=self.learning_rate)
        _validate.open_unit(quantile=self.quantile)
        _validate.at_least(0, count_noise=self.count_noise)

    @property
    def first(self) -> float:
        """Return S of the first round."""
        return self.initial

    def value_noise(self, noise_multiplier: float) -> float:
        """Return more than the whole, since the count takes its share of the privacy."""
        _validate.at_least(0, noise_multiplier=noise_multiplier)
        if noise_multiplier == 0:
            return 0.0
        # Squared inverse multipliers add up: the count takes its part from the sum.
        count = (2 * self.count_noise) ** -2 if self.count_noise else math.inf
        left = noise_multiplier**-2 - count
        if left <= 0:
            raise InvalidArgument(
                f"Expected count_noise above {noise_multiplier / 2:g}, half of the noise "
                f"multiplier, got {self.count_noise!r}: the count alone would cost more privacy "
                "than there is. A twentieth of the cohort is usual."
            )
        return float(left**-0.5)

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """Return the norm of the next round; see :class:`Clipping`."""
        noisy = unclipped - members / 2 + self.count_noise * normal
        # Noise may push the share out of [0, 1]; cut off, one round cannot move the norm far.
        share = min(max(noisy / mean + 0.5, 0.0), 1.0)
        return norm * math.exp(-self.learning_rate * (share - self.quantile))


class Participation(Protocol):
    """Define how the cohorts of a training are drawn.

    Must keep: all randomness comes from ``rng``; no cohort has a client twice. A class that sets
    ``poisson = True`` draws every client independently, and is accounted accordingly.
    """

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """Draw who takes part in each of ``rounds`` rounds, as numbers below ``clients``.

        Args:
            clients: Number of clients, including canaries.
            cohort: Number of clients per round (on average, if it varies).
            rounds: Number of rounds.
            rng: Where all randomness comes from.
        """
        ...

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return the largest number of rounds in which one client can take part."""
        ...

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return the smallest distance of two rounds of one client; 1 if they may be adjacent."""
        ...


class _SampledCohorts:
    """Cohorts drawn by a sampler of batches, one epoch after the other."""

    sampler: ClassVar[Sampler]

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """Draw the cohorts, as of :class:`Participation`."""
        _check_sizes(clients, cohort, rounds)
        sampler = self._choose_sampler(clients, cohort)
        epochs: Iterator[Iterator[IntArray]] = (
            sampler.batches(clients, cohort, rng=rng) for _ in repeat(None)
        )
        return list(islice(chain.from_iterable(epochs), rounds))

    def _choose_sampler(self, _clients: int, _cohort: int) -> Sampler:
        return self.sampler

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return all rounds: nothing stops a client from being drawn every time."""
        _check_sizes(clients, cohort, rounds)
        return rounds

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return 1: a client may be drawn in two rounds in a row."""
        _check_sizes(clients, cohort, rounds)
        return 1


@dataclass(frozen=True)
class EveryEpoch(_SampledCohorts):
    """Draw every client once per epoch, in a fresh random order; the last cohort may be smaller.

    Guarantees: after e whole epochs every client took part exactly e times.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> drawn = EveryEpoch().cohorts(6, 2, rounds=3, rng=rng)
        >>> sorted(np.concatenate(drawn).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    sampler: ClassVar[Sampler] = Shuffle()

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return one per epoch that has begun."""
        _check_sizes(clients, cohort, rounds)
        return -(-rounds // -(-clients // cohort))


@dataclass(frozen=True)
class UniformCohorts(_SampledCohorts):
    """Draw a fresh uniform subset of exactly ``cohort`` clients in every round.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> [cohort.tolist() for cohort in UniformCohorts().cohorts(6, 2, rounds=3, rng=rng)]
        [[3, 4], [1, 2], [0, 1]]
    """

    sampler: ClassVar[Sampler] = WithoutReplacement()


@dataclass(frozen=True)
class PoissonCohorts(_SampledCohorts):
    """Draw every client in every round independently, with probability ``cohort / clients``.

    A cohort may be empty.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> [cohort.tolist() for cohort in PoissonCohorts().cohorts(6, 2, rounds=3, rng=rng)]
        [[0, 5], [1], []]
    """

    poisson: ClassVar[bool] = True

    def _choose_sampler(self, clients: int, cohort: int) -> Sampler:
        return Poisson(rate=cohort / clients)


@dataclass(frozen=True)
class OnceIn:
    """Draw uniform cohorts of clients that did not take part in the last ``rounds - 1`` rounds.

    Guarantees: no client takes part twice within ``rounds`` consecutive rounds.

    Attributes:
        rounds: Smallest distance between two rounds of one client.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> drawn = OnceIn(3).cohorts(6, 2, rounds=3, rng=rng)
        >>> sorted(np.concatenate(drawn).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    rounds: int

    def __post_init__(self) -> None:
        _validate.whole(1, rounds=self.rounds)

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """Draw the cohorts, as of :class:`Participation`."""
        _check_sizes(clients, cohort, rounds)
        if cohort * self.rounds > clients:
            raise InvalidArgument(
                f"Expected at least {cohort * self.rounds} clients for cohorts of {cohort}, each "
                f"client once in {self.rounds} rounds, got {clients}. Give a smaller cohort."
            )
        free_from = np.zeros(clients, np.int64)
        drawn = []
        for number in range(rounds):
            free = np.flatnonzero(free_from <= number)
            members = np.sort(rng.choice(free, cohort, replace=False, shuffle=False))
            free_from[members] = number + self.rounds
            drawn.append(members)
        return drawn

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return one in every ``rounds`` that have begun."""
        _check_sizes(clients, cohort, rounds)
        return -(-rounds // self.rounds)

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return how long a client waits."""
        _check_sizes(clients, cohort, rounds)
        return self.rounds


@dataclass(frozen=True)
class Schedule:
    """Use given cohorts: one list of clients per round. Canaries come after the clients.

    Attributes:
        rounds: The cohorts, at least as many as there are rounds.
    """

    rounds: Sequence[Sequence[int]]

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator | None = None
    ) -> list[IntArray]:
        """Return the cohorts; ``rng`` is not used. See :class:`Participation`."""
        _check_sizes(clients, cohort, rounds)
        if len(self.rounds) < rounds:
            raise InvalidArgument(
                f"Expected a schedule of {rounds} rounds, got one of {len(self.rounds)}."
            )
        known = [np.asarray(drawn, np.int64).reshape(-1) for drawn in self.rounds[:rounds]]
        for number, drawn in enumerate(known):
            beyond = drawn.size and not 0 <= drawn.min() <= drawn.max() < clients
            if beyond or np.unique(drawn).size < drawn.size:
                raise InvalidArgument(
                    f"Expected clients from 0 to {clients - 1} in a round, each once, got "
                    f"{drawn.tolist()} in round {number}."
                )
        return known

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return the largest number of times a client is listed."""
        drawn = self.cohorts(clients, cohort, rounds=rounds)
        return int(np.bincount(np.concatenate(drawn), minlength=1).max())

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """Return the smallest distance in the schedule; ``rounds`` if no client is listed twice."""
        drawn = self.cohorts(clients, cohort, rounds=rounds)
        when = np.repeat(np.arange(rounds), [members.size for members in drawn])
        who = np.concatenate(drawn)
        order = np.lexsort((when, who))
        again = np.diff(who[order]) == 0
        return int(np.diff(when[order])[again].min(initial=rounds))


def deal_canaries(
    canaries: int, repetitions: int, *, rounds: int, rng: np.random.Generator
) -> list[IntArray]:
    """Draw cohorts of canaries: each canary once in each of ``repetitions`` periods of rounds.

    Within a period, canaries are assigned to the rounds in random order, as evenly as possible.

    Guarantees: every canary takes part exactly ``repetitions`` times.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> [drawn.size for drawn in deal_canaries(10, 2, rounds=4, rng=rng)]
        [5, 5, 5, 5]
    """
    _validate.whole(1, canaries=canaries, repetitions=repetitions, rounds=rounds)
    if repetitions > rounds:
        raise InvalidArgument(
            f"Expected at most {rounds} repetitions, one per round, got {repetitions}."
        )
    drawn: list[IntArray] = []
    for period in np.array_split(np.arange(rounds), repetitions):
        dealt = np.array_split(rng.permutation(canaries), period.size)
        # If they do not divide evenly, the rounds with one more are random too.
        drawn += [np.sort(dealt[place]) for place in rng.permutation(period.size)]
    return drawn


def _check_sizes(clients: int, cohort: int, rounds: int) -> None:
    _validate.whole(1, clients=clients, cohort=cohort, rounds=rounds)
    if cohort > clients:
        raise InvalidArgument(
            f"Expected a cohort of at most {clients} clients, as many as there are, got {cohort}."
        )


Visit: TypeAlias = Callable[[int, float, Any], None]
Iterates: TypeAlias = Literal["updates", "steps", "none"]


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundSettings:
    """Hold what determines the rounds of a training; ``FederatedTraining`` describes each."""

    module: Any = field(metadata=DATA, kw_only=False)
    clients: Sequence[tuple[ArrayLike, ArrayLike]] = field(metadata=DATA)
    loss: Any = field(metadata=DATA, kw_only=False)
    rounds: int
    cohort: int
    noise_multiplier: float
    learning_rate: float
    participation: Participation = field(default_factory=EveryEpoch)
    noise: Any = None  # torch is imported with its types, and those of optimisers
    clip: Clipping = field(default_factory=FixedClip)
    batch_size: int = 20
    epochs: int = 1
    client_optimizer: Any = None
    server_rate: float = 1.0
    server_optimizer: Any = None
    divisor: float | None = None
    at_once: int = 32
    device: str = "cpu"
