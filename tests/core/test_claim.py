"""A claim is what somebody promised: a number or a Claim, taken by one function everywhere."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from epsilometer import Claim
from epsilometer.core.claim import as_claim, check_unit
from epsilometer.core.plain import to_plain
from epsilometer.errors import InvalidArgument


@pytest.mark.parametrize("epsilon", [0, 0.0, 3.5, 1e300])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.999])
def test_every_claim_of_privacy_can_be_stated(epsilon: float, delta: float) -> None:
    claim = Claim(epsilon, delta=delta)
    assert (claim.epsilon, claim.delta) == (epsilon, delta)
    assert claim.adjacency == claim.sampler == claim.accountant == "unstated"
    assert claim.unit == "unstated"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": -0.1}, "epsilon ≥ 0, got -0.1"),
        ({"epsilon": float("nan")}, "number for epsilon"),
        ({"epsilon": "3"}, "number for epsilon, got '3'"),
        ({"epsilon": None}, "number for epsilon"),
        ({"epsilon": True}, "number for epsilon, got True"),
        ({"delta": -1e-9}, r"delta in \[0, 1\]"),
        ({"delta": 1.01}, r"delta in \[0, 1\], got 1.01"),
        ({"delta": float("nan")}, "number for delta"),
        ({"adjacency": "friends"}, "add_remove, zero_out, replace, unstated, got 'friends'"),
        ({"adjacency": None}, "got None"),
        ({"unit": "household"}, "record, client, unstated, got 'household'"),
    ],
)
def test_what_is_no_claim_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Claim(**{"epsilon": 1.0, "delta": 1e-5, **wrong})


@pytest.mark.parametrize("wrong", [{"epsilon": float("inf")}, {"delta": 1}, {"delta": 1.0}])
def test_a_claim_that_every_program_satisfies_cannot_be_built(wrong: dict) -> None:
    with pytest.raises(InvalidArgument, match="every program satisfies"):
        Claim(**{"epsilon": 1.0, "delta": 1e-5, **wrong})


def test_a_claim_cannot_be_changed() -> None:
    claim = Claim(1.0, delta=1e-5)
    with pytest.raises(AttributeError):
        claim.epsilon = 2.0  # type: ignore[misc]


def test_a_claim_becomes_plain_values_and_back() -> None:
    claim = Claim(
        1.0, delta=1e-5, adjacency="zero_out", sampler="Poisson", accountant="PLD", unit="client"
    )
    assert msgspec.convert(json.loads(json.dumps(to_plain(claim))), Claim) == claim


def test_numbers_of_numpy_become_those_of_python() -> None:
    claim = Claim(np.float32(0.5), delta=np.float64(0.25))
    assert (type(claim.epsilon), type(claim.delta)) == (float, float)
    json.dumps(to_plain(claim))


@pytest.mark.parametrize("value", [3, 3.0, np.float64(3.0), np.int64(3)])
def test_a_number_is_a_claim_with_its_delta(value: float) -> None:
    assert as_claim(value, delta=1e-5) == Claim(3.0, delta=1e-5)


def test_a_claim_stays_itself_and_none_stays_none() -> None:
    claim = Claim(3.195138, delta=1e-5, adjacency="replace")
    assert as_claim(claim) is claim
    assert as_claim(claim, delta=1e-5) is claim
    assert as_claim(None) is None
    assert as_claim(None, delta=1e-5) is None


def test_what_is_known_beside_a_number_is_part_of_the_claim() -> None:
    assert as_claim(3.0, delta=1e-5, adjacency="replace", accountant="PLD") == Claim(
        3.0, delta=1e-5, adjacency="replace", accountant="PLD"
    )


@pytest.mark.parametrize("value", ["3", True, [3.0], {"epsilon": 3.0}, object()])
def test_what_is_neither_a_number_nor_a_claim_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"a number, a Claim or None, got \w+\.$"):
        as_claim(value, delta=1e-5)  # type: ignore[arg-type]


def test_a_number_without_delta_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"Expected delta with claim=3\.0, got none"):
        as_claim(3.0)


def test_two_deltas_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="Give it once"):
        as_claim(Claim(3.0, delta=1e-5), delta=1e-6)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_claim_about_somebody_else_is_refused(unit: Any) -> None:
    other = {"record": "client", "client": "record"}[unit]
    for stated in ("unstated", unit):
        check_unit(Claim(1.0, delta=1e-5, unit=stated), unit)
    check_unit(None, unit)
    with pytest.raises(InvalidArgument, match=f"a claim about a {unit}, got unit='{other}'"):
        check_unit(Claim(1.0, delta=1e-5, unit=other), unit)
