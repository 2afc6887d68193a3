"""Participation: programs that do not sample as booked are caught, those that do are spared."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from epsilometer.conformance import draws
from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.core import judge
from epsilometer.errors import InvalidArgument
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
from epsilometer.types import FloatArray, IntArray

FLAKE = 1e-6
Epochs = Iterator[list[IntArray]]


def watch_epochs(
    epochs: Epochs, records: int, rate: float, *, batches: int, **options: Any
) -> ParticipationWatch:
    """Watch until something is violated, or enough was seen."""
    watch = ParticipationWatch(records, rate, **options)
    for epoch in epochs:
        watch.begin_epoch()
        for batch in epoch:
            watch.see(batch)
            if watch.violated or watch.batches == batches:
                return watch
    raise AssertionError("epochs end")


def broken(watch: ParticipationWatch) -> set[str]:
    return {check.name for check in watch.checks() if check.outcome == judge.VIOLATED}


def by_sampler(sampler: Sampler) -> Callable[[np.random.Generator, int, int], Epochs]:
    def run(rng: np.random.Generator, records: int, size: int) -> Epochs:
        while True:
            yield list(sampler.batches(records, size, rng=rng))

    return run


def by_rates(
    factors: Callable[[int], FloatArray],
) -> Callable[[np.random.Generator, int, int], Epochs]:
    """Poisson sampling in which each record has a rate of its own, times the booked one."""

    def run(rng: np.random.Generator, records: int, size: int) -> Epochs:
        rates = factors(records) * size / records
        while True:
            yield [np.flatnonzero(rng.random(records) < rates) for _ in range(records // size)]

    return run


def with_replacement(rng: np.random.Generator, records: int, size: int) -> Epochs:
    while True:
        yield list(rng.integers(records, size=(records // size, size)))


def same_seed(rng: np.random.Generator, records: int, size: int) -> Epochs:
    seed = int(rng.integers(2**32))
    while True:
        yield list(Poisson().batches(records, size, rng=np.random.default_rng(seed)))


def without_epochs(rng: np.random.Generator, records: int, size: int) -> Epochs:
    """Shuffling in an endless loader, which never says that an epoch begins."""
    yield [batch for _ in range(50) for batch in Shuffle().batches(records, size, rng=rng)]


EPOCH, LATE = 1.0, 12.0  # epochs within which it is caught
WRONG: dict[str, tuple[Any, str, float]] = {
    "shuffling": (by_sampler(Shuffle()), "records drawn again", EPOCH),
    "last batch dropped": (by_sampler(Shuffle(drop_last=True)), "records drawn again", EPOCH),
    "shuffling without epochs": (without_epochs, "records drawn again", EPOCH),
    "shuffling in a buffer": (by_sampler(PartialShuffle(100)), "records drawn again", EPOCH),
    "fixed batches in random order": (by_sampler(BatchThenShuffle()), "fresh batches", EPOCH),
    "in order": (by_sampler(Sequential()), "records drawn again", EPOCH),
    "balls in bins": (by_sampler(BallsInBins()), "records drawn again", EPOCH),
    "fixed size": (by_sampler(WithoutReplacement()), "batch sizes", EPOCH),
    "with replacement": (with_replacement, "once per batch", EPOCH),
    "doubled rate": (by_rates(lambda n: np.full(n, 2.0)), "sampling rate", EPOCH),
    "rate 1.2 times the booked": (by_rates(lambda n: np.full(n, 1.2)), "sampling rate", LATE),
    "half of the records three times as often": (
        by_rates(lambda n: np.where(np.arange(n) % 2, 1.5, 0.5)),
        "equal chances",
        LATE,
    ),
    "one record in fifty eight times as often": (
        by_rates(lambda n: np.where(np.arange(n) % 50, 6 / 7, 8.0)),
        "equal chances",
        LATE,
    ),
    "same seed every epoch": (same_seed, "fresh batches", 2 * EPOCH),
}
BY_PROGRAM = pytest.mark.parametrize(("run", "name", "epochs"), WRONG.values(), ids=WRONG)


@pytest.mark.parametrize(("records", "size"), [(64, 4), (500, 25), (2000, 20), (3001, 300)])
@BY_PROGRAM
def test_wrong_sampling_is_caught(
    run: Any, name: str, epochs: float, records: int, size: int
) -> None:
    most = max(12, round(epochs * records / size))
    batches = run(np.random.default_rng(0), records, size)
    assert watch_epochs(batches, records, size / records, batches=most).violated


@BY_PROGRAM
def test_each_wrong_sampling_has_its_check(run: Any, name: str, epochs: float) -> None:
    watch = ParticipationWatch(500, 0.05)
    for _, epoch in zip(range(6), run(np.random.default_rng(0), 500, 25), strict=False):
        watch.begin_epoch()
        for batch in epoch[:60]:
            watch.see(batch)
    assert name in broken(watch)


def poisson(rng: np.random.Generator, records: int, rate: float, steps: int) -> Epochs:
    while True:
        yield list(Poisson(rate=rate, steps=steps).batches(records, 1, rng=rng))


RIGHT = [(1, 0.5, 2), (64, 1 / 16, 16), (93, 0.001, 50), (300, 0.5, 2), (1000, 0.05, 20)]


def accuse(runs: int, *, level: float, batches: int, seed: int = 0) -> dict[str, int]:
    """Count accusations of right runs, of all settings in turn."""
    counts: dict[str, int] = {"all": 0}
    for run in range(runs):
        records, rate, steps = RIGHT[run % len(RIGHT)]
        rng = np.random.default_rng([seed, run])
        drawn = rate * (0.7 if run % 3 == 2 else 1.0)  # fewer than booked is right as well
        epochs = poisson(rng, records, drawn, steps)
        watch = watch_epochs(epochs, records, rate, batches=batches, level=level)
        counts["all"] += watch.violated
        for name in broken(watch):
            counts[name] = counts.get(name, 0) + 1
    return counts


def test_poisson_sampling_is_accused_no_more_often_than_the_level_says() -> None:
    counts = accuse(120, level=0.3, batches=30)  # a high level, at which faults would show
    assert counts["all"] <= scipy.stats.binom.isf(FLAKE, 120, 0.3)
    for name, count in counts.items():
        if name != "all":
            assert count <= scipy.stats.binom.isf(FLAKE, 120, 0.3 / 6), name


@pytest.mark.slow
def test_of_2000_right_runs_none_is_accused() -> None:
    assert accuse(2000, level=1e-4, batches=60, seed=1)["all"] <= scipy.stats.binom.isf(
        FLAKE, 2000, 1e-4
    )
    counts = accuse(1000, level=0.3, batches=60, seed=2)
    for name, count in counts.items():
        share = 0.3 if name == "all" else 0.3 / 6
        assert count <= scipy.stats.binom.isf(FLAKE, 1000, share), name


def test_a_rate_that_changes_below_the_booked_one_is_right() -> None:
    rng, watch = np.random.default_rng(0), ParticipationWatch(500, 0.1)
    for step in range(100):
        watch.see(np.flatnonzero(rng.random(500) < 0.1 * (0.5 + 0.5 * (step % 2))))
    assert not watch.violated
    assert watch.checks()[0].outcome == judge.REMARK  # fewer records than booked
    assert (
        watch.checks()[0].seen
        == f"{watch.checks()[0].value:.4g} of the records in a batch, 0.1 booked"
    )


def test_booked_rates_may_change() -> None:
    rng, watch = np.random.default_rng(0), ParticipationWatch(500, 0.1)
    for step in range(60):
        rate = 0.1 if step < 30 else 0.3
        watch.see(np.flatnonzero(rng.random(500) < rate), rate=rate)
    assert not watch.violated


@pytest.mark.parametrize("records", [1, 40])
def test_all_records_in_every_step_are_right_at_rate_1(records: int) -> None:
    watch = ParticipationWatch(records, 1.0)
    for _ in range(40):
        watch.begin_epoch()
        watch.see(np.arange(records))
        watch.see_rows(records, records)
    assert {check.outcome for check in watch.checks()} <= {judge.CONFORMS, judge.NOT_TESTED}
    watch.see(np.arange(records - 1))
    assert not watch.violated


class TestRows:
    """Rows of the gradient against records drawn."""

    def test_augmentations_as_rows_are_caught_at_once(self) -> None:
        watch = ParticipationWatch(1000, 0.05)
        watch.see_rows(50, 8 * 50)
        check = {check.name: check for check in watch.checks()}
        assert check["rows per record"].outcome == judge.VIOLATED
        assert check["rows per record"].seen == "400 rows of 50 records drawn"
        assert check["rows per step"].outcome == judge.VIOLATED

    def test_batches_accumulated_and_not_booked_are_caught(self) -> None:
        rng, watch = np.random.default_rng(0), ParticipationWatch(1000, 0.05)
        for _ in range(10):
            drawn = int(rng.binomial(2000, 0.05))
            watch.see_rows(drawn, drawn)
        assert broken(watch) == {"rows per step", "sizes of steps"}

    def test_steps_that_are_cut_off_are_caught(self) -> None:
        rng, watch = np.random.default_rng(0), ParticipationWatch(1000, 0.05)
        for _ in range(60):
            drawn = int(rng.binomial(1000, 0.05))
            watch.see_rows(drawn, min(drawn, 45))
        assert broken(watch) == {"sizes of steps"}

    def test_records_in_two_batches_of_a_step_are_a_remark(self) -> None:
        watch = ParticipationWatch(10, 0.5)
        watch.see([1, 2])
        watch.see([2, 3])
        watch.see_joined([1, 2, 2, 3])
        check = {each.name: each for each in watch.checks()}["once per batch"]
        assert (check.outcome, check.seen.split(" in ")[0]) == (judge.REMARK, "1 record")

    def test_batches_accumulated_and_booked_are_spared(self) -> None:
        rng, watch = np.random.default_rng(0), ParticipationWatch(1000, 0.05)
        for _ in range(50):
            drawn = int(rng.binomial(1000, 0.1))
            watch.see_rows(drawn, drawn, rate=0.1)
        assert not watch.violated

    def test_fewer_rows_and_rows_that_come_later_are_spared(self) -> None:
        watch = ParticipationWatch(100, 0.5)
        for drawn, rows in ((90, 30), (50, 40), (0, 60), (40, 50)):  # drawn ahead of their steps
            watch.see_rows(drawn, rows)
        assert not watch.violated

    def test_a_row_of_random_numbers_for_an_empty_batch_is_spared(self) -> None:
        watch = ParticipationWatch(20, 0.05)
        watch.see_rows(2, 2)
        for _ in range(200):
            watch.see_rows(0, 1)
        assert not watch.violated

    def test_nothing_is_said_of_batches_that_were_not_seen(self) -> None:
        watch = ParticipationWatch(100, 0.5)
        watch.see_rows(0, 45)
        assert watch.checks()[-1].outcome == judge.NOT_TESTED


def test_nothing_is_tested_before_the_first_batch() -> None:
    checks = ParticipationWatch(10, 0.5).checks()
    assert {check.outcome for check in checks} == {judge.NOT_TESTED}
    assert len({check.name for check in checks}) == 9


def test_an_accusation_stays() -> None:
    rng, watch = np.random.default_rng(0), ParticipationWatch(200, 0.1)
    for batch in Shuffle().batches(200, 20, rng=rng):
        watch.see(batch)
    at = watch.checks()[2].steps
    assert watch.checks()[2].outcome == judge.VIOLATED
    for _ in range(50):
        watch.begin_epoch()
        watch.see(np.flatnonzero(rng.random(200) < 0.1))
    assert (watch.checks()[2].outcome, watch.checks()[2].steps) == (judge.VIOLATED, at)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ParticipationWatch(0, 0.5), "records"),
        (lambda: ParticipationWatch(10, 0.0), "rate"),
        (lambda: ParticipationWatch(10, 1.5), "rate"),
        (lambda: ParticipationWatch(10, 0.5, level=0.0), "level"),
        (lambda: ParticipationWatch(10, 0.5).see([10]), "from 0 to 9, got 10"),
        (lambda: ParticipationWatch(10, 0.5).see([-1]), "got -1"),
        (lambda: ParticipationWatch(10, 0.5).see([0.5]), "whole numbers"),  # type: ignore[list-item]
        (lambda: ParticipationWatch(10, 0.5).see([1], rate=2.0), "rate"),
        (lambda: ParticipationWatch(10, 0.5).see_rows(-1, 2), "drawn"),
    ],
)
def test_bad_calls_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call()


class TestRatios:
    """Each ratio has the expectation that it claims, summed over all that may happen."""

    @pytest.mark.parametrize(("marked", "drawn"), [(0, 4), (3, 4), (12, 4), (7, 12), (5, 0)])
    def test_ratios_of_marked_records_are_fair(self, marked: int, drawn: int) -> None:
        odds = np.array([0.1, 0.5, 2.0, 9.0])
        law = scipy.stats.hypergeom(12, marked, drawn)
        counts = range(max(0, drawn + marked - 12), min(marked, drawn) + 1)
        ratios = [
            draws.marked_ratios(k, marked, drawn=drawn, records=12, odds=odds) for k in counts
        ]
        most = [draws.most_ratio(k, marked, drawn=drawn, records=12) for k in counts]
        weights = law.pmf(list(counts))
        np.testing.assert_allclose(weights @ np.exp(ratios), 1, rtol=1e-10)
        np.testing.assert_allclose(weights @ np.exp(most), 1, rtol=1e-10)

    def test_large_sums_are_bounded_from_above(self) -> None:
        odds, counts = np.array([0.5, 3.0]), np.arange(5_001)
        law = scipy.stats.hypergeom(100_000, 6_000, 5_000).logpmf(counts)
        exact = 310 * np.log(odds) - [
            scipy.special.logsumexp(law + counts * np.log(each)) for each in odds
        ]
        bounded = draws.marked_ratios(310, 6_000, drawn=5_000, records=100_000, odds=odds)
        assert np.all(bounded <= exact)
        np.testing.assert_allclose(bounded, exact, rtol=0.3)

    @pytest.mark.parametrize("rate", [0.1, 0.7, 1.0])
    def test_ratios_of_rates_are_fair_or_less(self, rate: float) -> None:
        larger = np.array([rate, (1 + rate) / 2])
        ratios = np.exp([draws.rate_ratios(k, 20, rate, larger) for k in range(21)])
        for real in (rate, 0.8 * rate, 0.1 * rate):
            mean = scipy.stats.binom.pmf(range(21), 20, real) @ ratios
            assert np.all(mean <= 1 + 1e-9)
            if real == rate:
                np.testing.assert_allclose(mean, 1)

    @pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
    def test_sizes_have_at_least_their_chance(self, rate: float) -> None:
        for size in range(21):
            log = draws.log_size_chance(size, 20, rate)
            for real in (rate, 0.6 * rate, 0.01 * rate):
                assert log >= scipy.stats.binom.logpmf(size, 20, real) - 1e-9
            best = min(size / 20, rate)
            np.testing.assert_allclose(log, scipy.stats.binom.logpmf(size, 20, best), atol=1e-9)
