import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.federated.directions import HadamardCanaries, SphereCanaries
from epsilometer.audits.federated.iterates import IterateWatch
from epsilometer.errors import InvalidArgument


def watch(count: int = 6, dimension: int = 500) -> tuple[IterateWatch, SphereCanaries]:
    canaries = SphereCanaries(count=count, dimension=dimension, key=1)
    return IterateWatch(canaries, np.zeros(dimension)), canaries


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
    watched = IterateWatch(canaries, np.zeros(8192))
    for weights in np.cumsum(rng.normal(size=(20, 8192)), axis=0):
        watched.see(weights)
    largest = watched.summarise().largest
    assert scipy.stats.ks_2samp(largest[:500], largest[500:]).pvalue > 1e-6


def test_odd_families_and_other_models_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="as many planted canaries as others, got 3"):
        watch(count=3)
    with pytest.raises(InvalidArgument, match="Expected 500 weights"):
        watch()[0].see(np.ones(499))
