import tracemalloc

import numpy as np
import pytest

from epsilometer.audits.classifier.attacks.shadow_attacks import rank_below, rmia
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray
from tests.audits.classifier.attacks.pools import a_pool, sides


def naive(
    pool: ShadowPool, target: FloatArray, *, online: bool, a: float, gamma: float
) -> FloatArray:
    """Every record against every other, ratio by ratio."""
    n = pool.records
    p = np.exp(pool.log_proba.astype(np.float64))[:, np.arange(n), pool.labels]
    ratio = np.exp(target)[np.arange(n), pool.labels]
    for record in range(n):
        inside, outside = sides(pool, p, record)
        if online:
            ratio[record] /= (inside.mean() + outside.mean()) / 2
        else:
            ratio[record] /= ((1 + a) * outside.mean() + (1 - a)) / 2
    return np.array([np.mean([ratio[x] / ratio[z] >= gamma for z in range(n)]) for x in range(n)])


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("gamma", [1.3, 2.0])
def test_is_what_all_pairs_give(online: bool, gamma: float, rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=7, n=80, effect=1.0)
    target = a_pool(rng, models=2, n=80).log_proba[0].astype(np.float64)
    found = rmia(pool, target, online=online, a=0.4, gamma=gamma)
    np.testing.assert_array_equal(
        found.values, naive(pool, target, online=online, a=0.4, gamma=gamma)
    )


def test_gamma_of_one_is_the_rank_and_others_change_no_order(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=50)
    plain, harder = (rmia(pool, 0, gamma=gamma).values for gamma in (1.0, 2.0))
    np.testing.assert_array_equal(np.sort(plain), np.arange(1, 51) / 50)
    assert (np.diff(harder[np.argsort(plain)]) >= 0).all()


def test_ties_count(rng: np.random.Generator) -> None:
    np.testing.assert_array_equal(rank_below(np.zeros(3), np.zeros(4), gamma=1.0), np.ones(3))
    np.testing.assert_array_equal(rank_below(np.zeros(3), np.zeros(4), gamma=1.01), np.zeros(3))


def test_only_the_population_is_compared_with(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=50)
    chosen = np.arange(50) < 7
    found = rmia(pool, 0, population=chosen).values
    assert set(found * 7) <= set(range(8))
    with pytest.raises(InvalidArgument, match="population"):
        rmia(pool, 0, population=np.zeros(50, bool))


def test_offline_needs_no_model_with_the_record(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=4, n=20)
    held_out = ShadowPool.from_arrays(pool.log_proba, np.zeros_like(pool.member), pool.labels)
    assert rmia(held_out, pool.log_proba[0], online=False).values.size == 20
    with pytest.raises(InvalidArgument, match="every record in some shadow, 20 of 20 are not"):
        rmia(held_out, pool.log_proba[0])


def test_nothing_is_quadratic() -> None:
    n = 20_000  # n × n truth values would be 400 MB
    gained = np.random.default_rng(0).normal(size=n)
    tracemalloc.start()
    rank_below(gained, gained, gamma=2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
