"""Clients' own training: together as alone, whatever the others have."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.local import (
    Batches,
    ClientRecords,
    Clients,
    OneByOne,
    Together,
    local_batches,
    make_client_trainer,
)
from epsilometer.networks.models import cnn, mlp
from epsilometer.networks.optimizers import SGD, Adam

FEATURES, CLASSES = 4, 3


def clients(sizes: list[int], seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, FEATURES)), rng.integers(CLASSES, size=n)) for n in sizes]


def alone(
    module: nn.Module, records: ClientRecords, batches: Batches, optimizer: Any
) -> dict[str, Tensor]:
    """One client by torch's own optimiser, in double precision."""
    own = copy.deepcopy(module).double()
    steps = optimizer(own.parameters())
    for batch in batches:
        steps.zero_grad()
        picked = torch.from_numpy(batch)
        x = records.x[picked]
        outputs = own(x.double() if x.is_floating_point() else x)
        nn.functional.cross_entropy(outputs, records.y[picked]).backward()
        steps.step()
    before = dict(module.named_parameters())
    return {name: value.detach() - before[name] for name, value in own.named_parameters()}


def take_all(data: Any) -> ClientRecords:
    return Clients(data, device="cpu").take(range(len(data)))


def steps_of(records: ClientRecords, batch_size: int, epochs: int, seed: int) -> list[Batches]:
    rng = np.random.default_rng(seed)
    return [
        [start + own for own in local_batches(int(size), batch_size, epochs=epochs, rng=rng)]
        for start, size in zip(records.starts, records.sizes, strict=True)
    ]


def compare(how: Any, module: nn.Module, records: ClientRecords, batches: Any, plain: Any) -> None:
    """Updates come in any order: each must be some client's, and each client's must come."""
    with torch.no_grad():
        found = torch.cat(list(how.updates(how.start, batches, records)))
        named = [dict(how.module(how.start + one).named_parameters()) for one in found]
    before = dict(module.named_parameters())
    wanted = [alone(module, records, own, plain) for own in sorted(batches, key=len, reverse=True)]
    if isinstance(how, OneByOne):
        wanted = [alone(module, records, own, plain) for own in batches]
    for got, truth in zip(named, wanted, strict=True):
        for name, value in truth.items():
            # Single precision, and momentum that carries rounding through up to 27 steps.
            torch.testing.assert_close(
                (got[name] - before[name]).double(), value, rtol=1e-3, atol=1e-4
            )


RATE = 0.3
OPTIMIZERS = [
    (SGD(), lambda own: torch.optim.SGD(own, RATE)),
    (
        SGD(momentum=0.9, weight_decay=0.1),
        lambda own: torch.optim.SGD(own, RATE, momentum=0.9, weight_decay=0.1),
    ),
    (Adam(), lambda own: torch.optim.Adam(own, RATE)),
]


@pytest.mark.parametrize(("optimizer", "plain"), OPTIMIZERS, ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("kind", [Together, OneByOne])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=6)
def test_ragged_clients_are_trained_as_each_alone(
    kind: Any, optimizer: Any, plain: Any, sizes: list[int], batch_size: int, epochs: int, seed: int
) -> None:
    records = take_all(clients(sizes, seed))
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    options = {"at_once": 3} if kind is Together else {}
    how = kind(module, cross_entropy, optimizer, RATE, device="cpu", **options)
    compare(how, module, records, steps_of(records, batch_size, epochs, seed), plain)


class Recurrent(nn.Module):
    """Words in, a class out, by torch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 3)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(self.embed(x))[0][:, -1])
        return out


def test_what_cannot_be_trained_together_is_trained_one_by_one() -> None:
    rng = np.random.default_rng(3)
    data = [(rng.integers(6, size=(n, 5)), rng.integers(CLASSES, size=n)) for n in (3, 1, 2)]
    records, given = take_all(data), Clients(data, device="cpu")
    torch.manual_seed(0)
    module = Recurrent()
    how = make_client_trainer(
        module, cross_entropy, given, optimizer=SGD(), learning_rate=RATE, at_once=4, device="cpu"
    )
    assert isinstance(how, OneByOne)
    compare(how, module, records, steps_of(records, 2, 2, 0), OPTIMIZERS[0][1])


@pytest.mark.parametrize(
    ("module", "shape", "kind"),
    [
        (mlp(4, CLASSES), (4,), Together),
        (cnn(1, 8, 8, CLASSES), (1, 8, 8), Together),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)), (4,), OneByOne),
    ],
)
def test_clients_are_trained_together_where_that_is_right(
    module: nn.Module, shape: tuple[int, ...], kind: type[Any]
) -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, *shape)), rng.integers(CLASSES, size=n)) for n in (3, 2)]
    given = Clients(data, device="cpu")
    how = make_client_trainer(
        module, cross_entropy, given, optimizer=SGD(), learning_rate=RATE, at_once=4, device="cpu"
    )
    assert isinstance(how, kind)


def test_only_trainable_parameters_are_sent() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    module[0].weight.requires_grad_(False)
    how = OneByOne(module, cross_entropy, SGD(), RATE, device="cpu")
    assert how.start.numel() == 4 + 8 + 4 * CLASSES + CLASSES  # no running means, no frozen weights


X, Y = np.zeros((2, FEATURES)), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ([], "at least one client"),
        ([(X, Y), (X[:0], Y[:0])], "none of client 1"),
        ([(X, Y[:1])], "as many labels as records of client 0"),
        ([(X, Y), (X[:, :2], Y)], "of client 1"),
        ([(X, Y), (np.full((2, FEATURES), "a"), Y)], "Expected numbers"),
    ],
)
def test_bad_clients_are_told(data: Any, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        Clients(data, device="cpu")


@pytest.mark.parametrize(
    ("module", "part"),
    [
        (nn.Linear(9, CLASSES), "takes the clients' records"),
        (nn.Linear(FEATURES, 2), "labels from 0 to 1"),
        (nn.Flatten(), "trainable parameters"),
        ("a module", "torch.nn.Module"),
    ],
)
def test_bad_modules_are_told(module: Any, part: str) -> None:
    given = Clients([(X, Y), (X, Y + 2)], device="cpu")
    with pytest.raises(InvalidArgument, match=part):
        make_client_trainer(
            module,
            cross_entropy,
            given,
            optimizer=SGD(),
            learning_rate=1,
            at_once=1,
            device="cpu",
        )


def test_records_of_a_cohort_alone_are_copied() -> None:
    """A client's arrays are read when its round comes, so that others take no memory."""

    class Counted(list[Any]):
        taken = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.taken += 1
            return super().__getitem__(place)

    data = Counted((X + n, Y) for n in range(50))
    every = Clients(data, device="cpu")
    before = Counted.taken
    records = every.take(np.array([7, 3]))
    assert Counted.taken - before == 2
    assert records.x[:, 0].tolist() == [7, 7, 3, 3]
    assert records.starts.tolist() == [0, 2]
