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


def fit(model: Any, epochs: int = 3) -> Audit:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 12)).astype(np.float32)
    run = audited_keras(model)
    model.fit(x, (x[:, 0] > 0).astype(np.int32), batch_size=BATCH, epochs=epochs, verbose=0)
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
    assert "steps with noise" in violated(fit(model, epochs=1))


def test_accumulated_batches_are_booked_at_the_rate_of_one() -> None:
    """DPKerasConfig of 2.0.0 with a noise multiplier accounts for batch_size records per step."""
    audit = fit(make_model(gradient_accumulation_steps=2))
    assert violated(audit) == ["rate on the books"]


def test_other_models_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="make_private"):
        audited_keras(keras.Sequential([keras.layers.Dense(1)]))
