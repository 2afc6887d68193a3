"""The watch of a loader sees every logical batch, and has no hand in what is drawn."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager, BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from epsilometer.conformance.loader_watch import LoaderWatch
from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.core import judge
from epsilometer.integrations.opacus.objects import find_logical_sampler, find_sampler
from epsilometer.sampling.samplers import Poisson, Sequential, Shuffle
from tests.integrations.opacus_runs import prepared, train

RECORDS = 60


def make_loader(*, poisson: bool = True, batch: int = 6, **more: Any) -> Any:
    """A loader whose records are their own indices."""
    plain = DataLoader(
        TensorDataset(torch.arange(RECORDS)), batch_size=batch, **{"shuffle": True, **more}
    )
    return DPDataLoader.from_data_loader(plain) if poisson else plain


def _watch(loader: Any) -> LoaderWatch:
    return LoaderWatch(loader, find_logical_sampler(loader))


def make_optimizer() -> Any:
    model = nn.Linear(1, 1)
    return DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=6,
    )


def deliver(loader: Any) -> list[list[int]]:
    """The records that a training gets, batch by batch."""
    return [part[0].tolist() if part else [] for part in loader]


def taken(watch: LoaderWatch) -> list[int]:
    indices = watch.take()
    assert indices is not None
    return list(indices.tolist())


LOADERS: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "Poisson by workers": {"num_workers": 2},
    "shuffling": {"poisson": False},
    "drop last": {"poisson": False, "batch": 7, "drop_last": True},
    "in order": {"poisson": False, "shuffle": False},
    "persistent workers": {"poisson": False, "num_workers": 1, "persistent_workers": True},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_everything_is_seen_and_nothing_changed(options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    plain = make_loader(**options)
    alone = [deliver(plain) for _ in range(2)]
    state = torch.get_rng_state()

    torch.manual_seed(3)
    loader = make_loader(**options)
    watch = _watch(loader)
    assert len(loader) == len(plain)
    watched = [deliver(loader) for _ in range(2)]
    assert watched == alone
    assert torch.equal(torch.get_rng_state(), state)
    assert watch.drawn == len(alone[0]) + len(alone[1])
    assert taken(watch) == [record for epoch in alone for batch in epoch for record in batch]
    assert watch.batches == watch.drawn


@pytest.mark.parametrize("given", ["loader", "split"])
@pytest.mark.parametrize("poisson", [True, False])
def test_logical_batches_are_seen_through_physical_ones(poisson: bool, given: str) -> None:
    torch.manual_seed(0)
    optimizer, loader = make_optimizer(), make_loader(poisson=poisson)
    length = len(
        BatchSplittingSampler(sampler=loader.batch_sampler, max_batch_size=2, optimizer=optimizer)
    )
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=2, optimizer=optimizer
    ) as split:
        watch = _watch(loader if given == "loader" else split)
        assert len(split) == length
        logical: list[int] = []
        for (records,) in split:
            logical += records.tolist()
            if not optimizer._check_skip_next_step():
                assert taken(watch) == logical
                assert watch.batches == 1
                logical = []
    assert watch.drawn == 10


def test_a_manager_made_later_is_seen_too() -> None:
    torch.manual_seed(0)
    optimizer, loader = make_optimizer(), make_loader()
    watch = _watch(loader)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=2, optimizer=optimizer
    ) as split:
        delivered = [record for batch in deliver(split) for record in batch]
    assert taken(watch) == delivered


def test_batches_of_a_step_are_taken_together() -> None:
    loader = make_loader()
    watch = _watch(loader)
    drawn: list[int] = []
    for at, (records,) in enumerate(loader):
        drawn += records.tolist()
        if at % 2 == 1:
            assert taken(watch) == drawn
            assert watch.batches == 2
            drawn = []
    assert watch.take() is None
    assert watch.batches == 0


def test_empty_batches_are_batches() -> None:
    torch.manual_seed(0)
    loader = make_loader(batch=1)
    watch = _watch(loader)
    sizes = []
    for _ in loader:
        sizes.append(len(taken(watch)))
        assert watch.batches == 1
    assert 0 in sizes
    assert watch.check(len(sizes)).outcome == judge.CONFORMS


class TestSteps:
    """Steps that used another loader, or no new batch; and loops that only look like it."""

    def test_the_old_loader_is_noticed(self) -> None:
        run = prepared(batch=8)
        watch = _watch(run.loader)
        train(run, loader=DataLoader(run.loader.dataset, batch_size=8))
        for _ in range(8):
            assert watch.take() is None
        check = watch.check(8)
        assert check.outcome == judge.VIOLATED
        assert check.seen == "8 steps, 0 batches drawn"
        assert "Another loader was used" in check.detail

    def test_two_steps_on_a_batch_are_noticed(self) -> None:
        loader = make_loader()
        watch = _watch(loader)
        for _ in loader:
            watch.take()
            watch.take()
        check = watch.check(20)
        assert check.outcome == judge.VIOLATED
        assert "without a new batch" in check.detail

    def test_nothing_is_said_before_the_first_step(self) -> None:
        assert _watch(make_loader()).check(0).outcome == judge.NOT_TESTED

    def test_epochs_left_early_by_a_loop_with_workers_are_spared(self) -> None:
        loader, steps = make_loader(num_workers=1, prefetch_factor=3), 0
        watch = _watch(loader)
        participation = ParticipationWatch(RECORDS, 0.1)
        for _ in range(2):
            for at, (records,) in enumerate(loader):
                steps += 1
                indices = watch.take()
                drawn = 0 if indices is None else indices.size
                participation.see_rows(drawn, len(records))
                if at == 4:
                    break
        watch.feed(participation)
        assert participation.batches == watch.drawn > steps
        assert watch.check(steps).outcome == judge.CONFORMS
        assert not participation.violated

    def test_looking_a_batch_ahead_is_spared(self) -> None:
        torch.manual_seed(0)
        loader, steps = make_loader(), 0
        watch = _watch(loader)
        participation = ParticipationWatch(RECORDS, 0.1)
        for _ in range(4):
            for records in look_ahead(deliver_lazily(loader)):
                steps += 1
                indices = watch.take()
                participation.see_rows(0 if indices is None else indices.size, len(records))
                watch.feed(participation)
        assert watch.check(steps).outcome == judge.CONFORMS
        assert not participation.violated

    def test_skipping_empty_batches_is_spared(self) -> None:
        torch.manual_seed(0)
        loader, steps = make_loader(batch=1), 0
        watch = _watch(loader)
        for (records,) in loader:
            if len(records):
                steps += 1
                watch.take()
        assert steps < watch.drawn
        assert watch.check(steps).outcome == judge.CONFORMS

    def test_an_iterator_made_before_is_forgiven_once_another_begins(self) -> None:
        loader = make_loader()
        running = iter(loader)
        watch = _watch(loader)
        for _ in running:
            assert watch.take() is None
        for _ in loader:
            assert watch.take() is not None
        assert watch.check(20).outcome == judge.CONFORMS


def deliver_lazily(loader: Any) -> Iterator[list[int]]:
    for (records,) in loader:
        yield records.tolist()


def look_ahead(batches: Iterator[list[int]]) -> Iterator[list[int]]:
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def test_epochs_and_batches_reach_participation() -> None:
    torch.manual_seed(0)
    for poisson, name in ((True, ""), (False, "records drawn again")):
        loader = make_loader(poisson=poisson)
        watch, participation = _watch(loader), ParticipationWatch(RECORDS, 0.1)
        for _ in range(4):
            for _ in loader:
                watch.feed(participation)
        assert participation.batches == 40
        broken = {check.name for check in participation.checks() if check.outcome == judge.VIOLATED}
        assert (name in broken) if name else not broken


def test_the_type_of_the_sampler_stays_visible() -> None:
    expected = {
        "Poisson": Poisson(rate=0.1, steps=10),
        "shuffling": Shuffle(),
        "drop last": Shuffle(drop_last=True),
        "in order": Sequential(),
    }
    for name, sampler in expected.items():
        loader = make_loader(**LOADERS[name])
        kind = type(loader.batch_sampler)
        watches = [_watch(loader), LoaderWatch(loader)]
        assert find_sampler(loader) == sampler
        assert isinstance(loader.batch_sampler, kind)
        for watch in reversed(watches):
            watch.close()
        assert type(loader.batch_sampler) is kind
        deliver(loader)
        assert watches[0].drawn == 0


def test_a_watch_that_closes_first_leaves_the_other_one() -> None:
    loader = make_loader()
    first, second = _watch(loader), LoaderWatch(loader)
    first.close()
    deliver(loader)
    assert (first.drawn, second.drawn) == (0, 10)
    second.close()
    assert find_sampler(loader) == Poisson(rate=0.1, steps=10)


def test_copies_are_not_watched() -> None:
    loader = make_loader()
    watch = _watch(loader)
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(copied.batch_sampler) is UniformWithReplacementSampler
        deliver(copied)
    assert watch.drawn == 0


class Backwards(BatchSampler):
    """Batches of tensors, and of negative indices."""

    def __init__(self) -> None:
        super().__init__(range(RECORDS), batch_size=6, drop_last=False)

    def __iter__(self) -> Iterator[Any]:
        return iter(-1 - torch.arange(RECORDS).reshape(-1, 6))


def test_other_kinds_of_indices_are_read() -> None:
    dataset = TensorDataset(torch.arange(RECORDS))
    loader = DataLoader(dataset, batch_sampler=Backwards())
    watch = _watch(loader)
    delivered = [record for batch in deliver(loader) for record in batch]
    assert delivered == taken(watch) == list(range(RECORDS))[::-1]
    one_by_one = DataLoader(dataset, batch_size=None, shuffle=True)
    watch = _watch(one_by_one)
    assert [int(record[0]) for record in one_by_one] == taken(watch)
    assert watch.drawn == RECORDS


class Named(torch.utils.data.Dataset[int]):
    """Records that have names, and no indices."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: Any) -> int:
        return len(name)


class NamedBatches(torch.utils.data.Sampler[list[str]]):
    def __iter__(self) -> Iterator[list[str]]:
        return iter([["a"], ["b"]])


def test_what_cannot_be_watched_is_said() -> None:
    fixed: Any = [[0, 1], [2, 3]]
    watch = _watch(DataLoader(TensorDataset(torch.arange(4)), batch_sampler=fixed))
    check = watch.check(2)
    assert check.outcome == judge.NOT_TESTED
    assert check.seen == "a list as batch sampler cannot be watched"
    watch.close()

    loader = DataLoader(Named(), batch_sampler=NamedBatches())
    watch = _watch(loader)
    for _ in loader:
        assert watch.take() is None
    assert watch.check(2).outcome == judge.CONFORMS  # batches can be counted
