"""Likelihood ratios are those of the densities, summed over every way the batches can fall."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest

from tests import printed_ratios as ratios
from tests.conftest import cases


def of_case(name: str, seen: np.ndarray, sigma: float) -> float:
    adversary, _, size = name.rpartition("_B")
    function = getattr(ratios, adversary)
    if adversary in ("worst_case", "batch_then_shuffle"):
        return float(function(seen + 1 - int(size), sigma=sigma, batch_size=int(size)))
    return float(function(seen, sigma=sigma))


@pytest.mark.parametrize(("inputs", "expected"), cases("c08"))
def test_agrees_with_the_reference(inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    known = {name: value for name, value in expected["log_lr"].items() if "printed" not in name}
    assert len(known) == 6
    for name, value in known.items():
        got = of_case(name, np.array(inputs["O"]), inputs["sigma"])
        assert got == pytest.approx(value, rel=1e-9, abs=1e-9), name


def log_density(seen: np.ndarray, means: np.ndarray, sigma: float) -> mpmath.mpf:
    return -sum(
        (mpmath.mpf(float(x)) - int(m)) ** 2 for x, m in zip(seen.flat, means.flat, strict=True)
    ) / (2 * mpmath.mpf(sigma) ** 2)


def by_enumeration(
    seen: np.ndarray, sigma: float, *, others: int, present: int, absent: int, rate: bool
) -> float:
    """The ratio of the two mixtures over all placements, in 60 digits."""
    epochs, steps = seen.shape
    one_epoch = [
        np.array(chosen)
        for chosen in itertools.product((False, True), repeat=steps)
        if rate or sum(chosen) == 1
    ]
    with mpmath.workdps(60):
        chance = mpmath.mpf(1) / steps
        total = {present: mpmath.mpf(0), absent: mpmath.mpf(0)}
        for placement in itertools.product(one_epoch, repeat=epochs):
            held = np.array(placement)
            weight = mpmath.mpf(1)
            if rate:
                count = int(held.sum())
                weight = chance**count * (1 - chance) ** (held.size - count)
            for mean in total:
                means = np.where(held, mean, others)
                total[mean] += weight * mpmath.exp(log_density(seen, means, sigma))
        return float(mpmath.log(total[present] / total[absent]))


worst, batches, replacing = (
    partial(function, batch_size=3)
    for function in (ratios.worst_case, ratios.batch_then_shuffle, ratios.without_replacement)
)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 4.0])
@pytest.mark.parametrize(
    ("function", "others", "present", "absent", "rate"),
    [
        (ratios.target_canary, 0, 1, 0, False),
        (ratios.balls_in_bins, 0, 1, 0, False),
        (ratios.partially_informed, -1, 1, 0, False),
        (worst, -3, -1, -2, False),
        (batches, -3, 3, 2, False),
        (ratios.poisson, 0, 1, 0, True),
        (replacing, -3, -1, -2, True),
    ],
    ids=["canary", "bins", "informed", "worst", "batches", "poisson", "replacing"],
)
def test_agrees_with_all_placements(
    function: Callable[..., np.ndarray],
    others: int,
    present: int,
    absent: int,
    rate: bool,
    sigma: float,
    rng: np.random.Generator,
) -> None:
    for epochs, steps in ((1, 1), (1, 4), (2, 3)):
        seen = others + 2.5 * rng.normal(size=(epochs, steps))
        truth = by_enumeration(
            seen, sigma, others=others, present=present, absent=absent, rate=rate
        )
        assert float(function(seen, sigma=sigma)) == pytest.approx(truth, rel=1e-9, abs=1e-9)


def test_many_runs_are_scored_at_once(rng: np.random.Generator) -> None:
    seen = rng.normal(size=(3, 5, 2, 7))
    for function in (ratios.worst_case, ratios.target_canary, ratios.poisson):
        scores = function(seen, sigma=0.8)
        assert scores.shape == (3, 5)
        assert scores[1, 2] == pytest.approx(float(function(seen[1, 2], sigma=0.8)))


def test_the_order_of_batches_and_epochs_says_nothing(rng: np.random.Generator) -> None:
    seen = rng.normal(size=(2, 6))
    for function in (ratios.worst_case, ratios.target_canary, ratios.without_replacement):
        shuffled = rng.permuted(seen[::-1], axis=1)
        assert float(function(shuffled, sigma=0.3)) == pytest.approx(
            float(function(seen, sigma=0.3))
        )


@pytest.mark.parametrize("sigma", [1e-3, 1e3])
def test_nothing_overflows(sigma: float) -> None:
    far = np.array([[1e3, -1e3, 0.0], [-1e3, -1e3, -1e3]])
    for function in (ratios.worst_case, ratios.target_canary, ratios.poisson):
        assert np.isfinite(function(far, sigma=sigma))
    assert np.isfinite(ratios.batch_then_shuffle(far, sigma=sigma, batch_size=10_000))


def test_a_poisson_rate_of_one_is_a_gaussian_a_step() -> None:
    seen = np.array([[0.3, 1.2]])
    gaussian = (2 * seen - 1).sum() / 2
    assert float(ratios.poisson(seen, sigma=1.0, rate=1.0)) == pytest.approx(gaussian)
