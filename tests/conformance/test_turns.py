"""Turns of records: exact, whoever takes part out of turn."""

import numpy as np
import pytest

from epsilometer.conformance.turns import TurnsWatch


def test_groups_that_take_turns_are_spared(rng: np.random.Generator) -> None:
    watch, groups = TurnsWatch(30, 3), rng.permutation(30).reshape(3, 10)
    for step in range(12):
        watch.see(groups[step % 3][rng.random(10) < 0.5])
    assert watch.check().outcome == "conforms"
    assert watch.check().steps == 12


@pytest.mark.parametrize("at", [4, 11])
def test_one_record_out_of_turn_is_found_when_it_happens(at: int) -> None:
    watch, groups = TurnsWatch(30, 3), np.arange(30).reshape(3, 10)
    for step in range(12):
        stray = [groups[(step + 1) % 3][0]] if step == at else []
        watch.see([*groups[step % 3], *stray])
    check = watch.check()
    assert (check.outcome, check.steps, check.value) == ("violated", at + 1, 1.0)


def test_nothing_is_said_of_less_than_a_cycle_and_one() -> None:
    watch = TurnsWatch(4, 2)
    watch.see([0])
    watch.see([1])
    assert watch.check().outcome == "not tested"
