"""A loader is recognised for what it draws, over many seeds, and odd ones are told apart."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.sampling.loaders import FromLoader, LoaderReport, watch_loader
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
from tests.conftest import run_often
from tests.oracles import FLAKE

RECORDS, SIZE, EPOCHS, SEEDS = 120, 10, 64, 20
RAGGED = 123
CONFIDENCE = 0.999  # the default
ALLOWED = scipy.stats.binom.isf(FLAKE, SEEDS, 1 - CONFIDENCE)  # mistakes in that many seeds


class Anew:
    """A batch sampler written by hand: calls for the batches of every epoch by its number."""

    def __init__(self, epoch: Callable[[int], Any]) -> None:
        self.epoch, self.count = epoch, -1

    def __iter__(self) -> Iterator[Any]:
        self.count += 1
        return iter(self.epoch(self.count))


def drawing(
    sampler: Sampler, rng: np.random.Generator, *, records: int = RECORDS, size: int = SIZE
) -> Anew:
    return Anew(lambda _: [b.tolist() for b in sampler.batches(records, size, rng=rng)])


def cut(order: Any, size: int = SIZE) -> list[list[int]]:
    return [list(order[i : i + size]) for i in range(0, len(order), size)]


def watched(loader: Any, rng: np.random.Generator, **keywords: Any) -> LoaderReport:
    return watch_loader(loader, **{"epochs": EPOCHS, "rng": rng, **keywords})


def mistakes(
    make: Callable[[np.random.Generator], Any],
    right: Callable[[LoaderReport], bool],
    rng: np.random.Generator,
    **keywords: Any,
) -> int:
    reports = [watched(make(seed), seed, **keywords) for seed in rng.spawn(SEEDS)]
    return sum(not right(report) for report in reports)


def is_none(report: LoaderReport) -> bool:
    return report.sampler is None and report.accountant.startswith("none")


OURS = [
    (Sequential(), RAGGED),
    (Shuffle(), RAGGED),
    (Shuffle(), RECORDS),
    (Shuffle(drop_last=True), RAGGED),
    (PartialShuffle(20), RECORDS),
    (PartialShuffle(25), RAGGED),
    (PartialShuffle(60), RECORDS),
    (PartialShuffle(60, drop_last=True), RAGGED),
    (PartialShuffle(7), RECORDS),
    (BatchThenShuffle(), RECORDS),
    (BatchThenShuffle(), RAGGED),
    (BallsInBins(), RECORDS),
    (BallsInBins(), RAGGED),
    (BallsInBins(steps=50), RECORDS),
    (Poisson(), RAGGED),
    (Poisson(steps=5), RECORDS),
    (WithoutReplacement(), RAGGED),
    (WithoutReplacement(steps=5), RECORDS),
]


@pytest.mark.parametrize(
    ("sampler", "records"),
    run_often(OURS, [OURS[place] for place in (0, 1, 5, 9, 12, 14, 17)]),
    ids=str,
)
def test_our_samplers_are_recognised(
    sampler: Sampler, records: int, rng: np.random.Generator
) -> None:
    def right(report: LoaderReport) -> bool:
        return report.sampler == sampler and not report.accountant.startswith("none that")

    def made(seed: np.random.Generator) -> Anew:
        return drawing(sampler, seed, records=records)

    assert mistakes(made, right, rng, records=records) <= ALLOWED


@pytest.mark.parametrize("sampler", [Sequential(True), BatchThenShuffle(True)], ids=str)
def test_slices_that_drop_their_ragged_end_are_recognised(
    sampler: Sampler, rng: np.random.Generator
) -> None:
    report = watched(drawing(sampler, rng, records=RAGGED), rng, records=RAGGED)
    assert report.sampler == sampler
    assert "3 of 123 records never came" in report.caveats[0]


@pytest.mark.parametrize("buffer", run_often([15, 40, 80], [40]))
def test_a_sliding_buffer_is_measured(buffer: int, rng: np.random.Generator) -> None:
    """Never too large; too small by d only if no batch took, of the d² / 2 places and records
    that would show less, one: each has chance 1 / buffer or a little less, in so many batches."""
    batches = EPOCHS * (RECORDS - buffer) // SIZE
    slack = next(d for d in range(99) if np.exp(-batches * d * (d + 1) / 2 / buffer) < FLAKE)

    def right(report: LoaderReport) -> bool:
        match report.sampler:
            case PartialShuffle(buffer=found, sliding=True):
                return buffer - slack <= found <= buffer and report.accountant.startswith("none: a")
        return False

    sampler = PartialShuffle(buffer, sliding=True)
    assert mistakes(lambda seed: drawing(sampler, seed), right, rng) <= ALLOWED


@pytest.mark.parametrize(
    ("buffer", "records", "words"),
    [
        (20, 120, "the shuffle accountant with 2 batches"),
        (100, 120, "the shuffle accountant with 2 batches"),
        (25, 120, "none: borders of blocks lie inside batches"),
        (20, 125, "some records can land in one batch only"),
        (7, 120, "some records can land in one batch only"),
    ],
)
def test_blocks_have_the_accountant_of_their_shortest(
    buffer: int, records: int, words: str, rng: np.random.Generator
) -> None:
    report = watched(drawing(PartialShuffle(buffer), rng, records=records), rng, records=records)
    assert report.sampler == PartialShuffle(buffer)
    assert words in report.accountant


def test_shuffling_inside_batches_is_none(rng: np.random.Generator) -> None:
    assert watched(drawing(PartialShuffle(5), rng), rng).sampler == Sequential()


# torch and Opacus


@pytest.fixture
def data() -> Any:
    """torch.utils.data, seeded by the test's own stream of randomness."""
    return pytest.importorskip("torch.utils.data")


