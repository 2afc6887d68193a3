"""The record that differs: four ways, of images and tables, against shadows that never saw it."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from epsilometer.audits.training.canaries import WAYS, differing_record, shadow_models
from epsilometer.core.record import Record
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import losses

DIGITS, LABELS = load_digits(return_X_y=True)
IMAGES = (DIGITS / 16).astype(np.float32).reshape(-1, 1, 8, 8)


def trained(features: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> nn.Module:
    """A few steps of SGD, with dropout."""
    torch.manual_seed(int(rng.integers(2**31)))
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


@pytest.fixture(scope="module")
def shadows() -> list[Any]:
    return shadow_models(
        trained,
        IMAGES[600:1200],
        LABELS[600:1200],
        apart_from=IMAGES[:600],
        models=3,
        rng=np.random.default_rng(0),
    )


def mean_loss(models: list[Any], record: Record) -> float:
    at = np.array([record.label])
    return float(np.mean([losses(model, record.features[None], at)[0] for model in models]))


def test_four_ways_of_choosing_an_image(shadows: list[Any]) -> None:
    images, labels = IMAGES[:600], LABELS[:600]
    found = {
        way: differing_record(images, labels, way, shadows=shadows, rng=np.random.default_rng(1))
        for way in WAYS
    }
    for way, chosen in found.items():
        assert sorted([chosen.place, *chosen.others]) == list(range(600))
        assert chosen.record.label == labels[chosen.place]
        assert chosen.record.features.shape == (1, 8, 8)
        assert chosen.record.features.dtype == np.float32
        plain = found[way.removesuffix(" + adversarial")]
        assert chosen.place == plain.place
        moved = np.abs(chosen.record.features - images[chosen.place]).max()
        # Forty steps of a hundredth, and none where it was not asked for; rounding of float32.
        assert (0.01 < moved <= 0.4 + 1e-5) if "adversarial" in way else moved == 0
    assert found["random"].place != found["high loss"].place
    each = [
        mean_loss(shadows, Record(image, int(y))) for image, y in zip(images, labels, strict=True)
    ]
    assert found["high loss"].place == int(np.argmax(each))
    worth = [mean_loss(shadows, found[way].record) for way in WAYS]
    assert worth[0] < worth[2]
    assert worth[0] < worth[1]
    assert worth[2] < worth[3]


def test_a_random_record_is_any_and_needs_no_shadows(rng: np.random.Generator) -> None:
    places = {
        differing_record(IMAGES[:3], LABELS[:3], "random", shadows=[], rng=rng).place
        for _ in range(60)  # one is never met with chance 3 (2/3)^60
    }
    assert places == {0, 1, 2}


def test_a_table_with_models_of_scikit_learn(rng: np.random.Generator) -> None:
    table, labels = rng.normal(size=(300, 4)), rng.integers(0, 2, 300)
    table[:, 0] += 4 * labels
    table[7, 0], labels[7] = 9.0, 0  # the one that nobody could know

    def logistic(x: np.ndarray, y: np.ndarray, _: np.random.Generator) -> Any:
        return LogisticRegression().fit(x, y)

    own, theirs = np.arange(100), np.arange(100, 300)
    models = shadow_models(
        logistic, table[theirs], labels[theirs], apart_from=table[own], models=2, rng=rng
    )
    weights = np.mean([model.coef_[0] for model in models], axis=0)

    def gradient(x: np.ndarray, y: int) -> np.ndarray:
        p = np.mean([model.predict_proba(x[None])[0, 1] for model in models])
        return (p - y) * weights

    chosen = differing_record(
        table[own],
        labels[own],
        "high loss + adversarial",
        shadows=models,
        rng=rng,
        gradient=gradient,
    )
    assert chosen.place == 7
    np.testing.assert_allclose(chosen.record.features, table[7] + 0.4 * np.sign(weights))


def test_any_float_tensor_is_taken(shadows: list[Any], rng: np.random.Generator) -> None:
    chosen = differing_record(
        torch.tensor(IMAGES[:50]), LABELS[:50], "high loss + adversarial", shadows=shadows, rng=rng
    )
    assert chosen.record.features.shape == (1, 8, 8)


@pytest.mark.parametrize("within", ["data", (0.0, 1.0), (np.zeros((8, 8)), 1)])
def test_a_moved_record_stays_within_limits_and_still_hurts(
    within: Any, shadows: list[Any]
) -> None:
    images, labels = IMAGES[:300], LABELS[:300]
    plain, free, kept = (
        differing_record(
            images, labels, way, shadows=shadows, rng=np.random.default_rng(2), within=limits
        )
        for way, limits in (
            ("random", None),
            ("random + adversarial", None),
            ("random + adversarial", within),
        )
    )
    low, high = (0, 1) if within != "data" else (images.min(0), images.max(0))
    assert free.record.features.min() < 0  # or the limits would show nothing
    assert (kept.record.features >= low).all()
    assert (kept.record.features <= high).all()
    assert kept.record.features.dtype == np.float32
    assert mean_loss(shadows, kept.record) > mean_loss(shadows, plain.record)


def test_limits_hold_in_every_step_not_only_at_the_end(rng: np.random.Generator) -> None:
    """Uphill turns around: clipped only at the end, the way back would begin beyond the limit."""
    slopes = iter([1.0] * 20 + [-1.0] * 20)
    chosen = differing_record(
        np.array([[0.95], [0.95]]),
        [0, 0],
        "random + adversarial",
        shadows=[],
        rng=rng,
        gradient=lambda x, y: np.array([next(slopes)]),
        within=(0.0, 1.0),
    )
    np.testing.assert_allclose(chosen.record.features, 0.8)


def test_shadows_never_see_a_record_of_the_audit(rng: np.random.Generator) -> None:
    seen: list[Any] = []

    def train(x: np.ndarray, y: np.ndarray, stream: np.random.Generator) -> float:
        seen.append((x, y))
        return float(stream.random())

    drawn = shadow_models(train, DIGITS, LABELS, apart_from=DIGITS[:1000], models=4, rng=rng)
    assert len(set(drawn)) == 4  # randomness of their own
    for x, y in seen:
        known = {row.tobytes() for row in DIGITS[:1000]}
        assert not any(row.tobytes() in known for row in x)
        assert len(x) == len(y) > 700
    assert shadow_models(train, DIGITS, LABELS, apart_from=-DIGITS[:0], rng=rng)
    assert len(seen[-1][0]) == len(DIGITS)


def test_equal_records_give_one_place_and_leave_the_other(rng: np.random.Generator) -> None:
    chosen = differing_record(np.ones((3, 2)), [0, 1, 1], "random", shadows=[], rng=rng)
    assert chosen.record.label == [0, 1, 1][chosen.place]
    assert len(chosen.others) == 2


def choose(way: Any = "random + adversarial", **how: Any) -> Any:
    known: dict[str, Any] = {"shadows": [], "rng": np.random.default_rng(0)}
    return differing_record(IMAGES[:5], LABELS[:5], way, **(known | how))


def up(x: np.ndarray, y: int) -> np.ndarray:
    return np.ones_like(x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: choose("hardest"), "Expected one of 'random', .*got 'hardest'"),
        (lambda: choose("high loss"), "shadow models to tell how hard"),
        (choose, "shadow models as torch modules.*gradient"),
        (lambda: choose(gradient=up, within="all"), "'data' or None, got 'all'"),
        (lambda: choose(gradient=up, within=5), "lowest, highest"),
        (
            lambda: choose(gradient=up, within=(0, np.ones(3))),
            r"the shape of a record, \(1, 8, 8\)",
        ),
        (lambda: choose(gradient=up, within=(1, 0)), "lowest to be at most the highest"),
        (lambda: choose(gradient=up, within=(0, np.nan)), "lowest to be at most the highest"),
        (lambda: choose(gradient=up, within=(5, 6)), "limits that the record keeps"),
        (lambda: choose(gradient=up, within="data", steps=-1), "steps ≥ 0"),
        (lambda: choose(gradient=up, step=0.0), "step > 0"),
        (
            lambda: differing_record(
                IMAGES[:1], LABELS[:1], "random", shadows=[], rng=np.random.default_rng(0)
            ),
            "two records or more",
        ),
        (
            lambda: shadow_models(
                trained, IMAGES, LABELS, apart_from=IMAGES, rng=np.random.default_rng(0)
            ),
            "got 0 that are not among those of the audit",
        ),
    ],
)
def test_bad_calls_are_told(call: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call()
