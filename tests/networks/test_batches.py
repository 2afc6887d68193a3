"""Batches of many runs: those of the samplers, whatever the number of threads."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.networks.batches import draw_batches
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.types import IntArray
from tests.oracles import FLAKE

ONCE = [
    Sequential(),
    Shuffle(),
    PartialShuffle(buffer=5),
    PartialShuffle(buffer=5, sliding=True),
    BatchThenShuffle(),
    BallsInBins(),
]
EVERY = [
    *ONCE,
    Poisson(),
    Poisson(rate=0.5, steps=2),
    WithoutReplacement(),
    Shuffle(drop_last=True),
]


def drawn(sampler: Sampler, records: int, *, seed: int = 0, runs: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(draw_batches(sampler, records, 4, runs=runs, epochs=2, rng=rng))


@pytest.mark.parametrize("records", [12, 11])
@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_batches_are_records_filled_up_with_minus_one(sampler: Sampler, records: int) -> None:
    for epoch in drawn(sampler, records):
        runs, _, width = epoch.shape
        assert runs == 40
        assert width >= 1
        assert epoch.min() >= -1
        assert epoch.max() < records
        filled = epoch >= 0
        assert (filled[..., :-1] >= filled[..., 1:]).all()  # records first, then what fills up
        for batch in epoch.reshape(-1, width):
            there = batch[batch >= 0]
            assert len(set(there.tolist())) == there.size


@pytest.mark.parametrize("records", [12, 11])
@pytest.mark.parametrize("sampler", ONCE, ids=repr)
def test_every_record_comes_once_an_epoch(sampler: Sampler, records: int) -> None:
    for epoch in drawn(sampler, records):
        for run in epoch:
            assert sorted(run[run >= 0].tolist()) == list(range(records))


def test_a_ragged_last_batch_is_filled_up_or_left_out() -> None:
    (short, _), (left, _) = drawn(Shuffle(), 11), drawn(Shuffle(drop_last=True), 11)
    assert ((short >= 0).sum(2) == [4, 4, 3]).all()
    assert left.shape == (40, 2, 4)
    assert (left >= 0).all()


@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_threads_change_nothing(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    every = []
    for cores in (1, 7, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        every.append(drawn(sampler, 11, runs=100))
    for other in every[1:]:
        for mine, theirs in zip(every[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("sampler", [s for s in EVERY if s != Sequential()], ids=repr)
def test_runs_and_epochs_and_seeds_differ(sampler: Sampler) -> None:
    first, second = drawn(sampler, 64, runs=70)
    other, _ = drawn(sampler, 64, runs=70, seed=1)
    assert len({run.tobytes() for run in first}) == 70  # also across those that share a thread
    for epoch in (second, other):
        width = min(first.shape[2], epoch.shape[2])
        assert (first[..., :width] != epoch[..., :width]).any((1, 2)).all()


def test_shuffling_is_uniform_on_the_quick_way_and_on_the_slow_one() -> None:
    for records in (12, 11):  # whole batches are drawn for all runs together
        epochs = drawn(Shuffle(), records, runs=3000)
        step = np.concatenate([np.argmax((epoch == 0).any(2), 1) for epoch in epochs])
        share = np.array([4, 4, records - 8]) / records
        counts = np.bincount(step, minlength=3)
        assert scipy.stats.chisquare(counts, share * step.size).pvalue > FLAKE


def test_poisson_batches_have_the_right_size() -> None:
    sizes = np.concatenate([(e >= 0).sum(2).ravel() for e in drawn(Poisson(), 12, runs=2000)])
    law = scipy.stats.binom(12, 4 / 12)
    counts = np.bincount(sizes, minlength=13)[:10]
    expected = law.pmf(np.arange(10))
    expected[9] += law.sf(9)
    counts[9] += (sizes > 9).sum()
    assert scipy.stats.chisquare(counts, expected * sizes.size).pvalue > FLAKE


def test_all_batches_empty_still_have_a_column() -> None:
    (epoch,) = draw_batches(
        Poisson(rate=1e-12, steps=3), 5, 1, runs=2, epochs=1, rng=np.random.default_rng(0)
    )
    np.testing.assert_array_equal(epoch, np.full((2, 3, 1), -1))


class Uneven:
    """Another number of batches every time."""

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        return iter([np.arange(1)] * int(rng.integers(1, 9)))


def test_runs_with_other_numbers_of_batches_are_refused() -> None:
    for runs in (40, 33):
        with pytest.raises(InvalidArgument, match="as many batches per epoch"):
            drawn(Uneven(), 12, runs=runs)


def test_a_batch_larger_than_the_records_is_refused() -> None:
    for sampler in EVERY:
        with pytest.raises(InvalidArgument, match="batch_size"):
            drawn(sampler, 3)
