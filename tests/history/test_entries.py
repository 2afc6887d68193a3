"""Every kind of result in a line, of every version."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import PrivacyClaim, to_json
from epsilometer.errors import InvalidArgument
from epsilometer.history.entries import Entry, begins_a_result, entries_of, plain_result
from epsilometer.results import Result
from tests.examples import EVERY_KIND, a_bound, a_provenance, a_release, an_audit

FIRST = Path(__file__).parents[1] / "data" / "first_result.json"


def entries(result: Any) -> list[Entry]:
    return entries_of(plain_result(to_json(result)), path="runs/v1/result.json", written=5.0)


@pytest.mark.parametrize("result", EVERY_KIND, ids=lambda result: type(result).__name__)
def test_every_kind_of_result_has_its_audits_in_order(result: Result) -> None:
    found = entries(result)
    audits = getattr(result, "audits", (result,))
    assert [entry.part for entry in found] == list(range(1, len(audits) + 1))
    for entry, audit in zip(found, audits, strict=True):
        assert entry.kind == type(result).__name__
        assert entry.verdict == getattr(audit, "verdict", "no claim")
        bound = getattr(audit, "bound", audit if not hasattr(audit, "reasons") else None)
        assert entry.epsilon == (None if bound is None else bound.epsilon)
        assert entry.subject == getattr(audit, "subject", getattr(audit, "method", ""))
        json.dumps(entry.to_dict(), allow_nan=False)


def test_an_entry_says_what_stands_in_the_result() -> None:
    (entry,) = entries(
        an_audit(
            bound=a_bound(epsilon=float("inf"), seed=9, adversary="sees all"),
            provenance=a_provenance(command="audit_training(mine.train, runs=5)"),
        )
    )
    assert (entry.claim, entry.delta, entry.confidence, entry.seed) == (1.0, 1e-5, 0.95, 9)
    assert (entry.audit, entry.adversary, entry.version) == ("audit_training", "sees all", "0.1.0")
    assert (entry.observations, entry.auc) == (1234 + 567, 0.875)
    assert entry.advantage == pytest.approx(0.7)  # at (FPR, FNR) = (0.1, 0.2)
    assert (entry.label, entry.to_dict()["epsilon"]) == ("runs/v1", "inf")


def test_of_several_attacks_on_a_classifier_the_strongest_counts() -> None:
    release = a_release()
    (entry,) = entries(release)
    assert entry.advantage == max(attack.advantage for attack in release.attacks)
    assert (entry.epsilon, entry.delta, entry.seed) == (None, None, release.seed)


def test_the_first_version_is_read() -> None:
    """It had no evidence, no provenance and no estimates."""
    (entry,) = entries_of(plain_result(FIRST.read_text("utf-8")))
    assert (entry.subject, entry.verdict, entry.claim) == ("s.csv", "refuted", 0.5)
    assert entry.epsilon == pytest.approx(2.0164, abs=1e-4)
    assert (entry.audit, entry.advantage, entry.version) == ("", None, "0.1.0")


@pytest.mark.parametrize(
    ("valid", "claimed", "failed", "verdict"),
    [
        (True, 1.0, 0, "refuted"),
        (True, 3.0, 0, "not refuted"),
        (True, 3.0, 1, "no verdict"),
        (False, 1.0, 0, "no verdict"),
    ],
)
def test_a_verdict_that_was_not_written_follows_from_the_rest(
    valid: bool, claimed: float, failed: int, verdict: str
) -> None:
    result = an_audit(
        bound=a_bound(valid=valid),
        claim=PrivacyClaim(epsilon=claimed, delta=1e-5),
        provenance=a_provenance(units=9, failed=failed),
    )
    plain = plain_result(to_json(result))
    assert plain.pop("verdict") == verdict
    assert entries_of(plain)[0].verdict == verdict


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"kind": "Cake"}',
        '{"kind": ["AuditResult"]}',
        '{"kind": "AuditResult"}',
        '{"kind": "AuditResult", "bound": 7}',
        '{"kind": "AuditResult", "bound": {}}',
        '{"kind": "AuditResult", "bound": {"epsilon": "much"}}',
        '{"kind": "AuditResult", "bound": {"epsilon": NaN}}',
        '{"kind": "AuditResult", "bound": {"epsilon": true}}',
        '{"kind": "AuditResult", "bound": {"epsilon": 1, "seed": 0.5}}',
        '{"kind": "AuditResult", "bound": {"epsilon": 1}, "provenance": 3}',
        '{"kind": "AuditGroup", "results": 7}',
        '{"kind": "AuditGroup", "results": [7]}',
        '{"kind": "PosteriorAudit", "forms": [{}]}',
        '{"kind": "ReleaseAudit"}',
        "[" * 100_000,
        '{"kind": "AuditResult", "bound": {"epsilon": 1' + "0" * 400 + "}}",
    ],
)
def test_what_is_no_result_is_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        entries_of(plain_result(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(EVERY_KIND), st.data())
def test_whatever_stands_in_a_result_it_is_read_or_told(result: Any, data: st.DataObject) -> None:
    plain = result.to_dict()
    place = plain
    for _ in range(data.draw(st.integers(1, 3))):  # some way down
        inner = [key for key, value in place.items() if isinstance(value, dict) and value]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    try:
        found = entries_of(plain_result(json.dumps(plain)))
    except InvalidArgument:
        return
    assert all(entry.verdict for entry in found)


def test_the_result_of_the_folder_itself_has_a_name() -> None:
    (entry,) = entries_of(plain_result(to_json(an_audit())), path="result.json")
    assert entry.label == "."


def test_halves_of_letters_do_not_reach_the_index() -> None:
    (entry,) = entries(an_audit(subject="half \ud800"))
    entry.subject.encode("utf-8")


def test_a_result_is_known_by_its_first_bytes() -> None:
    assert all(begins_a_result(to_json(result).encode()[:256]) for result in EVERY_KIND)
    assert not begins_a_result(b'{"kind": "Deployment"}')
    assert not begins_a_result(b'{"name": "kind"}')