@dataclass
class Records:
    """A dataset that must not be read."""

    size: int = RECORDS

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a record was loaded")


TORCH: dict[str, tuple[Callable[[Any, Any], Any], Callable[[LoaderReport], bool]]] = {
    "shuffle": (
        lambda data, g: data.DataLoader(Records(), batch_size=SIZE, shuffle=True, generator=g),
        lambda report: report.sampler == Shuffle() and "Poisson one does not" in report.accountant,
    ),
    "drop_last": (
        lambda data, g: data.DataLoader(
            Records(RAGGED), batch_size=SIZE, shuffle=True, drop_last=True, generator=g
        ),
        lambda report: report.sampler == Shuffle(drop_last=True) and report.steps == 12,
    ),
    "batch sampler": (
        lambda data, g: data.BatchSampler(data.RandomSampler(Records(), generator=g), SIZE, False),
        lambda report: report.sampler == Shuffle() and report.records == RECORDS,
    ),
    "batch sampler as sampler": (
        lambda data, g: data.DataLoader(
            Records(),
            sampler=data.BatchSampler(data.RandomSampler(Records(), generator=g), SIZE, False),
            batch_size=None,
        ),
        lambda report: report.sampler == Shuffle() and report.batch_size == SIZE,
    ),
    "one at a time": (
        lambda data, g: data.DataLoader(
            Records(), sampler=data.RandomSampler(Records(), generator=g), batch_size=None
        ),
        lambda report: report.sampler == Shuffle() and report.batch_size == 1,
    ),
    "subset": (
        lambda data, g: data.DataLoader(
            Records(),
            batch_size=SIZE,
            sampler=data.SubsetRandomSampler(range(0, RECORDS, 2), generator=g),
        ),
        lambda report: report.sampler == Shuffle() and "60 of 120" in report.caveats[0],
    ),
    "with replacement": (
        lambda data, g: data.DataLoader(
            Records(),
            batch_size=SIZE,
            sampler=data.RandomSampler(Records(), replacement=True, generator=g),
        ),
        lambda report: is_none(report) and report.name == "with replacement",
    ),
    "weighted with replacement": (
        lambda data, g: data.DataLoader(
            Records(),
            batch_size=SIZE,
            sampler=data.WeightedRandomSampler(range(1, RECORDS + 1), RECORDS, generator=g),
        ),
        lambda report: is_none(report) and "unevenly" in report.accountant,
    ),
    "weighted": (
        lambda data, g: data.DataLoader(
            Records(),
            batch_size=SIZE,
            sampler=data.WeightedRandomSampler(
                range(1, RECORDS + 1), RECORDS, replacement=False, generator=g
            ),
        ),
        lambda report: is_none(report) and "not Shuffle()" in report.accountant,
    ),
    "distributed": (
        lambda data, g: data.DataLoader(
            Records(),
            batch_size=SIZE,
            sampler=data.DistributedSampler(Records(), 1, 0, seed=g.initial_seed() % 2**30),
        ),
        lambda report: (
            report.name == "one fixed order"
            and is_none(report)
            and any("set_epoch=True" in caveat for caveat in report.caveats)
        ),
    ),
}


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.in_turn(3)
def test_loaders_of_torch_are_recognised(kind: str, data: Any, rng: np.random.Generator) -> None:
    import torch

    make, right = TORCH[kind]

    def seeded(seed: np.random.Generator) -> Any:
        return make(data, torch.Generator().manual_seed(int(seed.integers(2**40))))

    assert mistakes(seeded, right, rng) <= ALLOWED


