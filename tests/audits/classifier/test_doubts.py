"""What was measured of rows does not clear people: copies, noise in answers, rules left out."""

from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.audits.classifier.doubts import describe_copies, find_copies
from epsilometer.findings import RemedyFinding, RuleFinding
from epsilometer.rules import PdtpAtMost

pytest.importorskip("sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from tests.audits.classifier.zoo import Constant, draw_categories, draw_noise, draw_signal


def audit(model: Any, data: Any, **how: Any) -> em.Audit:
    plain: dict[str, Any] = {"shadows": 16, "remedies": 0, "skip_trend": True}
    return em.audit(em.Classifier(model, *data, **{**plain, **how}), engine=em.InProcess())


def draw_visits(people: int = 240, visits: int = 6) -> Any:
    """Everybody stands in the table six times: leaving one row out leaves five."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(people, 3)), rng.integers(2, size=people)
    return np.repeat(rows, visits, axis=0), np.repeat(labels, visits)


@pytest.mark.parametrize("form", ["api", "labels"])
def test_a_memory_of_people_with_many_rows_is_not_released(form: str) -> None:
    found = audit(KNeighborsClassifier(1), draw_visits(), published_as=form)
    assert found.verdict == "cannot tell"  # was "release": every copy but one was still there
    assert found.find(RuleFinding)[0].finding.startswith("1,440 of 1,440 rows occur more than once")
    assert all(rule.outcome == "unclear" for rule in found.find(RuleFinding))


def test_a_file_of_copies_still_fails() -> None:
    assert audit(KNeighborsClassifier(1), draw_visits()).verdict == "do not release"


def test_copies_are_told_from_people_who_answer_alike() -> None:
    X, _ = draw_signal(300)  # noqa: N806
    assert not find_copies(X).any()
    twice = np.vstack([X, X[:5]])
    assert np.flatnonzero(find_copies(twice)).tolist() == [*range(5), *range(300, 305)]
    assert not find_copies(draw_categories(300)[0]).any()  # a few answers, which many share
    names = np.array([[f"ann {i}", "x"] for i in range(40)] * 2, object)
    assert find_copies(names).all()
    said, many = describe_copies(find_copies(twice))
    assert said.startswith("10 of 305 rows")
    assert not many  # rates of all people hold; it is a remark
    found = audit(LogisticRegression(tol=1e-2), (twice, np.arange(305) % 2), attacks=())
    assert said in found.caveats


class Muffled(ClassifierMixin, BaseEstimator):
    """Knows everybody by heart, and adds noise to answers, which whoever asks often averages."""

    def fit(self, X: Any, y: Any) -> "Muffled":  # noqa: N803
        self.classes_ = np.unique(y)
        self.known_ = {hash(row.tobytes()): 2 * code - 1 for row, code in zip(X, y, strict=True)}
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        told = np.array([self.known_.get(hash(row.tobytes()), 0) for row in X])
        odds = 0.02 * told + np.random.default_rng().normal(0, 0.2, len(told))
        return np.column_stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))])


def test_noise_in_answers_clears_nobody() -> None:
    how: dict[str, Any] = {"published_as": "api", "records": "sample:80", "attacks": ("loss",)}
    found = audit(Muffled(), draw_noise(), rules=PdtpAtMost(share=0.1), **how)
    assert found.verdict == "cannot tell"  # was "release"
    assert "repeated queries average the noise out" in found.find(RuleFinding)[0].finding
    still = audit(Constant(), draw_noise(), rules=PdtpAtMost(share=0.1), **how)
    assert still.verdict == "release"


def test_what_no_rule_looked_at_is_said_before_it_is_published() -> None:
    """The paper's rule alone releases a file that holds every row, as it must; it says so."""
    data, model = draw_signal(600), KNeighborsClassifier(200)
    alone = audit(model, data, rules=PdtpAtMost(1), attacks=())
    assert alone.verdict == "release"
    assert alone.advice[0].startswith("Before publishing, also apply the default rules.")
    assert "The model's file was not searched: it may hold training records." in alone.caveats
    attacked = audit(model, data, published_as="api", attacks=("loss",))
    assert not any("was not searched" in said or "No attack" in said for said in attacked.caveats)
    file = audit(model, data, attacks=())
    assert file.advice[0].startswith("Do not publish the file. Audit an API")


def keep_riddle(X: Any) -> bytes:  # noqa: N803
    return np.random.default_rng(1).bytes(400)


def test_an_api_is_advised_where_the_file_cannot_be_searched() -> None:
    """The advice was "None of 7 remedies that were tried helps: publish nothing of it"."""
    found = audit(Constant(keep_riddle), draw_noise(), remedies=1, attacks=("loss",), shadows=8)
    assert found.verdict == "cannot tell"
    assert found.advice[0].startswith("Publish an API instead of the file.")
    assert found.advice[0].endswith("All rules then pass.")
    by = {remedy.action: remedy for remedy in found.find(RemedyFinding)}
    assert by["Publish an API instead of the file."].helps
    assert any("remove from the model what could not be searched" in said for said in found.advice)
