import math
from itertools import product

import numpy as np
import pytest
import scipy.stats

from epsilometer.errors import InvalidArgument
from epsilometer.stats import joint_thresholds
from epsilometer.stats.binomial import upper_limit
from epsilometer.stats.joint_thresholds import (
    Joining,
    Rates,
    best_thresholds,
    joint_bound,
    limit_rates,
    raw_rates,
)
from epsilometer.stats.thresholds import Best, HoldOut
from tests.conftest import cases, run_often

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
                limit_rates(n_in, n_out, delta=DELTA, alpha=0.05),
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
@pytest.mark.parametrize(("k", "most", "repeats"), [(3, 9, 12), (4, 6, 6)])
def test_three_and_four_are_nearly_so(
    joining: Joining, k: int, most: int, repeats: int, rng: np.random.Generator
) -> None:
    for _ in range(repeats):
        n_in, n_out = (int(n) for n in rng.integers(3, most, 2))
        inside, outside = made(rng, n_in=n_in, n_out=n_out, k=k, shift=1.0)
        rates = limit_rates(n_in, n_out, delta=DELTA, alpha=0.2)
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
@pytest.mark.parametrize(("k", "repeats"), [(3, 20), (4, 2)])
def test_forty_runs_too(joining: Joining, k: int, repeats: int, rng: np.random.Generator) -> None:
    for _ in range(repeats):
        inside, outside = made(rng, n_in=40, n_out=40, k=k, shift=rng.uniform(0, 1.5))
        rates = limit_rates(40, 40, delta=DELTA, alpha=0.05)
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
        "cp@0.05": limit_rates(n_in, n_out, delta=inputs["delta"], alpha=0.05),
        "cp@0.025": limit_rates(n_in, n_out, delta=inputs["delta"], alpha=0.025),
        "jeffreys@0.05": Rates(
            upper_limit(np.arange(n_in + 1), n_in, alpha=0.05, kind="jeffreys")[0],
            upper_limit(np.arange(n_out + 1), n_out, alpha=0.05, kind="jeffreys")[0],
            inputs["delta"],
        ),
    }
    for name, rates in every.items():
        found = best_thresholds(inside, outside, joining=joining, rates=rates)
        assert found.epsilon == pytest.approx(float(expected[f"{prefix}_{name}"]), rel=1e-8)


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


@pytest.mark.parametrize("joining", run_often(JOININGS, ["all"]))
@pytest.mark.parametrize("k", [1, pytest.param(2, marks=pytest.mark.slow)])
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
    rates = limit_rates(200, 200, delta=DELTA, alpha=0.05)
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


