"""An attack and a family of somebody else's: one line, or an entry point, and they are used."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.naive_bayes import GaussianNB

import epsilometer as em
from epsilometer.audits.classifier.attacks.evaluation import RecordScores
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.audits.classifier.job import make_job
from epsilometer.audits.classifier.leave_one_out.families import FAMILIES, Family, Removable
from epsilometer.cli.main import main
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.findings import MembershipFinding
from epsilometer.types import FloatArray, IntArray

IRIS = load_iris(return_X_y=True)
HERE = em.InProcess()


def gap(pool: ShadowPool, target: Any, rng: np.random.Generator) -> RecordScores:
    shadows, found = pool.against(target)
    own = found[np.arange(pool.records), pool.columns]
    return RecordScores(
        attack="gap", values=own - shadows.own.mean(axis=0), threshold=0.0, convention=""
    )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ATTACKS, "_items", dict(ATTACKS._items))
    ATTACKS.register("gap", gap)


@pytest.mark.usefixtures("registered")
def test_an_attack_is_registered_by_one_line() -> None:
    quick: Any = {"shadows": 4, "skip_trend": True, "remedies": 0}
    subject = em.Classifier(GaussianNB(), *IRIS, attacks=("loss", "gap"), **quick)
    found = em.audit(subject, engine=HERE).find(MembershipFinding)
    assert [attack.attack for attack in found] == ["loss threshold", "gap"]
    assert "gap" in em.Classifier(GaussianNB(), *IRIS, attacks="all").attack_names


@pytest.mark.usefixtures("registered")
def test_a_plan_knows_the_code_of_an_attack_from_elsewhere() -> None:
    plan = make_job(em.Classifier(GaussianNB(), *IRIS, attacks=("gap",)), Request()).plan
    own = make_job(em.Classifier(GaussianNB(), *IRIS, attacks=("loss",)), Request()).plan
    assert set(plan.inputs) - set(own.inputs) == {"attack gap"}


def test_an_entry_point_is_an_attack_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_attacks.py").write_text(
        "from epsilometer.audits.classifier.attacks.shadow_attacks import rmia\n"
        "def mine(pool, target, rng):\n"
        "    return rmia(pool, target, online=False)\n"
    )
    information = tmp_path / "my_attacks-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-attacks\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[epsilometer.attacks]\nmine = my_attacks:mine\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    rows = (f"{x},{y},{label}" for (x, y, *_), label in zip(*IRIS, strict=True))
    Path("irises.csv").write_text("\n".join(["length,width,kind", *rows]) + "\n")
    options = ("--label", "kind", "--model", "naive-bayes", "--shadows", "4", "--seed", "1")
    options += ("--published-as", "api", "--skip-trend", "--remedies", "0")
    with pytest.raises(SystemExit) as ended:
        main(["classifier", "irises.csv", *options, "--attacks", "mine", "--engine", "in-process"])
    assert ended.value.code in (0, 1, 4)
    assert "RMIA, offline" in capsys.readouterr().out


def test_unknown_and_repeated_names_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="attacks among loss, lira"):
        em.Classifier(GaussianNB(), *IRIS, attacks=("mine",))
    with pytest.raises(InvalidArgument, match="Expected a new name"):
        ATTACKS.register("loss", gap)


class Majority(Removable):
    """The shares of classes, whatever is asked: what ``DummyClassifier`` predicts by default."""

    def log_proba(self, queries: Any) -> FloatArray:
        return self._shares(self.counts, len(queries))

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        return self._shares(self.count_without(label), len(records if at is None else at))

    def _shares(self, counts: FloatArray, rows: int) -> FloatArray:
        return np.tile(np.log(counts / counts.sum()), (rows, 1))


def test_a_family_is_registered_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "_items", dict(FAMILIES._items))
    dummy = DummyClassifier()
    refitted = em.pdtp(dummy, *IRIS, records=np.arange(3), engine=HERE)
    FAMILIES.register(
        "sklearn.DummyClassifier",
        Family("shares of classes", lambda estimator, X, y: Majority(X, y)),  # noqa: N803
    )
    exact = em.pdtp(dummy, *IRIS, records=np.arange(3))
    assert (refitted.path, exact.path) == ("refits", "exact: shares of classes")
    np.testing.assert_allclose(exact.values, refitted.values)
