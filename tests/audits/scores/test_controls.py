"""Each control has the law that makes its claim true, or false."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.scores.selfcheck import Control, make_controls
from epsilometer.core.scores import Scores
from tests import oracles
from tests.oracles import FLAKE

BY_NAME = {control.name: control for control in make_controls()}
RUNS = 40_000  # enough to see a scale or a rate that is a tenth off


def sigma() -> float:
    """σ of a Gaussian that is (1, 1e-5)-DP, solved from the definition of δ."""
    return float(mpmath.findroot(lambda s: oracles.gaussian_delta(1 / s, 1.0, 30) - 1e-5, 3.7))


SIGMA = sigma()
LAWS = {
    "Gaussian sum": (scipy.stats.norm(1, SIGMA), scipy.stats.norm(0, SIGMA)),
    "Laplace count": (scipy.stats.laplace(21, 1), scipy.stats.laplace(20, 1)),
    "noise halved": (scipy.stats.norm(1, SIGMA / 2), scipy.stats.norm(0, SIGMA / 2)),
    "clipping forgotten": (scipy.stats.norm(5, SIGMA), scipy.stats.norm(0, SIGMA)),
}


def play(name: str, rng: np.random.Generator) -> Scores:
    return BY_NAME[name].play(RUNS, rng)


@pytest.mark.parametrize("name", LAWS)
def test_scores_follow_their_law(name: str, rng: np.random.Generator) -> None:
    scores = play(name, rng)
    for sample, law in zip((scores.inside, scores.outside), LAWS[name], strict=True):
        assert scipy.stats.kstest(sample, law.cdf).pvalue > FLAKE


def test_randomised_response_is_honest_as_often_as_it_says(rng: np.random.Generator) -> None:
    scores = play("randomised response", rng)
    assert set(np.unique([scores.inside, scores.outside])) == {0.0, 1.0}
    honest = math.e / (1 + math.e)
    for right in (np.sum(scores.inside == 1), np.sum(scores.outside == 0)):
        assert scipy.stats.binomtest(int(right), RUNS, honest).pvalue > FLAKE


def test_one_seed_used_twice_gives_the_target_away(rng: np.random.Generator) -> None:
    """The difference of the releases is the target's 1 or 0, up to rounding of sums near 20."""
    scores = play("same seed twice", rng)
    np.testing.assert_allclose(scores.inside, 1.0, atol=1e-12)
    np.testing.assert_allclose(scores.outside, 0.0, atol=1e-12)


def true_epsilon(name: str) -> float:
    """Of the pair of laws at the claim's δ, from the hockey-stick divergence on a fine grid."""
    if name == "same seed twice":
        return math.inf
    if name == "randomised response":
        honest = math.e / (1 + math.e)
        pair = np.array([1 - honest, honest]), np.array([honest, 1 - honest])
        return oracles.discrete_epsilon(*pair, delta=0.0)
    grid = np.linspace(-60, 80, 28_001)
    inside, outside = LAWS[name]
    if name == "Laplace count":  # δ = 0, so the largest ratio of densities
        return float(np.abs(inside.logpdf(grid) - outside.logpdf(grid)).max())
    pair = np.diff(inside.cdf(grid)), np.diff(outside.cdf(grid))
    return oracles.discrete_epsilon(*pair, delta=BY_NAME[name].claim.delta)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_control_is_sound_iff_its_claim_is_true(name: str) -> None:
    """A grid of 0.005 can only hide privacy loss, and at most 0.005/σ² = 4e-4 of it."""
    control = BY_NAME[name]
    truth = true_epsilon(name)
    if control.sound:
        assert control.claim.epsilon - 1e-3 < truth <= control.claim.epsilon + 1e-6  # and tight
    else:
        assert truth > 1.5 * control.claim.epsilon


@pytest.mark.parametrize("control", make_controls(), ids=lambda control: control.name)
def test_same_rng_same_scores(control: Control) -> None:
    first, again = (control.play(10, np.random.default_rng(3)) for _ in range(2))
    assert first.inside.tolist() == again.inside.tolist()
    assert first.outside.tolist() == again.outside.tolist()
    assert (first.n_in, first.n_out) == (10, 10)


def test_there_are_sound_and_broken_controls_of_different_names() -> None:
    assert len(BY_NAME) == len(make_controls())
    assert [control.sound for control in make_controls()] == [True] * 3 + [False] * 3
