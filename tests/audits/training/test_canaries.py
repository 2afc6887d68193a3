"""Data canaries: which record, which change, and whatever is wrong with the data."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from epsilometer.audits.training.canaries import (
    adversarial,
    highest_loss,
    mean_gradient,
    random_record,
)
from epsilometer.core.record import Record, mislabel
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import losses

FEATURES = np.array([[0.0, 10.0], [1.0, 30.0], [0.5, 20.0]])
LABELS = np.array([0, 2, 2])


def same(record: Record, other: Record) -> bool:
    return np.array_equal(record.features, other.features) and record.label == other.label


def net(seed: int, inputs: int = 2, classes: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 8),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(8, classes),
    )


# Which record


def test_a_random_record_is_one_of_the_data_with_its_own_label(rng: np.random.Generator) -> None:
    seen = set()
    for _ in range(60):  # a record is never met with chance (2/3)^60
        record = random_record(FEATURES, LABELS, rng=rng)
        (at,) = np.flatnonzero((record.features == FEATURES).all(axis=1))
        assert record.label == LABELS[at]
        seen.add(int(at))
    assert seen == {0, 1, 2}


def test_a_record_of_an_image_keeps_its_shape_and_type(rng: np.random.Generator) -> None:
    images = rng.random((5, 1, 4, 4)).astype(np.float32)
    for record in (
        random_record(images, np.arange(5), rng=rng),
        adversarial(Record(images[0], 1), lambda x, y: np.ones(x.shape)),
    ):
        assert record.features.shape == (1, 4, 4)
        assert record.features.dtype == np.float32
        assert not record.features.flags.writeable


def test_the_hardest_record_has_the_highest_mean_loss() -> None:
    given = np.array([[0.0, 1.0, 2.0], [3.0, 9.0, 4.0]])  # means 1.5, 5, 3
    assert same(highest_loss(FEATURES, LABELS, shadows=given), Record(FEATURES[1], 2))
    single = highest_loss(FEATURES, LABELS, shadows=[0.0, 1.0, np.inf])
    assert same(single, Record(FEATURES[2], 2))


def test_the_hardest_record_of_real_models_is_the_planted_one(rng: np.random.Generator) -> None:
    features = np.concatenate([rng.normal(-2, 1, (100, 3)), rng.normal(2, 1, (100, 3))])
    labels = np.repeat([0, 1], 100)
    models = [
        LogisticRegression().fit(features[rows], labels[rows])
        for rows in (rng.permutation(200)[:150] for _ in range(3))
    ]
    features[17], labels[17] = 6.0, 0
    assert same(highest_loss(features, labels, shadows=models), Record(features[17], 0))
    mean = np.mean([losses(model, features, labels) for model in models], axis=0)
    assert int(np.argmax(mean)) == 17


def test_the_hardest_record_of_modules_is_that_of_their_losses() -> None:
    modules = [net(seed) for seed in range(3)]
    given = [losses(module, FEATURES, LABELS) for module in modules]
    expected = highest_loss(FEATURES, LABELS, shadows=given)
    assert same(highest_loss(FEATURES, LABELS, shadows=modules), expected)


# Which change


def test_a_wrong_label_is_any_of_the_others(rng: np.random.Generator) -> None:
    record = Record([1.0, 2.0], 1)
    made = [mislabel(record, classes=4, rng=rng) for _ in range(100)]
    assert {other.label for other in made} == {0, 2, 3}  # misses one with chance 3 (2/3)^100
    assert all(np.array_equal(other.features, record.features) for other in made)


def test_noise_against_shadow_models_is_forty_steps_of_a_hundredth() -> None:
    asked = []

    def gradient(x: np.ndarray, y: int) -> np.ndarray:
        asked.append((x.copy(), y))
        return np.array([5.0, -1e-9, 0.0])

    record = Record([1.0, 1.0, 1.0], 2)
    moved = adversarial(record, gradient)
    np.testing.assert_allclose(moved.features, [1.4, 0.6, 1.0], rtol=1e-12)
    assert (len(asked), {y for _, y in asked}, moved.label) == (40, {2}, 2)
    np.testing.assert_allclose(asked[1][0], [1.01, 0.99, 1.0])
    assert record.features.tolist() == [1.0, 1.0, 1.0]


def test_the_gradient_of_modules_is_the_mean_of_their_losses_slopes() -> None:
    modules, x, y = [net(seed).double() for seed in range(3)], np.array([0.3, -0.2]), 2

    def mean(at: np.ndarray) -> float:
        return float(np.mean([losses(m, at[None], np.array([y]))[0] for m in modules]))

    h = 1e-5  # central differences: error of the order h², rounding of 1e-16/h
    expected = [(mean(x + h * unit) - mean(x - h * unit)) / (2 * h) for unit in np.eye(2)]
    np.testing.assert_allclose(mean_gradient(modules)(x, y), expected, rtol=1e-6)


def test_modules_are_moved_uphill_and_left_as_they_were() -> None:
    modules = [net(seed) for seed in range(2)]
    modules[0].eval()
    modules[1][1].eval()
    modes = [[part.training for part in module.modules()] for module in modules]
    record = Record(np.array([0.3, -0.2], np.float32), 1)
    moved = adversarial(record, modules)
    assert [[part.training for part in module.modules()] for module in modules] == modes
    assert all(weights.grad is None for module in modules for weights in module.parameters())
    at = np.array([1])
    before, after = (
        np.mean([losses(module, found.features[None], at)[0] for module in modules])
        for found in (record, moved)
    )
    assert after > before
    assert same(moved, adversarial(record, modules))  # dropout is off


def test_another_loss_moves_elsewhere() -> None:
    def downhill(logits: Any, labels: Any) -> Any:
        return -torch.nn.functional.cross_entropy(logits, labels)

    record, modules = Record(np.array([0.3, -0.2]), 1), [net(0).double()]
    up, down = (
        adversarial(record, modules, loss=loss, steps=1).features - record.features
        for loss in (None, downhill)
    )
    np.testing.assert_allclose(up, -down)


def test_the_four_choices_of_the_bayesian_audit_are_put_together(rng: np.random.Generator) -> None:
    modules = [net(seed) for seed in range(10)]
    for chosen in (
        random_record(FEATURES, LABELS, rng=rng),
        highest_loss(FEATURES, LABELS, shadows=modules),
    ):
        moved = adversarial(chosen, modules)
        assert moved.label == chosen.label
        assert 0 < np.abs(moved.features - chosen.features).max() <= 0.4 + 1e-9


# Bad input

BAD_DATA: dict[str, tuple[Any, Any, str]] = {
    "empty": (np.zeros((0, 2)), np.zeros(0, int), "one record or more"),
    "no features": (np.zeros((2, 0)), [0, 1], "one record or more"),
    "flat": ([1.0, 2.0], [0, 1], r"shape \(n, …\)"),
    "nan": ([[np.nan], [1.0]], [0, 1], "finite features, found 1"),
    "infinite": ([[np.inf], [1.0]], [0, 1], "finite features"),
    "text": ([["a"], ["b"]], [0, 1], "numbers for features"),
    "ragged": ([[1.0], [1.0, 2.0]], [0, 1], "ragged"),
    "fewer labels": ([[1.0], [2.0]], [0], "one label for each of 2"),
    "negative label": ([[1.0], [2.0]], [0, -1], "whole numbers from 0, got -1"),
    "label of half": ([[1.0], [2.0]], [0.5, 1.0], "whole numbers from 0"),
    "label nan": ([[1.0], [2.0]], [np.nan, 1.0], "whole numbers from 0"),
    "label of text": ([[1.0], [2.0]], ["a", "b"], "whole numbers from 0.*np.unique"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_what_is_wrong_with_data_is_told(case: str, rng: np.random.Generator) -> None:
    features, labels, said = BAD_DATA[case]
    for choose in (
        lambda: random_record(features, labels, rng=rng),
        lambda: highest_loss(features, labels, shadows=[1.0, 2.0]),
    ):
        with pytest.raises(InvalidArgument, match=said):
            choose()


def up(x: np.ndarray, y: int) -> np.ndarray:
    return np.ones_like(x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rng: mislabel(Record([1.0], 0), classes=1, rng=rng), "classes ≥ 2"),
        (lambda rng: mislabel(Record([1.0], 3), classes=3, rng=rng), "from 0 to 2.*got 3"),
        (lambda _: Record([np.nan], 0), "finite"),
        (lambda _: Record([], 0), "as an array"),
        (lambda _: Record(1.0, 0), "as an array"),
        (lambda _: Record([1.0], -1), "label ≥ 0"),
        (lambda _: Record([1.0], 1.5), "whole number for label"),
        (lambda _: Record(["a"], 0), "numbers"),
        (lambda _: highest_loss(FEATURES, LABELS, shadows=[1.0]), "losses of 3 records"),
        (lambda _: highest_loss(FEATURES, LABELS, shadows=[]), "losses of 3 records"),
        (lambda _: highest_loss(FEATURES, LABELS, shadows=[1, 2, np.nan]), "without nan, found 1"),
        (lambda _: highest_loss(FEATURES, LABELS, shadows=[object()]), "losses as numbers"),
        (lambda _: adversarial(Record([1.0], 0), lambda x, y: [1.0, 2.0]), r"shape \(1,\)"),
        (lambda _: adversarial(Record([1.0], 0), lambda x, y: [np.nan]), "without nan"),
        (lambda _: adversarial(Record([1.0], 0), lambda x, y: ["up"]), "gradient of shape"),
        (lambda _: adversarial(Record([1.0], 0), []), "torch modules.*got none"),
        (lambda _: adversarial(Record([1.0], 0), [1.0]), "torch modules.*got float"),
        (lambda _: adversarial(Record([1.0], 0), net(0)), "a list of torch modules, got Seq"),
        (lambda _: adversarial(Record([1.0], 0), up, loss=max), "without a loss"),
        (lambda _: adversarial(Record([1.0], 0), up, steps=-1), "steps"),
        (lambda _: adversarial(Record([1.0], 0), up, step=0.0), "step"),
    ],
)
def test_bad_calls_are_told(call: Any, said: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call(rng)
