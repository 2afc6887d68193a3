"""Results keep their meaning on the way to JSON and back, and nothing else comes back as one."""

import copy
import html
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epsilometer import (
    AttackSummary,
    AuditGroup,
    AuditResult,
    EpsilonLowerBound,
    PrivacyClaim,
    from_json,
    json_schema,
    to_json,
)
from epsilometer.errors import InvalidArgument
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.results import Curve, Evidence, Provenance, RecordRisk, Result
from tests.examples import (
    a_bound,
    a_posterior,
    a_provenance,
    a_release,
    an_audit,
    an_estimate,
    some_evidence,
)

law = settings(deadline=None)  # others may be using the machine
VALIDATOR = jsonschema.Draft202012Validator(json_schema())

unit = st.floats(0, 1)
inner_unit = st.floats(0, 1, exclude_min=True, exclude_max=True)
not_negative = st.floats(0, allow_nan=False)  # ∞ included
words = st.text(max_size=12).filter(lambda text: text not in ("inf", "-inf"))
whole = st.integers(-(2**1000), 2**1000)
adjacencies = st.sampled_from(["add_remove", "zero_out", "replace", "unstated"])


def bounds(delta: st.SearchStrategy[float] = unit) -> st.SearchStrategy[EpsilonLowerBound]:
    return st.builds(
        EpsilonLowerBound,
        epsilon=not_negative,
        delta=delta,
        confidence=inner_unit,
        method=words,
        threshold_rule=words,
        valid=st.booleans(),
        direction=st.sampled_from(["present→absent", "absent→present", "both"]),
        threshold=st.floats(allow_nan=False),
        n_in=st.integers(1, 10**12),
        n_out=st.integers(0, 10**12),
        adjacency=adjacencies,
        adversary=words,
        seed=st.integers(0, 2**128),
        cites=st.lists(st.sampled_from(sorted(BIBLIOGRAPHY)), max_size=3).map(tuple),
        caveats=st.lists(st.text(max_size=12), max_size=3).map(tuple),
    )


def series(size: int, values: st.SearchStrategy[Any] = unit) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=size, max_size=size).map(tuple)


def _evidences(size: int) -> st.SearchStrategy[Evidence]:
    rates = {name: series(size) for name in ("fpr", "fnr")}
    limits = {f"{name}_{end}": series(size) for name in ("fpr", "fnr") for end in ("low", "high")}
    return st.builds(
        Evidence,
        **rates,
        **limits,
        band_confidence=inner_unit,
        edges=series(size + 1, st.floats(allow_nan=False)),
        inside_bins=series(size, st.integers(0, 10**12)),
        outside_bins=series(size, st.integers(0, 10**12)),
        growth=series(2, st.tuples(st.integers(1, 10**12), not_negative)),
        curves=st.builds(Curve, name=words, **rates).map(lambda curve: (curve,)),
    )


evidences = st.integers(0, 3).flatmap(_evidences)
pairs = st.lists(st.tuples(words, words), max_size=2).map(tuple)
provenances = st.builds(
    Provenance,
    command=words,
    versions=pairs,
    inputs=pairs,
    plan=words,
    units=st.integers(100, 200),
    used=st.integers(0, 50),
    failed=st.integers(0, 50),
)


def _audits(delta: float) -> st.SearchStrategy[AuditResult]:
    at_delta = st.just(delta)
    return st.builds(
        AuditResult,
        subject=words,
        claim=st.none()
        | st.builds(
            PrivacyClaim,
            epsilon=not_negative,
            delta=at_delta,
            adjacency=adjacencies,
            sampler=words,
            accountant=words,
        ),
        bound=bounds(at_delta),
        also=st.lists(bounds(), max_size=2).map(tuple),
        attack=st.builds(
            AttackSummary,
            auc=unit,
            tpr_at_fpr=st.lists(st.tuples(unit, unit), max_size=3).map(tuple),
            n_in=st.integers(1, 10**12),
            n_out=st.integers(1, 10**12),
        ),
        evidence=evidences,
        records=st.lists(
            st.builds(
                RecordRisk,
                record=words,
                risk=st.floats(allow_nan=False),
                measure=words,
                group=words,
                note=words,
            ),
            max_size=2,
        ).map(tuple),
        provenance=provenances,
    )


