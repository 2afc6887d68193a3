"""What is cut is still an audit, and nothing is cut that need not be."""

import math

import pytest

from epsilometer.core.audit import Audit
from epsilometer.core.findings import RecordRisk
from epsilometer.report.fitting import cut, find_riskiest, fit_audit
from tests.examples import AUDITS, a_provenance, a_record, several_views
from tests.report.hostile import full_audit, full_views


def records(*risks: float) -> tuple[RecordRisk, ...]:
    order = sorted(risks, reverse=True)
    return tuple(a_record(rank=order.index(risk) + 1, risk=risk) for risk in risks)


@pytest.mark.parametrize("audit", [full_audit(), full_views(), *AUDITS.values()])
def test_what_fits_is_not_touched(audit: Audit) -> None:
    assert fit_audit(audit, records=100) == audit


def test_the_riskiest_records_are_kept() -> None:
    audit = full_audit(more=records(1.0, math.inf, 0.5, 3.0, -math.inf))
    kept = fit_audit(audit, records=2)
    assert [r.risk for r in kept.find(RecordRisk)] == [math.inf, 3.0]
    assert kept.views == audit.views
    every = find_riskiest(audit.find(RecordRisk), 9)
    assert [r.risk for r in every] == [math.inf, 3.0, 1.0, 0.5, -math.inf]


def test_an_audit_of_nothing_but_records_keeps_one() -> None:
    audit = several_views(*records(1.0, 2.0), claim=None)
    assert [r.risk for r in fit_audit(audit, records=0).find(RecordRisk)] == [2.0]


def test_long_texts_are_cut_and_say_so() -> None:
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("x" * 11, 10) == "x" * 9 + "…"
    assert cut((("ab", 1), "abc"), 2) == (("ab", 1), "a…")
    assert cut({"a": ["abc"]}, 2) == {"a": ["a…"]}
    long = a_provenance(settings={"words": "x" * 10**6})
    audit = fit_audit(full_audit(subject="x" * 10**6, provenance=long), records=9)
    assert len(audit.subject) == len(audit.views[0].subject) == 2000
    assert len(audit.provenance.settings["words"]) == 2000