def test_an_unshuffled_loader_of_torch_is_sequential(data: Any, rng: np.random.Generator) -> None:
    report = watched(data.DataLoader(Records(RAGGED), batch_size=SIZE), rng)
    assert report.sampler == Sequential()
    assert report.accountant == "the Gaussian mechanism once per epoch, without amplification"
    assert (report.records, report.batch_size, report.steps) == (RAGGED, SIZE, 13)
    alone = watch_loader(data.SequentialSampler(Records()), batch_size=SIZE, rng=rng)
    assert alone.sampler == Sequential()


def test_a_distributed_sampler_that_is_told_the_epoch_shuffles(
    data: Any, rng: np.random.Generator
) -> None:
    loader = data.DataLoader(
        Records(), batch_size=SIZE, sampler=data.DistributedSampler(Records(), 1, 0)
    )
    report = watched(loader, rng, set_epoch=True)
    assert report.sampler == Shuffle()
    assert not any("set_epoch" in caveat for caveat in report.caveats)
    half = data.DistributedSampler(Records(), 2, 0)
    report = watched(half, rng, set_epoch=True, batch_size=SIZE)
    assert is_none(report)
    assert "each epoch shows only 60 of 120 records" in report.accountant


def test_a_seed_set_at_every_epoch_is_one_fixed_order(data: Any, rng: np.random.Generator) -> None:
    import torch

    def epoch(_: int) -> Any:
        return cut(torch.randperm(RECORDS, generator=torch.Generator().manual_seed(7)).tolist())

    report = watched(Anew(epoch), rng)
    assert is_none(report)
    assert report.name == "one fixed order"
    assert "a seed is set again" in report.caveats[0]


