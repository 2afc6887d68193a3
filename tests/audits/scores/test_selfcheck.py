"""The auditor passes its own check, and auditors with planted mistakes do not."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from epsilometer import Audit, Scores
from epsilometer.audits.scores import selfcheck as module
from epsilometer.audits.scores.selfcheck import selfcheck
from epsilometer.audits.scores.subject import run_audit
from epsilometer.engine.request import Request
from epsilometer.rules import Best
from tests.conftest import run_often

RUNS = 50_000  # at 20,000 "noise halved" is refuted by a hair (1.01 against 1), here by a tenth


@pytest.mark.parametrize("seed", run_often(range(5), [0]))
def test_the_auditor_is_right_on_every_control(seed: int) -> None:
    outcomes = selfcheck(runs=RUNS, seed=seed)
    assert len(outcomes) == 6
    assert [outcome.control.name for outcome in outcomes if not outcome.right] == []
    assert all(outcome.audit.bounds[0].valid for outcome in outcomes)


def test_bounds_of_sound_controls_stay_below_the_truth_and_come_near() -> None:
    """Randomised response has two outcomes, so 50,000 runs tell its ε = 1 to a few hundredths."""
    bounds = {o.control.name: o.audit.epsilon for o in selfcheck(runs=RUNS)}
    assert 0.85 < bounds["randomised response"] < 1.0
    assert 0.85 < bounds["Laplace count"] < 1.0
    assert 0.2 < bounds["Gaussian sum"] < 1.0


def test_same_seed_same_outcomes() -> None:
    first, again, other = (selfcheck(runs=500, seed=seed) for seed in (4, 4, 5))
    assert [o.audit for o in first] == [o.audit for o in again]
    assert [o.audit for o in first] != [o.audit for o in other]


def test_few_runs_prove_little_and_wrong_no_one() -> None:
    for outcome in selfcheck(runs=20, seed=0):
        assert outcome.right or not outcome.control.sound


def _with_epsilon(found: Audit, epsilon: float) -> Audit:
    (view,) = found.views
    bound = replace(view.bound, epsilon=epsilon)
    return replace(found, findings=(replace(view, bound=bound),))


def _without_limits(scores: Scores, request: Request) -> Audit:
    """Take rates as they were counted, at the best of all thresholds with five false alarms."""
    outside = np.sort(scores.outside)[::-1]
    false_alarms = np.arange(5, outside.size + 1)
    caught = scores.n_in - np.searchsorted(np.sort(scores.inside), outside[4:])
    ratio = np.max((caught / scores.n_in) / (false_alarms / outside.size))
    return _with_epsilon(run_audit(scores, request), float(np.log(ratio)))


def _swapped(scores: Scores, request: Request) -> Audit:
    return run_audit(Scores(scores.outside, scores.inside), request)


def _counted_tenfold(scores: Scores, request: Request) -> Audit:
    """Copies that differ in their last digits: equal ones are refused."""
    rng = np.random.default_rng(0)
    sides = (np.repeat(side, 10) for side in (scores.inside, scores.outside))
    return run_audit(Scores(*(side + rng.uniform(0, 1e-9, side.size) for side in sides)), request)


def _timid(scores: Scores, request: Request) -> Audit:
    return _with_epsilon(run_audit(scores, request), 0.0)


def _eager(scores: Scores, request: Request) -> Audit:
    found = run_audit(scores, request)
    return _with_epsilon(found, 2 * found.bounds[0].epsilon)


def _invalid(scores: Scores, request: Request) -> Audit:
    return run_audit(dataclasses.replace(scores, rule=Best()), request)


@pytest.mark.parametrize(
    ("mistake", "wrong_on"),
    [
        (_without_limits, "sound"),
        (_counted_tenfold, "sound"),
        (_eager, "sound"),
        (_swapped, "broken"),
        (_timid, "broken"),
        pytest.param(_invalid, "broken", marks=pytest.mark.slow),
    ],
)
@pytest.mark.in_turn(2)
def test_an_auditor_with_a_mistake_fails(
    mistake: Callable[[Scores, Request], Audit], wrong_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_audit", mistake)
    runs = RUNS // 10 if mistake is _counted_tenfold else RUNS
    wrong = [outcome.control for outcome in selfcheck(runs=runs, seed=0) if not outcome.right]
    assert any(control.sound == (wrong_on == "sound") for control in wrong)
