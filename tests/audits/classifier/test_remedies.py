"""Remedies are carried out and measured before anybody is told of them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.accounting import pld, rdp
from epsilometer.audits.classifier.private_model import PrivateClassifier
from epsilometer.audits.classifier.remedies import find_telling_columns, list_remedies
from epsilometer.errors import InvalidArgument
from epsilometer.findings import RemedyFinding

pytest.importorskip("sklearn")
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from tests.audits.classifier.zoo import draw_names, draw_noise, draw_signal
from tests.conftest import run_often

HERE = em.InProcess()


def audit(model: Any, data: Any, **how: Any) -> em.Audit:
    plain: dict[str, Any] = {"attacks": ("loss", "lira"), "shadows": 16, "removal": 0}
    return em.audit(em.Classifier(model, *data, **{**plain, **how}), engine=HERE)


def spread(model: Any) -> Any:
    return make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), model)


@pytest.mark.slow
def test_a_column_of_names_is_to_be_dropped_and_nothing_that_does_not_help() -> None:
    """The measured finding: rounding and dropping records were advised, and left 3 of 4 caught."""
    names, y = draw_names()
    model = spread(LogisticRegression(C=100))
    found = audit(model, (names, y), feature_names=("name", "town"), records=np.arange(9))
    base, first, *_ = found.find(RemedyFinding)
    assert (base.action, first.action) == ("", "Drop the column 'name'.")
    assert base.caught > 0.3
    assert first.exposed == 0  # all were left out again, exactly
    assert first.caught < 0.05
    assert first.helps
    assert found.advice[0].startswith("Drop the column 'name'. Of 100 people in the data")
    by = {remedy.action: remedy for remedy in found.find(RemedyFinding)}
    assert not by["Show 2 decimals, through an API."].caught < base.caught - 0.1
    assert not any("riskiest" in text and "Drop" in text for text in found.advice)
    dropped = next(
        remedy for action, remedy in by.items() if action.startswith("Drop the riskiest")
    )
    assert not dropped.helps


def test_a_remedy_is_what_auditing_the_changed_model_finds() -> None:
    X, y = draw_noise(300)  # noqa: N806
    found = audit(KNeighborsClassifier(1), (X, y))
    by = {remedy.action: remedy for remedy in found.find(RemedyFinding)}
    labels = audit(KNeighborsClassifier(1), (X, y), published_as="labels", remedies=0)
    attacks = labels.find(em.findings.MembershipFinding)
    said = by["Publish class labels only."]
    assert said.caught == max(attack.tpr for attack in attacks)
    assert said.advantage == max(attack.advantage for attack in attacks)
    smooth = by["Train a smoother model: n_neighbors = 37."]
    again = audit(KNeighborsClassifier(37), (X, y), remedies=0)
    assert smooth.caught == max(a.tpr for a in again.find(em.findings.MembershipFinding))
    assert smooth.in_file == 300
    private = by["Train with differential privacy, ε = 1."]
    assert private.advantage < 0.2
    assert by[""].advantage > 0.4


def test_nothing_is_tried_where_all_is_well_or_nothing_is_wanted() -> None:
    rules = (em.rules.AdvantageAtMost(0.2),)
    well = audit(DummyClassifier(), draw_noise(400), records=np.arange(9), rules=rules)
    assert well.verdict == "release"
    assert not well.find(RemedyFinding)
    near, few_people = KNeighborsClassifier(1), draw_noise(100)
    assert not audit(near, few_people, remedies=0).find(RemedyFinding)
    few = audit(near, few_people, remedies=1).find(RemedyFinding)
    assert len(few) == 1 + 4 + 1  # as it is, four ways to show less, one that trains again


def test_columns_that_tell_people_apart_are_found() -> None:
    rng = np.random.default_rng(0)
    X = np.stack(  # noqa: N806
        [rng.normal(size=200), rng.permutation(200), rng.integers(3, size=200)], axis=1
    )
    subject = em.Classifier(DummyClassifier(), X, np.arange(200) % 2)
    assert find_telling_columns(subject) == [1]  # a number of persons, not a measurement
    gaps = np.where(X[:, [1]] == 7, np.nan, X)
    subject = em.Classifier(DummyClassifier(), gaps, np.arange(200) % 2)
    assert find_telling_columns(subject) == [1]
    words = np.stack([np.arange(200).astype(str), np.repeat(["a", "b"], 100)], axis=1)
    named = em.Classifier(DummyClassifier(), words.astype(object), np.arange(200) % 2)
    assert find_telling_columns(named) == [0]
    remedies = {each.action: each for each in list_remedies(named, np.arange(200), exposed=0)}
    blank = remedies["Drop the column 0."].subject.X
    assert len(set(blank[:, 0])) == 1
    np.testing.assert_array_equal(blank[:, 1], words[:, 1])


def test_private_training_adds_the_noise_that_it_claims() -> None:
    X, y = draw_signal(400)  # noqa: N806
    sure = PrivateClassifier(np.inf).fit(X, y)
    assert (sure.predict(X) == y).mean() > 0.7
    steps, rate = 1, 1.0
    noisy = [
        PrivateClassifier(1.0, steps=steps, learning_rate=rate, random_state=seed).fit(X, y).coef_
        for seed in range(200)
    ]
    plain = PrivateClassifier(np.inf, steps=steps, learning_rate=rate).fit(X, y).coef_
    spread_of = np.std([(each - plain) * 400 / rate for each in noisy])
    assert abs(spread_of / 3.73063 - 1) < 0.1  # σ of (1, 1e-5)-DP
    with pytest.raises(InvalidArgument, match="epsilon"):
        PrivateClassifier(0.0).fit(X, y)


@pytest.mark.parametrize(
    ("epsilon", "steps"), run_often([(0.5, 1), (1.0, 30), (8.0, 100)], [(1.0, 30)])
)
def test_accounting_of_training_agrees_with_what_was_promised(epsilon: float, steps: int) -> None:
    """The noise is read off the fitted models, and accounted as DP-SGD of all records."""
    X, y = np.zeros((50, 1)), np.arange(50) % 2  # noqa: N806
    drawn = [
        PrivateClassifier(epsilon, steps=steps, learning_rate=1e-9, random_state=seed).fit(X, y)
        for seed in range(400)
    ]
    moved = np.stack([model.coef_ for model in drawn]) * 50 / 1e-9 / np.sqrt(steps)
    for accountant in (pld, rdp):
        spent = accountant.poisson_epsilon(
            noise_multiplier=float(moved.std()), sampling_rate=1.0, steps=steps, delta=1e-5
        )
        assert spent == pytest.approx(epsilon, rel=0.1 if accountant is pld else 0.3)


def test_private_training_is_that_of_the_packages_own_trainer() -> None:
    torch = pytest.importorskip("torch")
    from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
    from epsilometer.sampling.samplers import Sequential

    X, y = draw_signal(60)  # noqa: N806
    X *= 3  # noqa: N806 - so that some gradients are clipped
    ours = PrivateClassifier(np.inf, steps=5, learning_rate=2.0).fit(X, y)
    module = torch.nn.Linear(4, 2, bias=False)
    torch.nn.init.zeros_(module.weight)
    trainer = EnsembleDPSGD(
        module,
        cross_entropy,
        runs=1,
        sampler=Sequential(),
        noise_multiplier=0.0,
        learning_rate=2.0,
        batch_size=60,
        epochs=5,
        initial="given",
    )
    rows = ours._scale(X)
    theirs = trainer.train(rows.astype(np.float32), y, rng=np.random.default_rng(0))
    found = theirs.probabilities(rows.astype(np.float32))[0]
    np.testing.assert_allclose(ours.predict_proba(X), found, atol=1e-5)


def test_no_record_moves_a_step_by_more_than_one() -> None:
    X, y = draw_signal(100)  # noqa: N806
    whole = PrivateClassifier(np.inf, steps=1, learning_rate=100).fit(X, y).coef_
    for record in range(0, 100, 9):
        left = np.delete(np.arange(100), record)
        part = PrivateClassifier(np.inf, steps=1, learning_rate=99).fit(X[left], y[left]).coef_
        assert np.linalg.norm(whole - part) <= 1 + 1e-9


def test_what_is_trained_anew_is_not_looked_for_in_the_old_file(tmp_path: Path) -> None:
    """A file that holds records would still be one after any remedy, and none would help."""
    X, y = np.eye(8), np.arange(8) % 2  # noqa: N806
    model = KNeighborsClassifier(1).fit(X, y)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    subject = em.Classifier(model, X, y, model_file=tmp_path / "model.pkl", fitted=model)
    tried = [*list_remedies(subject, np.arange(8), exposed=1)]
    assert any(remedy.retrains for remedy in tried)
    assert {(each.subject.model_file, each.subject.fitted) for each in tried} == {(None, None)}
