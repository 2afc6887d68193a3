"""Every kind of audit in lines, with the verdict of the one judge."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epsilometer import Audit
from epsilometer.core import judge
from epsilometer.core.findings import FormFinding, MembershipFinding
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.entries import Entry, list_entries, looks_like_audit
from tests.examples import (
    AUDITS,
    a_bound,
    a_claim,
    a_posterior,
    a_provenance,
    a_release,
    a_shuffling,
    a_view,
    a_violation,
    an_attack,
    an_audit,
    computed,
    several_views,
)


def entries(audit: Audit) -> list[Entry]:
    return list_entries(from_json(audit.to_json()), path="runs/v1/result.json", written=5.0)


@pytest.mark.parametrize("name", AUDITS)
def test_every_audit_has_its_views_in_order_and_one_verdict(name: str) -> None:
    audit = AUDITS[name]
    found = entries(audit)
    assert [entry.part for entry in found] == list(range(1, max(1, len(audit.views)) + 1))
    assert {entry.kind for entry in found} == {audit.provenance.subject}
    assert {entry.verdict for entry in found} == {audit.verdict}
    assert max((entry.epsilon or 0.0 for entry in found if entry.valid), default=0.0) == (
        audit.epsilon
    )
    # The lines of refuted views, and only those, are red; a violated run makes all of them red.
    assert (audit.verdict in judge.BAD) == any(e.view_verdict in judge.BAD for e in found)
    for entry, view in zip(found, audit.views, strict=False):
        assert (entry.subject, entry.reach) == (view.subject, view.reach)
    for entry in found:
        json.dumps(entry.to_dict(), allow_nan=False)


def test_an_entry_says_what_stands_in_the_audit() -> None:
    (entry,) = entries(
        an_audit(
            bound=a_bound(epsilon=float("inf"), adversary="sees all"),
            provenance=a_provenance(subject="TrainFunction", seed=9),
        )
    )
    assert (entry.claim, entry.delta, entry.confidence, entry.seed) == (1.0, 1e-5, 0.95, 9)
    assert (entry.kind, entry.adversary, entry.version) == ("TrainFunction", "sees all", "1.0.0")
    assert (entry.observations, entry.auc, entry.reach) == (1234 + 567, 0.875, 5.0)
    assert entry.advantage == pytest.approx(0.7)  # at (FPR, FNR) = (0.1, 0.2)
    assert (entry.label, entry.to_dict()["epsilon"]) == ("runs/v1", "inf")


def test_a_view_that_refutes_nothing_is_not_called_refuted() -> None:
    strong, weak = (
        a_view(subject=str(epsilon), bound=a_bound(epsilon=epsilon), reach=9.0)
        for epsilon in (2.0, 0.5)
    )
    audit = several_views(strong, weak)
    assert [(e.verdict, e.view_verdict) for e in entries(audit)] == [
        (judge.REFUTED, judge.REFUTED),
        (judge.REFUTED, judge.NOT_REFUTED),
    ]
    broken = replace(audit, findings=(*audit.findings, a_violation()))
    assert {entry.view_verdict for entry in entries(broken)} == {judge.VIOLATED}


def test_of_several_attacks_on_a_classifier_the_strongest_counts() -> None:
    release = a_release(findings=(an_attack("weak"), an_attack("strong", advantage=0.3)))
    (entry,) = entries(release)
    assert entry.advantage == max(attack.advantage for attack in release.find(MembershipFinding))
    assert entry.advantage == 0.3
    assert (entry.epsilon, entry.delta, entry.seed) == (None, None, 7)
    assert entry.subject == release.subject
    (silent,) = entries(a_release(findings=()))
    assert silent.advantage is None


def test_forms_of_predictions_are_views_with_their_own_advantage() -> None:
    audit = a_posterior()
    by_subject = {entry.subject: entry for entry in entries(audit)}
    for form in audit.find(FormFinding):
        assert by_subject[form.view.subject].advantage == form.advantage


def test_what_was_computed_counts_where_it_proves_more() -> None:
    (entry,) = entries(a_shuffling())
    assert (entry.epsilon, entry.confidence, entry.method) == (4.0625, 1.0, "exact")
    (bounded,) = entries(a_shuffling(bound=a_bound(epsilon=5.0)))
    assert (bounded.epsilon, bounded.confidence, bounded.method) == (5.0, 0.95, "clopper_pearson")
    less = computed(0.5)
    (proved,) = entries(an_audit(bound=a_bound(valid=False), estimates=(less,)))
    assert (proved.epsilon, proved.valid, proved.method) == (0.5, True, "exact")
    (nothing,) = entries(an_audit(bound=a_bound(valid=False)))
    assert (nothing.epsilon, nothing.valid) == (2.0, False)


@pytest.mark.parametrize(
    ("valid", "claimed", "failed", "verdict"),
    [
        (True, 1.0, 0, judge.REFUTED),
        (True, 3.0, 0, judge.NOT_REFUTED),
        (True, 3.0, 1, judge.CANNOT_JUDGE),
        (True, 9.0, 0, judge.CANNOT_JUDGE),
        (False, 1.0, 0, judge.CANNOT_JUDGE),
    ],
)
@pytest.mark.parametrize("written", [None, judge.PROVED, "", 7])
def test_the_verdict_in_the_file_is_not_believed(
    valid: bool, claimed: float, failed: int, verdict: str, written: Any
) -> None:
    audit = an_audit(
        bound=a_bound(valid=valid),
        claim=a_claim(claimed),
        provenance=a_provenance(units=9, failed=failed),
    )
    plain = json.loads(audit.to_json())
    assert plain.pop("verdict") == verdict
    if written is not None:
        plain["verdict"] = written
    assert list_entries(from_json(json.dumps(plain)))[0].verdict == verdict


def damaged(**changed: Any) -> str:
    """An audit of which fields of its first finding are other ones."""
    plain = json.loads(an_audit().to_json())
    plain["findings"][0].update(changed)
    return json.dumps(plain)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"kind": "AuditResult"}',
        '{"format": 2}',
        '{"format": [2], "subject": "s"}',
        '{"format": true, "subject": "s"}',
        '{"format": 2, "subject": "s", "claim": null, "findings": 7}',
        '{"format": 2, "subject": "s", "claim": null, "findings": [7]}',
        '{"format": 2, "subject": "s", "claim": null, "findings": []}',
        '{"format": 2, "subject": "s", "claim": null, "findings": [{"kind": "Cake"}]}',
        '{"format": 2, "subject": "s", "claim": null, "findings": [{"kind": "FormFinding"}]}',
        damaged(bound=7),
        damaged(bound={}),
        damaged(bound={"epsilon": 1}),
        damaged(bound=json.loads(an_audit().to_json())["findings"][0]["bound"] | {"epsilon": "?"}),
        damaged(bound=json.loads(an_audit().to_json())["findings"][0]["bound"] | {"seed": 0.5}),
        damaged(reach="nan"),
        damaged(reach=-1.0),
        damaged(power="nan"),
        damaged(units=10**400),
        damaged(failed=-1),
        "[" * 100_000,
        '{"format": 2, "a": ' + "[" * 100_000,
    ],
)
def test_what_is_no_audit_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        list_entries(from_json(text))


@pytest.mark.parametrize("depth", [40, 400, 900])
def test_settings_that_are_nested_deeply_are_refused(depth: int) -> None:
    plain = json.loads(an_audit().to_json())
    plain["provenance"]["settings"] = {"deep": "here"}
    text = json.dumps(plain).replace('"here"', "[" * depth + "]" * depth)
    with pytest.raises(InvalidArgument, match=r"nested|damaged|something else"):
        from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(AUDITS)), st.data())
def test_whatever_stands_in_an_audit_it_is_read_or_refused(name: str, data: st.DataObject) -> None:
    plain = json.loads(AUDITS[name].to_json())
    place: Any = plain
    for _ in range(data.draw(st.integers(1, 4))):  # some way down
        pairs = enumerate(place) if isinstance(place, list) else place.items()
        inner = [key for key, value in pairs if isinstance(value, (dict, list)) and value]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    keys = range(len(place)) if isinstance(place, list) else sorted(place)
    place[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    try:
        audit = from_json(json.dumps(plain))
    except InvalidArgument:
        return
    for entry in list_entries(audit):
        assert entry.verdict == audit.verdict
        json.dumps(entry.to_dict(), allow_nan=False)


def test_the_audit_of_the_folder_itself_has_a_name() -> None:
    (entry,) = list_entries(an_audit(), path="result.json")
    assert entry.label == "."


def test_halves_of_letters_do_not_reach_the_index() -> None:
    (entry,) = list_entries(an_audit(subject="half \ud800"))
    entry.subject.encode("utf-8")


def test_an_audit_is_known_by_its_first_bytes() -> None:
    assert all(looks_like_audit(audit.to_json().encode()[:256]) for audit in AUDITS.values())
    later = an_audit().to_json().replace('"format": 2', '"format": 3')
    assert looks_like_audit(later.encode()[:256])
    assert not looks_like_audit(b'{"kind": "Deployment"}')
    assert not looks_like_audit(b'{"name": "format"}')
    assert not looks_like_audit(b'{"format": "GeoJSON", "features": []}')