@pytest.mark.parametrize("cells", [1, 17, 100])
@pytest.mark.parametrize("joining", JOININGS)
def test_pieces_of_any_size_give_the_same_thresholds(
    cells: int, joining: Joining, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        inside, outside = made(rng, n_in=15, n_out=12, k=2, shift=1.0)
        rates = limit_rates(15, 12, delta=DELTA, alpha=0.05)
        whole = best_thresholds(inside, outside, joining=joining, rates=rates)
        with monkeypatch.context() as patched:
            patched.setattr(joint_thresholds, "_CELLS", cells)
            pieces = best_thresholds(inside, outside, joining=joining, rates=rates)
        assert pieces.epsilon == whole.epsilon


@pytest.mark.parametrize(("k", "least"), [(3, 0.9), (4, 0.7)])
def test_few_tries_are_climbed_from(
    k: int, least: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two values tried of each further threshold only climbing comes near the best."""
    monkeypatch.setattr(joint_thresholds, "_TRIES", 1)
    reached = []
    for _ in range(15):
        inside, outside = made(rng, n_in=20, n_out=20, k=k, shift=1.0)
        rates = limit_rates(20, 20, delta=DELTA, alpha=0.05)
        found = best_thresholds(inside, outside, joining="all", rates=rates)
        truth = tabled(inside, outside, "all", rates)
        missed = int((~found.decides(inside)).sum())
        alarms = int(found.decides(outside).sum())
        worth = float(rates.worth(np.array(missed), np.array(alarms)))
        assert max(0.0, worth) == pytest.approx(found.epsilon)
        assert found.epsilon <= truth + 1e-9
        reached.append(found.epsilon / truth if truth else 1.0)
    assert np.mean(reached) > least


def test_what_is_tried_spans_all_values() -> None:
    inside = np.stack([np.arange(3701.0)] * 4, axis=1)
    assert len(list(joint_thresholds._list_others(inside[:50, :3]))) == 50  # all of them
    tried = list(joint_thresholds._list_others(inside[:130]))
    assert len(tried) == 44**2  # of at most 2,000
    assert tried[0].tolist() == [0.0, 0.0]
    assert tried[-1].tolist() == [129.0, 129.0]
    assert [two for one, two in tried if one == 0] == list(range(0, 130, 3))
    # Tables of 3,701² cells: there is time for nine.
    assert len(list(joint_thresholds._list_others(inside))) == 9
    assert len(list(joint_thresholds._list_others(inside[:, :3]))) == 9


@pytest.mark.parametrize("joining", JOININGS)
def test_one_statistic_has_one_threshold(joining: Joining) -> None:
    inside, outside = [[1.0], [2.0], [3.0], [4.0]], [[0.0], [0.5], [1.5], [0.7]]
    rates = raw_rates(4, 4, delta=0.2, least=0.01)
    found = best_thresholds(inside, outside, joining=joining, rates=rates)
    assert len(found.thresholds) == 1
    right = found.decides(inside).sum(), found.decides(outside).sum()
    assert right in ((3, 0), (4, 1))
    assert found.epsilon == pytest.approx(math.log((0.75 - 0.2) / 0.01))


def test_rates_have_an_entry_for_every_count() -> None:
    raw = raw_rates(4, 2, delta=0.1, least=0.3)
    assert raw.fnr.tolist() == [0.3, 0.3, 0.5, 0.75, 1.0]
    assert raw.fpr.tolist() == [0.3, 0.5, 1.0]
    limited = limit_rates(4, 2, delta=0.1, alpha=0.05)
    assert (limited.fnr.size, limited.fpr.size) == (5, 3)
    assert limited.fpr == pytest.approx([scipy.stats.beta.isf(0.05, 1, 2), 0.9747, 1.0], abs=1e-4)


def test_a_run_beyond_all_others_is_worth_infinity_without_a_floor() -> None:
    rates = raw_rates(3, 3, delta=0.0)
    apart = best_thresholds([[2.0, 2.0]] * 3, [[1.0, 1.0]] * 3, joining="all", rates=rates)
    assert apart.epsilon == math.inf
    alike = best_thresholds([[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3, joining="all", rates=rates)
    assert alike.epsilon == 0.0


def test_bounds_say_what_they_are_and_are_of_what_was_held_out(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(2, 1, (60, 2)), rng.normal(0, 1, (80, 2))
    knobs = {"delta": 0.01, "confidence": 0.8, "adversary": "mine", "adjacency": "add_remove"}
    for joining in JOININGS:
        found = joint_bound(inside, outside, joining=joining, rule=HoldOut(0.25), seed=3, **knobs)
        split = np.random.default_rng(3)
        orders = split.permutation(60), split.permutation(80)
        chosen, used = zip(
            (inside[orders[0][:15]], inside[orders[0][15:]]),
            (outside[orders[1][:20]], outside[orders[1][20:]]),
            strict=True,
        )
        rates = limit_rates(15, 20, delta=0.01, alpha=0.1)
        decision = best_thresholds(*chosen, joining=joining, rates=rates)
        missed = int((~decision.decides(used[0])).sum())
        alarms = int(decision.decides(used[1]).sum())
        of_used = limit_rates(45, 60, delta=0.01, alpha=0.1)
        worth = float(of_used.worth(np.array(missed), np.array(alarms)))
        assert found.epsilon == pytest.approx(max(0.0, worth))
        assert found.threshold_rule == f"HoldOut(fraction=0.25), {joining} of 2 statistics"
        assert (found.n_in, found.n_out, found.seed) == (45, 60, 3)
        assert (found.adversary, found.adjacency) == ("mine", "add_remove")
        assert (found.delta, found.confidence, found.valid) == (0.01, 0.8, True)
    plain = joint_bound(inside, outside, joining="all", delta=0.01)
    assert (plain.seed, plain.adversary, plain.adjacency) == (0, "unstated", "unstated")
    assert plain.confidence == 0.95
    assert plain == joint_bound(inside, outside, joining="all", delta=0.01)


@pytest.mark.parametrize("joining", JOININGS)
def test_the_papers_is_the_most_that_counts_are_worth_floored_at_one_run(
    joining: Joining, rng: np.random.Generator
) -> None:
    inside, outside = made(rng, n_in=9, n_out=7, k=2, shift=1.5)
    found = joint_bound(inside, outside, joining=joining, delta=DELTA, rule=Best())
    rates = raw_rates(9, 7, delta=DELTA, least=1 / 7)
    assert found.epsilon == pytest.approx(brute_force(inside, outside, joining, rates))
    assert not found.valid
    assert "not accounted for" in found.caveats[0]


def test_statistics_of_two_runs_are_split_and_whole_numbers_will_do() -> None:
    two = [[1, 0], [2, 1]]
    found = joint_bound(two, two, joining="all", delta=DELTA)
    assert (found.n_in, found.n_out, found.epsilon) == (1, 1, 0.0)
    with pytest.raises(InvalidArgument, match="shape"):
        joint_bound([[1.0]] * 3, [[1.0, 2.0]] * 3, joining="all", delta=DELTA)
    with pytest.raises(InvalidArgument, match="two runs"):
        joint_bound(two, two, joining="all", delta=DELTA, rule=HoldOut(0.9))
