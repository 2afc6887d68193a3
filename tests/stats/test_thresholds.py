import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.rules import Best, Bonferroni, Fixed, HoldOut, RankGrid
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
    odd = np.where(index % 2, -index, index)  # in an order of their own
    rng = np.random.default_rng(seed)
    _, kept = thresholds.split(Scores(odd, odd), 0.3, rng, blind=blind)
    before = np.random.default_rng(seed).normal(size=(2, 40))
    after = before.copy()
    after[0, np.abs(kept.inside).astype(int)] += 10
    after[1, np.abs(kept.outside).astype(int)] -= 10
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
    cuts = thresholds.cuts(scores, alpha_each=0.05)
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
    cuts = thresholds.cuts(scores, alpha_each=0.05)
    pieces = {
        (int(p), int(n)) for p, n in zip(cuts.false_positives, cuts.false_negatives, strict=True)
    }
    for upper in range(cuts.thresholds.size - 1):
        looks = thresholds.corners(scores, cuts, upper=upper, lower=upper + 1)
        pieces |= {
            *zip(looks.false_positives.tolist(), looks.false_negatives.tolist(), strict=True)
        }
    for threshold in thresholds.just_above(np.unique(scores.outside)):
        fp, fn = scores.errors_at(float(threshold))
        assert any(a <= fp and b <= fn for a, b in pieces)


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


@pytest.mark.parametrize("blind", [False, True])
def test_a_split_takes_its_fraction_and_loses_nobody(blind: bool) -> None:
    inside, outside = np.arange(20.0), 100 + np.arange(31.0)
    part, rest = thresholds.split(
        Scores(inside, outside), 0.3, np.random.default_rng(0), blind=blind
    )
    assert sorted([*part.inside, *rest.inside]) == inside.tolist()
    assert sorted([*part.outside, *rest.outside]) == outside.tolist()
    assert part.n_in + part.n_out == 15
    if not blind:
        assert (part.n_in, part.n_out) == (6, 9)


def test_two_of_each_can_be_split_and_fewer_cannot() -> None:
    for fraction in (0.01, 0.5, 0.99):
        part, rest = thresholds.split(
            Scores([1.0, 2.0], [3.0, 4.0]), fraction, np.random.default_rng(0)
        )
        assert (part.n_in, part.n_out, rest.n_in, rest.n_out) == (1, 1, 1, 1)
        many, few = thresholds.split(
            Scores(np.arange(9.0), np.arange(9.0)), fraction, np.random.default_rng(0)
        )
        assert {many.n_in, few.n_in} == ({4, 5} if fraction == 0.5 else {1, 8})
    for inside, outside in (([1.0], [2.0, 3.0]), ([1.0, 2.0], [3.0])):
        with pytest.raises(InvalidArgument, match="at least two"):
            thresholds.split(Scores(inside, outside), 0.3, np.random.default_rng(0))


def test_a_rank_grid_of_counts_pays_for_both_limits_of_every_look() -> None:
    scores = Scores(np.arange(40.0) + 7, np.arange(50.0))
    looks = thresholds.rank_looks(scores, RankGrid(), alpha=0.06)
    assert looks.thresholds.size == 6  # 1, 4 and 16 from either end
    assert looks.alpha_fpr == looks.alpha_fnr == pytest.approx(0.06 / 12)
    assert looks.false_positives[:3].tolist() == [0, 3, 15]
    assert looks.false_negatives[3:].tolist() == [0, 3, 15]
    for at in range(6):
        fp, fn = scores.errors_at(looks.thresholds[at])
        assert (looks.false_positives[at], looks.false_negatives[at]) == (fp, fn)


@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(2, 4),
)
def test_ranks_of_counts_are_those_of_the_bins(inside: list, outside: list, ratio: int) -> None:
    """A bin as a score: its lower edge, or below all of them."""
    if not (sum(inside) and sum(outside)):
        return
    counts = ScoreCounts([1.0, 2.0, 3.0], inside, outside)
    scores = Scores(*(np.repeat([0.0, 1.0, 2.0, 3.0], bins) for bins in (inside, outside)))
    for side, ranked, other, sign in zip(
        thresholds.rank_grid(counts, RankGrid(ratio)),
        (scores.outside, scores.inside),
        (scores.inside, scores.outside),
        (1, -1),
        strict=True,
    ):
        ranks = thresholds.grid(ranked.size, ratio)
        fixed = side.ranks[: ranks.size]
        assert fixed.tolist() == ranks.tolist()
        ordered = np.sort(ranked)[::-sign]
        for at, (threshold, rank, beyond) in enumerate(
            zip(side.thresholds, side.ranks, side.beyond, strict=True)
        ):
            cut = max(threshold, 0.0)  # the lowest bin has no lower edge
            past = ranked >= cut if sign > 0 else ranked < cut
            assert past.sum() <= rank - 1
            assert beyond == (other >= cut if sign > 0 else other < cut).sum()
            if at < ranks.size:  # no cut further in would leave only scores beyond the rank
                value = ordered[rank - 1]
                assert past.sum() == (ranked > value if sign > 0 else ranked < value).sum()


def test_defaults_of_a_split_are_of_both_sides_apart() -> None:
    scores = Scores(np.zeros(10), np.ones(90))
    for seed in range(20):
        part, _ = thresholds.split(scores, 0.3, np.random.default_rng(seed))
        assert (part.n_in, part.n_out) == (3, 27)


