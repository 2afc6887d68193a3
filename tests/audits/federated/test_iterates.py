import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.federated.directions import HadamardCanaries, SphereCanaries
from epsilometer.audits.federated.iterates import CosineWatch, MatchedFilter
from epsilometer.errors import InvalidArgument


def watch(count: int = 6, dimension: int = 500) -> tuple[CosineWatch, SphereCanaries]:
    canaries = SphereCanaries(count=count, dimension=dimension, key=1)
    return CosineWatch(canaries, np.zeros(dimension)), canaries


def test_what_is_seen_is_what_a_loop_over_all_iterates_finds(rng: np.random.Generator) -> None:
    watched, canaries = watch()
    iterates = np.cumsum(rng.normal(size=(5, 500)), axis=0)
    for weights in iterates:
        assert watched.see(weights)
    rows = canaries.rows(np.arange(6)).astype(np.float64)
    steps = np.diff(np.vstack([np.zeros(500), iterates]), axis=0)
    every = steps @ rows.T / np.linalg.norm(steps, axis=1)[:, None]
    seen = watched.summarise()
    np.testing.assert_allclose(seen.largest, every.max(axis=0), atol=1e-6)  # float32
    last = iterates[-1] @ rows.T / np.linalg.norm(iterates[-1])
    np.testing.assert_allclose(seen.final, last, atol=1e-6)
    assert seen.rounds == 5


def test_the_same_weights_again_are_no_round() -> None:
    watched, _ = watch()
    watched.see(np.ones(500))
    assert not watched.see(np.ones(500))
    assert watched.summarise().rounds == 1


def test_canaries_take_part_in_rounds_that_move_the_weights() -> None:
    watched, _ = watch()
    watched.take_part([0, 1])
    watched.see(np.ones(500))  # this round counts
    watched.next_round()
    watched.take_part([1, 2])
    assert not watched.see(np.ones(500))
    watched.next_round()  # the one before moved nothing
    watched.take_part([1])
    watched.see(2 * np.ones(500))
    watched.next_round()
    watched.take_part([2])  # and nobody knows how this one ended
    seen = watched.summarise()
    assert seen.took.tolist() == [1, 2, 0]
    assert seen.still == 2


def test_weights_that_are_not_finite_are_seen_as_nothing() -> None:
    watched, canaries = watch()
    watched.see(np.ones(500))
    watched.take_part([0])
    assert not watched.see(np.full(500, np.inf))
    seen = watched.summarise()
    assert (seen.rounds, seen.lost, seen.took.sum()) == (1, 1, 0)
    np.testing.assert_allclose(seen.final, canaries.cosines(np.ones(500)))


def test_nothing_seen_is_zero() -> None:
    seen = watch()[0].summarise()
    assert seen.rounds == 0
    assert not seen.final.any()
    assert not seen.largest.any()


def test_canaries_that_were_never_planted_look_like_those_that_took_no_part(
    rng: np.random.Generator,
) -> None:
    """The largest of many rounds has one law for all of them."""
    canaries = HadamardCanaries(count=1000, dimension=8192, key=4)
    watched = CosineWatch(canaries, np.zeros(8192))
    for weights in np.cumsum(rng.normal(size=(20, 8192)), axis=0):
        watched.see(weights)
    largest = watched.summarise().largest
    assert scipy.stats.ks_2samp(largest[:500], largest[500:]).pvalue > 1e-6


def test_odd_families_and_other_models_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="as many planted canaries as others, got 3"):
        watch(count=3)
    with pytest.raises(InvalidArgument, match="Expected 500 weights"):
        watch()[0].see(np.ones(499))


# The sum over a canary's own rounds.


def matched_by_hand(rows: np.ndarray, steps: np.ndarray, schedule: list[list[int]]) -> np.ndarray:
    units = steps / np.linalg.norm(steps, axis=1)[:, None]
    own = [units[[i in members for members in schedule]].sum(axis=0) for i in range(len(rows))]
    return np.array([row @ v / np.linalg.norm(v) for row, v in zip(rows, own, strict=True)])


def resembling(rounds: int, rng: np.random.Generator, dimension: int = 500) -> np.ndarray:
    """Steps of rounds that have much in common."""
    return rng.normal(size=dimension) + 0.5 * rng.normal(size=(rounds, dimension))


def test_matched_cosines_are_those_with_the_sum_of_a_canarys_rounds(
    rng: np.random.Generator,
) -> None:
    canaries = SphereCanaries(count=6, dimension=500, key=1)
    watched = CosineWatch(canaries, np.zeros(500), memory=10**6)
    steps, schedule = resembling(5, rng), [[0, 1], [1], [2, 2], [0, 1], [1]]
    for weights, members in zip(np.cumsum(steps, axis=0), schedule, strict=True):
        watched.take_part(members)
        watched.see(weights)
    rows = canaries.rows(np.arange(3)).astype(np.float64)
    expected = matched_by_hand(rows, steps, schedule)
    np.testing.assert_allclose(watched.summarise().matched, expected, atol=1e-5)
    assert not watched.summarise().orthonormal


def test_beyond_the_memory_the_first_round_of_a_canary_counts(rng: np.random.Generator) -> None:
    rows, steps = rng.normal(size=(3, 500)), resembling(4, rng)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    matched = MatchedFilter(4, memory=2 * 500 * 4)
    schedule = [[0, 1], [0], [1, 2], [2]]
    for step, members in zip(steps, schedule, strict=True):
        matched.see(step, np.append(rows @ step / np.linalg.norm(step), 0.0), members)
    expected = matched_by_hand(rows, steps, [[0, 1], [0], [2], []])
    np.testing.assert_allclose(matched.summarise()[:3], expected, atol=1e-5)
    assert np.isnan(matched.summarise()[3])


def test_matched_cosines_of_strangers_have_the_exact_law_and_a_root_of_rounds_has_not(
    rng: np.random.Generator,
) -> None:
    """The vector of a canary's rounds does not know it: its cosine is that of any direction."""
    dimension, count = 50, 4_000
    rows = rng.normal(size=(count, dimension))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    matched, mistaken = MatchedFilter(count, memory=10**8), np.zeros(count)
    for step in resembling(4, rng, dimension):
        cosines = rows @ step / np.linalg.norm(step)
        matched.see(step, cosines, np.arange(count))
        mistaken += cosines / 2  # over √4, as if rounds had nothing in common
    law = scipy.stats.beta((dimension - 1) / 2, (dimension - 1) / 2, loc=-1, scale=2)
    assert scipy.stats.kstest(matched.summarise(), law.cdf).pvalue > 1e-6
    assert scipy.stats.kstest(mistaken, law.cdf).pvalue < 1e-6


def test_a_leak_over_several_rounds_adds_up(rng: np.random.Generator) -> None:
    dimension, count, often = 20_000, 200, 4
    canaries = HadamardCanaries(count=2 * count, dimension=dimension, key=2)
    found = {}
    for memory in (0, 10**7):
        watched = CosineWatch(canaries, np.zeros(dimension), memory=memory)
        weights = np.zeros(dimension)
        for _ in range(often):
            watched.take_part(np.arange(count))
            weights = weights + canaries.inject(np.arange(count), 1.0) + rng.normal(size=dimension)
            watched.see(weights)
        found[memory] = watched.summarise().matched.mean()
        assert watched.summarise().orthonormal
    assert found[10**7] == pytest.approx(2 * found[0], rel=0.1)
