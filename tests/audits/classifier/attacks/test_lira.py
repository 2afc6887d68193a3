"""The numeric cases named TF-Privacy are those of tensorflow/privacy's own advanced_mia_test; its
scores are the negative of ours.
"""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.classifier.attacks import normals
from epsilometer.audits.classifier.attacks.normals import Normals, fit_normals
from epsilometer.audits.classifier.attacks.shadow_attacks import lira, rmia
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, own_and_rest
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray
from tests.audits.classifier.attacks.pools import a_pool, sides

TARGET = np.array([1.0, 0.0, 0.0, 0.0])
# Two shadows of each of the first three records, none of the fourth.
INSIDE = np.array([[-1.0, 0.0, 0.0, 0.0], [1.0, 2.0, 20.0, 0.0]])
THERE = np.array([[True, True, True, False]] * 2)


def fit_all(values: FloatArray, where: BoolArray, **how: Any) -> Normals:
    """Fit to these models, all records at once."""
    (fit,) = fit_normals(lambda block: values[:, block], where, [True], **how)
    return fit


@pytest.mark.parametrize("centre", ["mean", "median"])
@pytest.mark.parametrize(
    ("variance", "expected"),
    [
        ("record", [1.41893853, 1.41893853, 3.72152363, 2.72537178]),
        ("global", [2.69682468, 2.69682468, 4.15270703, 2.87983121]),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_tf_privacy_cases(sign: int, variance: Any, expected: list[float], centre: Any) -> None:
    fit = fit_all(sign * INSIDE, THERE, variance=variance, centre=centre)
    # The other side is mirrored, with the target at the same distance from both.
    found = -fit.log_density(sign * TARGET)
    np.testing.assert_allclose(found, expected, atol=1e-7)  # as many digits as are printed


@pytest.mark.parametrize("centre", ["mean", "median"])
def test_tf_privacy_case_of_two_augmentations(centre: Any) -> None:
    """Augmentations are averaged: here one column each."""
    values = np.array([[-1.0, 0.0], [1.0, 20.0]])
    fit = fit_all(values, np.ones((2, 2), bool), variance="record", centre=centre)
    found = -fit.log_density(np.array([1.0, 0.0])).mean()
    np.testing.assert_allclose(found, 2.57023108, atol=1e-7)


def test_tf_privacy_cases_of_confidence() -> None:
    p = np.log([[0.1, 0.85, 0.05], [0.1, 0.5, 0.4]])
    pair = own_and_rest(p, np.array([1, 2]))
    np.testing.assert_allclose(pair[:, 0] - pair[:, 1], [1.73460106, -0.40546511], atol=1e-8)
    logits = np.array([[1, 2, -3.0], [-1, 1, 0]])
    log_proba = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    pair = own_and_rest(log_proba, np.array([1, 2]))
    np.testing.assert_allclose(pair[:, 0] - pair[:, 1], [0.98185009, -1.12692802], atol=1e-8)
    np.testing.assert_allclose(-pair[:, 0], [0.31817543, 1.40760596], atol=1e-8)


def naive(
    pool: ShadowPool, target: FloatArray, online: bool, variance: str, centre: str
) -> FloatArray:
    """One record after the other, with SciPy's densities."""
    p = np.exp(pool.log_proba.astype(np.float64))
    confidence = np.log(p / (1 - p))
    seen = np.log(np.exp(target) / (1 - np.exp(target)))
    rows = np.arange(pool.records)
    confidence, seen = confidence[:, rows, pool.labels], seen[rows, pool.labels]
    middle = {"mean": np.mean, "median": np.median}[centre]
    parts = [sides(pool, confidence, record) for record in rows]
    spread = [
        np.std(np.concatenate([part[side] - middle(part[side]) for part in parts]))
        for side in (0, 1)
    ]
    scores = []
    for value, (inside, outside) in zip(seen, parts, strict=True):
        own = [np.hypot(side.std(), 1e-4) for side in (inside, outside)]
        sd = own if variance == "record" else spread
        if online:
            laws = (
                scipy.stats.norm(middle(side), s)
                for side, s in zip((inside, outside), sd, strict=True)
            )
            with_it, without_it = (law.logpdf(value) for law in laws)
            scores.append(with_it - without_it)
        else:
            scores.append((value - middle(outside)) / sd[1])
    return np.array(scores)


@pytest.mark.parametrize("centre", ["mean", "median"])
@pytest.mark.parametrize("variance", ["record", "global"])
@pytest.mark.parametrize("online", [True, False])
def test_is_what_a_loop_over_records_gives(
    online: bool, variance: Any, centre: Any, rng: np.random.Generator
) -> None:
    pool = a_pool(rng, models=9, n=60, effect=1.0)  # unequal sides
    target = a_pool(rng, models=2, n=60).log_proba[0].astype(np.float64)
    found = lira(pool, target, online=online, variance=variance, centre=centre)
    expected = naive(pool, target, online, variance, centre)
    # ln p are in single precision: 1e-6 of a margin, more where models hardly differ
    np.testing.assert_allclose(found.values, expected, rtol=1e-3, atol=1e-3)


def test_variance_is_a_records_own_only_where_models_are_many(rng: np.random.Generator) -> None:
    few, many = a_pool(rng, models=64, n=40), a_pool(rng, models=66, n=40)
    assert "global variance" in lira(few, 0).convention
    assert "record variance" in lira(many, 0).convention
    assert lira(many, 0).values.tobytes() == lira(many, 0, variance="record").values.tobytes()


def test_is_the_likelihood_ratio_where_laws_are_known(rng: np.random.Generator) -> None:
    """With many models of N(2, 1) against N(0, 1) the score is 2(x − 1)."""
    member: BoolArray = np.arange(4000)[:, None] % 2 == np.zeros(3, int)
    fits = [
        fit_all(rng.normal(2.0 * member, 1), member == side, variance="global")
        for side in (True, False)
    ]
    x = np.array([-1.0, 1.0, 3.0])
    found = fits[0].log_density(x) - fits[1].log_density(x)
    np.testing.assert_allclose(found, 2 * (x - 1), atol=0.6)  # 5 standard errors of both means


def test_models_that_never_differ_give_finite_scores(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=20)
    still = ShadowPool.from_arrays(
        np.repeat(pool.log_proba[:1], 8, axis=0), pool.member, pool.labels
    )
    for online in (True, False):
        assert np.isfinite(lira(still, pool.log_proba[1], online=online).values).all()
        assert not lira(still, pool.log_proba[0], online=online, variance="record").values.any()


def test_what_it_does_not_know_is_refused(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=20)
    with pytest.raises(InvalidArgument, match="Expected variance"):
        lira(pool, 0, variance="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="some model on this side"):
        fit_all(pool.margins(), np.zeros_like(pool.member), variance="record")


@pytest.mark.parametrize("variance", ["record", "global"])
@pytest.mark.parametrize("centre", ["mean", "median"])
def test_blocks_change_nothing(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, variance: Any, centre: Any
) -> None:
    pool = a_pool(rng, models=16, n=50)
    target = pool.log_proba[3].astype(np.float64)
    whole = lira(pool, target, variance=variance, centre=centre).values
    gained = rmia(pool, target).values
    monkeypatch.setattr(normals, "_TOGETHER", 7 * 16)
    np.testing.assert_allclose(
        lira(pool, target, variance=variance, centre=centre).values, whole, rtol=1e-9
    )
    np.testing.assert_array_equal(rmia(pool, target).values, gained)


@pytest.mark.parametrize("attack", [lira, rmia])
def test_memory_does_not_grow_with_records(attack: Any) -> None:
    """But for a few numbers per record, where all confidences take 1 KB per record."""
    peaks = []
    for n in (20_000, 80_000):
        rng = np.random.default_rng(0)
        own = -rng.exponential(size=(128, n)).astype(np.float32) - np.float32(0.01)
        pool = ShadowPool(
            log_proba=np.stack([own, np.log1p(-np.exp(own))], axis=2),
            member=rng.random((128, n)) < 0.5,
            labels=np.zeros(n, np.int64),
            classes=np.arange(2),
            train_accuracy=np.ones(128),
            test_accuracy=np.ones(128),
            kept="own",
        )
        target = pool.log_proba[0].astype(np.float64)
        tracemalloc.start()
        attack(pool, target)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 200 * 60_000
