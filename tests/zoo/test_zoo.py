"""The zoo: wrong steps are found, right ones are spared, and what is missed has a name."""

import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.step.subject import Step
from epsilometer.zoo.page import count_outcomes, list_mistakes, render_tables
from epsilometer.zoo.program import Program, read_catalogue
from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.runner import Outcome, run_zoo
from epsilometer.zoo.step import (
    add_up,
    clip,
    compute_gradients,
    compute_norms,
    make_batch,
    make_parameters,
)
from epsilometer.zoo.tool import Alarm, Report

FLAKE = 1e-6
# What must be among the names of the checks that find it.
EXPECTED = {
    "noise of tensors": "noise in every part",
    "noise of rows": "noise in every part",
    "noise of coordinates": "noise in every part",
    "clipping": "sensitivity",
    "sensitivity": "sensitivity",
}
WRONG = [program for program in list_programs("step") if not program.right]
RIGHT = [program for program in list_programs("step") if program.right]
# One of everything that can break, and a fifth of what is right; the slow tests take all.
QUICK = [p for p in WRONG if p == next(q for q in WRONG if q.breaks == p.breaks)]
SPARED = RIGHT[::5]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {outcome.program.id: outcome for outcome in run_zoo((*QUICK, *SPARED))}


def test_the_zoo_is_large_enough_and_ids_are_unique() -> None:
    programs = list_programs()
    assert len([program for program in programs if not program.right]) >= 65
    assert len([program for program in programs if program.right]) >= 36
    assert len(WRONG) >= 40
    assert len(RIGHT) >= 20
    assert len({program.id for program in programs}) == len(programs)
    assert len({(program.kind, program.title) for program in programs}) == len(programs)
    assert all(program.right == (program.id >= "EPS-1000") for program in programs)
    assert {program.id for program in programs} == read_catalogue().keys()


def test_every_program_shows_its_source() -> None:
    for program in list_programs():
        assert len(program.source) > 20, program
    assert WRONG[24].source.startswith("class _CancelNoise")  # without what registers it
    assert "lambda _, n: n / 2" in WRONG[1].source  # not the function that applies it


def test_a_program_that_keeps_state_begins_anew() -> None:
    decaying = WRONG[13]
    first, second = decaying.make(0), decaying.make(0)
    assert isinstance(first, Step)
    first.step(first.batch, np.random.default_rng(0))
    assert first.step.draw.steps == 1  # type: ignore[attr-defined]
    assert second.step.draw.steps == 0  # type: ignore[attr-defined]


def assert_right_reason(outcome: Outcome) -> None:
    if outcome.program.breaks in EXPECTED:
        assert any(EXPECTED[outcome.program.breaks] in name for name in outcome.checks)
        noise = any("noise" in name for name in outcome.checks)
        assert noise == ("noise" in outcome.program.breaks)


@pytest.mark.parametrize("program", QUICK, ids=lambda program: program.id)
def test_wrong_programs_are_found_for_the_right_reason(
    program: Program, outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[program.id]
    assert outcome.checks
    assert outcome.steps >= 1
    assert_right_reason(outcome)


@pytest.mark.parametrize("program", SPARED, ids=lambda program: program.id)
def test_right_programs_are_spared(program: Program, outcomes: dict[str, Outcome]) -> None:
    assert not outcomes[program.id].accused, outcomes[program.id]


@pytest.mark.slow
def test_right_programs_are_spared_for_a_hundred_seeds() -> None:
    runs = run_zoo(RIGHT, seeds=100)
    accused = [(outcome.program.id, outcome.seed) for outcome in runs if outcome.accused]
    assert len(accused) <= scipy.stats.binom.isf(FLAKE, len(runs), 1e-3), accused


@pytest.mark.slow
def test_all_wrong_programs_are_found_for_the_right_reason() -> None:
    for program in WRONG:
        first, *others = run_zoo([program], seeds=6)
        assert_right_reason(first)
        assert first.accused
        assert all(outcome.accused for outcome in others), program


def test_another_tool_is_plugged_in_by_one_function() -> None:
    def accuse_some(program: Program, seed: int) -> Report | None:
        if program.id == "EPS-0003":
            return None
        alarm = Alarm(check="even numbers", steps=7)
        return Report(alarms=(alarm,) if int(program.id[4:]) % 2 == seed else ())

    chosen = (*WRONG[:3], *RIGHT[:2])
    found = run_zoo(chosen, tool=accuse_some)
    assert count_outcomes(found) == (
        "1 of 2 wrong programs found, 1 of 2 right ones passed; 1 not run."
    )
    assert list_mistakes(found) == (
        "missed: EPS-0001 (no noise)",
        "flagged: EPS-1002 (accumulation over physical batches) by even numbers",
    )
    tables = render_tables(found)
    assert "**missed**" in tables
    assert "**flagged**: even numbers" in tables
    assert "| not run |" in tables
    assert "| even numbers | 7 |" in tables
    twice = run_zoo(chosen[3:], tool=accuse_some, seeds=2)
    assert [outcome.seed for outcome in twice] == [0, 1, 0, 1]
    assert count_outcomes(twice).endswith("0 of 2 right ones passed, in each of 2 seeds.")
    assert list_mistakes(twice)[0].endswith("by even numbers, 1 of 2 seeds")


def test_gradients_are_those_of_the_loss() -> None:
    """Against differences of the loss: the programs are about privacy, not about calculus."""
    batch = make_batch()
    own = compute_gradients(batch)

    def loss(parameters: dict[str, np.ndarray]) -> np.ndarray:
        p, (x, labels) = parameters, batch
        first = np.tanh(x @ p["first.weight"].T + p["first.bias"])
        second = np.tanh(first @ p["second.weight"].T + p["second.bias"])
        scores = second @ p["out.weight"].T + p["out.bias"]
        return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(x)), labels]

    rng = np.random.default_rng(0)
    at = make_parameters()
    step = {name: 1e-6 * rng.normal(size=value.shape) for name, value in at.items()}
    ahead = loss({name: at[name] + step[name] for name in at})
    behind = loss({name: at[name] - step[name] for name in at})
    slope = sum(np.sum((own[name] * step[name]).reshape(32, -1), axis=1) for name in own)
    np.testing.assert_allclose((ahead - behind) / 2, slope, rtol=1e-5, atol=1e-12)
    assert compute_norms(own).max() > 1  # or nothing would be clipped
    assert compute_norms(clip(own, 1.0)).max() == pytest.approx(1)
    assert add_up(own)["out.bias"].shape == (4,)
