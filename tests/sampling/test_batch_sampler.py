"""Batches for training: one record one bin, uniform subsets, padding, and PyTorch's loader."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.samplers import Sequential, Shuffle
from epsilometer.sampling import BallsInBins, BatchSampler, FixedSize, Poisson

FLAKE = 1e-6


def test_names_are_where_users_look_for_them() -> None:
    assert em.sampling.BallsInBins is em.samplers.BallsInBins
    assert em.sampling.Poisson is em.samplers.Poisson


def test_balls_in_bins_takes_every_record_once_per_epoch() -> None:
    batches = BatchSampler(BallsInBins(), records=1000, batch_size=30, seed=3)
    for _ in range(3):
        epoch = list(batches)
        assert len(epoch) == len(batches) == 34
        assert sorted(itertools.chain(*epoch)) == list(range(1000))


def test_bins_are_uniform_and_independent() -> None:
    """The accountant counts on both; planted: a permutation, whose bins are not independent."""
    batches = BatchSampler(BallsInBins(), records=40, batch_size=10, seed=0)
    shuffled = BatchSampler(Shuffle(), records=40, batch_size=10, seed=0)
    together = {}
    for name, source in (("bins", batches), ("shuffle", shuffled)):
        place = np.zeros((6000, 40), np.int64)
        for row in place:
            for t, batch in enumerate(source):
                row[batch] = t
        counts = np.stack([np.bincount(column, minlength=4) for column in place.T])
        assert scipy.stats.chisquare(counts.ravel()).pvalue > FLAKE
        together[name] = scipy.stats.binomtest(
            int((place[:, ::2] == place[:, 1::2]).sum()), 6000 * 20, 1 / 4
        ).pvalue
    assert together["bins"] > FLAKE
    assert together["shuffle"] < FLAKE


def test_seeds_repeat_and_epochs_do_not() -> None:
    first, again, other = (
        BatchSampler(BallsInBins(), records=50, batch_size=10, seed=seed) for seed in (1, 1, 2)
    )
    epochs = [list(first), list(first)]
    assert epochs == [list(again), list(again)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(other)
    unseeded = [BatchSampler(BallsInBins(), records=50, batch_size=10) for _ in range(2)]
    assert list(unseeded[0]) != list(unseeded[1])


@pytest.mark.parametrize("inner", [Poisson(), BallsInBins()], ids=str)
def test_fixed_sizes_cut_uniformly_and_pad(inner: object) -> None:
    batches = BatchSampler(FixedSize(inner, 11), records=60, batch_size=10, seed=0)
    seen = np.zeros(60)
    for _ in range(400):
        for indices, weights in batches.padded():
            assert indices.shape == weights.shape == (11,)
            real = indices[weights == 1]
            assert np.unique(real).size == real.size
            assert ((weights == 0) <= (indices == 0)).all()
            seen[real] += 1
    assert scipy.stats.chisquare(seen).pvalue > FLAKE
    assert seen.sum() < 400 * 60  # some were cut


def test_a_size_that_fits_is_hardly_ever_exceeded() -> None:
    sampler = FixedSize.fit(
        BallsInBins(), records=1000, batch_size=50, delta=1e-5, epochs=10, epsilon=3.0
    )
    spent = (1 + math.exp(3.0)) * 20 * 10 * sampler.overflow(20, 50)
    assert spent <= 1e-8
    smaller = FixedSize(BallsInBins(), sampler.size - 1)
    assert (1 + math.exp(3.0)) * 200 * smaller.overflow(20, 50) > 1e-8
    assert sampler.overflow(20, 50) == pytest.approx(
        scipy.stats.binom.sf(sampler.size, 1000, 1 / 20), rel=1e-6
    )


def test_pytorch_takes_it_as_its_batch_sampler() -> None:
    data = torch.arange(200).float()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data),
        batch_sampler=BatchSampler(BallsInBins(), records=200, batch_size=50, seed=0),
    )
    assert len(loader) == 4
    for _ in range(2):
        values = torch.cat([batch[0] for batch in loader])
        assert sorted(values.tolist()) == data.tolist()


def test_other_samplers_count_their_batches() -> None:
    for sampler, steps in ((Shuffle(), 4), (Shuffle(drop_last=True), 3), (Sequential(), 4)):
        assert len(BatchSampler(sampler, records=10, batch_size=3)) == steps
    assert len(BatchSampler(Poisson(steps=7), records=10, batch_size=3)) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: BatchSampler(BallsInBins(), records=0, batch_size=1),
        lambda: BatchSampler(BallsInBins(), records=5, batch_size=6),
        lambda: BatchSampler(BallsInBins(), records=5, batch_size=2, seed=-1),
        lambda: next(BatchSampler(BallsInBins(), records=5, batch_size=2).padded()),
        lambda: FixedSize(BallsInBins(), 0),
        lambda: FixedSize.fit(BallsInBins(), records=5, batch_size=2, delta=0.0),
    ],
)
def test_bad_settings_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        wrong()
