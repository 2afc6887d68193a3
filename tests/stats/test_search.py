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
