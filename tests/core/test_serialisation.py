"""Audits keep their meaning on the way to JSON and back, and nothing else comes back as one."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from docs.result_schema import FILE, render_schema
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epsilometer import json_schema, load
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Finding
from epsilometer.core.plain import to_plain
from epsilometer.core.serialisation import FORMAT, from_json, to_json, to_object
from epsilometer.errors import InvalidArgument, UnreadableFile
from tests.core.strategies import audits, json_values
from tests.examples import (
    AUDITS,
    INF,
    a_bound,
    a_form,
    a_posterior,
    a_release,
    an_audit,
    an_estimate,
)

law = settings(deadline=None)  # others may be using the machine
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
FIRST = Path(__file__).parents[1] / "data" / "first_result.json"
EXTREME = an_audit(
    bound=a_bound(epsilon=INF, threshold=-INF, adversary="ε≥1 \u2028 \U0001f600"), power=INF
)


def refuse_constant(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


def check_round_trip(audit: Audit) -> None:
    text = to_json(audit)
    assert from_json(text) == audit
    assert from_json(text.encode()) == audit
    assert to_json(from_json(text)) == text
    VALIDATOR.validate(json.loads(text, parse_constant=refuse_constant))


@law
@given(audits)
@example(EXTREME)
def test_json_and_back_changes_nothing(audit: Audit) -> None:
    check_round_trip(audit)


@pytest.mark.parametrize("name", AUDITS)
def test_every_kind_comes_back_as_it_was_and_obeys_the_schema(name: str) -> None:
    check_round_trip(AUDITS[name])


def test_the_examples_hold_every_type_of_finding() -> None:
    found = {type(finding) for audit in AUDITS.values() for finding in audit.findings}
    assert found == set(get_args(Finding))


def test_what_follows_is_written_for_other_readers_and_not_believed() -> None:
    audit = AUDITS["not refuted"]
    plain = json.loads(to_json(audit))
    assert plain["format"] == FORMAT == 2
    assert list(plain)[:3] == ["format", "subject", "verdict"]
    follows = {key: plain[key] for key in ("verdict", "epsilon", "upper", "reach", "power")}
    assert follows == {
        "verdict": "not refuted",
        "epsilon": 2.0,
        "upper": "inf",
        "reach": 5.0,
        "power": 4.0,
    }
    wrong = {"verdict": "refuted", "epsilon": 9.0, "upper": 0.0, "reach": 1.0, "power": 0.0}
    assert from_json(json.dumps({**plain, **wrong})) == audit


@pytest.mark.parametrize("name", AUDITS)
def test_a_verdict_in_a_file_is_not_believed(name: str) -> None:
    plain = {**to_object(AUDITS[name]), "verdict": "proved"}
    assert from_json(json.dumps(plain)).verdict == AUDITS[name].verdict


def dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value, but for settings, whose keys are a subject's own."""
    if isinstance(value, list):
        for part in value:
            yield from dictionaries(part)
    if isinstance(value, dict):
        yield value
        for key, part in value.items():
            if key not in ("settings", "until"):
                yield from dictionaries(part)


@pytest.mark.parametrize("name", AUDITS)
def test_unknown_fields_are_ignored_at_every_level(name: str) -> None:
    plain = to_object(AUDITS[name])
    places = list(dictionaries(plain))
    assert len(places) > 4
    for place in places:
        place["of a later version"] = {"a": [1, None, "x"]}
    assert from_json(json.dumps(plain)) == AUDITS[name]


def test_unknown_kinds_of_findings_are_refused() -> None:
    plain = to_object(an_audit())
    plain["findings"].append({"kind": "OfALaterVersion"})
    with pytest.raises(InvalidArgument, match="OfALaterVersion"):
        from_json(json.dumps(plain))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (3, "of format 3"),
        (1, "of format 1"),
        ("2", "of format '2'"),
        (2.5, "of format 2.5"),
        (True, "of format True"),
        ([2], r"of format \[2\]"),
        (None, "without a format"),
    ],
)
def test_other_formats_are_refused_in_one_sentence(found: Any, said: str) -> None:
    plain = {**to_object(an_audit()), "format": found}
    with pytest.raises(InvalidArgument, match=f"Expected an audit of format 2, got one {said}"):
        from_json(json.dumps(plain))


