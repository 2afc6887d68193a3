import json
from dataclasses import FrozenInstanceError

import pytest

from epsilometer import PrivacyClaim
from epsilometer.errors import InvalidArgument


@pytest.mark.parametrize("epsilon", [0, 0.0, 3.5, float("inf")])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1.0])
def test_every_promise_of_privacy_can_be_stated(epsilon: float, delta: float) -> None:
    claim = PrivacyClaim(epsilon=epsilon, delta=delta)
    assert (claim.epsilon, claim.delta) == (epsilon, delta)
    assert claim.adjacency == claim.sampler == claim.accountant == "unstated"


@pytest.mark.parametrize(
    ("wrong", "told"),
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
    ],
)
def test_what_is_no_promise_is_told(wrong: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        PrivacyClaim(**{"epsilon": 1.0, "delta": 1e-5, **wrong})


def test_a_claim_cannot_be_changed() -> None:
    claim = PrivacyClaim(epsilon=1.0, delta=1e-5)
    with pytest.raises(FrozenInstanceError):
        claim.epsilon = 2.0  # type: ignore[misc]


def test_a_claim_becomes_plain_values_and_back() -> None:
    claim = PrivacyClaim(
        epsilon=1.0, delta=1e-5, adjacency="zero_out", sampler="Poisson", accountant="PLD"
    )
    assert PrivacyClaim(**json.loads(json.dumps(claim.to_dict()))) == claim
