"""Sorted scores, and the default seed that everybody shares."""

import numpy as np
import pytest

import epsilometer as em
from epsilometer import ScoreCounts, Scores
from epsilometer.stats import guess_counts
from epsilometer.stats.shared_seeds import is_sorted, mix_sorted
from tests import oracles

AUDITS = 120


def count_false_bounds(size: int) -> int:
    """Null canaries of a fixed number inside, in files that are sorted by score."""
    wrong = 0
    for audit in range(AUDITS):
        rng = np.random.default_rng([audit, size])
        sides = (np.sort(rng.normal(size=size)) for _ in range(2))
        wrong += em.epsilon_lower_bound(Scores(*sides, design="fixed"), delta=0.0).epsilon > 0
    return wrong


@pytest.mark.parametrize("size", [476, 604])
def test_the_default_seed_is_lucky_for_nobody(size: int) -> None:
    assert not oracles.too_often(count_false_bounds(size), AUDITS)


def test_the_same_ranks_for_everybody_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guess_counts, "mix_sorted", lambda rng, observed: rng)
    assert oracles.too_often(count_false_bounds(604), AUDITS)


def test_the_stream_knows_the_scores_but_not_who_was_in() -> None:
    def draw(inside: list[float], outside: list[float]) -> float:
        return float(mix_sorted(np.random.default_rng(3), Scores(inside, outside)).random())

    assert draw([1.0, 4.0], [2.0, 3.0]) == draw([3.0, 4.0], [1.0, 2.0]) == draw([3, 2], [4, 1])
    assert draw([1.0, 4.0], [2.0, 3.0]) != draw([1.0, 4.0], [2.0, 3.5])


def test_scores_in_an_order_of_their_own_keep_the_stream() -> None:
    rng = np.random.default_rng(0)
    for sides in (([1.0, 3.0, 2.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 3.0, 2.0])):
        assert mix_sorted(rng, Scores(*sides)) is rng
    assert mix_sorted(rng, ScoreCounts.at([0.0])) is not rng  # counts have no order


@pytest.mark.parametrize(
    ("side", "answer"),
    [([1, 2, 2, 3], True), ([3, 2, 2, 1], True), ([1, 1], True), ([1, 2, 1], False), ([1], True)],
)
def test_sorted_scores_rise_or_fall(side: list[float], answer: bool) -> None:
    assert is_sorted(np.array(side)) is answer
