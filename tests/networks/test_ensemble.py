"""Runs of DP-SGD: independent, with the laws that are promised, and what is refused."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from epsilometer.audits.dpsgd.canaries import (
    ManyCanaries,
    TargetCanary,
    dirac_direction,
    random_direction,
)
from epsilometer.errors import InvalidArgument, OutOfMemory
from epsilometer.networks.ensemble import EnsembleDPSGD, Trained, _Run, cross_entropy
from epsilometer.networks.many import ManyModels
from epsilometer.networks.models import lenet5, mlp
from epsilometer.networks.optimizers import SGD, Adam
from epsilometer.networks.trainer import NoCanaries
from epsilometer.sampling.samplers import Poisson, Sequential, Shuffle
from tests.networks.nets import Scaled, Through, in_order
from tests.oracles import FLAKE

RECORDS, FEATURES, CLASSES, BATCH = 12, 4, 3, 4
X = np.random.default_rng(5).normal(size=(RECORDS, FEATURES)).astype(np.float32)
Y = np.arange(RECORDS) % CLASSES


def training(**options: Any) -> EnsembleDPSGD:
    usual = {
        "module": mlp(FEATURES, CLASSES, 5),
        "loss": cross_entropy,
        "runs": 3,
        "noise_multiplier": 1.0,
        "learning_rate": 0.2,
        "batch_size": BATCH,
    }
    return EnsembleDPSGD(**{**usual, **options})


def seed(value: int = 0) -> np.random.Generator:
    return np.random.default_rng(value)


def target(how: EnsembleDPSGD, adversary: Any = "worst_case", **options: Any) -> TargetCanary:
    direction = random_direction(how.size, rng=seed(9))
    return TargetCanary(adversary=adversary, direction=direction, batch_size=BATCH, **options)


def weights(trained: Trained) -> Tensor:
    return in_order(trained.models, trained.models.parameters)


# By definition.


def by_hand(how: EnsembleDPSGD, batches: list[list[int]], optimizer: Any) -> Tensor:
    """One run without noise: gradients one by one, in double precision."""
    module = copy.deepcopy(how.module).double()
    own = list(module.parameters())
    steps = optimizer(own)
    x, y = torch.from_numpy(X).double(), torch.from_numpy(Y)
    for batch in batches:
        total = [torch.zeros_like(parameter) for parameter in own]
        for record in batch:
            loss = cross_entropy(module(x[record][None]), y[record][None]).sum()
            found = torch.autograd.grad(loss, own)
            norm = torch.cat([gradient.flatten() for gradient in found]).norm()
            for into, gradient in zip(total, found, strict=True):
                into.add_(gradient, alpha=min(1.0, how.clip_norm / (float(norm) + 1e-6)))
        for parameter, gradient in zip(own, total, strict=True):
            parameter.grad = gradient / how.batch_size
        steps.step()
    return torch.cat([parameter.detach().flatten() for parameter in own])


@pytest.mark.parametrize("path", ["auto", "general"])
@pytest.mark.parametrize(
    ("optimizer", "theirs"),
    [
        (SGD(), lambda own: torch.optim.SGD(own, lr=0.2)),
        (SGD(momentum=0.9, weight_decay=0.1),
         lambda own: torch.optim.SGD(own, lr=0.2, momentum=0.9, weight_decay=0.1)),
        (Adam(), lambda own: torch.optim.Adam(own, lr=0.2)),
    ],
)  # fmt: skip
def test_a_run_without_noise_is_what_it_is_by_hand(path: Any, optimizer: Any, theirs: Any) -> None:
    how = training(
        noise_multiplier=0.0, initial="given", sampler=Sequential(), epochs=2, path=path,
        clip_norm=0.4, optimizer=optimizer, batch_size=5,
    )  # fmt: skip
    batches = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]] * 2  # the last is ragged
    found = weights(how.train(X, Y, rng=seed()))
    for row in found:
        torch.testing.assert_close(
            row.double(), by_hand(how, batches, theirs), rtol=1e-4, atol=1e-5
        )


def test_batches_of_every_run_are_its_own_even_if_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisson: every run with its own batches, some empty, by hand."""
    seen: list[NDArray[np.int32]] = []
    insert = NoCanaries.insert
    monkeypatch.setattr(
        NoCanaries, "insert", lambda self, batch: (seen.append(batch), insert(self, batch))[1]
    )
    how = training(
        noise_multiplier=0.0, initial="given", sampler=Poisson(rate=0.15, steps=8), batch_size=2
    )
    found = weights(how.train(X, Y, rng=seed(1)))
    every = torch.from_numpy(np.concatenate(seen, 1))
    assert len({run.numpy().tobytes() for run in every}) == 3
    assert ((every >= 0).sum(2) == 0).any()  # some batches are empty
    for run, row in enumerate(found):
        batches = [[int(record) for record in batch if record >= 0] for batch in every[run]]
        expected = by_hand(how, batches, lambda own: torch.optim.SGD(own, lr=0.2))
        torch.testing.assert_close(row.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adversary", ["target_canary", "partially_informed", "worst_case"])
def test_both_paths_train_the_same_models(adversary: Any) -> None:
    module = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.Tanh(), nn.Flatten(),
        nn.LayerNorm(18), Scaled(18), nn.Linear(18, CLASSES),
    )  # fmt: skip
    how = training(module=module, epochs=2, sampler=Poisson())
    fast, general = (
        replace(how, path=path).train(X, Y, rng=seed(3), canaries=target(how, adversary))
        for path in ("auto", "general")
    )
    assert not fast.models.general
    assert general.models.general
    np.testing.assert_array_equal(fast.drawn, general.drawn)
    np.testing.assert_allclose(fast.observations, general.observations, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(fast.moved, general.moved, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(weights(fast), weights(general), rtol=1e-3, atol=1e-4)


# Randomness.


def test_same_generator_same_bytes() -> None:
    module = nn.Sequential(
        nn.Linear(FEATURES, 5), nn.Dropout(0.5), Scaled(5), nn.Linear(5, CLASSES)
    )
    how = training(module=module, runs=40, epochs=2, sampler=Poisson())
    canary = target(how, "partially_informed")
    torch.manual_seed(1)
    first = how.train(X, Y, rng=seed(7), canaries=canary)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = how.train(X, Y, rng=seed(7), canaries=canary)
    assert torch.equal(before, torch.get_rng_state())  # and nobody else's is touched
    for name in ("observations", "moved", "drawn"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert torch.equal(weights(first), weights(second))
    other = how.train(X, Y, rng=seed(8), canaries=canary)
    assert (other.observations != first.observations).all()


def test_a_generator_goes_on() -> None:
    how, rng = training(), seed()
    once, again = (weights(how.train(X, Y, rng=rng)) for _ in range(2))
    assert (once != again).any(1).all()


def test_first_weights_and_noise_and_batches_differ_between_runs() -> None:
    every = {
        "first weights": training(noise_multiplier=0.0, sampler=Sequential(), learning_rate=1e-9),
        "noise": training(initial="given", sampler=Sequential(), runs=3),
        "batches": training(initial="given", noise_multiplier=0.0, sampler=Shuffle()),
    }
    for name, how in every.items():
        rows = weights(how.train(X, Y, rng=seed()))
        assert not torch.equal(rows[0], rows[1]), name
        assert not torch.equal(rows[0], rows[2]), name
        assert not torch.equal(rows[1], rows[2]), name
    none = training(initial="given", noise_multiplier=0.0, sampler=Sequential())
    rows = weights(none.train(X, Y, rng=seed()))
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("path", ["auto", "general"])
def test_dropout_differs_between_runs_and_examples(path: Any) -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 40), nn.Dropout(0.5), nn.Linear(40, CLASSES))
    how = training(module=module, initial="given", noise_multiplier=0.0, path=path)
    models = how._models(*how._records(X, Y))
    same = torch.ones(3, 2, FEATURES)
    with torch.no_grad():
        outputs = models(same).flatten(0, 1)
    assert len({row.numpy().tobytes() for row in outputs}) == 6
    with torch.no_grad(), models.settled():
        outputs = models(same).flatten(0, 1)
    torch.testing.assert_close(outputs, outputs[:1].expand_as(outputs))
    rows = weights(replace(how, sampler=Sequential()).train(X, Y, rng=seed()))
    assert not torch.equal(rows[0], rows[1])


def test_a_run_that_diverges_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    how = training(runs=3, sampler=Poisson(), epochs=2)
    canary = target(how, "partially_informed")
    right = how.train(X, Y, rng=seed(), canaries=canary)
    reset = ManyModels.reset

    def spoilt(self: ManyModels, initial: Any, generator: torch.Generator) -> None:
        reset(self, initial, generator)
        if self.runs == 3:
            self.parameters[1] = torch.nan

    monkeypatch.setattr(ManyModels, "reset", spoilt)
    found = how.train(X, Y, rng=seed(), canaries=canary)
    assert found.diverged.tolist() == [False, True, False]
    for run in (0, 2):
        assert found.observations[run].tobytes() == right.observations[run].tobytes()
        assert torch.equal(weights(found)[run], weights(right)[run])
    assert np.isnan(found.observations[1]).any()


def test_a_learning_rate_too_large_is_told_run_by_run() -> None:
    how = training(learning_rate=1e38, epochs=5)
    assert how.train(X, Y, rng=seed()).diverged.all()


# Laws of what is seen.

MANY = 600


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
def test_observations_are_normal_about_their_means(adjacency: Any, present: bool) -> None:
    sigma = 1.7
    how = training(runs=MANY, noise_multiplier=sigma, clip_norm=0.3, epochs=2)
    canary = target(how, adjacency=adjacency, present=present)
    trained = how.train(X, Y, rng=seed(11), canaries=canary)
    assert trained.observations.shape == (MANY, 2, 3, 1)
    assert (trained.drawn.sum(2) == 1).all()  # once an epoch
    steps = np.argmax(trained.drawn[..., 0], 2).ravel()
    assert scipy.stats.chisquare(np.bincount(steps, minlength=3)).pvalue > FLAKE
    with_it, without, other = canary.means
    means = np.where(trained.drawn, with_it if present else without, other)
    noise = (trained.observations - means).ravel() / sigma
    assert scipy.stats.kstest(noise, "norm").pvalue > FLAKE
    flat = noise.reshape(MANY, -1)
    assert scipy.stats.pearsonr(flat[:-1].ravel(), flat[1:].ravel()).pvalue > FLAKE  # between runs
    assert scipy.stats.pearsonr(flat[:, :-1].ravel(), flat[:, 1:].ravel()).pvalue > FLAKE


def test_means_are_exact_without_noise() -> None:
    how = training(noise_multiplier=0.0, runs=20, clip_norm=0.37)
    for adversary in ("worst_case", "batch_then_shuffle"):
        canary = target(how, adversary)
        trained = how.train(X, Y, rng=seed(), canaries=canary)
        if adversary == "worst_case":
            with_it, _, other = canary.means
            expected = np.where(trained.drawn, with_it, other)
            np.testing.assert_allclose(trained.observations, expected, rtol=1e-6)
        assert np.abs(trained.observations).max() <= BATCH * (1 + 1e-6)


class Far:
    """A generator whose normals are all the same, far out in the tail."""

    def __init__(self, value: float) -> None:
        self.inner, self.value = seed(4), value

    def standard_normal(self, size: Any) -> np.ndarray:
        return np.full(size, self.value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("value", [8.5, -11.0])
def test_noise_along_the_canary_is_what_was_drawn(value: float) -> None:
    """Out to where a GPU's single-precision normals do not reach; models move by it too."""
    how = training(noise_multiplier=2.0, clip_norm=0.5, learning_rate=0.1)
    canary = target(how)
    trained = how.train(X, Y, rng=Far(value), canaries=canary)  # type: ignore[arg-type]
    expected = np.where(trained.drawn, 1.0, -1.0) + 2.0 * value
    np.testing.assert_allclose(trained.observations, expected, rtol=1e-12)
    moved = 0.1 / BATCH * 0.5 * expected.sum((1, 2))
    np.testing.assert_allclose(trained.moved, moved, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.5)])
