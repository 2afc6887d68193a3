"""Pools whose leak is known: a record raises its own logit by ``effect`` where it is in."""

import numpy as np
import scipy.special

from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.types import BoolArray, FloatArray

FLAKE = 1e-6  # chance that correct code fails a test; every tolerance follows from it


def memberships(rng: np.random.Generator, models: int, n: int) -> BoolArray:
    """Pairs that share all records between them; the last of an odd number is alone."""
    coins = rng.random((-(-models // 2), n)) < 0.5
    return np.stack([coins, ~coins], axis=1).reshape(-1, n)[:models]


def a_pool(
    rng: np.random.Generator,
    *,
    models: int = 16,
    n: int = 200,
    classes: int = 3,
    effect: float = 0.0,
) -> ShadowPool:
    labels = np.arange(n) % classes
    member = memberships(rng, models, n)
    logits = rng.normal(0, 1, (n, classes)) + rng.normal(0, 1, (models, n, classes))
    logits[:, np.arange(n), labels] += effect * member
    return ShadowPool.from_arrays(scipy.special.log_softmax(logits, axis=2), member, labels)


def sides(pool: ShadowPool, values: FloatArray, record: int) -> tuple[FloatArray, FloatArray]:
    """Values of a record under models with it, and under those without it."""
    inside = pool.member[:, record]
    return values[inside, record], values[~inside, record]
