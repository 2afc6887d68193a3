import numpy as np
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
