"""May it be published? Real estimators on real and made data, from fitting to verdict."""

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import epsilometer as em
from epsilometer import Audit, Claim, Classifier, InProcess, Local, UntilRefuted
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.finding import (
    describe_removal,
    list_rounding_steps,
)
from epsilometer.audits.classifier.groups import SMALLEST
from epsilometer.audits.classifier.job import make_job
from epsilometer.audits.classifier.leave_one_out.pdtp import dtp_over, pdtp
from epsilometer.audits.classifier.removal import plan_removal
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.core.settings import from_settings, has_supplied, to_settings
from epsilometer.engine.request import Request
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.findings import (
    AccuracyFinding,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    RecordRisk,
    RemovalPlan,
    RoundingStep,
    RuleFinding,
    Variation,
)
from epsilometer.rules import AdvantageAtMost, PdtpAtMost

pytest.importorskip("sklearn")
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

IRIS = load_iris(return_X_y=True)
CANCER = load_breast_cancer(return_X_y=True)
HERE = InProcess()
TWO = {"published_as": "api", "decimals": 2}


def audit(
    estimator: Any, data: Any = IRIS, *, seed: int = 0, out: Path | None = None, **how: Any
) -> Audit:
    subject = Classifier(estimator, *data, **{"attacks": (), "remedies": 0, **how})
    return em.audit(subject, seed=seed, out=out, engine=HERE)


def risk_of(found: Audit) -> LeaveOneOut:
    (risk,) = found.find(LeaveOneOut)
    return risk


