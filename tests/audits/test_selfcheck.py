"""The auditor passes its own check, and auditors with planted mistakes do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from epsilometer import Best, Scores
from epsilometer.audits import selfcheck as module
from epsilometer.audits.scores import audit_scores
from epsilometer.audits.selfcheck import selfcheck
from epsilometer.results import AuditResult

RUNS = 50_000  # at 20,000 "noise halved" is refuted by a hair (1.01 against 1), here by a tenth


@pytest.mark.parametrize("seed", range(5))
def test_the_auditor_is_right_on_every_control(seed: int) -> None:
    outcomes = selfcheck(runs=RUNS, seed=seed)
    assert len(outcomes) == 6
    assert [outcome.control.name for outcome in outcomes if not outcome.right] == []
    assert all(outcome.result.bound.valid for outcome in outcomes)


def test_bounds_of_sound_controls_stay_below_the_truth_and_come_near() -> None:
    """Randomised response has two outcomes, so 50,000 runs tell its ε = 1 to a few hundredths."""
    bounds = {o.control.name: o.result.bound.epsilon for o in selfcheck(runs=RUNS)}
    assert 0.85 < bounds["randomised response"] < 1.0
    assert 0.85 < bounds["Laplace count"] < 1.0
    assert 0.2 < bounds["Gaussian sum"] < 1.0


def test_same_seed_same_outcomes() -> None:
    first, again, other = (selfcheck(runs=500, seed=seed) for seed in (4, 4, 5))
    assert [o.result for o in first] == [o.result for o in again]
    assert [o.result for o in first] != [o.result for o in other]


def test_few_runs_prove_little_and_wrong_no_one() -> None:
    for outcome in selfcheck(runs=20, seed=0):
        assert outcome.right or not outcome.control.sound


def _without_limits(scores: Scores, **knobs: Any) -> AuditResult:
    """Takes rates as they were counted, at the best of all thresholds with five false alarms."""
    outside = np.sort(scores.outside)[::-1]
    false_alarms = np.arange(5, outside.size + 1)
    caught = scores.n_in - np.searchsorted(np.sort(scores.inside), outside[4:])
    ratio = np.max((caught / scores.n_in) / (false_alarms / outside.size))
    result = audit_scores(scores, **knobs)
    return replace(result, bound=replace(result.bound, epsilon=float(np.log(ratio))))


def _swapped(scores: Scores, **knobs: Any) -> AuditResult:
    return audit_scores(Scores(scores.outside, scores.inside), **knobs)


def _counted_tenfold(scores: Scores, **knobs: Any) -> AuditResult:
    return audit_scores(
        Scores(np.repeat(scores.inside, 10), np.repeat(scores.outside, 10)), **knobs
    )


def _timid(scores: Scores, **knobs: Any) -> AuditResult:
    result = audit_scores(scores, **knobs)
    return replace(result, bound=replace(result.bound, epsilon=0.0))


def _eager(scores: Scores, **knobs: Any) -> AuditResult:
    result = audit_scores(scores, **knobs)
    return replace(result, bound=replace(result.bound, epsilon=2 * result.bound.epsilon))


def _invalid(scores: Scores, **knobs: Any) -> AuditResult:
    return audit_scores(scores, **{**knobs, "rule": Best()})


@pytest.mark.parametrize(
    ("mistake", "wrong_on"),
    [
        (_without_limits, "sound"),
        (_counted_tenfold, "sound"),
        (_eager, "sound"),
        (_swapped, "broken"),
        (_timid, "broken"),
        (_invalid, "broken"),
    ],
)
def test_an_auditor_with_a_mistake_fails(
    mistake: Callable[..., AuditResult], wrong_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "audit_scores", mistake)
    wrong = [outcome.control for outcome in selfcheck(runs=RUNS, seed=0) if not outcome.right]
    assert any(control.sound == (wrong_on == "sound") for control in wrong)
