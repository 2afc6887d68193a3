"""Sentences say what happened, and no more."""

import pytest

from epsilometer.report import texts
from tests.examples import (
    a_bound,
    a_claim,
    a_provenance,
    an_estimate,
    computed,
)


def _threat(*args) -> dict[str, str]:
    return {fact.name: fact.value for fact in texts.word_threat(*args)}


FAILED = a_provenance(units=10, used=7, failed=3)


def test_what_the_run_left_out_is_told() -> None:
    assert texts.word_run(a_provenance()) == []
    assert texts.word_run(a_provenance(units=8, used=3)) == [
        "The run stopped early: 3 of 8 units were used."
    ]
    (failed,) = texts.word_run(FAILED)
    assert failed.startswith("3 of 10 units failed")


def test_the_threat_model_is_said() -> None:
    claim = a_claim(1.0, adjacency="replace", accountant="PLD")
    bound = a_bound(adversary="sees the model", adjacency="replace")
    said = _threat(bound, claim)
    assert said["Adversary"] == "sees the model"
    assert "a different record in its place" in said["Neighbouring datasets"]
    assert said["Observations"] == "1,234 with the record, 567 without it."
    assert said["Claim"] == ("ε = 1 at δ = 1e-05, for one record replaced, computed by PLD.")
    assert "Caution" not in said


@pytest.mark.parametrize(
    ("adjacency", "said"),
    [("add_remove", "for one client added or removed"), ("unstated", "for a client")],
)
def test_a_claim_for_clients_says_so(adjacency: str, said: str) -> None:
    claim = a_claim(1.0, unit="client", adjacency=adjacency)
    assert texts.word_claim(claim) == f"ε = 1 at δ = 1e-05, {said}."


def test_what_is_not_stated_is_said_to_be() -> None:
    said = _threat(a_bound(n_out=0), None)
    assert said["Adversary"].startswith("Not stated.")
    assert "was not stated" in said["Neighbouring datasets"]
    assert "the distribution without it is known" in said["Observations"]
    assert "Claim" not in said


def test_a_bound_for_other_neighbours_is_pointed_out() -> None:
    claim = a_claim(1.0, adjacency="add_remove")
    said = _threat(a_bound(adjacency="replace"), claim)
    assert "one record added or removed" in said["Caution"]
    assert "one record replaced" in said["Caution"]


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (an_estimate(2.0), "ε = 2.00 at δ = 1e-05 (1.00 to 4.00, 0.95 sure)"),
        (computed(2.0), "ε = 2.00 at δ = 1e-05 (2.00 to 2.00, computed)"),
        (
            computed(2.0, role="reference"),
            "ε = 2.00 at δ = 1e-05 (2.00 to 2.00, computed; decides nothing)",
        ),
    ],
)
def test_estimates_in_words(estimate, said: str) -> None:
    assert texts.word_estimate(estimate) == said
