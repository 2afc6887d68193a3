"""What every backend of many private models must do: the contract of ``Trainer``.

A backend is a function that returns a trainer of softmax regression: 3 features, 2 classes, the 6
weights (class by class) and then the 2 biases, all 0 at first, plain SGD. To test another backend,
add its function to ``BACKENDS``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from epsilometer.networks.trainer import Inserted, NoCanaries, Trainer
from epsilometer.sampling.samplers import Poisson, Shuffle
from epsilometer.types import FloatArray

FLAKE = 1e-6
FEATURES, CLASSES, SIZE, RECORDS = 3, 2, 8, 24
Make = Callable[..., Trainer]


def make_torch(**settings: Any) -> Trainer:
    torch = pytest.importorskip("torch")
    from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy

    module = torch.nn.Linear(FEATURES, CLASSES)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return EnsembleDPSGD(module, cross_entropy, initial="given", **settings)


def make_jax(**settings: Any) -> Trainer:
    from epsilometer.networks.jax_trainer import JaxDPSGD, JaxModel, cross_entropy

    def apply(params: Any, x: Any) -> Any:
        weight, bias = params
        return x @ weight.T + bias

    model = JaxModel(apply, (np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)))
    return JaxDPSGD(model, cross_entropy, **settings)


BACKENDS: dict[str, Make] = {"torch": make_torch}
if find_spec("jax"):  # of an environment of its own: make test-jax
    BACKENDS["jax"] = make_jax


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Make:
    usual = {"runs": 3, "noise_multiplier": 0.0, "learning_rate": 0.5, "batch_size": 4}

    def build(**changed: Any) -> Trainer:
        return BACKENDS[request.param](**usual | changed)

    return build


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
    return 2 * rng.normal(size=(RECORDS, FEATURES)), rng.integers(CLASSES, size=RECORDS)


@dataclass(eq=False)
class Probe:
    """Watches every coordinate of the sums, adds ``amount`` to each, and notes the batches."""

    amount: float = 0.0
    kept: bool = True
    records: int = 0
    batches: list[NDArray[Any]] = field(default_factory=list)

    @property
    def directions(self) -> FloatArray:
        return np.eye(SIZE)

    def insert(self, batches: NDArray[Any]) -> Inserted:
        self.batches.append(batches)
        shape = (*batches.shape[:-1], SIZE)
        drawn = np.broadcast_to((batches == 0).any(-1)[..., None], shape)
        return Inserted(batches >= 0 if self.kept else None, np.full(shape, self.amount), drawn)


def clip_by_hand(theta: FloatArray, x: FloatArray, y: NDArray[np.int64], clip: float) -> FloatArray:
    """Sum gradients of softmax regression, each clipped, with a plain loop."""
    total = np.zeros(SIZE)
    for row, label in zip(x, y, strict=True):
        logits = theta[:6].reshape(CLASSES, FEATURES) @ row + theta[6:]
        error = np.exp(logits) / np.exp(logits).sum() - np.eye(CLASSES)[label]
        gradient = np.concatenate([np.outer(error, row).ravel(), error])
        total += gradient * min(1.0, clip / float(np.linalg.norm(gradient)))
    return total


@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_sums_are_of_clipped_gradients_and_move_the_weights(
    make: Make, data: Any, clip: float, rng: np.random.Generator
) -> None:
    probe = Probe()
    trained = make(clip_norm=clip, epochs=2).train(*data, rng=rng, canaries=probe)
    x, y = data
    for run in range(3):
        theta = np.zeros(SIZE)
        for epoch, batches in enumerate(probe.batches):
            for step, batch in enumerate(batches[run]):
                found = clip * trained.observations[run, epoch, step]
                expected = clip_by_hand(theta, x[batch], y[batch], clip)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
                theta -= 0.5 * expected / 4
        np.testing.assert_allclose(trained.moved[run], -theta, rtol=1e-4, atol=1e-5)


def test_shapes(make: Make, data: Any, rng: np.random.Generator) -> None:
    how = make(epochs=2)
    trained = how.train(*data, rng=rng, canaries=Probe())
    shape = (3, 2, RECORDS // 4, SIZE)
    assert trained.observations.shape == trained.others.shape == trained.drawn.shape == shape
    assert (trained.moved.shape, trained.diverged.shape) == ((3, SIZE), (3,))
    assert trained.losses(*data, loss=how.loss).shape == (3, RECORDS)
    assert how.size == SIZE
    assert not trained.diverged.any()
    none = how.train(*data, rng=rng)
    assert none.observations.shape == (3, 2, RECORDS // 4, 0)


def test_same_seed_same_result(make: Make, data: Any) -> None:
    how = make(noise_multiplier=1.0)
    first, again, other = (
        how.train(*data, rng=np.random.default_rng(seed), canaries=Probe()) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.observations, again.observations)
    np.testing.assert_array_equal(first.moved, again.moved)
    assert not np.isin(first.observations, other.observations).any()
    assert np.unique(first.observations).size == first.observations.size  # of every run its own


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_noise_has_its_scale_and_is_independent(
    make: Make, data: Any, noise: float, rng: np.random.Generator
) -> None:
    how = make(runs=200, noise_multiplier=noise, clip_norm=0.7)
    trained = how.train(*data, rng=rng, canaries=Probe(kept=False))
    drawn = (trained.observations - trained.others) / noise
    square = float((drawn**2).sum())  # χ² with as many degrees of freedom
    tails = scipy.stats.chi2(drawn.size)
    assert tails.ppf(FLAKE) < square < tails.isf(FLAKE)
    rows = drawn.reshape(-1, SIZE)
    shared = (rows[:-1] * rows[1:]).sum() / np.sqrt(rows[:-1].size)  # nearly standard normal
    assert abs(shared) < 6


def test_noise_along_a_single_canary(make: Make, data: Any, rng: np.random.Generator) -> None:
    class One(Probe):
        @property
        def directions(self) -> FloatArray:
            return np.full((1, SIZE), SIZE**-0.5)

        def insert(self, batches: NDArray[Any]) -> Inserted:
            keep, amounts, drawn = super().insert(batches)
            return Inserted(keep, amounts[..., :1], drawn[..., :1])

    trained = make(runs=300, noise_multiplier=2.0).train(*data, rng=rng, canaries=One(amount=1.0))
    alone = (trained.observations - trained.others - 1.0) / 2.0
    assert scipy.stats.kstest(alone.ravel(), "norm").pvalue > FLAKE
    along = trained.observations.sum((1, 2)) * 0.5 / 4  # all steps, learning rate over batch size
    np.testing.assert_allclose(trained.moved, along, rtol=1e-4, atol=1e-5)


def test_batches_are_the_samplers_and_every_run_has_its_own(
    make: Make, data: Any, rng: np.random.Generator
) -> None:
    probe = Probe()
    trained = make(sampler=Shuffle(), epochs=2).train(*data, rng=rng, canaries=probe)
    epochs = np.stack(probe.batches, 1)
    assert epochs.shape == (3, 2, RECORDS // 4, 4)
    orders = epochs.reshape(6, RECORDS)
    assert all(sorted(order.tolist()) == list(range(RECORDS)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 6
    np.testing.assert_array_equal(trained.drawn[..., 0], (epochs == 0).any(-1))


def test_empty_batches_are_steps_of_noise_alone(
    make: Make, data: Any, rng: np.random.Generator
) -> None:
    probe = Probe()
    trained = make(sampler=Poisson(rate=0.02, steps=20)).train(*data, rng=rng, canaries=probe)
    empty = (probe.batches[0] < 0).all(-1)
    assert empty.any()
    assert not trained.observations[:, 0][empty].any()


def test_canaries_are_added_and_records_taken_away(
    make: Make, data: Any, rng: np.random.Generator
) -> None:
    trained = make(clip_norm=0.3).train(*data, rng=rng, canaries=Probe(amount=0.25, kept=False))
    assert not trained.others.any()
    np.testing.assert_allclose(trained.observations, 0.25, rtol=1e-6)
    zeroed = make(runs=1).train(*data, rng=np.random.default_rng(3), canaries=NoCanaries(True))
    x = data[0].copy()
    x[0] = -9.0  # a record that counts for nothing may be anything
    other = make(runs=1).train(x, data[1], rng=np.random.default_rng(3), canaries=NoCanaries(True))
    loss = make().loss
    np.testing.assert_array_equal(zeroed.losses(*data, loss=loss), other.losses(*data, loss=loss))


def test_records_left_out_and_records_of_canaries(
    make: Make, data: Any, rng: np.random.Generator
) -> None:
    left = Probe()
    make(batch_size=1).train(*data, rng=rng, canaries=left, left_out=1)
    assert set(left.batches[0].ravel().tolist()) == set(range(1, RECORDS))
    further = Probe(records=4, kept=False)
    make(batch_size=1).train(*data, rng=rng, canaries=further)
    assert set(further.batches[0].ravel().tolist()) == set(range(RECORDS + 4))


def test_runs_that_diverge_are_marked(make: Make, data: Any, rng: np.random.Generator) -> None:
    far = make(learning_rate=3e38, clip_norm=10.0, epochs=2)  # out of what single precision holds
    trained = far.train(*data, rng=rng, canaries=Probe(amount=2.0))
    assert trained.diverged.all()
    assert np.isnan(trained.observations[:, -1, -1]).any(-1).all()


def test_losses_are_those_of_the_final_models(
    make: Make, data: Any, rng: np.random.Generator
) -> None:
    how = make(learning_rate=1e-12)  # it stays at 0, where both classes are as likely
    trained = how.train(*data, rng=rng)
    np.testing.assert_allclose(trained.losses(*data, loss=how.loss), np.log(2), rtol=1e-5)


def test_as_many_runs_as_wanted_or_as_fit(make: Make, data: Any) -> None:
    how = make()
    assert how.with_runs(7).runs == 7
    assert how.with_runs(7).sampler == how.sampler
    assert how.count_at_once(*data) >= 1
