"""A learned likelihood ratio: valid under a null, and worth more than a single statistic."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from epsilometer import Scores
from epsilometer.audits.posterior import finding
from epsilometer.audits.posterior.finding import learn_scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.estimators import epsilon_lower_bound
from tests.oracles import too_often

AUDITS = 1000


def auc(scores: Scores) -> float:
    found = scipy.stats.mannwhitneyu(scores.inside, scores.outside).statistic
    return float(found / (scores.n_in * scores.n_out))


def gaussians(
    rng: np.random.Generator, shift: np.ndarray, runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Strongly correlated features, moved against their correlation."""
    root = np.linalg.cholesky([[1.0, 0.9], [0.9, 1.0]])
    inside, outside = (rng.normal(size=(runs, 2)) @ root.T for _ in range(2))
    return inside + shift, outside


def false_alarms(score: Callable[..., Scores], rng: np.random.Generator) -> int:
    """Bounds above 0 where both worlds are one."""
    alarms = 0
    for _ in range(AUDITS):
        inside, outside = rng.normal(size=(2, 40, 4))
        alarms += epsilon_lower_bound(score(inside, outside, rng=rng), delta=1e-5).epsilon > 0
    return alarms


def test_bounds_are_valid_under_a_null(rng: np.random.Generator) -> None:
    assert not too_often(false_alarms(learn_scores, rng), AUDITS)


def scored_on_what_was_learned(
    inside: np.ndarray, outside: np.ndarray, *, rng: np.random.Generator
) -> Scores:
    """The classic mistake."""
    expanded = [finding._expand(side) for side in (inside, outside)]
    weights = finding._fit(*expanded)
    return Scores(*(side @ weights for side in expanded))


@pytest.mark.slow
def test_scoring_the_runs_that_were_learned_from_is_caught(rng: np.random.Generator) -> None:
    assert too_often(false_alarms(scored_on_what_was_learned, rng), AUDITS)


def test_two_correlated_statistics_are_worth_more_than_either(rng: np.random.Generator) -> None:
    shift = np.array([0.4, -0.4])
    inside, outside = gaussians(rng, shift, 6000)
    scores = learn_scores(inside, outside, rng=rng)
    # μ² = shiftᵀ Σ⁻¹ shift = 0.32 / 0.1, of the best test; 0.4 of either statistic alone.
    best, alone = (scipy.stats.norm.cdf(mu / 2**0.5) for mu in (3.2**0.5, 0.4))
    assert best - 0.03 < auc(scores) < best + 0.03  # σ of an AUC of 3,000 runs is below 0.008
    singles = [auc(Scores(inside[:, 0], outside[:, 0])), auc(Scores(-inside[:, 1], -outside[:, 1]))]
    assert max(singles) < alone + 0.03
    bounds = [
        epsilon_lower_bound(each, delta=1e-5).epsilon
        for each in (scores, Scores(inside[:, 0], outside[:, 0]))
    ]
    # N(μ, 1) with μ = 1.79 is (8.72, 1e-5)-DP and no better; with 0.4, (1.55, 1e-5)-DP.
    assert bounds[1] < 1.55
    assert 2 < bounds[0] < 8.72


def test_a_spread_that_differs_is_found_where_no_mean_does(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(0, 0.4, (2000, 2)), rng.normal(0, 1, (2000, 2))
    scores = learn_scores(inside, outside, rng=rng)
    assert abs(auc(Scores(inside[:, 0], outside[:, 0])) - 0.5) < 0.06  # σ below 0.01
    # Σx² / 0.16 and Σx² are χ² of two degrees: chance that 0.16 A < B is 1 / 1.16.
    assert auc(scores) == pytest.approx(1 / 1.16, abs=0.06)
    assert epsilon_lower_bound(scores, delta=1e-5).epsilon > 0.8


def test_scores_are_the_log_likelihood_ratio_where_it_is_quadratic(
    rng: np.random.Generator,
) -> None:
    inside, outside = rng.normal(0.5, 0.8, (40_000, 1)), rng.normal(0, 1, (40_000, 1))
    order = np.random.default_rng(5)
    scores = learn_scores(inside, outside, rng=np.random.default_rng(5))
    left = inside[order.permutation(40_000)[20_000:], 0]
    truth = scipy.stats.norm.logpdf(left, 0.5, 0.8) - scipy.stats.norm.logpdf(left)
    near = np.abs(left) < 2
    # Errors of logistic weights from 40,000 runs are of the order of 0.02.
    np.testing.assert_allclose(scores.inside[near], truth[near], atol=0.2)


def test_no_run_is_scored_by_what_was_learned_from_it(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(size=(2, 10, 2))
    scores = learn_scores(inside, outside, rng=np.random.default_rng(0), fraction=0.3)
    assert (scores.n_in, scores.n_out) == (7, 7)
    changed = inside.copy()
    held = np.random.default_rng(0).permutation(10)[3:]
    changed[held[0]] += 5  # moves its own score and no other
    again = learn_scores(changed, outside, rng=np.random.default_rng(0), fraction=0.3)
    assert scores.inside[0] != again.inside[0]
    np.testing.assert_array_equal(scores.inside[1:], again.inside[1:])
    np.testing.assert_array_equal(scores.outside, again.outside)


def test_features_without_spread_and_runs_far_off_do_no_harm(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(1, 1, (100, 3)), rng.normal(0, 1, (100, 3))
    plain = learn_scores(inside[:, :1], outside[:, :1], rng=np.random.default_rng(0))
    for side in (inside, outside):
        side[:, 1] = 0.1  # whose mean in floats need not be 0.1
        side[:, 2] = 0.0
    scores = learn_scores(inside, outside, rng=np.random.default_rng(0))
    np.testing.assert_allclose(scores.inside, plain.inside, atol=1e-3)
    split = np.random.default_rng(0)
    held_in, held_out = (split.permutation(100)[50:] for _ in range(2))
    inside[held_in[:2], 2] = [1e300, -1e300]  # a constant only where it was learned from
    outside[held_out[0], 0] = 1e200  # whose square no float is
    again = learn_scores(inside, outside, rng=np.random.default_rng(0))
    assert np.isfinite(again.inside).all()
    assert np.isfinite(again.outside).all()


def test_worlds_that_lie_apart_are_told_apart(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(50, 1, (40, 2)), rng.normal(0, 1, (60, 2))
    assert auc(learn_scores(inside, outside, rng=rng)) == 1


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_the_fewest_runs_are_split_so_that_some_are_left(
    fraction: float, rng: np.random.Generator
) -> None:
    scores = learn_scores(*rng.normal(size=(2, 4, 1)), rng=rng, fraction=fraction)
    assert (scores.n_in, scores.n_out) == (2, 2)


@pytest.mark.parametrize(
    ("inside", "outside", "fraction", "said"),
    [
        (np.zeros(8), np.zeros(8), 0.5, r"shape \(runs, k\)"),
        (np.zeros((8, 2)), np.zeros((8, 3)), 0.5, r"\(8, 2\) and \(8, 3\)"),
        (np.zeros((3, 2)), np.zeros((8, 2)), 0.5, "at least four runs"),
        (np.full((8, 2), np.nan), np.zeros((8, 2)), 0.5, "nan or infinity"),
        (np.zeros((8, 2)), np.zeros((8, 2)), 1.0, "fraction"),
    ],
)
def test_bad_input_is_told(
    inside: np.ndarray, outside: np.ndarray, fraction: float, said: str, rng: np.random.Generator
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        learn_scores(inside, outside, rng=rng, fraction=fraction)
