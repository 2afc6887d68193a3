"""Right and wrong Keras programs with TensorFlow Privacy, trained for real, and their books."""

import runpy
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy
from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib as theirs

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.tf_privacy import audited, read_books

pytestmark = pytest.mark.filterwarnings("ignore")  # of Keras, TensorFlow and their protobuf
ROOT = Path(__file__).parents[3]
RECORDS, SIZE, STEPS, NOISE, CLIP = 1_000, 50, 40, 1.1, 0.5


@pytest.fixture(autouse=True)
def _no_seed() -> None:
    tf.random.set_seed(None)  # of another test


def make_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(RECORDS, 30)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(np.int64)


def make_model(optimizer: Any, *, seed: int | None = None) -> Any:
    if seed is not None:
        tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential([tf.keras.layers.Input((30,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    model.compile(optimizer=optimizer, loss=loss)
    return model


def make_optimizer(kind: str = "DPKerasSGDOptimizer", **more: Any) -> Any:
    settings = {"l2_norm_clip": CLIP, "noise_multiplier": NOISE, "learning_rate": 0.1, **more}
    return getattr(tensorflow_privacy, kind)(**settings)


def train(
    optimizer: Any, *, poisson: bool = True, fixed: int = SIZE, seed: int | None = None
) -> Any:
    """By Poisson sampling, or in batches of one size."""
    features, labels = make_data()
    model, rng = make_model(optimizer, seed=seed), np.random.default_rng(1)
    run = audited(optimizer, records=RECORDS, batch_size=SIZE)
    for _ in range(STEPS):
        drawn = rng.random(RECORDS) < SIZE / RECORDS
        if not poisson:
            drawn = rng.permutation(RECORDS)[:fixed]
        model.train_on_batch(features[drawn], labels[drawn])
    return run


def books(**more: Any) -> Any:
    asked = {"number_of_examples": RECORDS, "batch_size": SIZE, "num_epochs": 2, **more}
    return read_books(**{"noise_multiplier": NOISE, "used_microbatching": False, **asked})


def violated(run: Any, entries: Any = None) -> set[str]:
    found = run.find_conformance(books() if entries is None else entries)
    return {check.name for check in found.find("violated")}


@pytest.mark.parametrize("kind", ["DPKerasSGDOptimizer", "DPKerasAdamOptimizer"])
def test_a_right_run_is_spared(kind: str) -> None:
    run = train(make_optimizer(kind))
    assert run.steps == STEPS
    audit = run.result(books(), delta=1e-5)
    assert audit.verdict == "cannot judge"  # nothing attacked it: conformance proves no ε
    assert audit.conformance is not None
    assert audit.conformance.verdict == "conforms"
    right = {check.name for check in audit.conformance.find("conforms")}
    assert right >= {"noise scale", "steps with noise", "norm of the sum"}
    assert right >= {"steps on the books", "sizes of steps"}


def test_what_the_optimiser_computes_is_unchanged() -> None:
    """Of programs with and without the watch, from the same seeds."""
    weights = []
    for watch in (False, True):
        optimizer = make_optimizer()
        features, labels = make_data()
        model = make_model(optimizer, seed=0)
        if watch:
            audited(optimizer, records=RECORDS, batch_size=SIZE)
        tf.keras.utils.set_random_seed(3)
        for start in (0, 50, 100):
            model.train_on_batch(features[start : start + 50], labels[start : start + 50])
        weights.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    np.testing.assert_array_equal(*weights)


def test_too_little_noise_is_found() -> None:
    optimizer = make_optimizer()
    query = optimizer._dp_sum_query
    state = query.make_global_state(CLIP, 0.5 * NOISE * CLIP)
    optimizer._global_state = state  # half of what the optimiser says
    assert "noise scale" in violated(train(optimizer))


def test_a_seed_repeats_the_noise_of_batches_of_different_sizes() -> None:
    """TensorFlow compiles a step anew for every size, and each begins with the same noise."""
    assert "independence of steps" in violated(train(make_optimizer(), seed=0))


def test_gradients_that_are_not_clipped_are_found() -> None:
    optimizer = make_optimizer()
    query = optimizer._dp_sum_query
    optimizer._global_state = query.make_global_state(100.0 * CLIP, NOISE * CLIP)
    assert "norm of the sum" in violated(train(optimizer))


def test_a_mean_that_is_clipped_in_place_of_gradients_is_found() -> None:
    """It conformed: a step has one loss, and the norm of its gradient is that of one record."""
    optimizer = make_optimizer()
    features, labels = make_data()
    model = make_model(optimizer)
    run = audited(optimizer, records=RECORDS, batch_size=SIZE)
    measure = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    for start in (0, 50, 100):
        batch = slice(start, start + SIZE)
        with tf.GradientTape(persistent=True) as tape:
            losses = measure(labels[batch], model(features[batch]))
            mean = tf.reduce_mean(losses, keepdims=True)
        weights = model.trainable_variables
        optimizer.apply_gradients(optimizer._compute_gradients(mean, weights, tape=tape))
    assert "losses of records" in violated(run)


def test_batches_of_one_size_are_found() -> None:
    assert "sizes of steps" in violated(train(make_optimizer(), poisson=False))


def test_larger_batches_than_booked_are_found() -> None:
    assert "rows per step" in violated(train(make_optimizer(), poisson=False, fixed=4 * SIZE))


def test_several_records_per_clipped_gradient_need_twice_the_noise() -> None:
    run = train(make_optimizer(num_microbatches=10), poisson=False)
    assert "noise on the books" in violated(run)
    assert "noise on the books" not in violated(run, books(used_microbatching=True))


def test_steps_that_are_not_booked_are_found() -> None:
    run = train(make_optimizer())
    assert "steps on the books" in violated(run, books(num_epochs=1))


def test_accumulated_batches_are_steps() -> None:
    """Each adds noise of the multiplier: half of the steps on the books are too few."""
    run = train(make_optimizer(gradient_accumulation_steps=2))
    assert not {name for name in violated(run) if "books" in name}
    assert "steps on the books" in violated(run, books(num_epochs=1))


def test_steps_without_noise_are_found() -> None:
    optimizer = make_optimizer()
    run = train(optimizer)
    variable = tf.Variable(1.0)
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert "steps with noise" in violated(run)


def test_a_graph_from_before_is_not_tested_and_not_accused() -> None:
    optimizer = make_optimizer()
    features, labels = make_data()
    model = make_model(optimizer)
    model.train_on_batch(features[:50], labels[:50])
    run = audited(optimizer, records=RECORDS, batch_size=SIZE)
    model.train_on_batch(features[:50], labels[:50])
    found = run.find_conformance(books())
    assert run.steps == 0
    assert found.verdict == "not tested"
    assert run.result(books(), delta=1e-5).verdict == "cannot judge"


def test_fit_shuffles() -> None:
    optimizer = make_optimizer()
    features, labels = make_data()
    model = make_model(optimizer)
    run = audited(optimizer, records=RECORDS, batch_size=SIZE)
    model.fit(features, labels, batch_size=SIZE, epochs=2, verbose=0)
    audit = run.result(books(), delta=1e-5)
    assert run.steps == STEPS
    assert audit.verdict == "violated"


@pytest.mark.parametrize("micro", [False, True])
def test_books_come_to_what_tensorflow_privacy_says(micro: bool) -> None:
    asked = {"num_epochs": 2, "noise_multiplier": NOISE, "used_microbatching": micro}
    expected = theirs._compute_dp_sgd_example_privacy(
        example_delta=1e-5, poisson_subsampling_probability=SIZE / RECORDS, **asked
    )
    ((noise, rate, count),) = books(used_microbatching=micro)
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = dp_accounting.rdp.RdpAccountant().compose(step, count)
    assert accountant.get_epsilon(1e-5) == pytest.approx(expected)
    assert read_books(accountant) == books(used_microbatching=micro)


def test_what_is_no_private_optimiser_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="DPKerasSGDOptimizer"):
        audited(tf.keras.optimizers.SGD(0.1), records=RECORDS, batch_size=SIZE)
    with pytest.raises(InvalidArgument, match="none that is vectorized"):
        audited(make_optimizer("VectorizedDPKerasSGDOptimizer"), records=RECORDS, batch_size=SIZE)
    with pytest.raises(InvalidArgument, match="at most"):
        audited(make_optimizer(), records=10, batch_size=SIZE)


@pytest.mark.parametrize(("shuffle", "code"), [(False, 4), (True, 1)])
def test_the_example_ends_as_it_says(shuffle: bool, code: int) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "tf_privacy" / "train.py"))
    assert example["train"](shuffle=shuffle).exit_code == code
