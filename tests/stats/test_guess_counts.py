"""Right guesses are counted as by hand, and ties are broken fairly."""

import numpy as np
import pytest
import scipy.stats

from epsilometer import ScoreCounts, Scores
from epsilometer.stats.guess_counts import count_right, count_right_pairs, pair_scores
from epsilometer.stats.guess_looks import Game, LookFamily

SIDES = ("in", "out", "both")


def count_by_hand(scores: Scores, family: LookFamily) -> np.ndarray:
    pooled = np.concatenate([scores.inside, scores.outside])
    member = np.append(np.ones(scores.n_in, bool), np.zeros(scores.n_out, bool))
    ranked = member[np.argsort(-pooled)]
    found = []
    for side, k in zip(family.sides, family.ranks, strict=True):
        top, bottom = ranked[:k].sum(), (~ranked[ranked.size - k :]).sum()
        found.append({"in": top, "out": bottom, "both": top + bottom}[str(side)])
    return np.array(found)


@pytest.mark.parametrize("inclusion", [0.5, 0.2])
def test_guesses_are_counted_as_by_hand(inclusion: float, rng: np.random.Generator) -> None:
    for canaries in (2, 7, 150):
        family = LookFamily(Game(canaries=canaries, inclusion=inclusion), 0.05)
        n_in = int(rng.integers(1, canaries))
        scores = Scores(rng.normal(1, 1, n_in), rng.normal(0, 1, canaries - n_in), design="coins")
        found = count_right(scores, family, rng)
        np.testing.assert_array_equal(found.right, count_by_hand(scores, family))
        assert not found.tied
        cuts = np.sort(np.concatenate([scores.inside, scores.outside]))
        counted = ScoreCounts.at(cuts, design="coins").add(
            inside=scores.inside, outside=scores.outside
        )
        again = count_right(counted, family, rng)
        np.testing.assert_array_equal(again.right, found.right)
        np.testing.assert_array_equal(again.high, found.high)


@pytest.mark.parametrize("counted", [False, True])
def test_equal_scores_are_ordered_at_random(counted: bool) -> None:
    """With three atoms the right guesses among the top k are hypergeometric within an atom."""
    inside, outside = np.repeat([2.0, 1.0, 0.0], [4, 9, 5]), np.repeat([2.0, 1.0, 0.0], [2, 8, 8])
    family = LookFamily(Game(canaries=36), 0.05)
    observed: Scores | ScoreCounts = Scores(inside, outside, design="coins")
    if counted:
        observed = ScoreCounts.at([0.5, 1.5], design="coins").add(inside=inside, outside=outside)
    draws = np.array(
        [count_right(observed, family, np.random.default_rng(seed)).right for seed in range(4000)]
    )
    for k, above, (of_in, of_out) in ((3, 0, (4, 2)), (14, 6, (9, 8))):
        look = np.flatnonzero((family.sides == "in") & (family.ranks == k))[0]
        law = scipy.stats.hypergeom(of_in + of_out, of_in, k - above)
        mean = law.mean() + (4 if above else 0)
        assert abs(draws[:, look].mean() - mean) < 5 * law.std() / np.sqrt(4000)
        assert draws[:, look].var() == pytest.approx(law.var(), rel=0.2)
    top, bottom, both = (draws[:, (family.sides == s) & (family.ranks == 18)][:, 0] for s in SIDES)
    np.testing.assert_array_equal(top + bottom, both)
    np.testing.assert_array_equal(top, bottom)  # the other 18 are the last 18


def test_pairs_are_counted_as_by_hand(rng: np.random.Generator) -> None:
    family = LookFamily(Game(canaries=60, paired=True), 0.05)
    scores = Scores(rng.normal(1, 1, 60), rng.normal(0, 1, 60), design="paired")
    differences = pair_scores(scores, rng)
    np.testing.assert_array_equal(differences, scores.inside - scores.outside)
    found = count_right_pairs(differences, family, rng)
    ranked = differences[np.argsort(-np.abs(differences))] > 0
    np.testing.assert_array_equal(found.right, [ranked[:k].sum() for k in family.ranks])


def test_diverged_pairs_are_ties_and_ties_are_coins() -> None:
    family = LookFamily(Game(canaries=300, paired=True), 0.05)
    everywhere = np.full(300, np.inf)
    rng = np.random.default_rng(0)
    differences = pair_scores(Scores(everywhere, everywhere, design="paired"), rng)
    assert (differences == 0).all()
    right = [
        count_right_pairs(differences, family, np.random.default_rng(seed)).right[-1]
        for seed in range(400)
    ]
    assert abs(np.mean(right) - 150) < 5 * np.sqrt(75 / 400)


def test_a_fixed_number_is_paired_without_regard_to_scores() -> None:
    """Every in is paired with every out equally often; who is left over is drawn too."""
    scores = Scores(np.arange(3.0), 10.0 * np.arange(1, 5), design="fixed")
    seen = np.zeros((3, 4))
    for seed in range(6000):
        for difference in pair_scores(scores, np.random.default_rng(seed)):
            outside = int(np.ceil(-difference / 10)) - 1
            seen[round(difference) + 10 * (outside + 1), outside] += 1
    assert seen.sum() == 3 * 6000
    assert abs(seen - 1500).max() < 6 * np.sqrt(1500)


def test_counts_of_a_fixed_number_are_paired_by_their_bins(rng: np.random.Generator) -> None:
    counts = ScoreCounts.at([0.0], design="fixed").add(inside=[1.0] * 5, outside=[-1.0] * 9)
    assert pair_scores(counts, rng).tolist() == [1.0] * 5
