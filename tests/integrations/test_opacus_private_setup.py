"""Opacus with a sampler whose ε is proved: real trainings, the books, and misuse."""

import math
import warnings
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import distributed, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle_upper import shuffle_upper
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus import audited, check, make_private
from epsilometer.sampling import BallsInBins, FixedSize

# Opacus on its random numbers, and torch on the hooks of Opacus.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
DELTA = 1e-5
RECORDS, BATCH, STEPS = 80, 8, 10


def prepare(sampler: str = "balls-in-bins", **options: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(RECORDS, 3), torch.arange(RECORDS) % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a generator that is not secure
        engine = PrivacyEngine(accountant="rdp")
    made = make_private(
        engine,
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(
            data, batch_size=BATCH, sampler=options.pop("order", None) or RandomSampler(data)
        ),
        noise_multiplier=options.pop("noise_multiplier", 1.0),
        max_grad_norm=1.0,
        sampler=sampler,
        seed=options.pop("seed", 0),
        **options,
    )
    return (engine, *made)


def train(module: Any, optimizer: Any, loader: Any, epochs: int = 1, steps: int = 10**6) -> int:
    taken = 0
    for _ in range(epochs):
        for features, labels in loader:
            if taken == steps:
                return taken
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
            taken += 1
    return taken


def test_balls_in_bins_books_a_proved_epsilon() -> None:
    engine, module, optimizer, loader = prepare()
    assert engine.get_epsilon(DELTA) == 0
    assert len(loader) == STEPS
    assert train(module, optimizer, loader, epochs=2) == 2 * STEPS
    expected = shuffle_upper(
        noise_multiplier=1.0, steps=STEPS, epochs=2, delta=DELTA, sampler=BallsInBins()
    )
    assert engine.get_epsilon(DELTA) == expected.high
    assert expected.method == "random allocation"
    assert optimizer.expected_batch_size == BATCH


def test_every_record_comes_once_per_epoch_and_sizes_vary() -> None:
    _, _, _, loader = prepare()
    sizes = [len(labels) for _, labels in loader]
    assert sum(sizes) == RECORDS
    assert len(set(sizes)) > 1


def test_an_epoch_that_was_begun_counts_as_a_whole_one() -> None:
    """Three first steps of three epochs are not three tenths of one."""
    engine, module, optimizer, loader = prepare()
    for _ in range(3):
        train(module, optimizer, loader, steps=1)
    assert len(engine.accountant) == 3
    assert engine.accountant.epochs == 3
    full = shuffle_upper(
        noise_multiplier=1.0, steps=STEPS, epochs=3, delta=DELTA, sampler=BallsInBins()
    )
    assert engine.get_epsilon(DELTA) == full.high


def test_the_least_noise_counts() -> None:
    engine, module, optimizer, loader = prepare()
    train(module, optimizer, loader, steps=2)
    optimizer.noise_multiplier = 0.8
    train(module, optimizer, loader, steps=2)
    assert [noise for noise, _, _ in engine.accountant.history] == [1.0, 0.8]
    low = shuffle_upper(
        noise_multiplier=0.8, steps=STEPS, epochs=2, delta=DELTA, sampler=BallsInBins()
    )
    assert engine.get_epsilon(DELTA) == low.high
    optimizer.noise_multiplier = 0.0
    train(module, optimizer, loader, steps=1)
    assert engine.get_epsilon(DELTA) == math.inf


def test_poisson_sampling_is_booked_exactly() -> None:
    engine, module, optimizer, loader = prepare("poisson")
    train(module, optimizer, loader)
    assert engine.get_epsilon(DELTA) == poisson_epsilon(
        noise_multiplier=1.0, sampling_rate=1 / STEPS, steps=STEPS, delta=DELTA
    )


@pytest.mark.parametrize("sampler", ["balls-in-bins", "poisson"])
def test_a_physical_size_is_kept_and_paid_for(sampler: str) -> None:
    engine, *rest = prepare(sampler, physical_size=40)
    train(*rest)
    free, *rest = prepare(sampler)
    train(*rest)
    assert isinstance(engine.accountant.sampler, FixedSize)
    paid, unpaid = engine.get_epsilon(DELTA), free.get_epsilon(DELTA)
    assert unpaid * (1 - 1e-6) <= paid < 1.05 * unpaid
    tight, *rest = prepare(sampler, physical_size=9)
    train(*rest)
    assert max(len(labels) for _, labels in rest[2]) <= 9
    assert tight.get_epsilon(DELTA) == math.inf


def test_memory_may_be_saved_by_smaller_physical_batches() -> None:
    engine, module, optimizer, loader = prepare()
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=4, optimizer=optimizer
    ) as physical:
        train(module, optimizer, physical)
    assert len(engine.accountant) == STEPS
    assert engine.accountant.epochs == 1


