"""Who takes part when: each pattern by the law that it promises."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.audits.federated.rounds import (
    EveryEpoch,
    OnceIn,
    Participation,
    PoissonCohorts,
    Schedule,
    UniformCohorts,
    deal_canaries,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray
from tests.oracles import FLAKE

PATTERNS = [EveryEpoch(), UniformCohorts(), PoissonCohorts(), OnceIn(1)]
sizes = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda pair: (max(pair), min(pair)))
seeds = st.integers(0, 2**32)


def counts(drawn: list[IntArray], clients: int) -> IntArray:
    return np.bincount(np.concatenate([np.zeros(0, np.int64), *drawn]), minlength=clients)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@given(sizes=sizes, rounds=st.integers(1, 30), seed=seeds)
def test_as_many_cohorts_as_rounds_of_clients_that_are_there(
    pattern: Participation, sizes: tuple[int, int], rounds: int, seed: int
) -> None:
    clients, cohort = sizes
    rng = np.random.default_rng(seed)
    drawn = pattern.cohorts(clients, cohort, rounds=rounds, rng=rng)
    assert len(drawn) == rounds
    for members in drawn:
        assert np.unique(members).size == members.size
        assert not members.size or 0 <= members.min() <= members.max() < clients
    assert counts(drawn, clients).max() <= pattern.most(clients, cohort, rounds=rounds)
    assert pattern.apart(clients, cohort, rounds=rounds) == 1


@given(sizes=sizes, epochs=st.integers(1, 4), seed=seeds)
def test_everybody_comes_once_in_every_epoch(
    sizes: tuple[int, int], epochs: int, seed: int
) -> None:
    clients, cohort = sizes
    rounds = epochs * -(-clients // cohort)
    rng = np.random.default_rng(seed)
    drawn = EveryEpoch().cohorts(clients, cohort, rounds=rounds, rng=rng)
    assert (counts(drawn, clients) == epochs).all()
    assert EveryEpoch().most(clients, cohort, rounds=rounds) == epochs


@given(wait=st.integers(1, 6), cohort=st.integers(1, 5), rounds=st.integers(1, 30), seed=seeds)
def test_nobody_comes_twice_within_the_wait(wait: int, cohort: int, rounds: int, seed: int) -> None:
    clients = cohort * wait + seed % 5
    drawn = OnceIn(wait).cohorts(clients, cohort, rounds=rounds, rng=np.random.default_rng(seed))
    assert all(members.size == cohort for members in drawn)
    for start in range(rounds):
        assert counts(drawn[start : start + wait], clients).max() <= 1
    assert counts(drawn, clients).max() <= OnceIn(wait).most(clients, cohort, rounds=rounds)
    assert OnceIn(wait).apart(clients, cohort, rounds=rounds) == wait


@given(
    canaries=st.integers(1, 50), repetitions=st.integers(1, 8), more=st.integers(0, 20), seed=seeds
)
def test_canaries_come_deal_canaries_period(
    canaries: int, repetitions: int, more: int, seed: int
) -> None:
    rounds = repetitions + more
    rng = np.random.default_rng(seed)
    drawn = deal_canaries(canaries, repetitions, rounds=rounds, rng=rng)
    assert len(drawn) == rounds
    starts = np.array_split(np.arange(rounds), repetitions)
    for period in starts:
        assert (counts([drawn[place] for place in period], canaries) == 1).all()
        dealt = [drawn[place].size for place in period]
        assert max(dealt) - min(dealt) <= 1


def test_poisson_cohorts_have_the_law_of_coins(rng: np.random.Generator) -> None:
    clients, cohort, rounds = 50, 15, 4000
    drawn = PoissonCohorts().cohorts(clients, cohort, rounds=rounds, rng=rng)
    for count in counts(drawn, clients):
        chance = scipy.stats.binomtest(int(count), rounds, cohort / clients).pvalue
        assert chance > FLAKE / clients
    met = np.bincount([members.size for members in drawn], minlength=clients + 1)
    law = scipy.stats.binom.pmf(np.arange(clients + 1), clients, cohort / clients)
    likely = law * rounds > 5
    seen, expected = met[likely], law[likely] * rounds
    seen, expected = (
        np.append(seen, met[~likely].sum()),
        np.append(expected, rounds - expected.sum()),
    )
    assert scipy.stats.chisquare(seen, expected).pvalue > FLAKE


def test_a_canary_is_as_likely_in_every_round_of_a_period(rng: np.random.Generator) -> None:
    rounds, draws = 7, 3000
    where = np.zeros(rounds)
    for _ in range(draws):
        drawn = deal_canaries(3, 1, rounds=rounds, rng=rng)
        where += [0 in members for members in drawn]
    assert scipy.stats.chisquare(where).pvalue > FLAKE


def test_a_schedule_is_kept() -> None:
    schedule = Schedule([[0, 2], [], [1]])
    drawn = schedule.cohorts(3, 1, rounds=3, rng=np.random.default_rng(0))
    assert [members.tolist() for members in drawn] == [[0, 2], [], [1]]
    assert schedule.most(3, 1, rounds=3) == 1
    assert schedule.apart(3, 1, rounds=3) == 3  # nobody twice
    assert Schedule([[0, 2], [1], [0], [2, 1]]).apart(3, 1, rounds=4) == 2
    assert Schedule([[0], [1], [2, 0], [0]]).apart(3, 1, rounds=4) == 1
    assert Schedule([[0], [1], [2, 0], [0]]).apart(3, 1, rounds=3) == 2


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (Schedule([[0]]), "schedule of 2 rounds, got one of 1"),
        (Schedule([[0], [3]]), "in round 1"),
        (Schedule([[0], [1, 1]]), "each once"),
        (OnceIn(9), "at least 18 clients"),
    ],
)
def test_bad_patterns_are_told(pattern: Participation, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        pattern.cohorts(3, 2, rounds=2, rng=np.random.default_rng(0))


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_a_cohort_larger_than_all_clients_is_told(pattern: Participation) -> None:
    with pytest.raises(InvalidArgument, match="at most 3 clients"):
        pattern.cohorts(3, 4, rounds=2, rng=np.random.default_rng(0))


def test_more_repetitions_than_rounds_are_told() -> None:
    with pytest.raises(InvalidArgument, match="at most 2 repetitions"):
        deal_canaries(3, 4, rounds=2, rng=np.random.default_rng(0))
