"""95 % means 95 %: every valid method and rule, in every situation where its assumptions hold."""

import numpy as np
import pytest

from epsilometer.rules import RankGrid
from epsilometer.stats import thresholds
from tests import oracles
from tests.calibration.counting import OTHERS, OURS, Bound, bounds_of
from tests.calibration.situations import SITUATIONS, Situation

CELLS = [
    pytest.param(bound, situation, id=f"{bound.name} {situation.name}")
    for bound in OURS
    for situation in SITUATIONS
    if bound.applies(situation)
]
GRID = next(b for b in OURS if b.method == "clopper_pearson" and b.rule is RankGrid)
NULL, LARGE_NULL, TIES = SITUATIONS[:3]


def _wrong(bound: Bound, situation: Situation, audits: int) -> int:
    return int(np.sum(bounds_of(bound, situation, audits=audits) > situation.epsilon))


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "situation"), CELLS)
def test_exceeds_the_truth_no_oftener_than_it_says(bound: Bound, situation: Situation) -> None:
    assert not oracles.too_often(_wrong(bound, situation, 2_000), 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_rank_grid_exceeds_the_truth_no_oftener_than_it_says(situation: Situation) -> None:
    assert not oracles.too_often(_wrong(GRID, situation, 300), 300)


@pytest.mark.slow
def test_rank_grid_pays_for_ratios_nobody_asked_for(rng: np.random.Generator) -> None:
    """Every ratio of the grid is as valid as the default one."""
    for ratio in (2, 3, 16):
        bound = Bound(name=f"ratio {ratio}", method="clopper_pearson", rule=lambda: RankGrid(ratio))  # type: ignore[arg-type]  # noqa: B023
        for situation in SITUATIONS[:4]:
            assert not oracles.too_often(_wrong(bound, situation, 1_000), 1_000)


# Classic mistakes, planted: the counting above must catch each.


@pytest.mark.slow
def test_forgetting_to_pay_for_the_ranks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    side = thresholds._side

    def free(*args: object) -> thresholds.Ranks:
        found = side(*args)  # type: ignore[arg-type]
        return thresholds.replace(found, share=np.ones_like(found.share))

    monkeypatch.setattr(thresholds, "_side", free)
    assert oracles.too_often(_wrong(GRID, NULL, 400), 400)


@pytest.mark.slow
def test_paying_a_quarter_of_the_price_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at four times its share."""
    side = thresholds._side

    def doubled(*args: object) -> thresholds.Ranks:
        found = side(*args)  # type: ignore[arg-type]
        return thresholds.replace(found, share=4 * found.share)

    monkeypatch.setattr(thresholds, "_side", doubled)
    assert oracles.too_often(_wrong(GRID, NULL, 2_000), 2_000)


@pytest.mark.slow
def test_counting_a_tied_rank_as_passed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "In iff score ≥ k-th highest" lets equal scores through that the rank does not count."""
    monkeypatch.setattr(thresholds, "just_above", lambda values: values)
    assert oracles.too_often(_wrong(GRID, TIES, 400), 400)


@pytest.mark.slow
def test_an_off_by_one_in_the_rank_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    side = thresholds._side

    def shifted(*args: object) -> thresholds.Ranks:
        found = side(*args)  # type: ignore[arg-type]
        return thresholds.replace(found, ranks=np.maximum(found.ranks // 2, 1))

    monkeypatch.setattr(thresholds, "_side", shifted)
    assert oracles.too_often(_wrong(GRID, NULL, 400), 400)


@pytest.mark.slow
def test_best_is_wrong_as_often_as_its_name_says() -> None:
    best = OTHERS[0]
    assert not best.valid
    assert oracles.too_often(_wrong(best, LARGE_NULL, 2_000), 2_000)
