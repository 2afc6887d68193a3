"""Differences between groups: stated where there are some, and no more often than allowed."""

import numpy as np
import scipy.stats

from epsilometer.audits.classifier.groups import GroupedRisk, compare_groups
from epsilometer.core.findings import GroupRisk
from epsilometer.stats import clusters

FLAKE = 1e-6


def compare(rng: np.random.Generator, *, shift: float, leak: float) -> tuple[GroupRisk, ...]:
    """Four groups of 60, of which the first is exposed and attacked as its numbers say."""
    n, models = 240, 8
    groups = np.repeat(np.array(["a", "b", "c", "d"]), 60)
    first = groups == "a"
    coins = rng.random((models // 2, n)) < 0.5
    member = np.concatenate([coins, ~coins])
    scores = rng.normal(size=(models, n)) + leak * (member & first)
    risk = (rng.random(n) < 0.2 + shift * first).astype(float) * 2
    return compare_groups(
        GroupedRisk(
            columns={"where": groups},
            records=np.arange(n),
            risk=risk,
            limit=1.0,
            scores=lambda at: clusters.ScoresByRecord.from_models(scores[:, at], member[:, at]),
            member=member[0],
            attacked=slice(None),
            confidence=0.95,
        )
    )


def test_alike_groups_are_not_said_to_differ() -> None:
    audits = 40
    found = [compare(np.random.default_rng(seed), shift=0.0, leak=0.0) for seed in range(audits)]
    alarms = sum(any(group.differs for group in groups) for groups in found)
    assert alarms <= scipy.stats.binom.isf(FLAKE, audits, 0.05)
    missed = sum(
        any(not group.exposed_low <= 0.2 <= group.exposed_high for group in groups)
        or any(
            group.auc is not None and not group.auc_low <= 0.5 <= group.auc_high for group in groups
        )
        for groups in found
    )
    assert missed <= scipy.stats.binom.isf(FLAKE, audits, 0.05)


def test_groups_that_differ_are_found() -> None:
    hits = {"exposed": 0, "attacked": 0}
    for seed in range(10):
        first, *others = compare(np.random.default_rng(seed), shift=0.5, leak=2.5)
        hits["exposed"] += "more exposed" in first.differs
        hits["attacked"] += "more attacked" in first.differs
        assert not any("more exposed" in group.differs for group in others)
    assert hits["exposed"] >= 9
    assert hits["attacked"] >= 9
