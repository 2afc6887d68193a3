"""An audit of predictions keeps its meaning to JSON and back; its verdict is the worst form's."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from epsilometer import Audit, json_schema
from epsilometer.core import judge
from epsilometer.core.findings import (
    EpsilonFinding,
    FormDifference,
    FormFinding,
    FormPlan,
    PosteriorRuns,
    SweepPoint,
    TheoryEpsilon,
)
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from tests.examples import (
    a_bound,
    a_form,
    a_plan,
    a_posterior,
    a_provenance,
    a_view,
    posterior_runs,
)

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
UNTESTED = dict.fromkeys(("accuracy", "ties", "calibration_error", "log_loss"))
KINDS = (FormFinding, FormDifference, SweepPoint, FormPlan, PosteriorRuns, TheoryEpsilon)


@pytest.mark.parametrize(
    "audit",
    [
        a_posterior(),
        a_posterior(claim=None, forms=(a_form("label", **UNTESTED),)),
        a_posterior(forms=(a_form("label", raw=float("inf")),), differences=(), theory=()),
        a_posterior(forms=(a_form("label", standing="unclear"),)),
    ],
)
def test_it_comes_back_from_json_as_it_was_and_obeys_the_schema(audit: Audit) -> None:
    text = audit.to_json()
    assert from_json(text) == audit
    assert from_json(text).to_json() == text
    VALIDATOR.validate(json.loads(text))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_that_has_no_default_is_asked_for(kind: type[Any]) -> None:
    plain = json.loads(a_posterior().to_json())
    place = [finding["kind"] for finding in plain["findings"]].index(kind.__name__)
    whole = plain["findings"][place]
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    assert set(required) == set(whole) - {"kind"}  # none has a default
    for name in ("kind", *required):
        plain["findings"][place] = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(plain)
        with pytest.raises(InvalidArgument):
            from_json(json.dumps(plain))


@pytest.mark.parametrize(
    ("epsilons", "verdict"),
    [((0.5, 2.0), judge.REFUTED), ((2.0, 0.5), judge.REFUTED), ((0.5, 0.9), judge.NOT_REFUTED)],
)
def test_the_worst_form_decides(epsilons: tuple[float, ...], verdict: str) -> None:
    views = [a_view(bound=a_bound(epsilon=epsilon)) for epsilon in epsilons]
    forms = tuple(a_form(n, view=v) for n, v in zip(("samples", "label"), views, strict=True))
    audit = a_posterior(forms=forms)
    assert audit.verdict == verdict == json.loads(audit.to_json())["verdict"]
    assert audit.epsilon == max(epsilons)
    assert set(audit.bounds) == {view.bound for view in views}
    (plan,) = audit.find(FormPlan)
    assert plan.forms == ("samples", "label")  # finest first, wherever findings are sorted to
    if verdict == judge.REFUTED:
        assert isinstance(audit.findings[0], FormFinding)
        assert audit.findings[0].epsilon == 2.0  # the gravest first


def test_failed_work_is_no_acquittal() -> None:
    failed: dict[str, Any] = {"units": 3, "used": 2, "failed": 1}
    spared = a_view(bound=a_bound(epsilon=0.5), **failed)
    audit = a_posterior(
        forms=(a_form("label", view=spared),),
        provenance=a_provenance(subject="Posterior", **failed),
    )
    assert audit.verdict == judge.CANNOT_JUDGE


def test_a_verdict_in_a_file_is_not_believed() -> None:
    plain = json.loads(a_posterior().to_json())
    plain["verdict"] = judge.NOT_REFUTED
    assert from_json(json.dumps(plain)).verdict == judge.REFUTED


def test_forms_are_views_too() -> None:
    audit = a_posterior()
    assert not audit.find(EpsilonFinding)
    assert audit.views == tuple(form.view for form in audit.find(FormFinding))
    assert audit.view("label").subject == "a model, label"


@pytest.mark.parametrize(
    "change",
    [
        lambda: a_posterior(findings=()),
        lambda: a_posterior(provenance=a_provenance(confidence=1.0)),
        lambda: a_posterior(runs=posterior_runs(runs=0)),
        lambda: a_posterior(runs=posterior_runs(delta=0.0)),
        lambda: a_posterior(cites=("nobody",)),
        lambda: a_plan(chosen="cake"),  # none of the forms
        lambda: a_plan(advantage=2.0),
        lambda: a_form("label", raw=float("nan")),
        lambda: a_form("label", samples=0),
    ],
)
def test_what_cannot_be_is_refused(change: Any) -> None:
    with pytest.raises(InvalidArgument):
        change()
