"""Right runs are accused no more often than the level says, and planted mistakes are caught."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.conformance import evidence
from epsilometer.conformance.evidence_check import WeightedSum
from tests.calibration.conformance import PROGRAMS, Program, count_accused, measure_evidence

FLAKE = 1e-6
BY_NAME = {program.name: program for program in PROGRAMS}


def is_too_often(program: Program, *, runs: int, steps: int, level: float) -> bool:
    """Tell whether more runs are accused than the level can explain."""
    accused = count_accused(measure_evidence(program, runs=runs, steps=steps), level)
    return bool(accused > scipy.stats.binom.isf(FLAKE, runs, level))


@pytest.mark.simulation
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_right_runs_are_accused_no_more_often_than_the_level_says(program: Program) -> None:
    assert not is_too_often(program, runs=40, steps=5, level=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_many_right_runs_are_accused_no_more_often_either(program: Program) -> None:
    found = measure_evidence(program, runs=2_000)
    for level in (1e-3, 0.05):
        assert count_accused(found, level) <= scipy.stats.binom.isf(FLAKE, found.size, level)


# Classic mistakes, planted: the counting above must catch each.


def take_less_for_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take noise of scale 1 for noise of scale 0.98."""
    right = evidence.scale_ratios

    def wrong(count: Any, squares: Any, *scales: Any) -> Any:
        return right(count, np.asarray(squares) * 0.98**2, *scales)

    monkeypatch.setattr(evidence, "scale_ratios", wrong)


def forget_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow no lattice."""
    monkeypatch.setattr(evidence, "TIE_SHARE", 1e-3)


def forget_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect as many values near 0 as where nothing is rounded."""
    monkeypatch.setattr(evidence, "SMALL_SHARE", 8e-4)


def forget_that_zeros_have_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take signs on a lattice for fair coins."""
    monkeypatch.setattr(evidence, "LEAST_POSITIVE", 0.5)


def forget_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the least likely of many cosines for the only one, and look at it in every step."""
    monkeypatch.setattr(
        evidence,
        "find_least_likely",
        lambda cosines, sizes: min(
            (evidence.cosine_log_p(float(c), int(n)), place)
            for place, (c, n) in enumerate(zip(cosines, sizes, strict=True))
        )[::-1],
    )
    monkeypatch.setattr(evidence, "calibrate", lambda log_p: -log_p)

    def keep_largest(self: WeightedSum, log_e: float, step: int) -> None:
        self.value = max(self.value, log_e)

    monkeypatch.setattr(WeightedSum, "add", keep_largest)


PLANTED: tuple[tuple[Callable[[pytest.MonkeyPatch], None], str], ...] = (
    (take_less_for_enough, "large tensors"),
    (forget_ties, "rounded to 1/16"),
    (forget_zeros, "rounded to 1/16"),
    (forget_that_zeros_have_no_sign, "large, rounded to 1/16"),
    (forget_pairs, "float64"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "name"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_planted_mistakes_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_too_often(BY_NAME[name], runs=20, steps=8, level=0.05)