def categories(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.integers(4, size=(n, 3))  # noqa: N806
    return X, (rng.random(n) < 0.2 + 0.15 * X[:, 0]).astype(int)


def noise(n: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(n, width)), np.arange(n) % 2


def test_a_model_that_learns_by_heart_is_not_released(rng: np.random.Generator) -> None:
    found = audit(KNeighborsClassifier(1), noise(300, 4, rng), attacks=("loss",), shadows=8)
    assert found.verdict == "do not release"
    assert {rule.outcome for rule in found.find(RuleFinding)[:2]} == {"fail"}
    assert found.find(MembershipFinding)[0].advantage_low > 0.1
    assert found.find(RecordRisk)[0].risk > 1


def test_a_deep_forest_is_not_released(rng: np.random.Generator) -> None:
    """By its attacks: training is random, and only many records would tell it from its floor."""
    forest = RandomForestClassifier(10, random_state=0)
    data = noise(400, 5, rng)
    found = audit(forest, data, attacks=("loss",), shadows=8, records="sample:20", skip_trend=True)
    assert found.verdict == "do not release"
    assert risk_of(found).median_floor is not None
    assert risk_of(found).path.startswith("refits")


class Plain(GaussianNB):
    """Not recognised, so refitted; nothing about it is random."""


def test_training_that_is_not_random_has_no_floor_to_hide_in() -> None:
    few = {"records": np.array([0, 152]), "decimals": None}
    found = audit(Plain(), CANCER, rules=[PdtpAtMost(limit=20.0)], **few)
    assert risk_of(found).path == "refits"
    assert risk_of(found).median_floor is None
    assert risk_of(found).exposed == 1
    assert found.verdict == "do not release"


def test_floor_and_risk_are_seen_through_as_many_decimals(rng: np.random.Generator) -> None:
    forest = RandomForestClassifier(5, random_state=0)
    found = audit(forest, noise(100, 3, rng), records="sample:30", **TWO)
    assert risk_of(found).largest_floor is not None
    assert risk_of(found).largest_floor <= np.log(199) + 1e-9  # as any risk in bins of 0.01
    assert sum(risk_of(found).floor_bins) == 30


def test_naive_bayes_of_plenty_of_data_is_released(rng: np.random.Generator) -> None:
    found = audit(CategoricalNB(), categories(8_000, rng), attacks=("loss", "lira"), shadows=8)
    assert found.verdict == "release"
    assert [rule.outcome for rule in found.find(RuleFinding)] == ["pass"] * 4
    assert not found.find(RemovalPlan)
    assert found.find(RuleFinding)[1].confidence == 1  # every record, without sampling


def test_a_constant_is_released(rng: np.random.Generator) -> None:
    found = audit(DummyClassifier(), noise(300, 1, rng))
    assert found.verdict == "release"
    assert risk_of(found).largest < 1e-2


@pytest.mark.slow
def test_a_small_model_is_false_alarm_free_where_nothing_is_learned(
    rng: np.random.Generator,
) -> None:
    """Labels without meaning, four parameters, 4,000 records: there is nothing to find."""
    alarms = 0
    for seed in range(2):
        X, y = noise(4_000, 1, rng)  # noqa: N806
        found = audit(GaussianNB(), (X, y), attacks=("loss",), shadows=8, seed=seed)
        alarms += found.verdict == "do not release"
    assert alarms == 0


def test_risks_are_those_of_leaving_out(rng: np.random.Generator) -> None:
    found = audit(GaussianNB(), CANCER, show_records=True)  # who has the model sees all digits
    assert found.verdict == "do not release"
    direct = pdtp(GaussianNB(), *CANCER)
    order = np.argsort(-direct.values, kind="stable")
    assert [record.row for record in found.find(RecordRisk)] == order.tolist()
    assert [record.rank for record in found.find(RecordRisk)] == [*range(1, order.size + 1)]
    np.testing.assert_allclose([r.risk for r in found.find(RecordRisk)], direct.values[order])
    assert risk_of(found).exposed == int(np.sum(direct.values > 1))
    two = audit(GaussianNB(), CANCER, show_records=True, **TWO)
    at = [record for record in two.find(RecordRisk) if record.shown > 1]
    assert {r.row for r in at} == set(np.flatnonzero(direct.binned > 1).tolist())


def test_what_makes_a_record_stand_out_is_named() -> None:
    X, y = (array.copy() for array in IRIS)  # noqa: N806
    X[7, 2] *= 10  # a slip of the pen
    found = audit(GaussianNB(), (X, y), feature_names="abcd", show_records=True)
    first = found.find(RecordRisk)[0]
    assert first.row == 7
    assert "mostly by 'c'" in first.note
    mislabelled = (IRIS[0], np.where(np.arange(150) == 30, 2, y))
    near = audit(KNeighborsClassifier(3), mislabelled, show_records=True)
    (own,) = [record for record in near.find(RecordRisk) if record.row == 30]
    assert own.risk > 1
    assert "all of its 5 nearest neighbours have another class" in own.note


def test_the_only_record_of_a_class_is_infinite_and_said_to_be() -> None:
    X, y = IRIS  # noqa: N806
    y = np.where(np.arange(y.size) == 5, 9, y)
    found = audit(GaussianNB(), (X, y), show_records=True)
    assert found.verdict == "do not release"
    worst = found.find(RecordRisk)[0]
    assert worst.row == 5
    assert np.isinf(worst.unbinned)
    assert "its class has fewer than 10 records" in worst.note
    assert "probability 0" in worst.note
    attacked = audit(GaussianNB(), (X, y), attacks=("loss", "lira"), shadows=6)
    assert (
        len(attacked.find(MembershipFinding)) == 2
    )  # in half of the shadows the class is not there
    assert "9" not in {group.name for group in attacked.find(GroupRisk)}  # nobody is a group


def test_no_value_of_a_record_is_in_the_result(rng: np.random.Generator) -> None:
    X = np.round(rng.normal(size=(120, 3)), 6) + 1000 * np.arange(120)[:, None]  # noqa: N806
    y = np.arange(120) % 2
    groups = {"where": np.where(np.arange(120) < 60, "north", "south")}
    for shows in (False, True):
        found = audit(KNeighborsClassifier(1), (X, y), groups=groups, show_records=shows)
        text = to_json(found)
        assert not any(f"{value:g}" in text for value in X[:, 0] if value > 10)
        assert {record.row is None for record in found.find(RecordRisk)} == {not shows}


def test_only_the_directory_of_a_run_says_who_is_at_risk(tmp_path: Path) -> None:
    names = [f"=Zebulon {i}" for i in range(150)]
    found = audit(GaussianNB(), record_names=names, out=tmp_path, show_records=True)
    with (tmp_path / "records.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [int(row["rank"]) for row in listed] == [*range(1, 151)]
    assert [int(row["row"]) for row in listed] == [r.row for r in found.find(RecordRisk)]
    assert [row["name"] for row in listed] == [f"'=Zebulon {row['row']}" for row in listed]
    assert [row["class"] for row in listed] == [str(IRIS[1][int(row["row"])]) for row in listed]
    assert "Zebulon" not in to_json(found)


def test_groups_are_compared_and_small_ones_kept_together(rng: np.random.Generator) -> None:
    X, y = noise(400, 3, rng)  # noqa: N806
    X[:200, 0] *= 50  # one half can be predicted, the other cannot
    y[:200] = X[:200, 0] > 0
    where = np.where(np.arange(400) < 200, "easy", "hard").astype("<U9")
    where[:6], where[6:30] = "Ann", "Bob's"
    where[210:225] = "Carol"
    found = audit(
        KNeighborsClassifier(1), (X, y), attacks=("loss",), shadows=8, groups={"where": where}
    )
    by = {group.name: group for group in found.find(GroupRisk) if group.column == "where"}
    assert set(by) == {"easy", "hard", "Bob's", f"(fewer than {SMALLEST} each)"}
    assert by["hard"].exposed > 2 * by["easy"].exposed
    assert by["hard"].auc_low > by["easy"].auc_high
    assert sum(group.records for group in by.values()) == 400
    few = audit(KNeighborsClassifier(1), (X, y), groups={"where": np.where(where == "Ann", 1, 0)})
    assert [group.name for group in few.find(GroupRisk) if group.column == "where"] == ["0"]


def test_dropping_the_riskiest_is_measured_again_and_ends() -> None:
    found = audit(GaussianNB(), CANCER, decimals=None, show_records=True)
    plan = found.one(RemovalPlan)
    assert plan is not None
    assert plan.removed[0] == 0
    assert plan.exposed[0] == risk_of(found).exposed
    assert plan.ranks[0] == 1
    assert len(set(plan.ranks)) == plan.removed[-1]
    assert min(plan.exposed) == plan.exposed[plan.removed.index(plan.best)]
    X, y = CANCER  # noqa: N806
    rows = {record.rank: record.row for record in found.find(RecordRisk)}
    left = np.delete(np.arange(len(y)), [rows[rank] for rank in plan.ranks[:3]])
    after = pdtp(GaussianNB(), X[left], y[left])
    place = plan.removed.index(3)
    assert plan.exposed[place] == int(np.sum(after.values > 1))
    assert any(b > a for a, b in zip(plan.exposed, plan.exposed[1:], strict=False))  # a saw-tooth


def test_a_class_is_not_dropped_whole() -> None:
    X, y = IRIS  # noqa: N806
    y = np.where(np.arange(y.size) == 5, 9, y)
    found = plan_removal(
        lambda X, y: pdtp(GaussianNB(), X, y),  # noqa: N803
        X,
        y,
        limit=1.0,
        decimals=2,
        steps=9,
    )
    assert found["removed"].tolist() == [0]
    assert "did not help" in describe_removal(found, {}).ended


def test_fewer_decimals_show_less(rng: np.random.Generator) -> None:
    found = pdtp(GaussianNB(), *CANCER)
    steps = list_rounding_steps(found.full, found.without, CANCER[1], limit=1.0, advantages=None)
    assert [step.decimals for step in steps] == [None, 4, 3, 2, 1, -1]
    exposed = [step.exposed for step in steps]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] > exposed[-1] == 0
    assert len({step.accuracy for step in steps}) == 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_can_be_asked_for(attack: str, rng: np.random.Generator) -> None:
    found = audit(
        DecisionTreeClassifier(random_state=0),
        noise(200, 3, rng),
        attacks=(attack,),
        shadows=12,
        records=np.arange(3),
    )
    (finding,) = found.find(MembershipFinding)
    assert finding.auc > 0.7  # trees learn by heart
    assert finding.bound is not None
    assert finding.bound.method == "one_run"
    assert finding.n_in + finding.n_out == 200 * 12
    assert len(found.find(RecordRisk)[0].scores) == 1


def test_a_run_is_finished_to_the_same_bytes(tmp_path: Path, rng: np.random.Generator) -> None:
    data = noise(40, 3, rng)
    how: dict[str, Any] = {"attacks": ("loss",), "shadows": 6, "variation": 2}
    how |= {"records": "sample:12", "remedies": 2}
    tree = DecisionTreeClassifier(random_state=0)
    whole = audit(tree, data, out=tmp_path / "run", **how)
    before = (tmp_path / "run/result.json").read_bytes()
    for lost in ("result.json", "shards"):  # the parts themselves are still there
        path = tmp_path / "run" / lost
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert audit(tree, data, out=tmp_path / "run", **how) == whole
    assert (tmp_path / "run/result.json").read_bytes() == before
    again = em.audit(Classifier(tree, *data, **how), engine=Local(count=2))
    assert to_json(again).encode() + b"\n" == before
    with pytest.raises(EpsilometerError, match="plan"):
        audit(tree, noise(40, 3, rng), out=tmp_path / "run", **how)
    assert [variation.models for variation in whole.find(Variation)] == [2, 6]
    assert json.loads(before)["provenance"]["units"] == 5


def test_it_comes_back_from_json_and_is_the_same_twice(rng: np.random.Generator) -> None:
    how: dict[str, Any] = {"attacks": ("loss", "lira"), "shadows": 6, "groups": {"half": GROUPS}}
    found = audit(KNeighborsClassifier(1), **how)
    text = to_json(found)
    assert from_json(text) == found
    assert to_json(from_json(text)) == text == to_json(audit(KNeighborsClassifier(1), **how))
    kinds = (RuleFinding, MembershipFinding, GroupRisk, RecordRisk, RoundingStep, RemovalPlan)
    assert all(found.find(kind) for kind in kinds)
    accuracy = found.one(AccuracyFinding)
    assert accuracy is not None
    assert accuracy.accuracy == 0.96  # of the nearest neighbour, which is never oneself
    assert (found.epsilon, found.reach, found.claim) == (0, None, None)
    assert len(str(found)) < 2_000


def test_a_claim_and_a_rule_to_stop_early_are_refused() -> None:
    subject = Classifier(GaussianNB(), *IRIS)
    with pytest.raises(InvalidArgument, match="Expected no claim for Classifier: its rules decide"):
        em.audit(subject, Claim(3.0, delta=1e-5))
    with pytest.raises(InvalidArgument, match="no until for Classifier"):
        em.audit(subject, until=UntilRefuted())


def test_delta_and_confidence_are_those_of_bounds_beside_attacks(rng: np.random.Generator) -> None:
    tree = DecisionTreeClassifier(random_state=0)
    subject = Classifier(
        tree, *noise(60, 3, rng), attacks=("loss",), shadows=4, records=np.arange(2), remedies=0
    )
    usual = em.audit(subject, engine=HERE)
    given = em.audit(subject, engine=HERE, delta=1e-3, confidence=0.8)
    for found, delta, confidence in ((usual, 1e-6, 0.95), (given, 1e-3, 0.8)):
        bound = found.find(MembershipFinding)[0].bound
        assert bound is not None
        assert (bound.delta, bound.confidence) == (delta, confidence)
    assert (usual.provenance.delta, given.provenance.delta) == (None, 1e-3)


GROUPS = np.where(np.arange(150) < 75, "first", "second").tolist()


def test_settings_hold_no_data() -> None:
    """Nor do other names of the same: lists, texts, a column that is called like a choice."""
    subject = Classifier(
        GaussianNB(),
        IRIS[0].tolist(),
        [f"label {code}" for code in IRIS[1]],
        records=[3, 4],
        groups={"type": GROUPS, "function": GROUPS},
        feature_names=["Age", "b", "c", "d"],
        categorical=[False] * 4,
        record_names="".join(chr(0x4E00 + i) for i in range(150)),
        target=([[0.0] * 3] * 150, [True] * 150),
        rules=[PdtpAtMost(limit=0.5)],
    )
    settings = to_settings(subject)
    supplied = {name for name, value in settings.items() if has_supplied(value)}
    assert supplied == {
        "estimator",
        "X",
        "y",
        "records",
        "groups",
        "feature_names",
        "categorical",
        "record_names",
        "target",
    }
    written = json.dumps(settings, ensure_ascii=False)
    assert not [text for text in ("label", "first", "Age", "Ann", "一", "5.1") if text in written]
    assert settings["rules"] == [{"type": "PdtpAtMost", "limit": 0.5, "share": 0.0}]
    assert to_settings(Classifier(GaussianNB(), *IRIS, records="sample:9"))["records"] == "sample:9"


@dataclass(frozen=True)
class IrisTable:
    """A source: brings what a file would."""

    neighbours: int

    def load(self) -> dict[str, Any]:
        nearest = KNeighborsClassifier(self.neighbours)
        return {"estimator": nearest, "X": IRIS[0], "y": IRIS[1], "groups": {"half": GROUPS}}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        return (("iris.csv", "ab" * 32),)


def test_an_audit_of_a_source_is_repeated_from_its_settings() -> None:
    source = IrisTable(1)
    rules = (PdtpAtMost(limit=2.0), AdvantageAtMost(0.3))
    subject = Classifier(
        **source.load(),
        attacks=("loss",),
        shadows=4,
        remedies=0,
        rules=rules,
        title="irises",
        source=source,
    )
    found = em.audit(subject, engine=HERE)
    assert found.provenance.supplied == ()
    assert found.provenance.shapes == (("X", "150 × 4"), ("y", "150"), ("groups", "dict of 1"))
    assert "ab" * 32 not in found.to_json()
    again = from_settings(Classifier, found.provenance.settings, trust=True)
    assert to_json(em.audit(again, engine=HERE)) == to_json(found)
    plain = em.audit(Classifier(GaussianNB(), *IRIS, attacks=()), engine=HERE)
    with pytest.raises(InvalidArgument, match="X, estimator, y of Classifier: supplied"):
        from_settings(Classifier, plain.provenance.settings)


def test_a_plan_knows_what_names_and_groups_it_was_given() -> None:
    plain = make_job(Classifier(GaussianNB(), *IRIS), Request()).plan
    for name, value in {
        "feature_names": "abcd",
        "record_names": [f"person {i}" for i in range(150)],
        "groups": {"half": GROUPS},
        "records": np.arange(3),
        "categorical": [True] * 4,
    }.items():
        other = make_job(Classifier(GaussianNB(), *IRIS, **{name: value}), Request()).plan
        assert other.hash != plain.hash
        assert set(other.inputs) - set(plain.inputs) == {name}


def test_a_plan_knows_an_estimator_by_its_contents(rng: np.random.Generator) -> None:
    """Not by its looks, which may hold an address."""
    data = noise(40, 2, rng)

    def plan(depth: int) -> str:
        steps = FunctionTransformer(_doubled), DecisionTreeClassifier(max_depth=depth)
        return make_job(Classifier(make_pipeline(*steps), *data), Request()).plan.hash

    assert plan(2) == plan(2)
    assert plan(2) != plan(3)


def _doubled(X: Any) -> Any:  # noqa: N803
    return 2 * X


def test_an_interrupted_run_keeps_its_parts(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(80, 2, rng)

    def begin() -> Audit:
        how: Any = {"attacks": ("loss",), "shadows": 4, "remedies": 0}
        return audit(GaussianNB(), data, **how, out=tmp_path / "run")

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("epsilometer.audits.classifier.job.pdtp", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begin()
    assert list((tmp_path / "run/shards").iterdir())
    monkeypatch.setattr("epsilometer.audits.classifier.job.shadow_pool", interrupted)  # not again
    assert begin().find(MembershipFinding)


def test_large_tables_are_answered_by_a_stated_number_of_records(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of 45,000 records, with numbers a hundred times smaller: no more work than linear."""
    monkeypatch.setattr("epsilometer.audits.classifier.subject._REFITTED", 16_000)
    monkeypatch.setattr("epsilometer.audits.classifier.subject._REMEDIES", ((100, 9),))
    tree = DecisionTreeClassifier(min_samples_leaf=20)
    data = noise(400, 2, rng)
    how: Any = {"attacks": ("loss",), "shadows": 8, "skip_trend": True, "remedies": None}
    found = audit(tree, data, **how)
    left = found.one(LeaveOneOut)
    assert (left.measured, left.of) == (40, 400)
    assert any("20 of 400 records were chosen by a screen" in each for each in found.caveats)
    assert any(each.startswith("Remedies that train new models") for each in found.caveats)
    every = audit(tree, data, records="all", attacks=())
    assert every.one(LeaveOneOut).measured == 400
    exact = audit(GaussianNB(), data, attacks=())  # leaves all records out in one go
    assert exact.one(LeaveOneOut).measured == 400


class Stubborn:
    """Cannot be cloned: its constructor keeps nothing."""

    def __init__(self, depth: int = 3) -> None:
        self.deep = [depth]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"depth": list(self.deep)}

    def fit(self, X: Any, y: Any) -> "Stubborn":  # noqa: N803
        return self


class Mute:
    """Neither probabilities nor decisions."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def set_params(self, **_: Any) -> "Mute":
        return self

    def fit(self, X: Any, y: Any) -> "Mute":  # noqa: N803
        self.classes_ = np.unique(y)
        return self


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "one class": (GaussianNB(), (IRIS[0], np.zeros(150)), {}, "at least two classes"),
    "labels of another length": (GaussianNB(), (IRIS[0], IRIS[1][:-1]), {}, "as many"),
    "nan": (GaussianNB(), (np.where(IRIS[0] > 7, np.nan, IRIS[0]), IRIS[1]), {}, "nan"),
    "nan in labels": (GaussianNB(), (IRIS[0], np.full(150, np.nan)), {}, "nan"),
    "classes without end": (
        KNeighborsClassifier(),
        (IRIS[0], np.arange(150)),
        {"attacks": ("loss",)},
        "no more classes than a shadow.*em.Regressor",
    ),
    "no estimator": (object(), IRIS, {}, "with fit and predict_proba"),
    "cannot be cloned": (Stubborn(), IRIS, {}, "can be cloned"),
    "says nothing": (
        Mute(),
        IRIS,
        {"attacks": ("loss",), "records": np.arange(2)},
        "predict_proba",
    ),
    "unknown attack": (GaussianNB(), IRIS, {"attacks": ("magic",)}, "attacks among loss, lira"),
    "too few shadows": (GaussianNB(), IRIS, {"shadows": 3}, "≥ 4"),
    "too much memory": (GaussianNB(), IRIS, {"attacks": "all", "shadows": 10**8}, "fewer shadows"),
    "no decimals": (GaussianNB(), IRIS, {"decimals": 0}, "decimals"),
    "one model varies": (GaussianNB(), IRIS, {"variation": 1}, "at least 2 models"),
    "records that are not there": (GaussianNB(), IRIS, {"records": np.array([150])}, "records in"),
    "a sample of words": (GaussianNB(), IRIS, {"records": "some"}, "sample:500"),
    "groups of others": (GaussianNB(), IRIS, {"groups": {"sex": [1]}}, "group for each of 150"),
    "names of others": (GaussianNB(), IRIS, {"record_names": ["a"]}, "150 names"),
    "rules that are none": (GaussianNB(), IRIS, {"rules": ()}, "at least one rule"),
    "decimals of a file": (GaussianNB(), IRIS, {"decimals": 2}, "published_as='api'"),
    "a file of labels": (
        GaussianNB(),
        IRIS,
        {"published_as": "labels", "model_file": "model.pkl"},
        "no one receives the file",
    ),
    "no such file": (GaussianNB(), IRIS, {"model_file": "nowhere.pkl"}, "can be read"),
    "published elsewhere": (GaussianNB(), IRIS, {"published_as": "web"}, "'file' or 'api' or"),
    "attacks that are a number": (GaussianNB(), IRIS, {"attacks": 3}, "attacks as a list"),
    "a rule that is a number": (GaussianNB(), IRIS, {"rules": (1.0,)}, "rules of .*PdtpAtMost"),
    "another preprocessing": (GaussianNB(), IRIS, {"preprocessing": "none"}, "preprocessing"),
    "patience below none": (GaussianNB(), IRIS, {"patience": -1.0}, "patience"),
    "names of other features": (GaussianNB(), IRIS, {"feature_names": "abc"}, "feature_names for"),
    "no patience": (
        RandomForestClassifier(50, random_state=0),
        IRIS,
        {"patience": 1e-3},
        "150 models without a record take about",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_a_sentence(case: str) -> None:
    estimator, data, how, part = BAD[case]
    with pytest.raises(EpsilometerError, match=part) as told:
        audit(estimator, data, **how)
    assert isinstance(told.value, InvalidArgument)


def test_decisions_stand_in_for_probabilities() -> None:
    found = audit(LinearSVC(), IRIS, records=np.arange(5))
    assert risk_of(found).measured == 5
    assert found.find(RuleFinding)[0].outcome in ("unclear", "fail")


def test_categories_unseen_in_a_shadow_are_no_error(rng: np.random.Generator) -> None:
    X, y = categories(300, rng)  # noqa: N806
    X[0, 0] = 7
    known = CategoricalNB(min_categories=8)
    assert audit(known, (X, y), attacks=("loss",), shadows=6).find(MembershipFinding)
    with pytest.raises(InvalidArgument, match="categories"):
        audit(CategoricalNB(), (X, y), attacks=("loss",), shadows=6)


def test_a_model_that_is_there_already_is_attacked_and_compared_with_its_shadows(
    rng: np.random.Generator,
) -> None:
    X, y = noise(600, 3, rng)  # noqa: N806
    member = rng.random(600) < 0.5
    how = {"attacks": ("loss",), "shadows": 12, "records": np.arange(3)}
    alike = DecisionTreeClassifier(random_state=1).fit(X[member], y[member])
    with np.errstate(divide="ignore"):
        own = np.log(alike.predict_proba(X))
    tree = DecisionTreeClassifier(random_state=0)
    found = audit(tree, (X, y), target=(own, member), **how)
    (attack,) = found.find(MembershipFinding)
    assert attack.n_in == member.sum()
    assert attack.advantage > 0.3
    assert not attack.bound.valid  # type: ignore[union-attr] - nobody tossed coins
    shallow = DecisionTreeClassifier(max_depth=1, random_state=1).fit(X[member], y[member])
    with np.errstate(divide="ignore"):
        other = np.log(shallow.predict_proba(X))
    rules = [AdvantageAtMost(0.99)]
    unlike = audit(tree, (X, y), target=(other, member), rules=rules, **how)
    assert unlike.verdict == "cannot tell"
    assert "trained differently" in unlike.find(RuleFinding)[0].finding


def test_rules_of_ones_own_decide() -> None:
    strict = audit(GaussianNB(), CANCER, rules=[PdtpAtMost(limit=0.01)])
    mild = audit(GaussianNB(), CANCER, rules=[PdtpAtMost(limit=0.01, share=1.0)])
    assert (strict.verdict, mild.verdict) == ("do not release", "release")
    assert risk_of(strict).limit == 0.01
    alone = audit(GaussianNB(), CANCER, rules=PdtpAtMost(limit=0.01))
    assert [rule.rule for rule in alone.find(RuleFinding)] == ["PDTP at most 0.01"]


def test_predictions_elsewhere_are_not_seen_by_pdtp() -> None:
    """The indirect attack: his leaving changes what is said of a stranger, and not of himself.

    Without it its own nearest neighbour is one of its class; a stranger between the classes then is
    nearer to the other one.
    """
    X = np.array([[0.0], [0.1], [0.2], [-2.0], [-2.1], [-2.2]])  # noqa: N806
    y = np.array([0, 0, 0, 1, 1, 1])
    model, who, stranger = KNeighborsClassifier(1), np.array([0]), np.array([[-0.99]])
    assert pdtp(model, X, y, records=who).values[0] == 0
    assert dtp_over(model, X, y, stranger, records=who).values[0] > 0.5


@pytest.mark.slow
def test_a_precision_has_more_models_attacked(rng: np.random.Generator) -> None:
    """Records of noise are alike, so that more models narrow the limits."""
    data = noise(300, 2, rng)
    settings = {"attacks": ("rmia",), "shadows": 8, "rules": (em.rules.AdvantageAtMost(0.1),)}
    rules, attacks = {}, {}
    for precision in (None, 0.15, 1e-6):
        found = audit(GaussianNB(), data, precision=precision, **settings)
        rules[precision] = found.one(em.findings.RuleFinding)
        attacks[precision] = found.one(MembershipFinding)
        said = any("was requested" in caveat for caveat in found.caveats)
        assert said == (precision == 1e-6)
    assert attacks[None].n_in == 300 * 4
    assert rules[None].high - rules[None].low > 0.15
    assert attacks[0.15].n_in >= 300 * 8
    assert rules[0.15].high - rules[0.15].low <= 0.15
    assert attacks[1e-6].n_in > attacks[0.15].n_in


def test_many_records_are_attacked_through_fewer_models(rng: np.random.Generator) -> None:
    data = noise(9_000, 2, rng)
    found = audit(GaussianNB(), data, attacks=("loss",), shadows=32)
    (caveat,) = [text for text in found.caveats if text.startswith("Attacks were run on")]
    assert "28 models" in caveat


def test_nearest_neighbours_are_asked_about_a_sample(rng: np.random.Generator) -> None:
    """Every answer looks at all records: asking about all would take their square."""
    X, y = noise(8_700, 1, rng)  # noqa: N806
    groups = {"town": np.where(np.arange(8_700) < 8_650, "a", "b")}
    how: Any = {"records": np.arange(150), "shadows": 4, "attacks": ("loss",), "remedies": 0}
    found = audit(KNeighborsClassifier(1), (X, y), groups=groups, skip_trend=True, **how)
    assert found.verdict == "do not release"
    assert any("at 8,192 of 8,700 records" in caveat for caveat in found.caveats)
    attack = found.find(MembershipFinding)[0]
    assert attack.n_in + attack.n_out == 4 * 8_192
    assert attack.advantage > 0.2
    listed = found.find(RecordRisk)
    assert {each.attacked is None for each in listed} == {True, False}
    assert all(bool(each.scores) == (each.attacked is not None) for each in listed)


def test_records_of_one_class_alone_are_certain(rng: np.random.Generator) -> None:
    """Of five records of a class some shadows see none, which a regression refuses to learn."""
    X, y = noise(200, 2, rng)  # noqa: N806
    y[:] = np.arange(200) < 5
    for estimator in (LogisticRegression(C=0.01), LinearDiscriminantAnalysis()):
        found = audit(estimator, (X, y), attacks=("loss",), shadows=16)
        assert found.find(MembershipFinding)


def test_sparse_arrays_are_searched_as_matrices_are(rng: np.random.Generator) -> None:
    table = scipy.sparse.random_array((120, 40), density=0.1, rng=rng, format="csr")
    y = np.arange(120) % 2
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        found = audit(KNeighborsClassifier(30), (kind(table), y), attacks=("loss",))
        rule = found.find(em.findings.RuleFinding)[0]
        assert "the records of 120 of 120 people" in rule.finding


def test_the_trend_over_sizes_says_what_all_records_would_show(rng: np.random.Generator) -> None:
    """A tree learns any number of records by heart, so that nothing changes with size."""
    data = noise(400, 3, rng)
    settings = {"attacks": ("loss",), "shadows": 8, "records": np.arange(3)}
    found = audit(DecisionTreeClassifier(random_state=0), data, **settings)
    attack = found.one(MembershipFinding)
    assert attack.full_low > 0.2
    assert attack.full_advantage == pytest.approx(attack.advantage, rel=0.2)
    assert (
        sum("Extrapolated from" in rule.finding for rule in found.find(em.findings.RuleFinding))
        == 1
    )
    without = audit(DecisionTreeClassifier(random_state=0), data, skip_trend=True, **settings)
    assert without.one(MembershipFinding).full_high is None


def test_records_are_ranked_by_what_attacks_find_of_them(rng: np.random.Generator) -> None:
    """Names of their own give some away, whom leaving out hardly moves."""
    X, y = noise(300, 3, rng)  # noqa: N806
    X[:, 0] = np.where(np.arange(300) < 20, 100.0 * np.arange(300), 0.0)
    y = np.where(np.arange(300) < 20, y, 0)
    found = audit(
        KNeighborsClassifier(1), (X, y), attacks=("loss", "lira"), shadows=40, show_records=True
    )
    listed = found.find(RecordRisk)
    often = [record.attacked for record in listed if record.attacked >= 0.8]  # 32 of 40 models
    assert len(often) >= 2
    assert often == [record.attacked for record in listed[: len(often)]]
    assert often == sorted(often, reverse=True)
    others = [record.risk for record in listed[len(often) :]]
    assert others == sorted(others, reverse=True)  # by luck nobody is ranked
    alone = audit(KNeighborsClassifier(1), (X, y)).find(RecordRisk)
    assert {record.attacked for record in alone} == {None}
