import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.classifier.attacks.shadow_attacks import (
    choose_models,
    distance,
    show_predictions,
)
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.attacks.pools import a_pool


@pytest.mark.parametrize("binned", [True, False])
@pytest.mark.parametrize("pairs", [2, None])
def test_is_the_difference_of_divergences(
    binned: bool, pairs: int | None, rng: np.random.Generator
) -> None:
    pool = a_pool(rng, models=9, n=25, effect=1.0)
    target = a_pool(rng, models=2, n=25).log_proba[0]
    found = distance(pool, target, pairs=pairs, binned=binned).values
    q = show_predictions(target, binned=binned)
    p = np.stack([show_predictions(each, binned=binned) for each in pool.log_proba])
    for record in range(25):
        at = pool.member[:, record]
        inside, outside = (p[side, record][:pairs].mean(axis=0) for side in (at, ~at))
        expected = scipy.stats.entropy(q[record], outside) - scipy.stats.entropy(q[record], inside)
        assert found[record] == pytest.approx(expected, abs=1e-9)


def test_bins_are_those_of_the_paper() -> None:
    p = show_predictions(np.log([[0.29, 0.7, 0.01]]), binned=True)[0]
    np.testing.assert_allclose(p, np.array([0.295, 0.705, 0.015]) / 1.015, rtol=1e-12)


def test_single_precision_crosses_no_edge() -> None:
    """0.29, 0.57 and 0.58 times 100 fall below their bins in floating point."""
    p = np.arange(101)[:, None] / 100
    with np.errstate(divide="ignore"):
        rows = np.log(np.concatenate([p, 1 - p], axis=1)).astype(np.float32)
    seen = show_predictions(rows, binned=True)
    ratio = np.minimum(np.arange(101), 99) + 0.5
    np.testing.assert_allclose(seen[:, 0] / seen[:, 1], ratio / ratio[::-1], rtol=1e-9)


def test_pairs_are_the_first_models_of_either_side(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=40)
    for side in (True, False):
        used = choose_models(pool, 2, inside=side)
        assert set(used.sum(axis=0)) == {2}
        assert not (used & (pool.member != side)).any()
        assert not used[4:].any()  # two pairs have one of each
    with pytest.raises(InvalidArgument, match="pairs ≥ 1"):
        choose_models(pool, 0, inside=True)


def test_a_record_that_is_in_no_shadow_is_an_error(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=4, n=10)
    member = pool.member.copy()
    member[:, 3] = False
    with pytest.raises(InvalidArgument, match="1 of 10 are not"):
        distance(ShadowPool.from_arrays(pool.log_proba, member, pool.labels), pool.log_proba[0])