def test_noise_across_the_canary_has_the_right_law(optimizer: SGD) -> None:
    """One step without gradients: what the models moved by is the noise."""
    sigma, clip, rate = 1.5, 0.4, 0.25
    how = training(
        runs=MANY, noise_multiplier=sigma, clip_norm=clip, learning_rate=rate, initial="given",
        sampler=Poisson(steps=1), optimizer=optimizer,
    )  # fmt: skip
    canary = target(how)
    trained = how.train(X, Y, rng=seed(2), canaries=canary)
    first = torch.cat([own.detach().flatten() for own in how.module.parameters()])
    noise = (first - weights(trained)).double().numpy() * BATCH / rate
    along = noise @ canary.direction
    np.testing.assert_allclose(along / clip, trained.observations[:, 0, 0, 0], rtol=1e-3, atol=1e-3)
    across = noise - np.outer(along, canary.direction)
    # Of a model's noise the part across the canary has one degree of freedom less.
    squares = np.square(across / (sigma * clip)).sum(1)
    law = scipy.stats.chi2(how.size - 1)
    assert scipy.stats.kstest(squares, law.cdf).pvalue > FLAKE
    other = np.linalg.qr(np.column_stack([canary.direction, seed(3).normal(size=how.size)]))[0][
        :, 1
    ]
    assert scipy.stats.kstest(noise @ other / (sigma * clip), "norm").pvalue > FLAKE
    # And it is another's in no other run.
    assert scipy.stats.pearsonr(across[0], across[1]).pvalue > FLAKE