@pytest.mark.parametrize("records", run_often([RECORDS, RAGGED], [RAGGED]))
def test_the_loader_of_opacus_is_poisson(records: int, data: Any, rng: np.random.Generator) -> None:
    uniform = pytest.importorskip("opacus.utils.uniform_sampler")
    import torch

    steps = -(-records // SIZE)  # as DPDataLoader.from_data_loader does it

    def made(seed: np.random.Generator) -> Any:
        generator = torch.Generator().manual_seed(int(seed.integers(2**40)))
        sampler = uniform.UniformWithReplacementSampler(
            num_samples=records, sample_rate=1 / steps, generator=generator, steps=steps
        )
        return data.DataLoader(Records(records), batch_sampler=sampler)

    def right(report: LoaderReport) -> bool:
        match report.sampler:
            case Poisson(rate=rate):
                spread = np.sqrt(1 / (EPOCHS * records))
                found = SIZE / records if rate is None else rate
                return abs(found * steps - 1) < 6 * spread and report.steps == steps
        return False

    assert mistakes(made, right, rng) <= ALLOWED


def test_the_data_loader_of_opacus_is_poisson(data: Any, rng: np.random.Generator) -> None:
    opacus = pytest.importorskip("opacus.data_loader")
    import torch

    plain = data.DataLoader(
        data.TensorDataset(torch.zeros(RECORDS, 1)),
        batch_size=SIZE,
        generator=torch.Generator().manual_seed(5),
    )
    report = watched(opacus.DPDataLoader.from_data_loader(plain), rng)
    assert isinstance(report.sampler, Poisson)


# Odd ones


def first_is_favoured(order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Record 17 in the first batch, by changing places with one that is there."""
    place = int(np.flatnonzero(order == 17)[0])
    other = int(rng.integers(SIZE))
    order[[place, other]] = order[[other, place]]
    return order


def odd_loaders(rng: np.random.Generator) -> dict[str, Anew]:
    kept: list[np.ndarray] = []

    def shuffled() -> np.ndarray:
        return rng.permutation(RECORDS)

    def reversed_on_odd(epoch: int) -> Any:
        if epoch % 2 == 0:
            kept[:] = [shuffled()]
        return cut(kept[0][:: -1 if epoch % 2 else 1])

    def never_twice_running(epoch: int) -> Any:
        order = shuffled()
        while kept and (again := same_batch(order, kept[-1])).any():
            for place in np.flatnonzero(again):
                other = rng.integers(RECORDS)
                order[[place, other]] = order[[other, place]]
        kept.append(order)
        return cut(order)

    def apart(epoch: int) -> Any:
        order = shuffled()
        while (close := np.diff(np.argsort(order) // SIZE) == 0).any():
            place = int(np.argsort(order)[np.flatnonzero(close)[0]])
            other = rng.integers(RECORDS)
            order[[place, other]] = order[[other, place]]
        return cut(order)

    pool = [shuffled() for _ in range(10)]
    mates = np.arange(RECORDS).reshape(-1, 2)
    sorted_halves = np.argsort(np.arange(RECORDS) % 2, kind="stable")
    return {
        "reversed on odd epochs": Anew(reversed_on_odd),
        "sequence reversed on odd epochs": Anew(
            lambda e: cut(np.arange(RECORDS)[:: -1 if e % 2 else 1])
        ),
        "target always in the first batch": Anew(lambda _: cut(first_is_favoured(shuffled(), rng))),
        "one of ten orders": Anew(lambda _: cut(pool[rng.integers(10)])),
        "ten orders in turn": Anew(lambda e: cut(pool[e % 10])),
        "pairs stay together": Anew(lambda _: cut(mates[rng.permutation(RECORDS // 2)].ravel())),
        "even records first": Anew(
            lambda _: cut(
                np.concatenate([rng.permutation(h) for h in sorted_halves.reshape(2, -1)])
            )
        ),
        "one of each stratum": Anew(
            lambda _: rng.permuted(np.arange(RECORDS).reshape(SIZE, -1), axis=1).T.tolist()
        ),
        "neighbours kept apart": Anew(apart),
        "bins nearly even": Anew(
            lambda _: np.split(shuffled(), np.cumsum(rng.permutation([9, 11] * 6))[:-1])
        ),
        "never the same batch twice running": Anew(never_twice_running),
        "every order twice": Anew(
            lambda e: cut(kept.append(shuffled()) or kept[-1] if e % 2 == 0 else kept[-1])
        ),
        "careless shuffle": Anew(lambda _: cut(careless(rng))),
        "rotated": Anew(lambda _: cut(np.roll(np.arange(RECORDS), rng.integers(RECORDS)))),
        "rotated batches": Anew(
            lambda _: np.roll(np.arange(RECORDS).reshape(-1, SIZE), rng.integers(12), 0).tolist()
        ),
        "Poisson, one record never": Anew(
            lambda _: [
                [r for r in np.flatnonzero(rng.random(RECORDS) < 0.08).tolist() if r != 17]
                for _ in range(12)
            ]
        ),
        "Poisson cut at fourteen": Anew(
            lambda _: [np.flatnonzero(rng.random(RECORDS) < 0.1)[:14].tolist() for _ in range(12)]
        ),
        "uneven batches": Anew(lambda _: np.split(shuffled(), [5, 30, 60, 80, 110])),
        "number of batches varies": Anew(lambda e: cut(shuffled(), 10 + e % 2)),
        "crowded bins": Anew(
            lambda _: [
                np.flatnonzero(bins == b)
                for bins in [rng.binomial(11, 0.5, RECORDS)]
                for b in range(12)
            ]
        ),
    }


def same_batch(order: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Which places hold a record that was in the same batch before."""
    return np.argsort(before)[order] // SIZE == np.arange(RECORDS) // SIZE


def careless(rng: np.random.Generator) -> np.ndarray:
    """Swaps every place with any place: the classic mistake."""
    order = np.arange(RECORDS)
    for place, other in enumerate(rng.integers(RECORDS, size=RECORDS)):
        order[[place, other]] = order[[other, place]]
    return order


@pytest.mark.parametrize("kind", odd_loaders(np.random.default_rng(0)))
@pytest.mark.in_turn(2)
def test_odd_loaders_are_none(kind: str, rng: np.random.Generator) -> None:
    epochs = 400 if kind == "careless shuffle" else EPOCHS
    for seed in rng.spawn(3):
        report = watched(odd_loaders(seed)[kind], seed, epochs=epochs, records=RECORDS)
        assert is_none(report), report


def drawing_of(batches: list[np.ndarray], rng: np.random.Generator) -> Anew:
    return Anew(lambda _: [batches[b] for b in rng.permutation(len(batches))])


def test_fixed_batches_of_any_records_are_told_from_slices(rng: np.random.Generator) -> None:
    for records in (RAGGED, 13, 13, 13, 13, 13):  # the ragged batch is first in half of the last
        batches = np.split(rng.permutation(records), range(SIZE, records, SIZE))
        loader = drawing_of(batches, rng)
        report = watched(loader, rng)
        assert report.sampler is None
        assert report.name == "fixed batches in shuffled order"
        assert "batch-then-shuffle" in report.accountant


def test_bins_drawn_once_are_a_fixed_order(rng: np.random.Generator) -> None:
    bins = [b.tolist() for b in BallsInBins().batches(RECORDS, SIZE, rng=rng)]
    report = watched(bins, rng)
    assert is_none(report)
    assert report.name == "fixed bins"


def test_a_rare_bias_is_noticed_as_promised(rng: np.random.Generator) -> None:
    """A record in the first batch as often as the report says would have been noticed."""
    fair = watched(drawing(Shuffle(), rng), rng)
    often = int(fair.evidence[-1].split("in the first batch ")[1].split()[0])
    assert often < 32  # of 64 epochs; 5.3 are expected
    favoured = Anew(
        lambda e: cut(
            first_is_favoured(rng.permutation(RECORDS), rng)
            if e < often
            else rng.permutation(RECORDS)
        )
    )
    report = watched(favoured, rng)
    assert is_none(report)
    assert "record 17 came" in report.accountant


# Errors of the tests themselves


def refused(sampler: Sampler, runs: int, rng: np.random.Generator) -> int:
    """How often the truth is refuted at a level where it can be counted."""
    return sum(
        watched(
            drawing(sampler, seed, records=60), seed, records=60, confidence=0.9, epochs=24
        ).sampler
        != sampler
        for seed in rng.spawn(runs)
    )


@pytest.mark.parametrize("sampler", run_often([Shuffle(), Poisson()], [Shuffle()]), ids=str)
def test_the_truth_is_refuted_no_oftener_than_stated(
    sampler: Sampler, rng: np.random.Generator
) -> None:
    assert refused(sampler, 60, rng) <= scipy.stats.binom.isf(FLAKE, 60, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        Shuffle(),
        PartialShuffle(20),
        BatchThenShuffle(),
        BallsInBins(),
        Poisson(),
        WithoutReplacement(),
    ],
    ids=str,
)
def test_the_truth_is_refuted_no_oftener_than_stated_at_length(
    sampler: Sampler, rng: np.random.Generator
) -> None:
    assert refused(sampler, 1000, rng) <= scipy.stats.binom.isf(FLAKE, 1000, 0.1)


# As a sampler


def test_a_loader_is_a_sampler(rng: np.random.Generator) -> None:
    sampler: Sampler = FromLoader(drawing(Shuffle(), np.random.default_rng(1)))
    same = drawing(Shuffle(), np.random.default_rng(1))
    for _ in range(2):
        seen = [batch.tolist() for batch in sampler.batches(RECORDS, SIZE, rng=rng)]
        assert seen == list(same)
    single = FromLoader(range(7))
    assert [b.tolist() for b in single.batches(7, 3, rng=rng)] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(InvalidArgument, match="indices from 0 to 4, got 5"):
        list(single.batches(5, 3, rng=rng))


def test_the_same_loader_has_the_same_report() -> None:
    one, other = (
        watched(drawing(Shuffle(), np.random.default_rng(2)), np.random.default_rng(3))
        for _ in range(2)
    )
    assert one == other


def test_where_a_target_lands_is_told(rng: np.random.Generator) -> None:
    report = watched(drawing(Sequential(), rng), rng, target=37)
    assert "Record 37 came 64 times, in 1 different batches, from 3 to 3" in report.evidence[-1]
    report = watched([[0, 1], [3, 4]], rng, target=2)
    assert report.evidence[-1] == "Record 2 never occurred."


def test_tensors_and_arrays_are_indices_too(data: Any, rng: np.random.Generator) -> None:
    import torch

    for batches in (
        [torch.tensor([0, 1]), torch.tensor([2, 3])],
        [(0, 1), (np.int64(2), np.int64(3))],
        [[torch.tensor(0), torch.tensor(1)], [torch.tensor(2), torch.tensor(3)]],
    ):
        assert watched(batches, rng).sampler == Sequential()
    assert watched(torch.arange(6), rng, batch_size=2).sampler == Sequential()


# What cannot be watched


class Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(10))


