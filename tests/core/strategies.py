"""Bounds, evidence and audits of any content, for Hypothesis."""

from typing import Any

from hypothesis import strategies as st

from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import (
    AttackSummary,
    Curve,
    EpsilonFinding,
    Evidence,
    RecordRisk,
    RuleFinding,
)
from epsilometer.core.references import BIBLIOGRAPHY

unit = st.floats(0, 1)
inner_unit = st.floats(0, 1, exclude_min=True, exclude_max=True)
not_negative = st.floats(0, allow_nan=False)  # ∞ included
words = st.text(max_size=12)
counts = st.integers(1, 10**12)
whole = st.integers(-(2**1000), 2**1000)
adjacencies = st.sampled_from(["add_remove", "zero_out", "replace", "unstated"])
json_values = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
settings_values = st.dictionaries(words, json_values, max_size=3)


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
        n_in=counts,
        n_out=st.integers(0, 10**12),
        adjacency=adjacencies,
        adversary=words,
        seed=st.integers(0, 2**60),
        cites=st.lists(st.sampled_from(sorted(BIBLIOGRAPHY)), max_size=3).map(tuple),
        caveats=st.lists(words, max_size=3).map(tuple),
    )


def _series(size: int, values: st.SearchStrategy[Any] = unit) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=size, max_size=size).map(tuple)


def _evidences(size: int) -> st.SearchStrategy[Evidence]:
    rates = {name: _series(size) for name in ("fpr", "fnr")}
    limits = {f"{name}_{end}": _series(size) for name in ("fpr", "fnr") for end in ("low", "high")}
    return st.builds(
        Evidence,
        **rates,
        **limits,
        band_confidence=inner_unit,
        edges=_series(size + 1, st.floats(allow_nan=False)),
        inside_bins=_series(size, st.integers(0, 10**12)),
        outside_bins=_series(size, st.integers(0, 10**12)),
        growth=_series(2, st.tuples(counts, not_negative)),
        curves=st.builds(Curve, name=words, **rates).map(lambda curve: (curve,)),
    )


def _views(delta: float) -> st.SearchStrategy[EpsilonFinding]:
    return st.builds(
        EpsilonFinding,
        subject=words,
        bound=bounds(st.just(delta)),
        also=st.lists(bounds(), max_size=2).map(tuple),
        attack=st.builds(
            AttackSummary,
            auc=unit,
            tpr_at_fpr=st.lists(st.tuples(unit, unit), max_size=3).map(tuple),
            n_in=counts,
            n_out=counts,
        ),
        evidence=st.integers(0, 3).flatmap(_evidences),
        reach=st.none() | not_negative,
        power=st.none() | not_negative,
        units=st.integers(100, 200),
        used=st.integers(0, 50),
        failed=st.integers(0, 50),
    )


records = st.builds(
    RecordRisk,
    rank=st.integers(0, 10**9),
    row=st.none() | st.integers(0, 10**9),
    risk=st.floats(allow_nan=False),
    measure=words,
    note=words,
    shown=not_negative,
    unbinned=not_negative,
    floor=st.none() | not_negative,
    edge_only=st.booleans(),
)
rules = st.builds(
    RuleFinding,
    rule=words,
    outcome=st.sampled_from(["pass", "fail", "unclear"]),
    finding=words,
    value=not_negative,
    low=not_negative,
    high=not_negative,
    limit=not_negative,
    confidence=unit,
)
claims = st.builds(
    Claim,
    epsilon=st.floats(0, allow_infinity=False, allow_nan=False),
    delta=st.floats(0, 1, exclude_max=True),
    adjacency=adjacencies,
    unit=st.sampled_from(["record", "client", "unstated"]),
    sampler=words,
    accountant=words,
)
pairs = st.lists(st.tuples(words, words), max_size=2).map(tuple)
provenances = st.builds(
    Provenance,
    subject=words,
    settings=settings_values,
    delta=st.none() | unit,
    confidence=inner_unit,
    seed=st.integers(0, 2**60),
    until=st.none() | settings_values,
    versions=pairs,
    shapes=pairs,
    plan=words,
    units=st.integers(100, 200),
    used=st.integers(0, 50),
    failed=st.integers(0, 50),
)


def _audits(delta: float) -> st.SearchStrategy[Audit]:
    findings = st.lists(_views(delta) | records | rules, min_size=1, max_size=3).map(tuple)
    texts = st.lists(words, max_size=2).map(tuple)
    return st.builds(
        Audit,
        subject=words,
        claim=st.none() | claims,
        findings=findings,
        advice=texts,
        caveats=texts,
        provenance=provenances,
    )


audits = unit.flatmap(_audits)
