"""Differences between groups: stated where there are some, and no more often than allowed."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.audits.classifier.groups import (
    GroupedRisk,
    compare_groups,
    describe_left_out,
    read_groups,
)
from epsilometer.core.findings import GroupRisk
from epsilometer.errors import InvalidArgument
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


def group(values: Any, risk: Any = None, **how: Any) -> GroupedRisk:
    """Records that were not attacked, by a column."""
    n = len(values)
    return GroupedRisk(
        columns=read_groups({"where": values}, n),
        records=np.arange(n),
        risk=np.zeros(n) if risk is None else risk,
        limit=1.0,
        scores=None,
        member=None,
        attacked=slice(None),
        confidence=0.95,
        **how,
    )


@pytest.mark.parametrize(
    "values",
    [
        np.array(["f", None, "m"] * 30, object),
        np.array(["f", "", "m"] * 30),
        pd.array(["f", pd.NA, "m"] * 30, dtype="string"),
        pd.Series(pd.Categorical(["f", None, "m"] * 30)),
        ["f", float("nan"), "m"] * 30,
    ],
    ids=["None", "empty", "NA", "categories", "nan in a list"],
)
def test_missing_values_are_a_group_of_that_name(values: Any) -> None:
    if isinstance(values, list):
        values = np.array(values, object)
    assert [each.name for each in compare_groups(group(values))] == ["f", "m", "missing"]


def test_numbers_of_many_values_are_cut() -> None:
    """They were one group, of all whose number is their own."""
    age = np.where(np.arange(200) < 30, np.nan, np.arange(200) / 7)
    names = [each.name for each in compare_groups(group(age))]
    assert len(names) == 5
    assert names[-1] == "missing"
    few = [each.name for each in compare_groups(group(np.arange(200) % 3))]
    assert few == ["0", "1", "2"]


def test_small_groups_are_said_to_be_left_out() -> None:
    """They are most at risk, and nothing was said of them."""
    town = np.repeat(["large", "rare", "lone"], [180, 12, 1])
    grouped = group(town)
    assert [each.name for each in compare_groups(grouped)] == ["large"]
    (said,) = describe_left_out(grouped)
    assert said.startswith("13 of 193 measured records are in groups of where with fewer than 20")
    assert not describe_left_out(group(np.repeat(["a", "b"], 100)))


def test_records_that_a_screen_chose_do_not_stand_for_their_group() -> None:
    """A screen chooses those at risk: in one group all, in the other none."""
    values = np.repeat(["a", "b"], 100)
    screened = np.arange(200) < 60
    risk = np.where(screened, 2.0, 0.0)
    first, second = compare_groups(group(values, risk, screened=screened))
    assert (first.records, first.exposed, second.exposed) == (100, 0.0, 0.0)
    assert first.exposed_high > 0.05
    assert not first.differs
    whole, other = compare_groups(group(values, risk, screened=np.arange(200) < 100))
    assert (whole.exposed_low, whole.exposed_high, whole.differs) == (0.0, 1.0, ())
    assert not other.differs
    told, _ = compare_groups(group(values, risk))
    assert told.differs == ("more exposed",)


def test_the_strongest_of_several_attacks_is_chosen_at_a_cost() -> None:
    rng = np.random.default_rng(0)
    n, models = 100, 8
    coins = rng.random((models // 2, n)) < 0.5
    member, scores = np.concatenate([coins, ~coins]), rng.normal(size=(models, n))
    widths = []
    for attacks in (1, 3):
        grouped = group(np.repeat(["a"], n), attacks=attacks)
        how = {
            "scores": lambda at: clusters.ScoresByRecord.from_models(scores[:, at], member[:, at])
        }
        for name, value in {**how, "member": member[0]}.items():
            object.__setattr__(grouped, name, value)
        (found,) = compare_groups(grouped)
        assert found.auc_low is not None
        assert found.auc_high is not None
        widths.append(found.auc_high - found.auc_low)
    assert widths[1] > 1.05 * widths[0]


def test_groups_that_cannot_be_read_are_refused() -> None:
    for wrong in (["f", "m"], pd.Series(["f", "m"], name="sex"), "sex"):
        with pytest.raises(InvalidArgument, match="groups by column, such as"):
            read_groups(wrong, 2)
    with pytest.raises(InvalidArgument, match=r"each of 3 records in groups\['sex'\]"):
        read_groups({"sex": ["f", "m"]}, 3)
    table = pd.DataFrame({"sex": ["f", "m"], "town": ["a", "b"]})
    assert list(read_groups(table, 2)) == ["sex", "town"]


def test_a_column_named_class_does_not_replace_the_classes() -> None:
    from sklearn.naive_bayes import GaussianNB

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), np.arange(80) % 2  # noqa: N806
    given = {"class": np.repeat(["first", "second", "rare"], [40, 33, 7])}
    how: Any = {"published_as": "api", "attacks": (), "groups": given}
    found = em.audit(em.Classifier(GaussianNB(), X, y, **how), engine=em.InProcess())
    names = [(each.column, each.name) for each in found.find(GroupRisk)]
    assert names == [("class", "0"), ("class", "1")] + [
        ("class as given", each) for each in ("first", "second")
    ]
    assert any("7 of 80 measured records are in groups" in caveat for caveat in found.caveats)