def test_accumulated_batches_are_refused() -> None:
    engine, module, optimizer, loader = prepare()
    pairs = iter(loader)
    for _ in range(2):
        features, labels = next(pairs)
        nn.functional.cross_entropy(module(features), labels).backward()
    with pytest.raises(InvalidArgument, match="Expected one batch per step"):
        optimizer.step()
    assert len(engine.accountant) == 0


def test_a_run_is_resumed_with_its_books() -> None:
    engine, module, optimizer, loader = prepare()
    train(module, optimizer, loader, steps=4)
    state = engine.accountant.state_dict()
    again, module, optimizer, loader = prepare(seed=1)
    again.accountant.load_state_dict(state)
    train(module, optimizer, loader)
    assert again.accountant.epochs == 2
    assert len(again.accountant) == 4 + STEPS
    del state["epochs"]
    with pytest.raises(InvalidArgument, match="epochs"):
        again.accountant.load_state_dict(state)


def test_a_resumed_run_draws_other_batches_by_the_same_seed() -> None:
    """Bins that were drawn twice alike would hide less than what is booked."""
    engine, _, _, loader = prepare()
    first = list(loader.batch_sampler)
    again, _, _, loader = prepare()
    again.accountant.load_state_dict(engine.accountant.state_dict())
    assert list(loader.batch_sampler) != first


def test_more_steps_than_batches_prove_nothing() -> None:
    """Batches that are used again, or are of another loader."""
    engine, module, optimizer, loader = prepare()
    kept = list(loader)
    train(module, optimizer, kept)
    assert engine.get_epsilon(DELTA) < math.inf
    train(module, optimizer, kept[:1])
    assert engine.get_epsilon(DELTA) == math.inf
    again, *_ = prepare()
    again.accountant.load_state_dict(engine.accountant.state_dict())
    assert again.get_epsilon(DELTA) == math.inf


def test_check_says_that_the_reported_epsilon_stands() -> None:
    engine, module, optimizer, loader = prepare()
    train(module, optimizer, loader)
    found = check(engine, loader=loader, delta=DELTA)
    assert found.agrees
    assert found.assumed == "balls in bins"
    assert "by balls in bins, as the PROVED BOUND accountant assumes" in str(found)


def test_check_sees_a_loader_that_shuffles_in_its_place() -> None:
    engine, module, optimizer, loader = prepare()
    other = DataLoader(loader.dataset, batch_size=BATCH, shuffle=True)
    train(module, optimizer, other)
    found = check(engine, loader=other, delta=DELTA)
    assert not found.agrees
    said = "shuffling every epoch, but the PROVED BOUND accountant assumes balls in bins"
    assert said in str(found)


def test_audits_of_a_run_know_no_canaries_for_it_and_say_so() -> None:
    engine, _, optimizer, loader = prepare()
    with pytest.raises(InvalidArgument, match="Expected Poisson, Shuffle or Sequential"):
        audited(engine, optimizer, loader)


def test_bad_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="PrivacyEngine"):
        make_private(
            object(),
            module=None,
            optimizer=None,
            data_loader=None,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
    with pytest.raises(InvalidArgument, match="sampler among"):
        prepare("shuffle")
    with pytest.raises(InvalidArgument, match="poisson_sampling"):
        prepare(poisson_sampling=True)
    with pytest.raises(InvalidArgument, match="physical_size ≥ 8"):
        prepare(physical_size=5)
    with pytest.raises(InvalidArgument, match="over all 80 records"):
        prepare(order=SubsetRandomSampler(range(40)))
    with monkeypatch.context() as faked:
        faked.setattr(distributed, "is_initialized", lambda: True)
        faked.setattr(distributed, "get_world_size", lambda: 2)
        with pytest.raises(InvalidArgument, match="one process, got 2"):
            prepare()
    engine, module, optimizer, loader = prepare()
    train(module, optimizer, loader, steps=1)
    with pytest.raises(InvalidArgument, match="booked nothing"):
        make_private(
            engine,
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
