import numpy as np
import pytest

from epsilometer.audits.classifier.attacks.shadow_attacks import find_best_cut, threshold
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.attacks.pools import a_pool


def balanced(values: np.ndarray, member: np.ndarray, cut: float) -> float:
    return float((values[member] > cut).mean() - (values[~member] > cut).mean())


def test_no_cut_is_better(rng: np.random.Generator) -> None:
    for _ in range(20):
        values, member = rng.integers(0, 12, 40).astype(float), rng.random(40) < 0.5
        best = balanced(values, member, find_best_cut(values, member))
        inner = [balanced(values, member, each) for each in np.unique(values)[:-1]]
        assert best == pytest.approx(max(inner), abs=1e-12)


def test_equal_values_stay_together() -> None:
    assert find_best_cut(np.ones(4), np.array([True, True, False, False])) == 1.0


def test_a_class_may_have_its_own(rng: np.random.Generator) -> None:
    """Classes whose confidence lies at different heights, insiders above outsiders in each."""
    labels = np.repeat([0, 1], 50)
    member = rng.random((6, 100)) < 0.5
    p = np.where(labels == 0, 0.2, 0.7) + 0.2 * member
    every = np.stack([np.where(labels == 0, p, 1 - p), np.where(labels == 0, 1 - p, p)], axis=2)
    pool = ShadowPool.from_arrays(np.log(every), member, labels)
    own = threshold(pool, 0, by_class=True)
    common = threshold(pool, 0)
    assert ((own.values > 0) == member[0]).all()
    assert not ((common.values > 0) == member[0]).all()


def test_the_score_of_the_loss_is_ln_p(rng: np.random.Generator) -> None:
    pool = a_pool(rng, n=30)
    found = threshold(pool, 0)
    at = np.arange(30)
    expected = pool.log_proba[0][at, pool.labels]
    np.testing.assert_allclose(np.diff(found.values), np.diff(expected), atol=1e-6)
    sure = threshold(pool, 0, statistic="confidence")
    np.testing.assert_allclose(
        np.diff(sure.values), np.diff(pool.log_proba[0].max(axis=1)), atol=1e-6
    )


def test_what_it_does_not_know_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="'loss' or 'confidence'"):
        threshold(a_pool(rng), 0, statistic="margin")  # type: ignore[arg-type]
