"""What is cut is still a result, and nothing is cut that need not be."""

import math

import pytest

from epsilometer import AuditGroup, RecordRisk
from epsilometer.report.fitting import cut, fitted, riskiest
from tests.report.hostile import full_audit, full_group


def records(*risks: float) -> tuple[RecordRisk, ...]:
    return tuple(RecordRisk(record=f"r{i}", risk=risk, measure="m") for i, risk in enumerate(risks))


@pytest.mark.parametrize("result", [full_audit(), full_group(), full_audit().bound])
def test_what_fits_is_not_touched(result) -> None:
    assert fitted(result, records=100) == result


def test_the_riskiest_records_are_kept() -> None:
    result = full_audit(records=records(1.0, math.inf, 0.5, 3.0, -math.inf))
    kept = fitted(result, records=2)
    assert [r.risk for r in kept.records] == [math.inf, 3.0]
    assert [r.risk for r in riskiest(result.records, 9)] == [math.inf, 3.0, 1.0, 0.5, -math.inf]


def test_audits_of_a_group_share_what_there_is_room_for() -> None:
    with_many, without = full_audit(records=records(*range(10))), full_audit(records=())
    group = AuditGroup(subject="s", results=(with_many, without, with_many))
    assert [len(a.records) for a in fitted(group, records=6).results] == [3, 0, 3]


def test_long_texts_are_cut_and_say_so() -> None:
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("x" * 11, 10) == "x" * 9 + "…"
    assert cut((("ab", 1), "abc"), 2) == (("ab", 1), "a…")
    result = fitted(full_audit(subject="x" * 10**6), records=9)
    assert len(result.subject) == 2000
