import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import Best, Bonferroni, Fixed, HoldOut, RankGrid, ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import thresholds

tied = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=60)


@given(tied, tied)
def test_ranks_and_what_lies_beyond(inside: list, outside: list) -> None:
    scores = Scores(inside, outside)
    above, below = thresholds.rank_grid(scores, RankGrid())
    for side, ranked, other, sign in (
        (above, scores.outside, scores.inside, 1),
        (below, scores.inside, scores.outside, -1),
    ):
        assert side.n_ranked == ranked.size
        assert side.share.min() > 0
        for threshold, rank, beyond in zip(side.thresholds, side.ranks, side.beyond, strict=True):
            past = ranked >= threshold if sign > 0 else ranked < threshold
            assert past.sum() <= rank - 1  # ties can only leave fewer beyond a rank
            assert beyond == (other >= threshold if sign > 0 else other < threshold).sum()
    assert above.share.sum() + below.share.sum() <= 1 + 1e-12


@given(st.integers(1, 10**7), st.integers(2, 9))
def test_grid_is_of_powers_up_to_half(n: int, ratio: int) -> None:
    grid = thresholds.grid(n, ratio)
    assert grid[0] == 1
    assert np.all(grid[1:] == ratio * grid[:-1])
    assert grid[-1] <= max(n / 2, 1) < max(grid[-1] * ratio, 2)


@pytest.mark.simulation
def test_rank_of_a_continuous_law_is_beta(rng: np.random.Generator) -> None:
    n, rank_at = 50, 2  # the third rank of the grid is 16
    fpr = []
    for _ in range(4000):
        above, _ = thresholds.rank_grid(Scores([0.0], rng.random(n)), RankGrid())
        fpr.append(1 - above.thresholds[rank_at])
    law = scipy.stats.beta(above.ranks[rank_at], n - above.ranks[rank_at] + 1)
    assert scipy.stats.kstest(fpr, law.cdf).pvalue > 1e-6


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_hold_out_threshold_ignores_the_scores_it_is_used_on(seed: int, blind: bool) -> None:
    index = np.arange(40.0)
    rng = np.random.default_rng(seed)
    _, kept = thresholds.split(Scores(index, index), 0.3, rng, blind=blind)
    before = np.random.default_rng(seed).normal(size=(2, 40))
    after = before.copy()
    after[0, kept.inside.astype(int)] += 10
    after[1, kept.outside.astype(int)] -= 10
    parts = [
        thresholds.split(Scores(*values), 0.3, np.random.default_rng(seed), blind=blind)[0]
        for values in (before, after)
    ]
    np.testing.assert_array_equal(parts[0].inside, parts[1].inside)
    np.testing.assert_array_equal(parts[0].outside, parts[1].outside)


def test_a_blind_split_does_not_know_who_was_in(rng: np.random.Generator) -> None:
    """Of 30 inside and 70 outside a part of 50 has as many inside as chance gives it."""
    scores = Scores(np.zeros(30), np.ones(70))
    inside = [thresholds.split(scores, 0.5, rng, blind=True)[0].n_in for _ in range(2000)]
    law = scipy.stats.hypergeom(100, 30, 50)
    assert np.mean(inside) == pytest.approx(law.mean(), abs=6 * law.std() / np.sqrt(2000))
    assert np.std(inside) == pytest.approx(law.std(), rel=6 / np.sqrt(2 * 2000))


def _corners(scores: Scores) -> set[tuple[float, int, int]]:
    cuts = thresholds.cuts(scores, alpha=0.05, corrected=False)
    between = thresholds.corners(scores, cuts, upper=0, lower=cuts.thresholds.size - 1)
    return {
        (float(t), int(p), int(n))
        for looks in (cuts, between)
        for t, p, n in zip(
            looks.thresholds, looks.false_positives, looks.false_negatives, strict=True
        )
    }


@given(tied, tied)
def test_no_threshold_beats_the_corners(inside: list, outside: list) -> None:
    scores = Scores(inside, outside)
    corners = _corners(scores)
    assert all(scores.errors_at(t) == (p, n) for t, p, n in corners)
    for threshold in (*inside, *outside):
        fp, fn = scores.errors_at(threshold)
        assert any(a <= fp and b <= fn for _, a, b in corners)


def test_corners_between_cuts_are_those_of_the_whole(rng: np.random.Generator) -> None:
    scores = Scores(np.round(rng.normal(1, 1, 500), 1), np.round(rng.normal(0, 1, 700), 1))
    cuts = thresholds.cuts(scores, alpha=0.05, corrected=False)
    pieces = set()
    for upper in range(cuts.thresholds.size - 1):
        looks = thresholds.corners(scores, cuts, upper=upper, lower=upper + 1)
        pieces |= {float(t) for t in looks.thresholds}
    assert pieces == {float(t) for t in thresholds.just_above(np.unique(scores.outside))}


def test_infinite_scores_keep_their_order() -> None:
    scores = Scores([np.inf, np.inf, 1.0, -np.inf], [np.inf, 0.0, -np.inf])
    above, below = thresholds.rank_grid(scores, RankGrid())
    assert above.beyond[0] == 0  # nobody exceeds +inf
    assert below.beyond[0] == 0  # nobody falls below -inf
    assert scores.errors_at(np.inf) == (1, 2)


def test_counts_look_like_scores_rounded_down_to_their_bin(rng: np.random.Generator) -> None:
    cuts = np.linspace(-2, 3, 21)
    scores = Scores(rng.normal(1, 1, 400), rng.normal(0, 1, 300))
    counts = ScoreCounts.at(cuts).add(inside=scores.inside, outside=scores.outside)
    for cut in cuts:
        assert counts.errors_at(cut) == scores.errors_at(cut)
    for side, ranked in zip(
        thresholds.rank_grid(counts, RankGrid()), (scores.outside, scores.inside), strict=True
    ):
        assert side.n_ranked == ranked.size
        assert side.share.sum() <= 0.5 + 1e-12


@pytest.mark.parametrize(
    "rule",
    [
        lambda: Fixed(float("nan")),
        lambda: HoldOut(0.0),
        lambda: HoldOut(1.0),
        lambda: RankGrid(1),
        lambda: RankGrid(2.5),  # type: ignore[arg-type]
    ],
)
def test_bad_rules_are_told(rule) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match="Expected"):
        rule()


def test_rules_say_who_they_are() -> None:
    rules = [RankGrid(), HoldOut(), Bonferroni(), Fixed(1.0), Best()]
    assert [repr(rule) for rule in rules] == [
        "RankGrid(ratio=4)",
        "HoldOut(fraction=0.3)",
        "Bonferroni()",
        "Fixed(value=1.0)",
        "Best()",
    ]
