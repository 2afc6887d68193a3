import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.stats import search


@given(st.floats(1e-300, 1e300))
def test_bisect_ends_on_neighbours_around_the_point(point: float) -> None:
    low, high = search.bisect(lambda x: x < point, 0.0, 2e300 if point > 1e3 else 2e3)
    assert low < point <= high
    if 1e-3 < point < 1e3:
        assert np.nextafter(low, high) == high


def test_bisect_keeps_brackets_apart() -> None:
    points = np.array([0.1, 2.0, 3.7])
    low, high = search.bisect(lambda x: x < points, np.zeros(3), np.full(3, 10.0), relative=1e-6)
    assert np.all((low < points) & (points <= high) & (high - low <= 1e-6 * high))


@given(st.lists(st.floats(-1, 50), min_size=1, max_size=8))
def test_largest_refuted_is_that_of_the_best_look(points: list) -> None:
    reach = np.array(points)
    merit, look = search.largest_refuted(lambda m, at: m < reach[at], reach.size, limit=100.0)
    best = max(points)
    if best <= 0:
        assert merit == 0.0
    else:
        assert merit < best <= merit * (1 + 1e-8) + 1e-8
        assert reach[look] > merit


def test_bisect_takes_the_end_it_was_given_where_nothing_lies_between() -> None:
    low, high = search.bisect(lambda x: x < 0.5, 0.0, np.nextafter(0.0, 1.0))
    assert (low, high) == (0.0, np.nextafter(0.0, 1.0))


def test_grow_doubles_until_false_or_beyond_the_limit() -> None:
    points = np.array([0.5, 5.0, 1e9])
    assert search.grow(lambda x: x < points, np.ones(3), limit=100.0).tolist() == [1.0, 8.0, 128.0]
    assert search.grow(lambda x: x <= 4.0, 1.0, limit=4.0) == 4.0


@given(st.floats(0.01, 9.9), st.floats(0.0, 5.0))
def test_root_brackets_the_root(point: float, bend: float) -> None:
    asked = []

    def excess(x: float) -> float:
        asked.append(x)
        return x - point + bend * (x - point) ** 3

    low, high = search.root(excess, 0.0, 10.0, relative=1e-9)
    assert low <= point <= high
    assert high - low <= 1e-9 * high
    assert len(asked) < 122


def test_root_of_a_smooth_function_takes_few_calls() -> None:
    asked = []

    def excess(x: float) -> float:
        asked.append(x)
        return float(np.expm1(x - 3.3))

    low, high = search.root(excess, 0.0, 10.0, relative=1e-9)
    assert low <= 3.3 < high
    assert excess(low) <= 0 < excess(high)
    assert len(asked) < 40


def test_largest_refuted_stops_at_the_limit_and_asks_about_many_at_once() -> None:
    asked = []

    def everything(merits: np.ndarray, at: np.ndarray) -> np.ndarray:
        asked.append(merits.size)
        return np.ones(merits.size, bool)

    merit, look = search.largest_refuted(everything, 3, limit=100.0)
    assert 100 <= merit < 256
    assert look == 0
    assert max(asked) <= 32
    nothing = search.largest_refuted(lambda m, at: np.zeros(m.size, bool), 3, limit=100.0)
    assert nothing == (0.0, 0)
    tiny, _ = search.largest_refuted(lambda m, at: m <= 0.0, 3, limit=100.0)
    assert tiny == 0.0


@pytest.mark.parametrize("point", [0.7, 1 / 3, 2.5, math.pi, 5.0, 7.9])
def test_bisect_halves_and_ends_where_numbers_do(point: float) -> None:
    asked = []

    def holds(x: np.ndarray) -> np.ndarray:
        asked.append(float(x))
        return x < point

    low, high = search.bisect(holds, 0.0, 8.0)
    assert np.nextafter(low, high) == high
    assert asked[:2] == [4.0, 6.0 if point > 4 else 2.0]
    assert len(asked) < 65  # 3 bits before the point, 53 of the number, and those below 1


def test_bisect_is_near_enough_at_what_was_asked_for() -> None:
    assert search.bisect(lambda x: x < 5.0, 4.0, 8.0, relative=0.5) == (4.0, 8.0)
    assert search.root(lambda x: x - 5.0, 4.0, 8.0, relative=0.5) == (4.0, 8.0)


def test_grow_takes_whole_numbers_beyond_the_largest_of_64_bits() -> None:
    def holds(x: np.ndarray) -> np.ndarray:
        assert x > 0
        return x < 2.0**70

    assert search.grow(holds, 1, limit=1e30) == 2.0**70


@pytest.mark.parametrize(
    "excess",
    [
        pytest.param(lambda x: x**3 - 30, id="bent up"),
        pytest.param(lambda x: math.log1p(x) - 1.4, id="bent down"),
    ],
)
def test_root_asks_as_the_illinois_rule_has_it(excess) -> None:  # type: ignore[no-untyped-def]
    """The chord's zero; an end that stays for a second time counts half."""
    asked: list[float] = []

    def watched(x: float) -> float:
        asked.append(x)
        return float(excess(x))

    search.root(watched, 0.0, 10.0, relative=1e-9)
    ends = {False: (0.0, excess(0.0)), True: (10.0, excess(10.0))}
    last = None
    for x in asked[2:8]:
        (low, f_low), (high, f_high) = ends[False], ends[True]
        assert x == pytest.approx(low - f_low * (high - low) / (f_high - f_low), rel=1e-9)
        above = excess(x) > 0
        if above == last:
            other, value = ends[not above]
            ends[not above] = other, value / 2
        ends[above], last = (x, excess(x)), above
    assert len(asked) < 20


def test_root_of_a_cliff_is_halved() -> None:
    """The chord ends where it began, at the top of the cliff."""
    low, high = search.root(lambda x: 1e-30 if x > 3 else -1.0, 0.0, 10.0, relative=1e-9)
    assert low <= 3 < high
    assert high - low <= 1e-9 * high


def test_merits_are_doubled_up_to_the_limit() -> None:
    merit, _ = search.largest_refuted(lambda m, at: np.ones(m.size, bool), 1, limit=1.0)
    assert 1 <= merit < 2


def test_a_merit_is_as_near_as_was_asked_for() -> None:
    assert search.largest_refuted(lambda m, at: m < 1.7, 1, limit=9.0, relative=0.5) == (1.0, 0)


@pytest.mark.parametrize("at_once", [1, 2, 32])
@pytest.mark.parametrize("point", [1 / 3, 1.7, math.pi])
def test_a_merit_is_no_nearer_than_numbers_are(point: float, at_once: int) -> None:
    calls = 0

    def refuted(merits: np.ndarray, at: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        assert calls < 100  # it ends
        return merits < point

    found, _ = search.largest_refuted(refuted, 1, limit=9.0, relative=0.0, at_once=at_once)
    assert found < point <= found * (1 + 1e-14)


def test_many_looks_are_asked_of_one_merit_at_a_time() -> None:
    asked = []

    def refuted(merits: np.ndarray, at: np.ndarray) -> np.ndarray:
        asked.append(merits.size)
        return merits < 1.7

    search.largest_refuted(refuted, 40, limit=9.0, at_once=32)
    assert set(asked) == {40}