def test_a_missing_format_is_refused_in_one_sentence() -> None:
    plain = to_object(an_audit())
    del plain["format"]
    with pytest.raises(InvalidArgument, match="format 2, got one without a format"):
        from_json(json.dumps(plain))
    assert not VALIDATOR.is_valid(plain)


def test_results_of_the_first_version_are_refused_in_one_sentence() -> None:
    with pytest.raises(UnreadableFile, match=r"without a format\. Read it with the") as refused:
        load(FIRST)
    assert str(FIRST) in str(refused.value)


# Infinities and nan.


def test_infinities_are_written_as_words() -> None:
    plain = to_object(EXTREME)
    assert plain["findings"][0]["bound"]["epsilon"] == "inf"
    assert plain["findings"][0]["bound"]["threshold"] == "-inf"
    assert plain["epsilon"] == plain["findings"][0]["power"] == "inf"
    assert "Infinity" not in to_json(EXTREME)


@pytest.mark.parametrize("value", ["nan", "NaN"])
@pytest.mark.parametrize(
    "place",
    [
        ("findings", 0, "bound", "epsilon"),
        ("findings", 0, "bound", "threshold"),
        ("findings", 0, "evidence", "fpr", 0),
        ("findings", 0, "evidence", "growth", 0, 1),
        ("findings", 0, "reach"),
        ("findings", 0, "attack", "auc"),
        ("claim", "epsilon"),
        ("provenance", "confidence"),
    ],
)
def test_nan_is_never_read(value: str, place: tuple[Any, ...]) -> None:
    plain = to_object(an_audit())
    inner: Any = plain
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InvalidArgument, match="Expected"):
        from_json(json.dumps(plain))


def test_nan_is_never_written() -> None:
    with pytest.raises(InvalidArgument, match="nan"):
        an_estimate(math.nan)


# The schema.


def test_the_schema_in_the_documentation_is_the_generated_one() -> None:
    assert FILE.read_text("utf-8") == render_schema(), "python docs/result_schema.py writes it"


def test_the_schema_asks_for_every_field_without_a_default() -> None:
    """A schema that takes anything would pass the tests above."""
    jsonschema.Draft202012Validator.check_schema(json_schema())
    optional = {"advice", "caveats", "cites", "epsilon", "upper", "reach", "power", "conformance"}
    for audit in (an_audit(), a_release(), a_posterior()):
        plain = to_object(audit)
        assert VALIDATOR.is_valid(plain)
        for name in plain:
            missing = {key: value for key, value in plain.items() if key != name}
            assert VALIDATOR.is_valid(missing) == (name in optional), name
            assert not VALIDATOR.is_valid({**plain, name: {"wrong": 1}}), name


@pytest.mark.parametrize("kind", get_args(Finding))
def test_the_schema_asks_for_the_fields_of_every_finding(kind: type) -> None:
    audit = next(audit for audit in AUDITS.values() if audit.find(kind))
    plain = {**to_object(audit), "findings": [to_plain(audit.find(kind)[0])]}
    (finding,) = plain["findings"]
    assert VALIDATOR.is_valid(plain)
    required = json_schema()["$defs"][kind.__name__]["required"]
    assert len(required) > 1
    for name in required:
        less = {key: value for key, value in finding.items() if key != name}
        assert not VALIDATOR.is_valid({**plain, "findings": [less]}), name
    assert not VALIDATOR.is_valid({**plain, "findings": [{**finding, "kind": "Other"}]})


# What is not an audit.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        "[]",
        "{}",
        '"Audit"',
        '{"format": 2}',
        '{"format": 2, "subject": "x"}',
        '{"kind": "AuditResult"}',
        '{"format": null}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": 2, "findings": ' + "[" * 100_000,
        "9" * 5_000,
        "\ufeff{}",
        "\x00",
        "\ud800",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_audit_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        from_json(text)


