"""A release audit keeps its meaning to JSON and back, and its verdict is the gravest rule."""

import json
from functools import cache
from itertools import product
from typing import Any

import jsonschema
import msgspec
import pytest

import epsilometer as em
from epsilometer import Audit, Classifier, InProcess, json_schema
from epsilometer.core import judge
from epsilometer.core.audit import Provenance
from epsilometer.core.findings import Outcome
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.errors import InvalidArgument
from epsilometer.findings import AccuracyFinding, RuleFinding

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GRAVITY: tuple[Outcome, ...] = ("fail", "unclear", "pass")
VERDICTS = dict(zip(GRAVITY, ("do not release", "cannot tell", "release"), strict=True))


def a_rule(outcome: Outcome = "fail", **changed: Any) -> RuleFinding:
    plain: dict[str, Any] = {
        "rule": "PDTP at most 1",
        "outcome": outcome,
        "finding": f"This is why the rule says {outcome}.",
        "value": 0.075,
        "low": 0.075,
        "high": 0.075,
        "limit": 0.0,
        "confidence": 1.0,
    }
    return RuleFinding(**{**plain, **changed})


def a_provenance(**changed: Any) -> Provenance:
    plain: dict[str, Any] = {
        "subject": "Classifier",
        "settings": {"shadows": 32, "y": {"supplied": "ndarray"}},
        "delta": None,
        "confidence": 0.95,
        "seed": 0,
        "versions": (("epsilometer", "1.0.0"),),
    }
    return Provenance(**{**plain, **changed})


def judged(*outcomes: Outcome, **changed: Any) -> Audit:
    """An audit of rules alone."""
    plain: dict[str, Any] = {
        "subject": "naive Bayes",
        "claim": None,
        "findings": tuple(a_rule(outcome) for outcome in outcomes),
        "provenance": a_provenance(),
    }
    return Audit(**{**plain, **changed})


@cache
def measured() -> Audit:
    """An audit with findings of every kind, from real work."""
    datasets = pytest.importorskip("sklearn.datasets")
    neighbours = pytest.importorskip("sklearn.neighbors")
    X, y = datasets.load_iris(return_X_y=True)  # noqa: N806
    subject = Classifier(
        neighbours.KNeighborsClassifier(1),
        X,
        y,
        attacks=("loss",),
        shadows=4,
        variation=2,
        groups={"half": [i % 2 for i in range(150)]},
    )
    return em.audit(subject, engine=InProcess())


def test_it_comes_back_from_json_as_it_was_and_obeys_the_schema() -> None:
    kinds = {type(finding).__name__ for finding in measured().findings}
    assert len(kinds) == 10, kinds
    for audit in (measured(), judged("fail")):
        text = to_json(audit)
        assert from_json(text) == audit
        assert to_json(from_json(text)) == text
        VALIDATOR.validate(json.loads(text))


def test_the_schema_asks_for_every_field_without_a_default() -> None:
    plain = json.loads(to_json(measured()))
    asked = 0
    for name in required(Audit):
        less = {key: value for key, value in plain.items() if key != name}
        refused(less)
    for kind in {type(finding): None for finding in measured().findings}:
        first = next(part for part in plain["findings"] if part["kind"] == kind.__name__)
        for name in ("kind", *required(kind)):
            less = {key: value for key, value in first.items() if key != name}
            refused({**plain, "findings": [less]})
            asked += 1
    assert asked > 60  # of nine kinds of findings


def required(kind: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def refused(plain: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(plain)
    with pytest.raises(InvalidArgument):
        from_json(json.dumps(plain))


@pytest.mark.parametrize("said", list(product(GRAVITY, repeat=3)))
def test_the_verdict_is_that_of_the_gravest_rule(said: tuple[Outcome, ...]) -> None:
    audit = judged(*said)
    assert audit.verdict == VERDICTS[min(said, key=GRAVITY.index)]
    assert json.loads(to_json(audit))["verdict"] == audit.verdict
    assert [rule.outcome for rule in audit.find(RuleFinding)] == sorted(said, key=GRAVITY.index)
    assert audit.exit_code == {"do not release": 1, "cannot tell": 4, "release": 0}[audit.verdict]


def test_failed_work_never_releases() -> None:
    assert judged("pass").verdict == judge.RELEASE
    failed = a_provenance(units=3, used=2, failed=1)
    assert judged("pass", provenance=failed).verdict == judge.CANNOT_TELL
    assert "1 unit failed" in str(judged("pass", provenance=failed))
    assert judged("fail", provenance=failed).verdict == judge.DO_NOT_RELEASE


def test_a_verdict_in_a_file_is_not_believed() -> None:
    plain = {**json.loads(to_json(judged("fail"))), "verdict": "release"}
    assert from_json(json.dumps(plain)).verdict == judge.DO_NOT_RELEASE


@pytest.mark.parametrize(
    "wrong",
    [
        judged,
        lambda: judged("fail", cites=("nobody",)),
        lambda: a_provenance(confidence=1.0),
        lambda: AccuracyFinding(accuracy=1.5),
        lambda: a_rule(confidence=1.5),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        wrong()