@pytest.mark.parametrize(
    ("loader", "keywords", "words"),
    [
        ([], {}, "got 0 batches and no index"),
        ([[], []], {}, "got 2 batches and no index"),
        (Endless(), {"batch_size": 2, "most": 1000}, "an epoch to end within most=1000"),
        (Anew(lambda _: itertools.repeat([])), {"most": 1000}, "an epoch to end within"),
        ([[0, 1]] * 40, {"most": 100}, "room for two epochs in most=100, got one of 80"),
        (range(6), {}, "Expected batch_size for a sampler of single indices"),
        (iter([[0], [1]]), {}, "starts again at every epoch, got an iterator"),
        (["a", "b"], {}, "indices .whole numbers., got 'a'"),
        ([["a", "b"]], {}, r"got \['a', 'b'\]"),
        ([[0.0, 1.0]], {}, r"got \[0.0, 1.0\]"),
        ([[True, False]], {}, r"got \[True, False\]"),
        ([[[0, 1], [2, 3]]], {}, "record indices"),
        ([[[0, 1], [2]]], {}, "record indices"),
        ([{"x": 1}], {}, "record indices"),
        ([[0, -1]], {}, "from 0 to 0, got -1"),
        ([[0, 7]], {"records": 5}, "from 0 to 4, got 7"),
        (5, {}, "a loader of record indices, got int"),
        ([[0, 1]], {"epochs": 1}, "epochs ≥ 2, got 1"),
        ([[0, 1]], {"confidence": 1.0}, r"confidence in \(0, 1\)"),
        ([[0, 1]], {"records": 0}, "records ≥ 1"),
        ([[0, 1]], {"batch_size": 0}, "batch_size ≥ 1"),
        ([[0, 1]], {"target": 2}, "target < records = 2, got 2"),
        ([[0, 1]], {"target": -1}, "target ≥ 0"),
        ([[0, 1]], {"set_epoch": True}, "a sampler with set_epoch"),
    ],
)
def test_what_cannot_be_watched_is_said(
    loader: Any, keywords: dict[str, Any], words: str, rng: np.random.Generator
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        watched(loader, rng, **keywords)


def test_datasets_without_indices_cannot_be_watched(data: Any, rng: np.random.Generator) -> None:
    class Stream(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    for size in (2, None):
        with pytest.raises(InvalidArgument, match="of an IterableDataset"):
            watched(data.DataLoader(Stream(), batch_size=size), rng)
    import torch

    with pytest.raises(InvalidArgument, match="record indices"):
        watched([torch.zeros(3, 2)], rng)


def test_few_epochs_are_admitted(rng: np.random.Generator) -> None:
    report = watched(drawing(Shuffle(), rng), rng, most=RECORDS * 5)
    assert report.epochs == 5
    assert "no place of a single record" in report.evidence[-1]
    assert "no feature of epochs" in report.evidence[-1]
    assert any("Only 5 epochs were watched" in caveat for caveat in report.caveats)


def test_one_batch_of_all_records_is_sequential(rng: np.random.Generator) -> None:
    assert watched(drawing(Shuffle(), rng, size=RECORDS), rng).sampler == Sequential()


def test_batches_of_one_record_are_shuffled_not_batches_in_shuffled_order(
    rng: np.random.Generator,
) -> None:
    assert watched(drawing(Shuffle(), rng, size=1), rng).sampler == Shuffle()
