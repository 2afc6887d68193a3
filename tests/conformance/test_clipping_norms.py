"""A clipping norm that the batch decides is found; one that follows a schedule is spared."""

import numpy as np
import pytest

from epsilometer.conformance.clipping_norms import ClippingNormWatch
from epsilometer.conformance.guesses import check_seed


def watch(norms: list[float], *, private: bool = False, rows: int = 20) -> ClippingNormWatch:
    rng, watched = np.random.default_rng(0), ClippingNormWatch(private=private)
    for norm in norms:
        watched.see(norm, lambda: rng.exponential(size=rows))
    return watched


@pytest.mark.parametrize("rule", [np.median, np.mean, np.max, np.min])
def test_a_norm_of_the_batch_is_found(rule: object) -> None:
    assert callable(rule)
    rng, watched = np.random.default_rng(0), ClippingNormWatch()
    for _ in range(6):
        rows = rng.exponential(size=21)
        watched.see(float(rule(rows)), lambda rows=rows: rows)
    assert watched.check().outcome == "violated"


def test_a_constant_norm_costs_nothing() -> None:
    def refuse() -> np.ndarray:
        raise AssertionError

    watched = ClippingNormWatch()
    for _ in range(9):
        watched.see(1.0, refuse)
    assert watched.check().outcome == "conforms"


def test_a_schedule_is_spared_and_one_up_and_down_remarked() -> None:
    falling = [0.99**step for step in range(200)]
    assert watch(falling).check().outcome == "conforms"
    cycle = [1 + 0.5 * np.sin(step) for step in range(200)]
    assert watch(cycle).check().outcome == "remark"
    assert watch(cycle, private=True).check().outcome == "conforms"
    assert watch(cycle, rows=0).check().outcome == "remark"  # ghost clipping keeps no gradients


def test_nothing_is_said_before_a_step() -> None:
    assert ClippingNormWatch().check().outcome == "not tested"


@pytest.mark.parametrize(
    ("seed", "outcome"),
    [
        (0, "remark"),
        (2**32 - 1, "remark"),
        (67280421310721, "remark"),  # what torch.Generator() has by itself
        (2**40, "conforms"),
        (None, "not tested"),
    ],
)
def test_a_small_seed_is_a_remark_that_does_not_name_it(seed: int | None, outcome: str) -> None:
    check = check_seed(seed, steps=3)
    assert check.outcome == outcome
    assert str(seed) not in check.seen
