"""Keras models that JAX-Privacy made private: what fit does, beside what is booked."""

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
from jax_privacy import keras_api, noise_addition  # noqa: E402

from epsilometer.core.audit import Audit  # noqa: E402
from epsilometer.errors import InvalidArgument  # noqa: E402
from epsilometer.integrations.jax_privacy import audited_keras  # noqa: E402

RECORDS, BATCH = 240, 24
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def make_model(*, rate_of_noise: float = 1.0, **changed: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(2)])
    usual = {
        "epsilon": 100.0, "delta": 1e-5, "clipping_norm": 2.0, "batch_size": BATCH,
        "gradient_accumulation_steps": 1, "train_steps": 40, "train_size": RECORDS,
        "noise_multiplier": 1.0, "poisson_sampling_in_fit": True, "seed": 3,
    }  # fmt: skip
    params = keras_api.DPKerasConfig(**usual | changed)
    model = keras_api.make_private(model, params)
    together = params.gradient_accumulation_steps
    optimizer = keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=together if together > 1 else None
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def fit(model: Any, *epochs: int, batch: int = BATCH) -> Audit:
    """Call ``fit`` once for every number of epochs; by default for 3."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 12)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    run = audited_keras(model)
    for each in epochs or (3,):
        model.fit(x, y, batch_size=batch, epochs=each, verbose=0)
    return run.result()


def violated(audit: Audit) -> list[str]:
    assert audit.conformance is not None
    return [check.name for check in audit.conformance.find("violated")]


@pytest.mark.parametrize("changed", [{}, {"rescale_to_unit_norm": False}], ids=str)
def test_a_right_model_is_spared(changed: Any) -> None:
    audit = fit(make_model(**changed))
    assert violated(audit) == []
    assert audit.conformance is not None
    assert audit.conformance.steps == 30
    assert audit.conformance.check("sampling rate").outcome == "conforms"
    assert audit.conformance.check("noise scale").outcome == "conforms"


@pytest.mark.parametrize(("batch", "epochs"), [(6, (1,)), (RECORDS // 2, (1, 1)), (BATCH, (2, 2))])
def test_batches_that_are_drawn_ahead_do_not_count(
    batch: int, epochs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one epoch of 40 steps 120 batches were seen, and the model accused of several per step."""
    seeds = iter(range(9))
    monkeypatch.setattr(keras_api, "_get_random_int64", lambda: next(seeds))
    audit = fit(make_model(batch_size=batch, seed=None), *epochs, batch=batch)
    assert violated(audit) == []
    assert audit.conformance is not None
    assert audit.conformance.check("steps per batch").outcome == "conforms"


def test_a_seeded_model_repeats_its_batches_in_every_fit() -> None:
    """The dataset that ``fit`` makes begins with the seed of the configuration, in 2.0.0."""
    assert "fresh batches" in violated(fit(make_model(seed=3), 2, 2))


def test_fit_that_shuffles_is_not_what_is_booked() -> None:
    audit = fit(make_model(poisson_sampling_in_fit=False))
    assert audit.verdict == "violated"
    assert violated(audit) == ["batches of fit"]


def test_less_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = noise_addition.gaussian_privatizer
    monkeypatch.setattr(
        noise_addition, "gaussian_privatizer", lambda stddev, **k: own(stddev=stddev / 2, **k)
    )
    assert "noise scale" in violated(fit(make_model()))


def test_a_step_without_noise_is_found() -> None:
    model = make_model()

    def step(state: Any, data: Any) -> Any:  # an update of a subclass that forgot the noise
        logs, new = keras.Model.train_step(model, state, data)
        new[1][1] = new[1][1] + 1
        return logs, new

    model.train_step = step
    assert "steps with noise" in violated(fit(model, 1))


def test_accumulated_batches_are_booked_at_the_rate_of_one() -> None:
    """DPKerasConfig of 2.0.0 with a noise multiplier accounts for batch_size records per step."""
    audit = fit(make_model(gradient_accumulation_steps=2))
    assert violated(audit) == ["rate on the books"]


def test_other_models_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="make_private"):
        audited_keras(keras.Sequential([keras.layers.Dense(1)]))
