"""The zoo's federated runs: wrong servers are found, right ones are spared."""

import pytest
import scipy.stats

from epsilometer.zoo.program import Program
from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.runner import run_program, run_zoo

FLAKE = 1e-6
PROGRAMS = {program.id: program for program in list_programs("flower")}
WRONG = [program for program in PROGRAMS.values() if not program.right]
RIGHT = [program for program in PROGRAMS.values() if program.right]
MISSED = (
    "EPS-0238",  # one client counts three times: too few rounds to tell it from noise
    "EPS-0260",  # weights of clients change at random: likewise
    "EPS-0272",  # another reply counts twice in every round: likewise
)
# One of everything that can break; the slow tests take all.
REASONS = {
    "EPS-0202": "multiple of the mean",  # no rate is declared: small noise is too much of the mean
    "EPS-0208": "noise in every part",
    "EPS-0211": "independence of steps",
    "EPS-0216": "clipping",
    "EPS-0221": "equal weights",
    "EPS-0224": "mean of all updates",
    "EPS-0229": "noise for a mean",
    "EPS-0231": "norms of replies",
    "EPS-0233": "noise on the clipped count",
    "EPS-0242": "noise that cannot be guessed",
    "EPS-0248": "independence within a step",
    "EPS-0253": "weights that clients are sent",
    "EPS-0254": "updates of earlier rounds",
    "EPS-0255": "weight of single clients",
    "EPS-0258": "noise along updates",
    "EPS-0249": "mean of all updates",
    "EPS-0261": "values of noise",
    "EPS-0262": "noise that cannot be guessed",
    "EPS-0263": "independence of steps",
    "EPS-0264": "noise along updates",
}


def test_there_are_enough_and_each_has_its_number() -> None:
    assert len(WRONG) >= 20
    assert len(RIGHT) >= 10
    assert len(WRONG) - len(MISSED) >= 18
    assert all(int(program.id[4:]) in range(201, 301) for program in WRONG)
    assert all(int(program.id[4:]) in range(1201, 1301) for program in RIGHT)


@pytest.mark.parametrize("id", REASONS)
def test_wrong_servers_are_found_for_the_right_reason(id: str) -> None:  # noqa: A002
    outcome = run_program(PROGRAMS[id])
    assert REASONS[id] in outcome.checks
    assert outcome.alarms[0].call == "audit_server_app"


@pytest.mark.parametrize(
    "id", ["EPS-1207", "EPS-1211", "EPS-1215", "EPS-1226", "EPS-1228", "EPS-1229"]
)
def test_right_servers_are_spared(id: str) -> None:  # noqa: A002
    outcome = run_program(PROGRAMS[id])
    assert outcome.ran
    assert not outcome.accused, outcome


@pytest.mark.slow
@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.id)
def test_all_wrong_servers_are_found(program: Program) -> None:
    for outcome in run_zoo([program], seeds=3):
        assert outcome.accused != (program.id in MISSED), outcome


@pytest.mark.slow
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.id)
def test_right_servers_are_spared_for_many_seeds(program: Program) -> None:
    runs = run_zoo([program], seeds=40)
    accused = [outcome.seed for outcome in runs if outcome.accused]
    assert len(accused) <= scipy.stats.binom.isf(FLAKE, len(runs), 1e-3), accused