@pytest.mark.parametrize("value", [None, 5, {}, object()])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises((InvalidArgument, TypeError)):
        from_json(value)  # type: ignore[arg-type]


@law
@given(st.text() | st.binary())
def test_any_text_raises_only_our_error(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        from_json(text)


@law
@given(json_values)
def test_any_json_raises_only_our_error(value: object) -> None:
    with pytest.raises(InvalidArgument):
        from_json(json.dumps(value))


def test_truncated_text_raises_only_our_error() -> None:
    text = to_json(an_audit(also=(a_bound(),)))
    for end in range(len(text)):
        with pytest.raises(InvalidArgument):
            from_json(text[:end])


@settings(law, max_examples=80)
@given(st.data(), st.sampled_from(sorted(AUDITS)), json_values)
def test_swapped_values_raise_only_our_error(data: st.DataObject, name: str, value: object) -> None:
    plain = copy.deepcopy(to_object(AUDITS[name]))
    place: Any = plain
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not place[key] or not isinstance(place[key], (dict, list)) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    try:
        audit = from_json(json.dumps(plain))
    except InvalidArgument as error:
        assert "Expected" in str(error)  # noqa: PT017 - most swaps are refused, some are harmless
    else:
        check_round_trip(audit)


@law
@given(st.data())
def test_missing_fields_raise_only_our_error(data: st.DataObject) -> None:
    plain = to_object(an_audit())
    part = data.draw(st.sampled_from(list(dictionaries(plain))))
    del part[data.draw(st.sampled_from(sorted(part)))]
    try:
        assert isinstance(from_json(json.dumps(plain)), Audit)  # it had a default, or follows
    except InvalidArgument as error:
        assert "Expected" in str(error)  # noqa: PT017


# Files.


def test_an_audit_is_read_from_a_file_and_from_the_directory_of_a_run(tmp_path: Path) -> None:
    audit = an_audit()
    assert load(audit.save(tmp_path / "audit.json")) == audit
    audit.save(tmp_path / "result.json")
    assert load(tmp_path) == load(str(tmp_path)) == audit


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="found none"):
        load(tmp_path / "nothing.json")
    with pytest.raises(UnreadableFile, match="epsilometer runs resume"):
        load(tmp_path)
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableFile, match=r"a\.json: Expected an audit"):
        load(tmp_path / "a.json")


def test_forms_with_infinite_estimates_or_untested_ones_come_back() -> None:
    check_round_trip(a_posterior(forms=(a_form("label", raw=INF),), differences=(), theory=()))
    untested = dict.fromkeys(("accuracy", "ties", "calibration_error", "log_loss"))
    check_round_trip(a_posterior(claim=None, forms=(a_form("label", **untested),)))


# What once got through.


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "3"])
def test_words_that_look_like_numbers_stay_words(word: str) -> None:
    audit = an_audit(subject=word, bound=a_bound(adversary=word, method=word))
    check_round_trip(audit)


@pytest.mark.parametrize(
    "changed",
    [
        {"n_in": "inf"},
        {"epsilon": 10**400},
        {"threshold": 10**400},
        {"seed": 10**400},
        {"valid": "no"},
        {"valid": 1.5},
        {"method": 3},
        {"direction": "up"},
        {"adjacency": "friends"},
        {"cites": {}},
        {"cites": ["nobody1900"]},
        {"caveats": "abc"},
        {"seed": "x"},
        {"adversary": None},
        {"n_in": 3.5},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_wrong_values_of_a_bound_are_refused(changed: dict[str, Any]) -> None:
    plain = to_object(an_audit())
    plain["findings"][0]["bound"] |= changed
    with pytest.raises(InvalidArgument, match="Expected"):
        from_json(json.dumps(plain))


@pytest.mark.parametrize(
    "bound",
    [
        {"n_in": np.int64(3)},
        {"epsilon": np.float32(1)},
        {"valid": np.bool_(True)},
        {"seed": np.uint32(7)},
    ],
    ids=str,
)
def test_numbers_of_numpy_are_written(bound: dict[str, Any]) -> None:
    check_round_trip(an_audit(bound=a_bound(**bound)))