def test_noise_without_canaries_has_the_right_law() -> None:
    how = training(
        runs=MANY, initial="given", sampler=Poisson(rate=1e-12, steps=1), clip_norm=0.4,
        learning_rate=1.0, noise_multiplier=1.5,
    )  # fmt: skip
    trained = how.train(X, Y, rng=seed(2))
    first = torch.cat([own.detach().flatten() for own in how.module.parameters()])
    noise = (first - weights(trained)).double().numpy() * BATCH / (1.5 * 0.4)
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > FLAKE


def test_many_canaries_are_seen_each_along_its_own() -> None:
    how = training(runs=MANY, noise_multiplier=1.2, sampler=Poisson(rate=0.4), learning_rate=1e-9)
    directions = np.linalg.qr(seed(1).normal(size=(how.size, 3)))[0].T
    included = seed(2).random((MANY, 3)) < 0.5
    # All records are canaries but those that training needs for a batch.
    canaries = ManyCanaries(directions=directions, included=included, first=RECORDS)
    trained = how.train(X, Y, rng=seed(3), canaries=canaries)
    assert trained.observations.shape == trained.drawn.shape == (MANY, 1, 4, 3)
    share = scipy.stats.binomtest(int(trained.drawn.sum()), trained.drawn.size, 0.4)
    assert share.pvalue > FLAKE
    quiet = replace(how, noise_multiplier=0.0).train(X, Y, rng=seed(3), canaries=canaries)
    np.testing.assert_array_equal(quiet.drawn, trained.drawn)
    noise = (trained.observations - quiet.observations).ravel() / 1.2
    assert scipy.stats.kstest(noise, "norm").pvalue > FLAKE
    alone = quiet.observations - quiet.others
    np.testing.assert_allclose(alone, trained.drawn * included[:, None, None], atol=1e-5)