audits = unit.flatmap(_audits)
groups = st.builds(
    AuditGroup, subject=words, results=st.lists(audits, min_size=1, max_size=2).map(tuple)
)
json_values = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


def refuse_constant(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


@law
@given(bounds() | audits | groups)
@example(a_bound(epsilon=float("inf"), threshold=float("-inf"), adversary="ε≥1 \u2028 \U0001f600"))
def test_json_and_back_changes_nothing(result: Result) -> None:
    text = to_json(result)
    assert from_json(text) == result
    assert to_json(from_json(text)) == text


@law
@given(bounds() | audits | groups)
@example(a_bound(epsilon=float("inf"), threshold=float("-inf")))
def test_what_is_written_is_strict_json_and_obeys_the_schema(
    result: Result,
) -> None:
    VALIDATOR.validate(json.loads(to_json(result), parse_constant=refuse_constant))


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match=r"nan"):
        to_json(an_audit(attack=AttackSummary(auc=float("nan"), tpr_at_fpr=(), n_in=1, n_out=1)))


def test_the_schema_is_one_and_asks_for_every_field() -> None:
    """A schema that takes anything would pass the tests above."""
    jsonschema.Draft202012Validator.check_schema(json_schema())
    for result in (a_bound(), an_audit()):
        plain = result.to_dict()
        for name in plain:
            missing = {key: value for key, value in plain.items() if key != name}
            assert not VALIDATOR.is_valid(missing), name
            assert not VALIDATOR.is_valid({**plain, name: {"wrong": 1}}), name
        assert not VALIDATOR.is_valid({**plain, "more": 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        "[]",
        "{}",
        '"EpsilonLowerBound"',
        '{"kind": "EpsilonLowerBound"}',
        '{"kind": "AuditResult"}',
        '{"kind": "Other"}',
        '{"kind": ["AuditResult"]}',
        '{"kind": null}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"kind": "AuditResult", "bound": ' + "[" * 100_000,
        "9" * 5_000,
        "\ufeff{}",
        "\x00",
        "\ud800",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_result_is_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        from_json(text)


@pytest.mark.parametrize("value", [None, 5, {}, object()])
def test_what_is_no_text_is_told(value: object) -> None:
    with pytest.raises(InvalidArgument, match="Expected a result that epsilometer wrote"):
        from_json(value)  # type: ignore[arg-type]


@law
@given(st.text())
def test_any_text_raises_only_our_error(text: str) -> None:
    with pytest.raises(InvalidArgument):
        from_json(text)


@law
@given(json_values)
def test_any_json_raises_only_our_error(value: object) -> None:
    with pytest.raises(InvalidArgument):
        from_json(json.dumps(value))


@pytest.mark.parametrize("result", [a_bound(), an_audit(also=(a_bound(),))], ids=["bound", "audit"])
def test_truncated_text_raises_only_our_error(result: Result) -> None:
    text = to_json(result)
    for end in range(len(text)):
        with pytest.raises(InvalidArgument):
            from_json(text[:end])


@settings(law, max_examples=200)
@given(st.data(), st.sampled_from([a_bound(), an_audit(also=(a_bound(),))]), json_values)
def test_swapped_values_raise_only_our_error(
    data: st.DataObject, result: Result, value: object
) -> None:
    plain = copy.deepcopy(result.to_dict())
    place = plain
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    try:
        from_json(json.dumps(plain))
    except InvalidArgument as error:
        assert "Expected" in str(error)  # noqa: PT017 - most swaps are told, some are harmless


@law
@given(st.data())
def test_missing_and_foreign_fields_raise_only_our_error(data: st.DataObject) -> None:
    plain = an_audit().to_dict()
    inner = ("bound", "attack", "claim", "evidence", "provenance")
    part = data.draw(st.sampled_from([plain, *(plain[name] for name in inner)]))
    part["no_such_field"] = 1
    with pytest.raises(InvalidArgument, match="no_such_field"):
        from_json(json.dumps(plain))
    del part["no_such_field"]
    del part[data.draw(st.sampled_from(sorted(set(part) - {"kind", "verdict", "basis"})))]
    with pytest.raises(InvalidArgument):
        from_json(json.dumps(plain))


def test_results_written_before_they_had_a_basis_are_still_read() -> None:
    basis = (("false positives", 3.0), ("level", 0.025))
    audit = an_audit(bound=a_bound(basis=basis), estimates=(an_estimate(2.0, basis=basis),))
    assert from_json(to_json(audit)) == audit
    plain = audit.to_dict()
    del plain["bound"]["basis"], plain["estimates"][0]["basis"]
    assert from_json(json.dumps(plain)) == an_audit(estimates=(an_estimate(2.0),))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"epsilon": -1e-9}, "epsilon ≥ 0"),
        ({"epsilon": float("nan")}, "number for epsilon"),
        ({"epsilon": "2"}, "number for epsilon, got '2'"),
        ({"delta": 1.1}, r"delta in \[0, 1\]"),
        ({"confidence": 1.0}, r"confidence in \(0, 1\)"),
        ({"confidence": 0.0}, r"confidence in \(0, 1\)"),
        ({"threshold": float("nan")}, "number for threshold"),
        ({"n_in": 0}, "n_in ≥ 1"),
        ({"n_out": -1}, "n_out ≥ 0"),
        ({"n_in": 1.5}, "whole number for n_in"),
        ({"adjacency": "friends"}, "adjacency"),
        ({"cites": ("nobody1900",)}, "nobody1900"),
        ({"basis": (("false positives", float("nan")),)}, "number for false positives"),
    ],
)
def test_a_bound_outside_its_domain_is_told(wrong: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        a_bound(**wrong)


TRUTH_TABLE = [
    # valid, bound, claim, verdict
    (True, 2.0, 1.0, "refuted"),
    (True, 2.0, 2.0, "not refuted"),  # a bound says ε ≥ 2; a claim of 2 may be true
    (True, 2.0, 3.0, "not refuted"),
    (True, 0.0, 0.0, "not refuted"),
    (True, 1e-300, 0.0, "refuted"),
    (True, float("inf"), 1e300, "refuted"),
    (True, float("inf"), float("inf"), "not refuted"),
    (True, 2.0, None, "no claim"),
    (False, 2.0, 1.0, "no verdict"),
    (False, float("inf"), 0.0, "no verdict"),
    (False, 0.0, 1.0, "no verdict"),
    (False, 2.0, None, "no claim"),
]


@pytest.mark.parametrize(("valid", "epsilon", "claimed", "verdict"), TRUTH_TABLE)
def test_verdict(valid: bool, epsilon: float, claimed: float | None, verdict: str) -> None:
    bound = a_bound(valid=valid, epsilon=epsilon)
    claim = None if claimed is None else PrivacyClaim(epsilon=claimed, delta=1e-5)
    result = an_audit(bound=bound, claim=claim)
    assert result.verdict == verdict
    assert json.loads(to_json(result))["verdict"] == verdict
    assert claimed is None or bound.refutes(claimed) == (verdict == "refuted")


@law
@given(bounds(), not_negative)
def test_invalid_bounds_never_refute(bound: EpsilonLowerBound, claimed: float) -> None:
    assert bound.refutes(claimed) == (bound.valid and bound.epsilon > claimed)


@law
@given(st.lists(bounds(), max_size=4).map(tuple))
def test_what_else_was_computed_never_decides(also: tuple[EpsilonLowerBound, ...]) -> None:
    assert an_audit(also=also).verdict == "refuted"
    assert an_audit(also=also, bound=a_bound(epsilon=0.5)).verdict == "not refuted"
    assert an_audit(also=also, bound=a_bound(valid=False)).verdict == "no verdict"


@pytest.mark.parametrize("delta", [0.0, 1.1e-5, 1.0])
def test_a_claim_at_another_delta_is_refused(delta: float) -> None:
    with pytest.raises(InvalidArgument, match="another δ proves nothing"):
        an_audit(claim=PrivacyClaim(epsilon=1.0, delta=delta))
    plain = an_audit().to_dict()
    plain["claim"]["delta"] = delta
    with pytest.raises(InvalidArgument, match="another δ proves nothing"):
        from_json(json.dumps(plain))


@pytest.mark.parametrize(("epsilon", "verdict"), [(2.0, "refuted"), (0.5, "no verdict")])
def test_failed_units_may_hide_a_refutation_but_not_make_one(epsilon: float, verdict: str) -> None:
    provenance = a_provenance(units=10, used=9, failed=1)
    assert an_audit(bound=a_bound(epsilon=epsilon), provenance=provenance).verdict == verdict


@pytest.mark.parametrize("part", ["fnr", "fpr_low", "inside_bins", "edges"])
def test_evidence_of_unequal_lengths_is_told(part: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        some_evidence(**{part: (0.0,)})


def test_more_units_than_planned_are_told() -> None:
    with pytest.raises(InvalidArgument, match="Expected at most 10 units"):
        a_provenance(units=10, used=8, failed=3)


def test_an_empty_group_is_told() -> None:
    with pytest.raises(InvalidArgument, match="at least one audit"):
        AuditGroup(subject="nothing", results=())


def test_a_verdict_in_a_file_is_not_believed() -> None:
    plain = {**an_audit().to_dict(), "verdict": "not refuted"}
    assert from_json(json.dumps(plain)).verdict == "refuted"  # type: ignore[union-attr]


def test_a_valid_bound_in_words_has_its_confidence() -> None:
    text = str(a_bound(epsilon=2.34567))
    assert "ε ≥ 2.346 at δ = 1e-05" in text
    assert "0.95 confidence" in text
    assert "clopper_pearson" in text
    assert "VALID" not in text


@law
@given(bounds())
def test_an_invalid_bound_in_words_shouts(bound: EpsilonLowerBound) -> None:
    assert ("NOT A VALID BOUND" in str(bound)) == (not bound.valid)
    assert bound.valid or "confidence" not in str(bound).replace(bound.method, "")


HOSTILE = "<script>alert('ε & \"δ\"')</script>"
IN_NOTEBOOKS = {
    "bound": a_bound(caveats=(HOSTILE,)),
    "estimate": an_estimate(1.0, subject=HOSTILE),
    "audit": an_audit(subject=HOSTILE),
    "group": AuditGroup(subject="both", results=(an_audit(), an_audit(subject=HOSTILE))),
    "release": a_release(subject=HOSTILE),
    "posterior": a_posterior(subject=HOSTILE),
}


@pytest.mark.parametrize("result", IN_NOTEBOOKS.values(), ids=IN_NOTEBOOKS)
def test_a_notebook_shows_a_small_table_in_which_text_stays_text(result: Any) -> None:
    shown = result._repr_html_()
    assert set(re.findall(r"</?(\w+)", shown)) == {"table", "caption", "tr", "td"}
    assert HOSTILE in html.unescape(shown)
    assert len(shown) < 5_000


def test_a_notebook_shows_what_was_promised_and_what_was_proved() -> None:
    audit = an_audit(claim=PrivacyClaim(epsilon=1.0, delta=1e-5), also=(a_bound(method="gdp"),))
    shown = html.unescape(audit._repr_html_())
    assert f"{audit.subject}: refuted" in shown
    assert "ε = 1 at δ = 1e-05" in shown
    assert str(audit.bound) in shown
    assert "gdp" in shown
    assert "<td>nothing</td>" in an_audit(claim=None)._repr_html_()
