"""Scores that many records share: broken without changing any other order."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.tree import DecisionTreeClassifier

from epsilometer import InProcess
from epsilometer.audits.classifier.attacks import shadow_attacks
from epsilometer.audits.classifier.attacks.evaluation import RecordScores
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS, break_ties
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.audits.classifier.sklearn_models import predict_logs
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray
from tests.audits.classifier.attacks.pools import a_pool


@pytest.mark.parametrize("threshold", [-np.inf, -1.0, 0.0, 0.5, 1.0])
def test_order_and_decisions_stay(threshold: float, rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8, n=200)
    found = pool.log_proba[0].astype(np.float64)
    near = np.nextafter(1.0, 2.0)  # no room for many between it and 1
    values = rng.choice([-3e8, -1.0, -0.0, 0.0, 1e-300, 0.3, 1.0, near, 7.0], 200)
    broken = break_ties(pool, found, values, online=True, threshold=threshold)
    assert np.unique(broken).size > 5 * np.unique(values).size
    higher = values[:, None] > values
    assert (broken[:, None] > broken)[higher].all()
    np.testing.assert_array_equal(broken > threshold, values > threshold)
    np.testing.assert_allclose(broken, values, rtol=1e-13, atol=1e-300)


def test_distinct_scores_are_returned_as_they_are(rng: np.random.Generator) -> None:
    pool, values = a_pool(rng, models=8, n=20), rng.normal(size=20)
    found = pool.log_proba[0].astype(np.float64)
    assert break_ties(pool, found, values, online=True) is values


def test_ties_follow_models_that_answer_like_the_target() -> None:
    """One model of two knows each record; the one like the target does not know the second."""
    p = np.array([[0.9, 0.1, 0.9, 0.9], [0.1, 0.9, 0.9, 0.1]])
    member = np.zeros((2, 4), bool)
    logs = np.log(np.stack([p, 1 - p], axis=2))
    pool = ShadowPool.from_arrays(logs, member, ["a", "a", "a", "b"])
    found = np.log([[0.9, 0.1]] * 4)
    broken = break_ties(pool, found, np.zeros(4), online=False)
    assert broken[1] > broken[0]
    some = ShadowPool.from_arrays(logs, [[True, False, False, False]] * 2, pool.labels)
    assert not break_ties(some, found, np.zeros(4), online=True).any()  # too little is known


@pytest.fixture(scope="module")
def attacked_trees() -> list[tuple[ShadowPool, np.ndarray, BoolArray]]:
    """Trees, each with shadows of its own and who was in."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:400], y[:400]
    found = []
    for seed in range(10):
        member = np.random.default_rng(seed).random(400) < 0.5
        model = DecisionTreeClassifier(random_state=seed).fit(x[member], y[member])
        tree = DecisionTreeClassifier()
        pool = shadow_pool(tree, x, y, models=24, seed=seed + 50, engine=InProcess())
        found.append((pool, predict_logs(model, x, classes=np.unique(y)), member))
    return found


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_more_members_of_trees_are_caught_at_a_low_fpr(
    attack: str,
    attacked_trees: list[tuple[ShadowPool, np.ndarray, BoolArray]],
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """Their scores took 24 values before, the highest of which often were above the rate."""

    def measure() -> np.ndarray:
        caught = []
        for pool, logs, member in attacked_trees:
            scores: RecordScores = ATTACKS[attack](pool, logs, rng)
            parts = scores.split(member)
            allowed = np.sort(parts.outside)[::-1][int(0.01 * parts.n_out)]
            caught.append([np.mean(parts.inside > allowed), tradeoff_curve(parts).auc])
        return np.array(caught).mean(axis=0)

    now = measure()
    monkeypatch.setattr(shadow_attacks, "break_ties", lambda _, found, values, **how: values)
    before = measure()
    assert now[0] > before[0] + 0.003
    assert now[1] > before[1] - 0.002