# Records that do not count.


def test_a_record_left_out_is_in_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NDArray[np.int32]] = []
    insert = NoCanaries.insert
    monkeypatch.setattr(
        NoCanaries, "insert", lambda self, batch: (seen.append(batch), insert(self, batch))[1]
    )
    how = training(runs=5, noise_multiplier=0.0)
    left = how.train(X, Y, rng=seed(), left_out=1)
    every = torch.from_numpy(np.concatenate(seen, 1))
    for run in every:
        assert sorted(run[run >= 0].tolist()) == list(range(1, RECORDS))
    # What record 0 is does not matter.
    x = X.copy()
    x[0] = 1e6
    assert torch.equal(weights(left), weights(how.train(x, Y, rng=seed(), left_out=1)))
    assert not torch.equal(
        weights(how.train(x, Y, rng=seed())), weights(how.train(X, Y, rng=seed()))
    )


@pytest.mark.parametrize("path", ["auto", "general"])
def test_a_record_that_does_not_count_may_overflow(path: Any) -> None:
    """In the places that fill batches up nothing is computed that could spoil the sum."""

    def steep(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.square().square().sum(1)

    x = X.copy()
    x[0] = 1e36
    how = training(loss=steep, sampler=Poisson(), epochs=3, path=path, learning_rate=1e-3)
    for options in ({"left_out": 1}, {"canaries": NoCanaries(zeroed=True)}):
        assert not how.train(x, Y, rng=seed(), **options).diverged.any()  # type: ignore[arg-type]
    assert how.train(x, Y, rng=seed()).diverged.any()


# What comes out.


@pytest.mark.parametrize("path", ["auto", "general"])
def test_losses_and_accuracy_are_those_of_plain_models(path: Any) -> None:
    module = nn.Sequential(
        nn.Linear(FEATURES, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, CLASSES)
    )
    how = training(module=module, path=path, noise_multiplier=0.1)
    trained = how.train(X, Y, rng=seed())
    x = seed(1).normal(size=(700, FEATURES))  # more than are checked together
    y = seed(2).integers(CLASSES, size=700)
    losses = trained.losses(x, y, loss=nn.CrossEntropyLoss())
    accuracy = trained.accuracy(x, y)
    assert losses.shape == (3, 700)
    assert accuracy.shape == (3,)
    for run in range(3):
        with torch.no_grad():
            outputs = trained.models.model(run).eval()(torch.from_numpy(x).float())
        expected = nn.functional.cross_entropy(outputs, torch.from_numpy(y), reduction="none")
        np.testing.assert_allclose(losses[run], expected.numpy(), rtol=1e-4, atol=1e-5)
        assert accuracy[run] == (outputs.argmax(1).numpy() == y).mean()


def test_values_are_learned_too() -> None:
    how = training(module=nn.Linear(FEATURES, 2), loss=nn.MSELoss(), noise_multiplier=0.1)
    y = X[:, :2] * 2
    trained = how.train(X, y, rng=seed())
    losses = trained.losses(X, y, loss=nn.MSELoss())
    assert losses.shape == (3, RECORDS)
    with torch.no_grad():
        outputs = trained.models.model(2)(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(losses[2], np.square(outputs - y).mean(1), rtol=1e-4)


def test_it_learns() -> None:
    x = seed(1).normal(size=(300, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    how = training(
        module=mlp(FEATURES, 2, 8), noise_multiplier=0.5, batch_size=30, epochs=8,
        learning_rate=0.5, optimizer=SGD(momentum=0.5),
    )  # fmt: skip
    assert (how.train(x, y, rng=seed()).accuracy(x, y) > 0.85).all()


def test_the_module_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).eval()
    before = copy.deepcopy(module.state_dict())
    how = training(module=module)
    how.check(X, Y)
    how.train(X, Y, rng=seed()).losses(X, Y, loss=cross_entropy)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())


def test_given_weights_are_where_runs_begin() -> None:
    how = training(initial="given", learning_rate=1e-12)
    trained = how.train(X, Y, rng=seed())
    first = torch.cat([own.detach().flatten() for own in how.module.parameters()])
    for row in weights(trained):
        torch.testing.assert_close(row, first)


def test_modules_that_layers_cannot_take_are_trained_all_the_same() -> None:
    twice = Through(lambda x, a, b: b(a(a(x)).tanh()), nn.Linear(4, 4), nn.Linear(4, CLASSES))
    over = Through(lambda x, a, b: b(a(x).relu_()), nn.Linear(4, 4), nn.Linear(4, CLASSES))
    plain = Through(lambda x, a, b: b(a(x).relu()), nn.Linear(4, 4), nn.Linear(4, CLASSES))
    for module, general in ((twice, True), (over, True), (plain, False)):
        how = training(module=module, noise_multiplier=0.0, initial="given", sampler=Sequential())
        trained = how.train(X, Y, rng=seed())
        assert trained.models.general == general
        batches = np.arange(RECORDS).reshape(-1, BATCH).tolist()
        expected = by_hand(how, batches, lambda own: torch.optim.SGD(own, lr=0.2))
        torch.testing.assert_close(weights(trained)[0].double(), expected, rtol=1e-4, atol=1e-5)


# What is refused.


def _mixing() -> nn.Module:
    return Through(lambda x, a: a(x - x.mean(0)), nn.Linear(FEATURES, CLASSES))


def _lstm() -> nn.Module:
    return Through(
        lambda x, a, b: b(a(x[:, None])[0][:, 0]), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)
    )


def _with(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.astype(float)
    changed[3] = value
    return changed


@pytest.mark.parametrize(
    ("options", "x", "y", "said"),
    [
        ({"module": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))}, X, Y, "it mixes the"),
        ({"module": _mixing()}, X, Y, "records of a batch one by one"),
        ({"module": _lstm()}, X, Y, "LSTM at 'layers.0' cannot"),
        ({"module": mlp(5, CLASSES)}, X, Y, "Linear at '1' cannot: "),
        ({"module": nn.LazyLinear(3)}, X, Y, "call the module once before"),
        ({"module": nn.Flatten()}, X, Y, "trainable parameters, got none"),
        ({"module": mlp(4, 3).double()}, X, Y, "torch.float32"),
        ({"module": "mlp"}, X, Y, "torch.nn.Module, got str"),
        ({"loss": nn.functional.cross_entropy.__call__}, X, Y, "does not average"),
        ({"loss": lambda o, y: cross_entropy(o, y) / len(y)}, X, Y, "not to depend on the others"),
        ({}, _with(X, np.nan), Y, "finite features"),
        ({}, _with(X, -np.inf), Y, "finite features"),
        ({}, _with(X, 1e300), Y, "finite features"),  # too large for single precision
        ({"loss": nn.MSELoss()}, X, _with(Y, np.nan), "finite labels"),
        ({}, X, Y.astype(float), "Expected a loss of outputs"),
        ({}, X, Y + 1, "labels from 0 to 2"),
        ({}, X, Y - 1, "labels from -1 to 1"),
        ({}, X[:3], Y[:3], "at least a batch of 4 records, got 3"),
        ({}, X, Y[:-1], "features (n, …) and labels (n,)"),
        ({}, X[:, 0], Y, "features (n, …) and labels (n,)"),
        ({}, X.astype(str), Y, "Expected numbers"),
        ({}, torch.zeros(12, 4, device="meta"), Y, "features on the CPU or on cpu"),
        ({}, X, torch.zeros(12, device="meta"), "labels on the CPU or on cpu"),
        ({"runs": 0}, X, Y, "runs"),
        ({"runs": 2.5}, X, Y, "runs"),
        ({"noise_multiplier": -1.0}, X, Y, "noise_multiplier"),
        ({"noise_multiplier": np.inf}, X, Y, "noise_multiplier"),
        ({"clip_norm": 0.0}, X, Y, "clip_norm"),
        ({"learning_rate": np.nan}, X, Y, "learning_rate"),
        ({"initial": "zeros"}, X, Y, "initial"),
        ({"path": "fast"}, X, Y, "path"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(options: Any, x: Any, y: Any, said: str) -> None:
    for call in (
        lambda: training(**options).check(x, y),
        lambda: training(**options).train(x, y, rng=seed()),
    ):
        with pytest.raises(InvalidArgument, match="Expected") as caught:
            call()
        assert said in str(caught.value)


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch's own warning of it
def test_values_that_spread_over_the_batch_are_refused() -> None:
    how = training(module=nn.Linear(FEATURES, 1), loss=nn.MSELoss())
    with pytest.raises(InvalidArgument, match="not to depend on the others"):
        how.train(X, X[:, 0], rng=seed())


def test_a_canary_of_another_size_is_refused() -> None:
    how = training()
    canary = replace(target(how), direction=dirac_direction(how.size + 1, rng=seed()))
    with pytest.raises(InvalidArgument, match="canaries over 43 parameters, got 44"):
        how.train(X, Y, rng=seed(), canaries=canary)


def test_no_gpu_is_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InvalidArgument, match="CUDA device for 'cuda'"):
        training(device="cuda")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory: no"
        ),
    ],
)
@pytest.mark.parametrize("where", ["sum_clipped", "reset", "agree"])
def test_full_memory_is_told(where: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    if where == "agree":
        monkeypatch.setattr(ManyModels, "_agrees", full)
    else:
        monkeypatch.setattr(ManyModels, where, full)
    with pytest.raises(OutOfMemory, match="Train fewer at once"):
        training().train(X, Y, rng=seed())


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(_Run, "train_epoch", broken)
    with pytest.raises(RuntimeError, match="something else"):
        training().train(X, Y, rng=seed())


def test_memory_that_the_cpu_really_has_not_is_told() -> None:
    with pytest.raises(OutOfMemory, match="Train fewer at once"):
        training(runs=10**14).train(X, Y, rng=seed())


# The classic mistakes, planted: the laws above would see each.


def _fails(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


def test_noise_on_the_mean_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = _Run._noise
    monkeypatch.setattr(_Run, "_noise", lambda self: step(self).mul_(self.how.batch_size))
    assert _fails(test_noise_without_canaries_has_the_right_law)
    assert _fails(lambda: test_noise_across_the_canary_has_the_right_law(SGD()))


def test_the_same_noise_for_all_runs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = _Run._noise
    monkeypatch.setattr(_Run, "_noise", lambda self: step(self).copy_(self.noise[:1].clone()))
    assert _fails(test_first_weights_and_noise_and_batches_differ_between_runs)
    assert _fails(test_noise_without_canaries_has_the_right_law)


def test_the_same_batches_for_all_runs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    train_epoch = _Run.train_epoch

    def alike(self: Any, x: Tensor, y: Tensor, batches: Any, exact: Tensor) -> None:
        train_epoch(self, x, y, np.repeat(batches[:1], len(batches), axis=0), exact)

    monkeypatch.setattr(_Run, "train_epoch", alike)
    assert _fails(test_first_weights_and_noise_and_batches_differ_between_runs)
    assert _fails(lambda: test_observations_are_normal_about_their_means("zero_out", True))


def test_noise_left_out_along_the_canary_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = _Run._add_exact
    monkeypatch.setattr(
        _Run, "_add_exact", lambda self, sums, amounts, exact: step(self, sums, amounts, exact / 2)
    )
    assert _fails(lambda: test_observations_are_normal_about_their_means("zero_out", True))


def test_lenet_trains_on_the_fast_path() -> None:
    how = training(module=lenet5(1, 12, 12, CLASSES), sampler=Poisson(), runs=2)
    trained = how.train(seed().normal(size=(RECORDS, 1, 12, 12)), Y, rng=seed())
    assert not trained.models.general
    assert not trained.diverged.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(
    ("module", "shape"),
    [(mlp(FEATURES, CLASSES, 5), (FEATURES,)), (lenet5(1, 12, 12, CLASSES), (1, 12, 12))],
    ids=["mlp", "lenet5"],
)
def test_a_gpu_trains_what_the_cpu_does(module: nn.Module, shape: tuple[int, ...]) -> None:
    how = training(module=module, initial="given", noise_multiplier=0.0, sampler=Poisson())
    x = seed().normal(size=(RECORDS, *shape)).astype(np.float32)
    here, there = (
        replace(how, device=device).train(x, Y, rng=seed(), canaries=target(how, "target_canary"))
        for device in ("cpu", "cuda")
    )
    assert not there.models.general
    np.testing.assert_array_equal(here.drawn, there.drawn)
    np.testing.assert_allclose(here.observations, there.observations, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(weights(here), weights(there).cpu(), rtol=1e-3, atol=1e-4)
    losses = there.losses(x, Y, loss=cross_entropy)
    np.testing.assert_allclose(losses, here.losses(x, Y, loss=cross_entropy), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_same_generator_same_bytes_on_a_gpu() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES))
    how = training(module=module, device="cuda", epochs=2)
    first, second = (
        how.train(X, Y, rng=seed(7), canaries=target(how, "partially_informed")) for _ in range(2)
    )
    assert first.observations.tobytes() == second.observations.tobytes()
    assert torch.equal(weights(first), weights(second))