@pytest.mark.parametrize("copies", [1, 300])  # 300: more than are sampled
@given(
    values=st.lists(st.integers(-6, 6).map(float) | st.floats(-9, 9), min_size=1, max_size=80),
    ratio=st.integers(2, 4),
    from_above=st.booleans(),
)
def test_extremes_are_those_of_sorting(
    copies: int, values: list, ratio: int, from_above: bool
) -> None:
    """Whatever the sample says of where they lie: it may be odd."""
    array = np.tile(values, copies)
    ranks = thresholds.grid(array.size, ratio)
    found, tied = thresholds.extremes(array.copy(), ranks, from_above=from_above)
    ordered = np.sort(array)[::-1] if from_above else np.sort(array)
    assert found.tolist() == ordered[ranks - 1].tolist()
    for rank, value, equal in zip(ranks[:-1], found, tied, strict=False):
        assert equal == (np.count_nonzero(ordered[:rank] == value) > 1)
    assert tied[-1] == (np.count_nonzero(array == found[-1]) > 1)
    assert tied.size == ranks.size


def test_extremes_of_many_in_order_and_of_few_apart() -> None:
    """A sample of every third score that never sees the others."""
    many = np.arange(50_000.0)
    odd = np.where(np.arange(50_000) % 3 == 0, 0.0, many)
    for values in (many, many[::-1], odd, -odd):
        for from_above in (True, False):
            ranks = thresholds.grid(values.size, 4)
            found, _ = thresholds.extremes(values.copy(), ranks, from_above=from_above)
            ordered = np.sort(values)[::-1] if from_above else np.sort(values)
            assert found.tolist() == ordered[ranks - 1].tolist()


@pytest.mark.parametrize("size", [1, 50, 2**15, 2**15 + 1, 100_000])
def test_all_blocks_are_counted(size: int) -> None:
    values, cuts = np.arange(size) % 13.0, np.array([-np.inf, 0.0, 5.0, 5.5, 12.0, np.inf])
    found = thresholds._count_below(values, cuts)
    assert found.tolist() == [int((values < cut).sum()) for cut in cuts]


def test_shares_of_a_rank_grid_are_an_eighth_for_ties() -> None:
    scores = Scores([0.0] * 9 + [1.0] * 11, np.arange(32.0))
    above, below = thresholds.rank_grid(scores, RankGrid())
    assert above.ranks.tolist() == [1, 4, 16]
    assert above.share == pytest.approx([7 / 8 / 6] * 3)
    assert above.thresholds.tolist() == thresholds.just_above(np.array([31.0, 28, 16])).tolist()
    ends = {"0": 1, "just above 0": 10}  # scores below either end of the zeros, plus one
    assert below.ranks.tolist()[:2] == [1, 4]
    groups = sorted(below.ranks.tolist()[2:])
    assert groups == sorted(ends.values())
    shares = dict(zip(below.ranks.tolist()[2:], below.share[2:], strict=True))
    for rank, share in shares.items():
        assert share == pytest.approx(1 / 8 / (2 * rank * (1 + np.log(20))))


@pytest.mark.parametrize("corrected", [False, True])
def test_cuts_pay_for_all_thresholds_or_for_one(corrected: bool) -> None:
    scores = Scores(np.arange(8.0), np.arange(5.0))
    cuts = thresholds.cuts(scores, alpha_each=0.1, corrected=corrected)
    assert cuts.alpha_fpr == pytest.approx(0.1 / (5 if corrected else 1))
    assert cuts.alpha_fnr == pytest.approx(0.1 / (8 if corrected else 1))
    assert (cuts.thresholds[0], cuts.thresholds[-1]) == (np.inf, -np.inf)
    counts = ScoreCounts.at([1.0, 3.0]).add(inside=scores.inside, outside=scores.outside)
    counted = thresholds.cuts(counts, alpha_each=0.1, corrected=corrected)
    assert counted.thresholds.tolist() == [np.inf, 3.0, 1.0, -np.inf]
    assert counted.false_positives.tolist() == [0, 2, 4, 5]
    assert counted.false_negatives.tolist() == [8, 3, 1, 0]
    assert counted.alpha_fpr == pytest.approx(0.1 / (2 if corrected else 1))
    assert counted.alpha_fnr == pytest.approx(0.1 / (2 if corrected else 1))
    between = thresholds.corners(counts, counted, upper=0, lower=3)
    assert between.thresholds.size == 0


def test_a_fixed_look_is_at_its_threshold_for_half_of_the_error_each() -> None:
    looks = thresholds.fixed(Scores([1.0, 2.0, 3.0], [0.0, 2.0]), 2.0, alpha=0.1)
    assert looks.thresholds.tolist() == [2.0]
    assert (looks.false_positives.tolist(), looks.false_negatives.tolist()) == ([1], [1])
    assert (looks.n_in, looks.n_out, looks.alpha_fpr, looks.alpha_fnr) == (3, 2, 0.05, 0.05)


def test_counts_below_are_of_either_sample() -> None:
    scores = Scores([1.0, 2.0, 3.0], [0.0, 2.0])
    counts = ScoreCounts.at([1.0, 2.0, 3.0]).add(inside=scores.inside, outside=scores.outside)
    for observed in (scores, counts):
        for outside, below in ((True, [0, 1, 1, 2]), (False, [0, 0, 1, 2])):
            cuts = np.array([-np.inf, 1.0, 2.0, 3.0])
            found = thresholds.count_below(observed, cuts, outside=outside)
            assert found.tolist() == below
