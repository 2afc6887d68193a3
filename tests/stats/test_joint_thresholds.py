import math
from itertools import product

import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.stats import joint_thresholds
from epsilometer.stats.binomial import jeffreys_upper
from epsilometer.stats.joint_thresholds import (
    Joining,
    Rates,
    best_thresholds,
    joint_bound,
    limited_rates,
    raw_rates,
)
from epsilometer.stats.thresholds import Best, HoldOut
from tests.conftest import cases

FLAKE = 1e-6
JOININGS: tuple[Joining, ...] = ("all", "any")
DELTA = 1e-5


def brute_force(inside: np.ndarray, outside: np.ndarray, joining: Joining, rates: Rates) -> float:
    """Every combination of values that occur, and of one above them all."""
    pooled = np.vstack([inside, outside])
    columns = [np.append(np.unique(column), np.inf) for column in pooled.T]
    best = -math.inf
    join = np.all if joining == "all" else np.any
    for thresholds in product(*columns):
        hits = int(join(inside >= thresholds, axis=1).sum())
        alarms = int(join(outside >= thresholds, axis=1).sum())
        best = max(best, float(rates.worth(np.array(len(inside) - hits), np.array(alarms))))
    return max(0.0, best)


def made(rng: np.random.Generator, *, n_in: int, n_out: int, k: int, shift: float) -> tuple:
    """Correlated statistics, half the time with many ties."""
    mixing = np.eye(k) + rng.uniform(0, 0.8, (k, k))
    inside, outside = ((rng.normal(size=(n, k)) @ mixing) for n in (n_in, n_out))
    inside = inside + shift * rng.uniform(0, 1.5, k)
    if rng.random() < 0.5:
        return inside.round(), outside.round()
    return inside, outside


@pytest.mark.parametrize("joining", JOININGS)
def test_two_thresholds_are_the_best_there_are(joining: Joining, rng: np.random.Generator) -> None:
    for _ in range(120):
        n_in, n_out = (int(n) for n in rng.integers(1, 14, 2))
        inside, outside = made(rng, n_in=n_in, n_out=n_out, k=2, shift=1.0)
        rates = rng.choice(
            [
                limited_rates(n_in, n_out, delta=DELTA, alpha=0.05),
                raw_rates(n_in, n_out, delta=DELTA, least=1 / max(n_in, n_out)),
            ]
        )
        found = best_thresholds(inside, outside, joining=joining, rates=rates)
        assert found.epsilon == pytest.approx(brute_force(inside, outside, joining, rates))
        missed = int((~found.decides(inside)).sum())
        alarms = int(found.decides(outside).sum())
        worth = float(rates.worth(np.array(missed), np.array(alarms)))
        assert max(0.0, worth) == pytest.approx(found.epsilon)  # the thresholds do what they say


@pytest.mark.parametrize("joining", JOININGS)
@pytest.mark.parametrize(("k", "most", "repeats"), [(3, 9, 30), (4, 6, 12)])
def test_three_and_four_are_nearly_so(
    joining: Joining, k: int, most: int, repeats: int, rng: np.random.Generator
) -> None:
    for _ in range(repeats):
        n_in, n_out = (int(n) for n in rng.integers(3, most, 2))
        inside, outside = made(rng, n_in=n_in, n_out=n_out, k=k, shift=1.0)
        rates = limited_rates(n_in, n_out, delta=DELTA, alpha=0.2)
        found = best_thresholds(inside, outside, joining=joining, rates=rates)
        truth = brute_force(inside, outside, joining, rates)
        assert 0.99 * truth <= found.epsilon <= truth + 1e-9


def tabled(inside: np.ndarray, outside: np.ndarray, joining: Joining, rates: Rates) -> float:
    """Brute force of three or four statistics as one table of counts, for some forty runs."""
    if joining == "any":
        return tabled(-outside, -inside, "all", rates.opposite)
    values = [np.unique(column) for column in inside.T]
    counts = []
    for known in (inside, outside):
        places = [
            np.searchsorted(value, column, "right") - 1
            for value, column in zip(values, known.T, strict=True)
        ]
        kept = np.stack(places, 1)
        table = np.zeros([value.size for value in values], np.int64)
        np.add.at(table, tuple(kept[(kept >= 0).all(1)].T), 1)
        for axis in range(table.ndim):
            table = np.flip(np.flip(table, axis).cumsum(axis), axis)
        counts.append(table)
    return max(0.0, float(rates.worth(len(inside) - counts[0], counts[1]).max()))


@pytest.mark.parametrize("joining", JOININGS)
@pytest.mark.parametrize(("k", "repeats"), [(3, 40), (4, 8)])
def test_forty_runs_too(joining: Joining, k: int, repeats: int, rng: np.random.Generator) -> None:
    for _ in range(repeats):
        inside, outside = made(rng, n_in=40, n_out=40, k=k, shift=rng.uniform(0, 1.5))
        rates = limited_rates(40, 40, delta=DELTA, alpha=0.05)
        found = best_thresholds(inside, outside, joining=joining, rates=rates)
        truth = tabled(inside, outside, joining, rates)
        assert 0.99 * truth <= found.epsilon <= truth + 1e-9


