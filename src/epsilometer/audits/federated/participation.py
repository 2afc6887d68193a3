"""Who takes part in which round of federated training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Protocol

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Poisson, Sampler, Shuffle, WithoutReplacement
from epsilometer.types import IntArray


class Participation(Protocol):
    """Draws the cohorts of a training.

    Must keep: all randomness comes from ``rng``; no cohort has a client twice.
    """

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """Who takes part in each of ``rounds`` rounds, as numbers below ``clients``.

        Args:
            clients: How many there are, canaries among them.
            cohort: How many take part in a round (on average, where it varies).
            rounds: How many rounds.
            rng: Where all randomness comes from.
        """
        ...

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """In how many rounds one client can take part at most."""
        ...

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """From one round of a client to the next, at least; 1 where he may be in both."""
        ...


@dataclass(frozen=True)
class EveryEpoch:
    """Every client once an epoch, in a fresh random order; the last cohort may be smaller.

    Guarantees: after e whole epochs everybody took part exactly e times.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> drawn = EveryEpoch().cohorts(6, 2, rounds=3, rng=rng)
        >>> sorted(np.concatenate(drawn).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """As of :class:`Participation`."""
        return _drawn(Shuffle(), clients, cohort, rounds, rng)

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """One an epoch that has begun."""
        _checked(clients, cohort, rounds)
        return -(-rounds // -(-clients // cohort))

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """1: the last of an epoch may be the first of the next."""
        _checked(clients, cohort, rounds)
        return 1


@dataclass(frozen=True)
class UniformCohorts:
    """Every round a fresh uniform subset of exactly ``cohort`` clients."""

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """As of :class:`Participation`."""
        return _drawn(WithoutReplacement(), clients, cohort, rounds, rng)

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """In all: nothing stops a client from being drawn every time."""
        _checked(clients, cohort, rounds)
        return rounds

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """1."""
        _checked(clients, cohort, rounds)
        return 1


@dataclass(frozen=True)
class PoissonCohorts:
    """Every client in every round with chance ``cohort / clients``, independently of all else."""

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """As of :class:`Participation`; a cohort may be empty."""
        return _drawn(Poisson(), clients, cohort, rounds, rng)

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """In all."""
        _checked(clients, cohort, rounds)
        return rounds

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """1."""
        _checked(clients, cohort, rounds)
        return 1


@dataclass(frozen=True)
class OnceIn:
    """Uniform cohorts of those who did not take part in the last ``rounds - 1`` rounds.

    Guarantees: nobody takes part twice within ``rounds`` rounds in a row.

    Attributes:
        rounds: How long a client waits from one round of his to the next, at least.

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
        """As of :class:`Participation`."""
        _checked(clients, cohort, rounds)
        if cohort * self.rounds > clients:
            raise InvalidArgument(
                f"Expected at least {cohort * self.rounds} clients for cohorts of {cohort}, each "
                f"client once in {self.rounds} rounds, got {clients}. Give a smaller cohort."
            )
        free_from = np.zeros(clients, np.int64)
        drawn = []
        for number in range(rounds):
            free = np.flatnonzero(free_from <= number)
            taken = np.sort(rng.choice(free, cohort, replace=False, shuffle=False))
            free_from[taken] = number + self.rounds
            drawn.append(taken)
        return drawn

    def most(self, clients: int, cohort: int, *, rounds: int) -> int:
        """One in every ``rounds`` that have begun."""
        _checked(clients, cohort, rounds)
        return -(-rounds // self.rounds)

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """As long as a client waits."""
        _checked(clients, cohort, rounds)
        return self.rounds


@dataclass(frozen=True)
class Schedule:
    """Who takes part is known: one list of clients a round. Canaries come after the clients.

    Attributes:
        rounds: The cohorts, at least as many as there are rounds.
    """

    rounds: Sequence[Sequence[int]]

    def cohorts(
        self, clients: int, cohort: int, *, rounds: int, rng: np.random.Generator
    ) -> list[IntArray]:
        """As of :class:`Participation`; ``rng`` is not used."""
        _checked(clients, cohort, rounds)
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
        """As often as the busiest client is listed."""
        drawn = self.cohorts(clients, cohort, rounds=rounds, rng=np.random.default_rng(0))
        return int(np.bincount(np.concatenate(drawn), minlength=1).max())

    def apart(self, clients: int, cohort: int, *, rounds: int) -> int:
        """As the schedule has it; as many as there are rounds, if nobody is listed twice."""
        drawn = self.cohorts(clients, cohort, rounds=rounds, rng=np.random.default_rng(0))
        when = np.repeat(np.arange(rounds), [members.size for members in drawn])
        who = np.concatenate(drawn)
        order = np.lexsort((when, who))
        again = np.diff(who[order]) == 0
        return int(np.diff(when[order])[again].min(initial=rounds))


def once_in_each(
    canaries: int, repetitions: int, *, rounds: int, rng: np.random.Generator
) -> list[IntArray]:
    """Cohorts of canaries: rounds are cut into ``repetitions`` periods, each has everyone once.

    Within a period canaries are dealt to the rounds in random order, as evenly as can be.

    Guarantees: every canary takes part exactly ``repetitions`` times.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> [drawn.size for drawn in once_in_each(10, 2, rounds=4, rng=rng)]
        [5, 5, 5, 5]
    """
    _validate.whole(1, canaries=canaries, repetitions=repetitions, rounds=rounds)
    if repetitions > rounds:
        raise InvalidArgument(
            f"Expected at most {rounds} repetitions, one a round, got {repetitions}."
        )
    drawn: list[IntArray] = []
    for period in np.array_split(np.arange(rounds), repetitions):
        dealt = np.array_split(rng.permutation(canaries), period.size)
        # Where they cannot be dealt evenly, which rounds have one more is random too.
        drawn += [np.sort(dealt[place]) for place in rng.permutation(period.size)]
    return drawn


def _drawn(
    sampler: Sampler, clients: int, cohort: int, rounds: int, rng: np.random.Generator
) -> list[IntArray]:
    """Epochs of a sampler, one after the other, until there are enough."""
    _checked(clients, cohort, rounds)
    epochs: Iterator[Iterator[IntArray]] = (
        sampler.batches(clients, cohort, rng=rng) for _ in repeat(None)
    )
    return list(islice(chain.from_iterable(epochs), rounds))


def _checked(clients: int, cohort: int, rounds: int) -> None:
    _validate.whole(1, clients=clients, cohort=cohort, rounds=rounds)
    if cohort > clients:
        raise InvalidArgument(
            f"Expected a cohort of at most {clients} clients, as many as there are, got {cohort}."
        )
