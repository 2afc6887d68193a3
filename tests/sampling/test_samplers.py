"""Each sampler draws by exactly its law: small cases are counted out by hand, all else follows."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    Law,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
    expected_rate,
    find_law,
    has_known_order,
    is_displacing,
    is_poisson,
    pin_sampler,
)
from tests.oracles import FLAKE

Outcome = tuple[tuple[int, ...], ...]


def drawn(sampler: Sampler, records: int, size: int, rng: np.random.Generator) -> Outcome:
    """The batches of an epoch as sets, in their order."""
    batches = sampler.batches(records, size, rng=rng)
    return tuple(tuple(sorted(batch.tolist())) for batch in batches)


def cut(order: tuple[int, ...], size: int) -> Outcome:
    return tuple(tuple(sorted(order[i : i + size])) for i in range(0, len(order), size))


def orders(records: int, allowed: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """All orders that have every record at a place that it is allowed."""
    return [
        order
        for order in permutations(range(records))
        if all(allowed(record, place) for place, record in enumerate(order))
    ]


def subsets(records: int) -> list[tuple[int, ...]]:
    return [s for k in range(records + 1) for s in combinations(range(records), k)]


def in_bins(bins: tuple[int, ...], steps: int) -> Outcome:
    return tuple(tuple(r for r, b in enumerate(bins) if b == step) for step in range(steps))


def equally_likely() -> list[Any]:
    """Samplers on a few records, with every outcome as often as it is there of all."""
    every = orders(5, lambda record, place: True)
    blocks = orders(5, lambda record, place: record // 2 == place // 2)
    uneven = orders(5, lambda record, place: record // 3 == place // 3)
    slides = orders(5, lambda record, place: place >= record - 1)
    assert len(slides) == 2**3 * math.factorial(2)
    slices = [(0, 1), (2, 3), (4,)]
    laws: list[tuple[Sampler, int, int, list[Outcome]]] = [
        (Sequential(), 5, 2, [cut((0, 1, 2, 3, 4), 2)]),
        (Sequential(drop_last=True), 5, 2, [cut((0, 1, 2, 3), 2)]),
        (Shuffle(), 5, 2, [cut(order, 2) for order in every]),
        (Shuffle(drop_last=True), 5, 2, [cut(order[:4], 2) for order in every]),
        (PartialShuffle(5), 5, 2, [cut(order, 2) for order in every]),
        (PartialShuffle(9, sliding=True), 5, 2, [cut(order, 2) for order in every]),
        (PartialShuffle(1), 5, 2, [cut((0, 1, 2, 3, 4), 2)]),
        (PartialShuffle(1, sliding=True), 5, 2, [cut((0, 1, 2, 3, 4), 2)]),
        (PartialShuffle(2), 5, 1, [cut(order, 1) for order in blocks]),
        (PartialShuffle(3), 5, 1, [cut(order, 1) for order in uneven]),
        (PartialShuffle(2, drop_last=True), 5, 3, [cut(order[:3], 3) for order in blocks]),
        (PartialShuffle(2, sliding=True), 5, 1, [cut(order, 1) for order in slides]),
        (PartialShuffle(2, sliding=True), 5, 2, [cut(order, 2) for order in slides]),
        (BatchThenShuffle(), 5, 2, list(permutations(slices))),
        (BatchThenShuffle(drop_last=True), 5, 2, list(permutations(slices[:2]))),
        (BallsInBins(), 4, 2, [in_bins(b, 2) for b in product(range(2), repeat=4)]),
        (BallsInBins(steps=3), 3, 2, [in_bins(b, 3) for b in product(range(3), repeat=3)]),
        (Poisson(), 2, 1, list(product(subsets(2), repeat=2))),
        (Poisson(rate=0.5, steps=1), 4, 1, [(s,) for s in subsets(4)]),
        (Poisson(), 3, 3, [((0, 1, 2),)]),
        (WithoutReplacement(), 3, 2, list(product(combinations(range(3), 2), repeat=2))),
        (WithoutReplacement(steps=1), 5, 2, [(s,) for s in combinations(range(5), 2)]),
    ]
    return [pytest.param(*law, id=f"{law[0]}-{law[1]}-{law[2]}") for law in laws]


def follows(sample: list[Any], outcomes: list[Any]) -> bool:
    """No outcome but these, each as often as it should be: chi-square, ≥ 50 expected of each."""
    law, counts = Counter(outcomes), Counter(sample)
    if not counts.keys() <= law.keys():
        return False
    expected = [len(sample) * often / len(outcomes) for often in law.values()]
    seen = [counts[outcome] for outcome in law]
    return len(law) == 1 or bool(scipy.stats.chisquare(seen, expected).pvalue > FLAKE)


@pytest.mark.parametrize(("sampler", "records", "size", "outcomes"), equally_likely())
def test_every_outcome_is_as_likely_as_it_should_be(
    sampler: Sampler, records: int, size: int, outcomes: list[Outcome], rng: np.random.Generator
) -> None:
    runs = 50 * len(set(outcomes))
    assert follows([drawn(sampler, records, size, rng) for _ in range(runs)], outcomes)


@pytest.mark.parametrize(
    ("sampler", "records", "size", "outcomes"),
    [case for case in equally_likely() if 1 < len(set(case.values[3])) <= 20],  # type: ignore[arg-type]
)
@pytest.mark.in_turn(3)
def test_epochs_are_independent(
    sampler: Sampler, records: int, size: int, outcomes: list[Outcome], rng: np.random.Generator
) -> None:
    runs = 50 * len(set(outcomes)) ** 2
    pairs = [tuple(drawn(sampler, records, size, rng) for _ in range(2)) for _ in range(runs)]
    assert follows(pairs, list(product(outcomes, repeat=2)))


class Careless:
    """A shuffle that swaps every place with any place: the classic mistake."""

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        order = np.arange(records)
        for place, other in enumerate(rng.integers(records, size=records)):
            order[[place, other]] = order[[other, place]]
        return iter(np.split(order, range(batch_size, records, batch_size)))


def test_the_tests_above_would_see_a_careless_shuffle(rng: np.random.Generator) -> None:
    outcomes = [cut(order, 1) for order in permutations(range(4))]
    assert not follows([drawn(Careless(), 4, 1, rng) for _ in range(5000)], outcomes)


def test_the_tests_above_would_see_a_rate_a_tenth_off(rng: np.random.Generator) -> None:
    outcomes = list(product(subsets(2), repeat=2))
    assert not follows([drawn(Poisson(rate=0.45), 2, 1, rng) for _ in range(3000)], outcomes)


def position(sampler: Sampler, record: int, records: int, rng: np.random.Generator) -> int:
    order = np.concatenate(list(sampler.batches(records, 1, rng=rng)))
    return int(np.flatnonzero(order == record)[0])


def test_the_first_record_leaves_a_sliding_buffer_after_a_geometric_wait(
    rng: np.random.Generator,
) -> None:
    """While the buffer is full it goes with chance 1/K a step, then is anywhere in the rest."""
    records, buffer, runs = 12, 4, 6000
    seen = [position(PartialShuffle(buffer, sliding=True), 0, records, rng) for _ in range(runs)]
    full = records - buffer
    chances = [(1 - 1 / buffer) ** k / buffer for k in range(full)]
    chances += [(1 - sum(chances)) / buffer] * buffer
    counts = np.bincount(seen, minlength=records)
    assert scipy.stats.chisquare(counts, runs * np.array(chances)).pvalue > FLAKE


@pytest.mark.parametrize(
    ("sampler", "chance"),
    [(Poisson(), 1 / 9), (Poisson(rate=0.3), 0.3), (WithoutReplacement(), 7 / 60)],
)
def test_every_batch_takes_a_record_by_a_coin_of_its_own(
    sampler: Sampler, chance: float, rng: np.random.Generator
) -> None:
    records, epochs, steps = 60, 300, 9
    taken = np.zeros((epochs, steps, records))
    for epoch in range(epochs):
        for step, batch in enumerate(sampler.batches(records, 7, rng=rng)):
            taken[epoch, step, batch] += 1
    assert taken.max() == 1
    limits = scipy.stats.binom.ppf([FLAKE / 120, 1 - FLAKE / 120], epochs * steps, chance)
    visits = taken.sum(axis=(0, 1))
    assert limits[0] <= visits.min() <= visits.max() <= limits[1]
    both = (taken[:, :-1, :] * taken[:, 1:, :]).sum()  # in this batch and the next
    trials = epochs * (steps - 1) * records
    assert scipy.stats.binomtest(int(both), trials, chance**2).pvalue > FLAKE


def test_sizes_of_poisson_batches_are_binomial(rng: np.random.Generator) -> None:
    sizes = [b.size for _ in range(300) for b in Poisson().batches(40, 4, rng=rng)]
    counts = np.bincount(np.minimum(sizes, 9), minlength=10)
    law = scipy.stats.binom(40, 0.1)
    expected = np.append(law.pmf(np.arange(9)), law.sf(8)) * len(sizes)
    assert scipy.stats.chisquare(counts, expected).pvalue > FLAKE


COVERING = [
    Sequential(),
    Shuffle(),
    PartialShuffle(7),
    PartialShuffle(7, sliding=True),
    BatchThenShuffle(),
    BallsInBins(),
]


@given(
    sampler=st.sampled_from(COVERING),
    records=st.integers(1, 60),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_record_comes_once(sampler: Sampler, records: int, share: float, seed: int) -> None:
    size = 1 + int(share * (records - 1))
    batches = list(sampler.batches(records, size, rng=np.random.default_rng(seed)))
    assert len(batches) == math.ceil(records / size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(records))
    assert all(batch.dtype == np.int64 for batch in batches)
    if not isinstance(sampler, BallsInBins):
        ragged = [batch.size for batch in batches if batch.size != size]
        assert ragged in ([], [records % size])


@given(
    buffer=st.integers(1, 70),
    sliding=st.booleans(),
    records=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_record_leaves_its_buffer(buffer: int, sliding: bool, records: int, seed: int) -> None:
    sampler = PartialShuffle(buffer, sliding=sliding)
    order = np.concatenate(list(sampler.batches(records, 1, rng=np.random.default_rng(seed))))
    place = np.argsort(order)
    if sliding:
        assert (place >= np.arange(records) - buffer + 1).all()
    else:
        assert (place // buffer == np.arange(records) // buffer).all()


@given(sampler=st.sampled_from(COVERING[:5]), records=st.integers(2, 60), seed=st.integers(0, 99))
def test_drop_last_leaves_the_ragged_batch_out(sampler: Any, records: int, seed: int) -> None:
    size = records // 2 + records % 2 if records > 2 else 2
    dropped = type(sampler)(**{**vars(sampler), "drop_last": True})
    batches = list(dropped.batches(records, size, rng=np.random.default_rng(seed)))
    assert [batch.size for batch in batches] == [size] * (records // size)
    assert np.unique(np.concatenate(batches)).size == records // size * size


@pytest.mark.parametrize("sampler", [*COVERING, Poisson(), WithoutReplacement()])
def test_same_rng_same_batches(sampler: Sampler) -> None:
    one, other = (drawn(sampler, 50, 7, np.random.default_rng(3)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("sampler", [*COVERING, Poisson(), WithoutReplacement()])
@pytest.mark.parametrize(
    ("records", "size", "words"),
    [
        (0, 1, "records ≥ 1, got 0"),
        (5, 0, "batch_size ≥ 1, got 0"),
        (5, 6, "batch_size ≤ records = 5, got 6"),
        (2.5, 1, "whole number for records, got 2.5"),
        (5, True, "whole number for batch_size, got True"),
    ],
)
def test_impossible_epochs_are_refused_at_once(
    sampler: Sampler, records: Any, size: Any, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        sampler.batches(records, size, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PartialShuffle(0), "buffer ≥ 1, got 0"),
        (lambda: PartialShuffle(2.0), "whole number for buffer, got 2.0"),  # type: ignore[arg-type]
        (lambda: BallsInBins(steps=0), "steps ≥ 1, got 0"),
        (lambda: WithoutReplacement(steps=-1), "steps ≥ 1, got -1"),
        (lambda: Poisson(steps=0), "steps ≥ 1, got 0"),
        (lambda: Poisson(rate=0.0), "rate > 0"),
        (lambda: Poisson(rate=1.5), r"rate in \[0, 1\], got 1.5"),
    ],
)
def test_impossible_samplers_are_refused(make: Callable[[], Sampler], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


# --- what is known of each
EVERY = [
    (Sequential(), Law(steps=1, absent=1)),
    (Shuffle(), Law(steps=12, absent=1)),
    (PartialShuffle(10), Law(steps=3, absent=1)),
    (PartialShuffle(1000), Law(steps=12, absent=1)),
    (BatchThenShuffle(drop_last=True), Law(steps=12, absent=7)),
    (BatchThenShuffle(), Law(steps=12, absent=4)),
    (BallsInBins(), Law(steps=12, absent=0)),
    (Poisson(), Law(steps=12, absent=0, rate=1 / 12)),
    (Poisson(rate=0.3, steps=12), Law(steps=12, absent=0, rate=0.3)),
    (WithoutReplacement(), Law(steps=12, absent=1, rate=1 / 12)),
]


@pytest.mark.parametrize(("sampler", "law"), EVERY)
def test_laws(sampler: Sampler, law: Law) -> None:
    assert find_law(sampler, 12, 4) == law
    assert is_poisson(sampler) == isinstance(sampler, Poisson)
    assert has_known_order(sampler) == isinstance(sampler, Sequential)
    assert is_displacing(sampler) == (law.absent > 0)  # who displaces stands out even when zeroed


@pytest.mark.parametrize(("sampler", "law"), EVERY)
def test_a_record_comes_as_often_as_its_law_says(
    sampler: Sampler, law: Law, rng: np.random.Generator
) -> None:
    epochs = 400
    came = np.zeros((epochs, 12), np.int64)
    for row in came:
        for step, batch in enumerate(sampler.batches(48, 4, rng=rng)):
            row[step] = np.count_nonzero(batch == 0)
    if law.rate is None:
        assert (came.sum(axis=1) == 1).all()
        assert np.count_nonzero(came.any(axis=0)) == law.steps
        assert not came[:, law.steps :].any()  # record 0 is in the first batches
    else:
        assert scipy.stats.binomtest(int(came.sum()), came.size, law.rate).pvalue > FLAKE


def test_laws_that_need_more_say_so() -> None:
    for sampler in (PartialShuffle(4), BatchThenShuffle()):
        with pytest.raises(InvalidArgument, match="Expected a batch_size with"):
            find_law(sampler, 12)
    with pytest.raises(InvalidArgument, match="a sliding one: the law of its batches is not known"):
        find_law(PartialShuffle(4, sliding=True), 12, 4)
    with pytest.raises(InvalidArgument, match="steps to be 12, got 3"):
        find_law(Poisson(steps=3), 12)
    for wrong in ({"steps": 0, "absent": 1}, {"steps": 1, "absent": -1}):
        with pytest.raises(InvalidArgument):
            Law(**wrong)
    for rate in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidArgument):
            Law(steps=1, absent=0, rate=rate)


def test_a_pinned_sampler_draws_alike_for_a_record_less(rng: np.random.Generator) -> None:
    pinned = pin_sampler(Poisson(), 48, 4)
    assert pinned == Poisson(rate=4 / 48, steps=12)
    assert expected_rate(pinned, 47, 4) == 4 / 48
    assert pin_sampler(Shuffle(), 48, 4) == Shuffle()
    assert expected_rate(Shuffle(), 48, 4) == 4 / 48


def test_the_law_leaves_out_at_least_what_the_sampler_does(rng: np.random.Generator) -> None:
    for sampler in (Shuffle(drop_last=True), PartialShuffle(10, drop_last=True)):
        assert find_law(sampler, 2, 4).left_out == 1 / 3
        came = sum(0 in np.concatenate(list(sampler.batches(11, 4, rng=rng))) for _ in range(2000))
        assert scipy.stats.binomtest(2000 - came, 2000, 1 / 3, alternative="greater").pvalue > FLAKE
    assert not find_law(PartialShuffle(8, drop_last=True), 2, 4).left_out
    assert not find_law(Shuffle(), 2, 4).left_out
    with pytest.raises(InvalidArgument):
        Law(steps=2, absent=1, left_out=1.0)
