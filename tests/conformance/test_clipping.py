"""Loud records: right programs are spared at the level, wrong ones found."""

import numpy as np
import pytest

from epsilometer.conformance.carryover import CarryoverCheck
from epsilometer.conformance.clipping import ClippingWatch, LoudRecord

LEVEL = 1e-3


def watch_sums(
    rng: np.random.Generator, *, amplitude: float, others: float, size: int, batches: int
) -> ClippingWatch:
    watch = ClippingWatch(level=LEVEL)
    for _ in range(batches):
        direction = rng.normal(size=size)
        direction /= np.linalg.norm(direction)
        total = amplitude * direction + others * rng.normal(size=size)
        along, square = float(total @ direction), float(total @ total)
        watch.see([LoudRecord(part="all", size=size, along=along, square=square)])
    return watch


@pytest.mark.parametrize("others", [0.0, 1e-8, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("size", [8, 200])
def test_clipped_records_are_spared(others: float, size: int) -> None:
    rng = np.random.default_rng(5)
    outcomes = {
        watch_sums(rng, amplitude=1.0, others=others, size=size, batches=20).check().outcome
        for _ in range(60)
    }
    assert outcomes == {"conforms"}


@pytest.mark.parametrize(
    ("amplitude", "others", "batches"), [(1000.0, 3.0, 1), (10.0, 0.3, 1), (4.0, 0.3, 1)]
)
def test_records_that_are_not_clipped_are_found(
    amplitude: float, others: float, batches: int
) -> None:
    rng = np.random.default_rng(6)
    watch = watch_sums(rng, amplitude=amplitude, others=others, size=400, batches=batches)
    assert watch.check().outcome == "violated"


def test_a_few_bad_batches_among_many_are_found() -> None:
    rng = np.random.default_rng(7)
    watch = watch_sums(rng, amplitude=1.0, others=0.5, size=400, batches=300)
    watch.see([LoudRecord(part="all", size=400, along=900.0, square=900.0**2 + 100)])
    for _ in range(300):
        watch.see([LoudRecord(part="all", size=400, along=1.0, square=100.0)])
    assert (watch.check().outcome, watch.check().steps) == ("violated", 301)


@pytest.mark.parametrize(
    ("norm", "rounding", "outcome"),
    [
        (1.0, 0.0, "conforms"),
        (1.0009, 0.0, "conforms"),
        (1.01, 0.0, "violated"),
        (1.01, 2.0**-8, "conforms"),  # bfloat16
        (1.5, 2.0**-8, "violated"),
        (float("nan"), 0.0, "violated"),
    ],
)
def test_differences_are_exact(norm: float, rounding: float, outcome: str) -> None:
    watch = ClippingWatch(level=LEVEL)
    watch.see_difference(0.5, what="by a small record")
    watch.see_difference(norm, what="by a record", rounding=rounding)
    watch.see_difference(0.7, what="by another")
    assert watch.check().outcome == outcome


def test_nothing_seen_is_not_tested() -> None:
    assert ClippingWatch(level=LEVEL).check().outcome == "not tested"
    assert CarryoverCheck(level=LEVEL).check().outcome == "not tested"


def lingering(rng: np.random.Generator, *, momentum: float, scale: float, steps: int) -> str:
    watch, velocity = CarryoverCheck(level=LEVEL), np.zeros(80)
    for _ in range(steps):
        planted = (rng.random(80) < 0.2) * 1.0
        watch.see(scale * rng.normal(size=80) + momentum * velocity, planted)
        velocity = momentum * velocity + planted
    return watch.check().outcome


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_noise_alone_holds_no_earlier_record(scale: float) -> None:
    rng = np.random.default_rng(8)
    assert {lingering(rng, momentum=0.0, scale=scale, steps=30) for _ in range(100)} == {"conforms"}


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_momentum_before_noise_is_found(momentum: float) -> None:
    rng = np.random.default_rng(9)
    assert {lingering(rng, momentum=momentum, scale=1.0, steps=30) for _ in range(20)} == {
        "violated"
    }
