"""Bounds and estimates carry their meaning, and nothing outside their domain can be built."""

import html
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer import EpsilonLowerBound
from epsilometer.core.plain import to_plain
from epsilometer.errors import InvalidArgument
from tests.core.strategies import bounds, not_negative
from tests.examples import INF, a_bound, an_estimate, computed

law = settings(deadline=None)  # others may be using the machine


@pytest.mark.parametrize(
    ("wrong", "said"),
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
        ({"valid": "yes"}, "True or False"),
        ({"cites": ("nobody1900",)}, "nobody1900"),
        ({"basis": (("false positives", float("nan")),)}, "number"),
    ],
)
def test_a_bound_outside_its_domain_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        a_bound(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"low": 5.0}, "low ≤ epsilon ≤ high"),
        ({"high": 1.0}, "low ≤ epsilon ≤ high"),
        ({"low": -1.0}, "low ≥ 0"),
        ({"confidence": 1.5}, "confidence"),
        ({"adjacency": "friends"}, "adjacency"),
        ({"cites": ("nobody1900",)}, "nobody1900"),
    ],
)
def test_an_estimate_outside_its_domain_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        an_estimate(2.0, **wrong)


@law
@given(bounds(), not_negative)
def test_invalid_bounds_never_refute(bound: EpsilonLowerBound, claimed: float) -> None:
    assert bound.refutes(claimed) == (bound.valid and bound.epsilon > claimed)


@pytest.mark.parametrize(
    ("role", "confidence", "lower", "upper"),
    [
        ("lower", 1.0, 2.0, INF),
        ("upper", 1.0, 0.0, 3.0),
        ("reference", 1.0, 0.0, INF),
        ("lower", 0.95, 0.0, INF),
        ("upper", 0.95, 0.0, INF),
        ("reference", 0.95, 0.0, INF),
    ],
)
def test_an_estimate_decides_by_its_role_alone(
    role: str, confidence: float, lower: float, upper: float
) -> None:
    estimate = an_estimate(2.5, low=2.0, high=3.0, confidence=confidence, role=role)
    assert (estimate.lower, estimate.upper) == (lower, upper)
    assert estimate.refutes(1.0) == (lower > 1)
    assert not estimate.refutes(2.0)


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


def test_an_estimate_in_words_says_whether_it_was_sampled() -> None:
    assert str(an_estimate(2.0)) == (
        "ε = 2 at δ = 1e-05 (1 to 4, 0.95 confidence, two normal distributions)"
    )
    assert "numerical error" in str(computed(2.0))


HOSTILE = "<script>alert('ε & \"δ\"')</script>"


def test_a_notebook_shows_a_bound_as_a_small_table_in_which_text_stays_text() -> None:
    shown = a_bound(caveats=(HOSTILE,))._repr_html_()
    assert set(re.findall(r"</?(\w+)", shown)) == {"table", "caption", "tr", "td"}
    assert HOSTILE in html.unescape(shown)
    assert "1,234 with the record, 567 without it" in shown


def test_numbers_of_numpy_become_those_of_python() -> None:
    bound = a_bound(epsilon=np.float64(2.0), n_in=np.int64(3), basis=(("level", np.float32(0.5)),))
    assert [type(value) for value in (bound.epsilon, bound.n_in, bound.basis[0][1])] == [
        float,
        int,
        float,
    ]
    assert to_plain(bound) == bound.to_dict()


@law
@given(st.sampled_from(["epsilon", "threshold"]))
def test_infinities_are_written_as_words(name: str) -> None:
    assert a_bound(**{name: INF}).to_dict()[name] == "inf"
