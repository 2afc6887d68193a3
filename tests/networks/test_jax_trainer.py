"""The JAX backend: what a run draws does not depend on the others, and audits choose it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.networks.jax_convolution import convolve
from epsilometer.networks.jax_trainer import JaxDPSGD, JaxModel, cross_entropy
from epsilometer.networks.optimizers import SGD, Adam
from epsilometer.networks.trainer import BACKENDS, find_backend, name_backend
from epsilometer.sampling.samplers import Poisson


def apply(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["first"]) @ params["last"]


def draw(key: Any) -> Any:
    first, last = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (3, 4)),
        "last": jax.random.normal(last, (4, 2)),
    }


MODEL = JaxModel(apply, draw(jax.random.key(0)), init=draw)


def make(**changed: Any) -> JaxDPSGD:
    usual = {"runs": 6, "noise_multiplier": 1.0, "learning_rate": 0.3, "batch_size": 4}
    return JaxDPSGD(MODEL, cross_entropy, **usual | changed)


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.normal(size=(24, 3)), rng.integers(2, size=24)


@pytest.mark.parametrize("at_once", [1, 4, 6])
def test_results_do_not_depend_on_how_runs_are_divided(data: Any, at_once: int) -> None:
    poisson = Poisson(rate=0.2, steps=5)
    whole, parts = (
        make(sampler=poisson, epochs=2, at_once=many).train(*data, rng=np.random.default_rng(1))
        for many in (6, at_once)
    )
    np.testing.assert_allclose(parts.weights, whole.weights, rtol=1e-5, atol=1e-6)


def test_a_run_is_the_same_whoever_is_trained_beside_it(data: Any) -> None:
    few, many = (make(runs=n).train(*data, rng=np.random.default_rng(1)) for n in (2, 6))
    np.testing.assert_allclose(few.weights, many.weights[:2], rtol=1e-5, atol=1e-6)
    assert np.unique(many.weights, axis=0).shape == many.weights.shape  # of every run its own


def test_first_weights_are_fresh_or_given(data: Any, rng: np.random.Generator) -> None:
    still = {"noise_multiplier": 0.0, "learning_rate": 1e-12}
    fresh = make(**still).train(*data, rng=rng).weights
    given = make(**still, initial="given").train(*data, rng=rng).weights
    assert np.unique(fresh, axis=0).shape[0] == 6
    assert np.unique(given.round(6), axis=0).shape[0] == 1


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9, weight_decay=0.1), Adam()], ids=repr)
def test_optimizers_do_what_those_of_torch_do(data: Any, optimizer: Any) -> None:
    torch = pytest.importorskip("torch")
    from epsilometer.networks.ensemble import EnsembleDPSGD
    from epsilometer.networks.ensemble import cross_entropy as torch_loss

    linear = JaxModel(lambda p, x: x @ p[0].T + p[1], (np.zeros((2, 3)), np.zeros(2)))
    module = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    usual = {
        "runs": 1, "noise_multiplier": 0.0, "learning_rate": 0.3, "batch_size": 24, "epochs": 5,
        "optimizer": optimizer, "initial": "given",
    }  # fmt: skip
    ours = JaxDPSGD(linear, cross_entropy, **usual).train(*data, rng=np.random.default_rng(0))
    theirs = EnsembleDPSGD(module, torch_loss, **usual).train(*data, rng=np.random.default_rng(0))
    np.testing.assert_allclose(
        ours.losses(*data, loss=cross_entropy),
        theirs.losses(*data, loss=torch_loss),
        rtol=1e-4,
    )


@pytest.mark.parametrize(("rows", "columns", "padding"), [(3, 3, 0), (5, 2, 2), (1, 1, 0)])
def test_convolutions_are_those_of_jax(rows: int, columns: int, padding: int, rng: Any) -> None:
    images = rng.normal(size=(2, 3, 7, 8)).astype(np.float32)
    weight = rng.normal(size=(4, 3, rows, columns)).astype(np.float32)

    def by_jax(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), [(padding, padding)] * 2)

    def ours(x: Any, w: Any) -> Any:
        return convolve(x, w, padding=padding)

    np.testing.assert_allclose(ours(images, weight), by_jax(images, weight), atol=1e-4)
    found, expected = (
        jax.grad(lambda x, w, f=f: (f(x, w) ** 2).sum(), (0, 1))(images, weight)
        for f in (ours, by_jax)
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-2)


def test_optimizers_of_optax_are_taken(data: Any, rng: np.random.Generator) -> None:
    optax = pytest.importorskip("optax")
    still = {"noise_multiplier": 0.0, "initial": "given"}
    by_optax = make(**still, optimizer=optax.scale(-1.0)).train(*data, rng=np.random.default_rng(0))
    plain = make(**still).train(*data, rng=np.random.default_rng(0))
    np.testing.assert_allclose(by_optax.weights, plain.weights, rtol=1e-6)


def test_the_model_decides_which_backend_trains_it() -> None:
    assert set(BACKENDS) >= {"torch", "jax"}
    assert name_backend(MODEL) == "jax"
    assert isinstance(find_backend(MODEL).make_trainer(MODEL, None, runs=1, noise_multiplier=1.0,
                      learning_rate=0.1, batch_size=2), JaxDPSGD)  # fmt: skip
    with pytest.raises(InvalidArgument, match="a JaxModel, got int"):
        name_backend(3)


@pytest.mark.parametrize(("sampler", "runs"), [(None, 2560), (Poisson(), 512)], ids=repr)
def test_an_audit_of_dpsgd_is_done_by_jax(sampler: Any, runs: int) -> None:
    """Noise is that of Poisson sampling: shuffling is refuted by it, and nothing else is."""
    linear = JaxModel(lambda w, x: x @ w, np.zeros((5, 2), np.float32))
    rng = np.random.default_rng(0)
    data = rng.normal(size=(100, 5)).astype(np.float32), np.arange(100) % 2
    training = em.DPSGD(
        linear, data, runs=runs, learning_rate=0.1, batch_size=1, adversary="worst_case",
        views=("updates",), sampler=sampler,
    )  # fmt: skip
    audit = em.audit(training, em.Claim(1.0, delta=1e-5), engine=em.InProcess())
    assert (audit.verdict == "refuted") == (sampler is None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": "adam"}, "GradientTransformation of optax"),
        ({"device": "abacus"}, "a device that JAX sees"),
        ({"initial": "none"}, "'fresh' or 'given'"),
        ({"noise_multiplier": float("inf")}, "finite"),
    ],
)
def test_bad_settings_are_refused(changed: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make(**changed)


def test_bad_records_are_refused(data: Any, rng: np.random.Generator) -> None:
    x, y = data
    with pytest.raises(InvalidArgument, match="labels from 0 to 1"):
        make().train(x, y + 1, rng=rng)
    with pytest.raises(InvalidArgument, match="at least a batch of 4"):
        make().train(x[:2], y[:2], rng=rng)
    with pytest.raises(InvalidArgument, match="finite features"):
        make().train(np.where(x > 0, np.inf, x), y, rng=rng)
    with pytest.raises(InvalidArgument, match="one number per example"):
        JaxDPSGD(MODEL, lambda o, y: o.mean(), runs=1, noise_multiplier=1.0, learning_rate=0.1,
                 batch_size=2).train(x, y, rng=rng)  # fmt: skip
    with pytest.raises(InvalidArgument, match="tree of arrays as params"):
        JaxModel(apply, {})
