"""An audit of predictions keeps its meaning to JSON and back; its verdict is the worst form's."""

import json
from typing import Any

import jsonschema
import pytest

from epsilometer import PosteriorAudit, from_json, json_schema, to_json
from epsilometer.errors import InvalidArgument
from tests.examples import a_bound, a_form, a_posterior, a_provenance, an_audit

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
UNTESTED = dict.fromkeys(("accuracy", "ties", "calibration_error", "log_loss"))


@pytest.mark.parametrize(
    "result",
    [
        a_posterior(),
        a_posterior(claim=None, forms=(a_form("label", audit=an_audit(claim=None), **UNTESTED),)),
        a_posterior(forms=(a_form("label", raw=float("inf")),), differences=(), theory=()),
    ],
)
def test_it_comes_back_from_json_as_it_was_and_obeys_the_schema(result: PosteriorAudit) -> None:
    text = to_json(result)
    assert from_json(text) == result
    assert to_json(from_json(text)) == text
    VALIDATOR.validate(json.loads(text))


def test_the_schema_asks_for_every_field() -> None:
    plain = a_posterior().to_dict()
    for name in plain:
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate({key: value for key, value in plain.items() if key != name})
    for part in ("forms", "differences", "sweeps", "theory"):
        first = plain[part][0]
        for name in first:
            less = {key: value for key, value in first.items() if key != name}
            with pytest.raises(jsonschema.ValidationError):
                VALIDATOR.validate({**plain, part: [less]})


@pytest.mark.parametrize(
    ("epsilons", "verdict"), [((0.5, 2.0), "refuted"), ((0.5, 0.9), "not refuted")]
)
def test_the_worst_form_decides(epsilons: tuple[float, ...], verdict: str) -> None:
    audits = [an_audit(bound=a_bound(epsilon=epsilon)) for epsilon in epsilons]
    forms = tuple(a_form(n, audit=a) for n, a in zip(("samples", "label"), audits, strict=True))
    result = a_posterior(forms=forms)
    assert result.verdict == verdict == result.to_dict()["verdict"]
    assert result.audits == tuple(audits)


def test_failed_work_is_no_acquittal() -> None:
    failed = a_provenance(units=3, used=2, failed=1)
    spared = an_audit(bound=a_bound(epsilon=0.5), provenance=failed)
    result = a_posterior(forms=(a_form("label", audit=spared),))
    assert result.verdict == "no verdict"


def test_a_verdict_in_a_file_is_not_believed() -> None:
    plain = a_posterior().to_dict()
    plain["verdict"] = plain["forms"][0]["audit"]["verdict"] = "not refuted"
    assert from_json(json.dumps(plain)).verdict == "refuted"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changed",
    [
        {"forms": ()},
        {"confidence": 1.0},
        {"runs": 0},
        {"cites": ("nobody",)},
        {"forms": (a_form("samples"),)},  # the plan's choice is none of them
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        a_posterior(**changed)
