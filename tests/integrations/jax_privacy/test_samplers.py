"""Strategies of JAX-Privacy and loaders of Grain, beside what is booked."""

from typing import Any

import grain
import numpy as np
import pytest
from jax_privacy import batch_selection

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy import check
from epsilometer.integrations.jax_privacy.samplers import recognise
from epsilometer.sampling.samplers import BatchThenShuffle, Poisson, Sequential, Shuffle
from tests.integrations.jax_privacy.loops import book, book_cut, book_fixed, draw_fixed, poisson

RECORDS = 1000
SHUFFLED = grain.MapDataset.range(RECORDS).shuffle(seed=1)


@pytest.mark.parametrize(
    ("loader", "sampler"),
    [
        (SHUFFLED.repeat(2).batch(50), Shuffle()),
        (SHUFFLED.map(lambda x: x).batch(50).to_iter_dataset(), Shuffle()),
        (grain.MapDataset.range(RECORDS).batch(50).shuffle(seed=1), BatchThenShuffle()),
        (grain.MapDataset.range(RECORDS).batch(50), Sequential()),
        (SHUFFLED.repeat(2, reseed_each_epoch=False).batch(50), None),
    ],
)
def test_grain_datasets_are_recognised_without_loading(loader: Any, sampler: Any) -> None:
    found = recognise(loader, records=RECORDS)
    assert (found.sampler, found.batch_size) == (sampler, 50)
    assert "Grain" in found.words


@pytest.mark.parametrize("shuffles", [True, False])
def test_index_samplers_of_grain_are_recognised(shuffles: bool) -> None:
    sampler = grain.samplers.IndexSampler(RECORDS, shuffle=shuffles, seed=1, num_epochs=1)
    found = recognise(sampler, records=RECORDS, batch_size=50)
    assert found.sampler == (Shuffle() if shuffles else Sequential())
    with pytest.raises(InvalidArgument, match="batch_size="):
        recognise(sampler, records=RECORDS)


def test_stages_that_choose_records_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="got FilterMapDataset"):
        recognise(SHUFFLED.filter(lambda x: True), records=RECORDS, batch_size=50)


@pytest.mark.parametrize(
    ("strategy", "verdict"),
    [
        (batch_selection.CyclicPoissonSampling(sampling_prob=0.05, iterations=100), "conforms"),
        (batch_selection.CyclicPoissonSampling(sampling_prob=0.1, iterations=100), "violated"),
        (
            batch_selection.CyclicPoissonSampling(
                sampling_prob=0.05, iterations=100, truncated_batch_size=60
            ),
            "violated",
        ),
        (batch_selection.FixedBatchSampling(batch_size=50, iterations=100), "violated"),
        (batch_selection.BallsInBinsSampling(iterations=100, cycle_length=20), "violated"),
        (batch_selection.BMinSepSampling(0.05, 100, 4), "violated"),
        (SHUFFLED.batch(50), "violated"),
        ([np.arange(at, at + 50) for at in range(0, RECORDS, 50)], "violated"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_only_poisson_sampling_at_the_booked_rate_is_what_is_booked(
    strategy: Any, verdict: str
) -> None:
    found = check(strategy, book(0.05, 100), records=RECORDS, delta=1e-5)
    assert found.verdict == verdict
    if found.epsilon_real is not None and verdict == "violated":
        assert found.epsilon_real.low > found.epsilon_reported


@pytest.mark.parametrize(
    ("books", "verdict"),
    [
        (book_cut(30), "conforms"),
        (book_cut(28), "conforms"),
        (book_cut(40), "violated"),
        (book_cut(30, records=100), "violated"),  # of which hardly a batch would be cut off
        (book(), "violated"),
    ],
)
def test_batches_that_are_cut_off_are_what_is_booked_as_such(books: Any, verdict: str) -> None:
    found = check(poisson(truncated_batch_size=30), books, records=240, delta=1e-5)
    assert found.verdict == verdict
    plain = check(poisson(), books, records=240, delta=1e-5)
    assert plain.verdict == "conforms"  # none is cut off, which costs less


def test_random_subsets_are_what_is_booked_as_such() -> None:
    asked: dict[str, Any] = {"records": 240, "delta": 1e-5, "steps": 24}
    assert check(draw_fixed(), book_fixed(), **asked).verdict == "conforms"
    assert check(poisson(), book_fixed(), **asked).verdict == "conforms"
    larger = batch_selection.FixedBatchSampling(batch_size=48, iterations=24)
    assert check(larger, book_fixed(), **asked).verdict == "violated"


def test_books_of_fewer_steps_than_the_strategy_has_do_not_stand() -> None:
    """They conformed: ε = 2.67 of 50 steps would "stand" for 100."""
    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=0.05, iterations=100)
    found = check(strategy, book(0.05, 50), records=RECORDS, delta=1e-5)
    assert (found.verdict, found.missing) == ("violated", 50)
    assert "has batches for 100 steps, and 50 of them are on the books" in found.sentence
    assert check(strategy, book(0.05, 200), records=RECORDS, delta=1e-5).verdict == "conforms"
    in_turns = batch_selection.CyclicPoissonSampling(
        sampling_prob=0.25, iterations=100, cycle_length=5
    )
    by_cycle = check(in_turns, book(0.25, 20), records=RECORDS, delta=1e-5)
    assert by_cycle.verdict == "conforms"  # a booked event is a cycle


def test_bins_that_are_kept_leak_as_one_epoch_with_less_noise() -> None:
    strategy = batch_selection.BallsInBinsSampling(iterations=100, cycle_length=20)
    found = check(strategy, book(0.05, 100), records=RECORDS, delta=1e-5)
    by_hand = em.shuffle_epsilon(
        noise_multiplier=5**-0.5, steps=20, delta=1e-5, sampler=em.samplers.BallsInBins()
    )
    assert found.epsilon_real is not None
    assert found.epsilon_real.low == by_hand.low > found.epsilon_reported


def test_cyclic_sampling_has_its_turns() -> None:
    strategy = batch_selection.CyclicPoissonSampling(
        sampling_prob=0.2, iterations=10, cycle_length=4
    )
    found = recognise(strategy, records=RECORDS)
    assert (found.sampler, found.cycle_length, found.batch_size) == (Poisson(rate=0.2), 4, 50)
