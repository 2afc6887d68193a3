"""A release audit keeps its meaning to JSON and back, and its verdict is the gravest reason."""

import json
from dataclasses import replace
from itertools import product

import jsonschema
import pytest

from epsilometer import from_json, json_schema, to_json
from epsilometer.errors import InvalidArgument
from epsilometer.release import ReleaseAudit
from tests.examples import a_provenance, a_reason, a_release

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GRAVITY = ("do not release", "cannot tell", "release")


@pytest.mark.parametrize(
    "result", [a_release(), a_release(leaving=None, removal=None, attacks=(), records=())]
)
def test_it_comes_back_from_json_as_it_was_and_obeys_the_schema(result: ReleaseAudit) -> None:
    text = to_json(result)
    assert from_json(text) == result
    assert to_json(from_json(text)) == text
    VALIDATOR.validate(json.loads(text))


def test_the_schema_asks_for_every_field() -> None:
    plain = a_release().to_dict()
    for name in plain:
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate({key: value for key, value in plain.items() if key != name})
    for part in ("reasons", "attacks", "groups", "records", "rounding", "variation"):
        first = plain[part][0]
        for name in first:
            less = {key: value for key, value in first.items() if key != name}
            with pytest.raises(jsonschema.ValidationError):
                VALIDATOR.validate({**plain, part: [less]})


@pytest.mark.parametrize("said", list(product(GRAVITY, repeat=3)))
def test_the_verdict_is_the_gravest_reason(said: tuple[str, ...]) -> None:
    result = a_release(reasons=tuple(a_reason(decision=decision) for decision in said))
    assert result.verdict == min(said, key=GRAVITY.index)
    assert result.to_dict()["verdict"] == result.verdict


def test_failed_work_never_releases() -> None:
    kept = a_release(reasons=(a_reason(decision="release"),))
    assert kept.verdict == "release"
    failed = replace(kept, provenance=a_provenance(units=3, used=2, failed=1))
    assert failed.verdict == "cannot tell"
    convicted = replace(failed, reasons=(a_reason(),))
    assert convicted.verdict == "do not release"


def test_a_verdict_in_a_file_is_not_believed() -> None:
    plain = {**a_release().to_dict(), "verdict": "release"}
    assert from_json(json.dumps(plain)).verdict == "do not release"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changed", [{"reasons": ()}, {"confidence": 1.0}, {"accuracy": 1.5}, {"cites": ("nobody",)}]
)
def test_what_cannot_be_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        a_release(**changed)