@pytest.mark.parametrize(("inputs", "expected"), cases("c09"))
@pytest.mark.parametrize("joining", JOININGS)
def test_reference_cases(inputs: dict, expected: dict, joining: Joining) -> None:
    rng = np.random.default_rng(inputs["seed"])
    n_in, n_out, k = inputs["n_Dprime"], inputs["n_D"], inputs["k"]
    inside = rng.normal(inputs["shift"], 1, (n_in, k))
    outside = rng.normal(0, 1, (n_out, k))
    if inputs["decimals"] is not None:
        inside, outside = inside.round(inputs["decimals"]), outside.round(inputs["decimals"])
    prefix = "and" if joining == "all" else "or"
    every = {
        "raw": raw_rates(n_in, n_out, delta=inputs["delta"]),
        "cp@0.05": limited_rates(n_in, n_out, delta=inputs["delta"], alpha=0.05),
        "cp@0.025": limited_rates(n_in, n_out, delta=inputs["delta"], alpha=0.025),
        "jeffreys@0.05": Rates(
            jeffreys_upper(np.arange(n_in + 1), n_in, alpha=0.05),
            jeffreys_upper(np.arange(n_out + 1), n_out, alpha=0.05),
            inputs["delta"],
        ),
    }
    for name, rates in every.items():
        found = best_thresholds(inside, outside, joining=joining, rates=rates)
        assert found.epsilon == pytest.approx(float(expected[f"{prefix}_{name}"]), rel=1e-8)


def test_a_long_table_is_made_in_pieces(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = made(rng, n_in=60, n_out=50, k=2, shift=1.0)
    rates = limited_rates(60, 50, delta=DELTA, alpha=0.05)
    whole = best_thresholds(inside, outside, joining="all", rates=rates)
    monkeypatch.setattr(joint_thresholds, "_CELLS", 100)
    assert best_thresholds(inside, outside, joining="all", rates=rates).epsilon == whole.epsilon


def null_audits(
    rng: np.random.Generator, k: int, joining: Joining, rule: HoldOut | Best, repeats: int
) -> np.ndarray:
    """Bounds where training ignores the record: correlated statistics of one law."""
    found = []
    for seed in range(repeats):
        inside, outside = made(rng, n_in=50, n_out=50, k=k, shift=0.0)
        bound = joint_bound(inside, outside, joining=joining, delta=DELTA, rule=rule, seed=seed)
        assert bound.valid == isinstance(rule, HoldOut)
        found.append(bound.epsilon)
    return np.array(found)


@pytest.mark.parametrize("joining", JOININGS)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.simulation
def test_false_alarms_are_at_most_five_in_a_hundred(
    k: int, joining: Joining, rng: np.random.Generator
) -> None:
    repeats = 1000
    wrong = int((null_audits(rng, k, joining, HoldOut(0.5), repeats) > 0).sum())
    assert scipy.stats.binomtest(wrong, repeats, 0.05, "greater").pvalue > FLAKE


@pytest.mark.slow
@pytest.mark.parametrize("joining", JOININGS)
@pytest.mark.parametrize("k", [3, 4])
def test_false_alarms_with_more_statistics(
    k: int, joining: Joining, rng: np.random.Generator
) -> None:
    repeats = 1000
    wrong = int((null_audits(rng, k, joining, HoldOut(0.5), repeats) > 0).sum())
    assert scipy.stats.binomtest(wrong, repeats, 0.05, "greater").pvalue > FLAKE


@pytest.mark.parametrize("joining", JOININGS)
def test_the_unpaid_best_is_wrong_nearly_always(joining: Joining, rng: np.random.Generator) -> None:
    """The classic mistake: thresholds chosen on the runs they are judged by."""
    assert (null_audits(rng, 2, joining, Best(), 100) > 0.5).mean() > 0.5


@pytest.mark.parametrize("joining", JOININGS)
def test_a_known_leak_is_found_and_never_exceeded(
    joining: Joining, rng: np.random.Generator
) -> None:
    """Two answers of randomised response with ε = 2 each: together 4, and "all" finds it."""
    truth, runs = 4.0, 2000
    right = math.exp(2) / (1 + math.exp(2))
    found = []
    for seed in range(60):
        inside = (rng.random((runs, 2)) < right).astype(float)
        outside = (rng.random((runs, 2)) > right).astype(float)
        bound = joint_bound(inside, outside, joining=joining, delta=0.0, seed=seed)
        found.append(bound.epsilon)
    assert np.mean(np.array(found) > truth) <= 0.15
    assert np.median(found) > 0.75 * truth


def test_a_statistic_without_information_does_no_harm(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(2, 1, (200, 2)), rng.normal(0, 1, (200, 2))
    inside[:, 1] = outside[:, 1] = 0.0  # the spread of a single sample
    rates = limited_rates(200, 200, delta=DELTA, alpha=0.05)
    both = best_thresholds(inside, outside, joining="all", rates=rates)
    one = best_thresholds(inside[:, :1], outside[:, :1], joining="all", rates=rates)
    assert both.epsilon == one.epsilon > 0


@pytest.mark.parametrize(
    ("inside", "outside", "told"),
    [
        ([1.0, 2.0], [1.0, 2.0], "shape"),
        ([[1.0, 2.0]], [[1.0]], "shape"),
        ([[1.0, np.nan]], [[1.0, 2.0]], "finite"),
        ([[1.0, np.inf]], [[1.0, 2.0]], "−spread"),
        ([[1.0]], [[1.0]], "two runs"),
        (np.zeros((0, 2)), [[1.0, 2.0]], "shape"),
    ],
)
def test_bad_statistics_are_refused(inside: list, outside: list, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        joint_bound(inside, outside, joining="all", delta=DELTA)
