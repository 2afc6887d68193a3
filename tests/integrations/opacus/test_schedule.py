import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.canaries import Schedule
from epsilometer.sampling.samplers import BallsInBins, Poisson, Sampler, Sequential, Shuffle

FLAKE = 1e-6


def steps(sampler: Sampler, rng: np.random.Generator, *, count: int, batches: int, of: int = 1):
    schedule = Schedule(count=count, batches=batches, sampler=sampler, rng=rng)
    return np.array([schedule.step(of) for _ in range(3 * batches // of)])


def test_poisson_takes_each_by_its_own_coin(rng: np.random.Generator) -> None:
    took = steps(Poisson(rate=0.2), rng, count=1000, batches=5)
    hits = scipy.stats.binomtest(int(took.sum()), took.size, 0.2)
    assert hits.pvalue > FLAKE
    often = np.bincount(took.sum(axis=0), minlength=16)
    expected = 1000 * scipy.stats.binom.pmf(np.arange(16), 15, 0.2)
    distance = np.sum((often - expected)[:8] ** 2 / expected[:8])
    assert distance < scipy.stats.chi2.isf(FLAKE, 8) + 10  # the rare tail is left out


def test_without_a_rate_it_is_one_in_the_number_of_batches(rng: np.random.Generator) -> None:
    schedule = Schedule(count=1, batches=8, sampler=Poisson(), rng=rng)
    assert (schedule.chance(), schedule.chance(2), schedule.chance(100)) == (1 / 8, 1 / 4, 1.0)


def test_shuffling_takes_each_once_an_epoch_anywhere(rng: np.random.Generator) -> None:
    took = steps(Shuffle(), rng, count=2000, batches=4).reshape(3, 4, 2000)
    assert (took.sum(axis=1) == 1).all()
    slots = took.argmax(axis=1)
    assert scipy.stats.chisquare(np.bincount(slots.ravel())).pvalue > FLAKE
    assert scipy.stats.binomtest(int((slots[0] == slots[1]).sum()), 2000, 0.25).pvalue > FLAKE


def test_records_in_order_come_at_the_same_place_every_epoch(rng: np.random.Generator) -> None:
    took = steps(Sequential(), rng, count=50, batches=4).reshape(3, 4, 50)
    np.testing.assert_array_equal(took[0], took[2])
    assert (took.sum(axis=1) == 1).all()


@pytest.mark.parametrize("of", [2, 3])
def test_steps_of_several_batches_may_cross_the_end_of_an_epoch(
    of: int, rng: np.random.Generator
) -> None:
    schedule = Schedule(count=500, batches=4, sampler=Shuffle(), rng=rng)
    took = np.array([schedule.step(of) for _ in range(12)])
    epochs = 12 * of // 4
    assert schedule.epoch == epochs
    assert took.sum(axis=0).max() <= epochs
    assert took.sum(axis=0).min() >= epochs - epochs // 2  # two slots may fall into one step


def test_other_samplers_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="Poisson, Shuffle or Sequential"):
        Schedule(count=1, batches=1, sampler=BallsInBins(), rng=rng)
    with pytest.raises(InvalidArgument, match="batches"):
        Schedule(count=1, batches=1, sampler=Shuffle(), rng=rng).step(0)
