"""One-run bounds by the curve that was accounted for: right as often as they say, and strong."""

import numpy as np
import pytest

import epsilometer as em
from epsilometer import Scores
from epsilometer.accounting.noise_family import scale_noise
from epsilometer.accounting.pld import poisson_curve
from epsilometer.stats.derivations import derivation_of
from epsilometer.stats.estimators.one_run_fdp import bound_in_family
from epsilometer.stats.gaussians import gdp_epsilon
from tests import oracles

DELTA = 1e-5


def play(rng: np.random.Generator, canaries: int, noise: float, rate: float, steps: int) -> Scores:
    """Canaries of DP-SGD by Poisson sampling, scored by their likelihood ratio."""
    member = rng.random(canaries) < 0.5
    took = rng.random((steps, canaries)) < rate
    seen = took * member + rng.normal(0, noise, (steps, canaries))
    scores = np.log(1 - rate + rate * np.exp((seen - 0.5) / noise**2)).sum(axis=0)
    return Scores(scores[member], scores[~member], design="coins")


def bound(scores: Scores, parts: tuple[tuple[float, float, int], ...]) -> em.EpsilonLowerBound:
    return bound_in_family(scores, scale_noise(parts), delta=DELTA, confidence=0.95, seed=0)


def count_wrong(audits: int, canaries: int, parts: tuple[float, float, int]) -> int:
    rng = np.random.default_rng(1)
    truth = scale_noise((parts,)).epsilon(1.0, DELTA)
    return sum(bound(play(rng, canaries, *parts), (parts,)).epsilon >= truth for _ in range(audits))


@pytest.mark.parametrize("parts", [(1.0, 0.2, 10), (0.5, 0.5, 4)])
def test_a_true_mechanism_is_seldom_refuted(parts: tuple[float, float, int]) -> None:
    assert not oracles.too_often(count_wrong(40, 60, parts), 40)


@pytest.mark.slow
@pytest.mark.parametrize("canaries", [50, 200, 1000])
@pytest.mark.parametrize("parts", [(1.0, 0.2, 10), (0.5, 0.5, 4), (1.0, 0.1, 100)])
def test_a_true_mechanism_is_seldom_refuted_in_many_audits(
    parts: tuple[float, float, int], canaries: int
) -> None:
    assert not oracles.too_often(count_wrong(1000, canaries, parts), 1000)


def test_half_the_noise_is_refuted_where_other_methods_are_far_from_it() -> None:
    rng = np.random.default_rng(0)
    claimed = ((1.0, 0.1, 100),)
    claim = scale_noise(claimed).epsilon(1.0, DELTA)
    runs = [play(rng, 2000, 0.5, 0.1, 100) for _ in range(4)]
    found = [bound(scores, claimed) for scores in runs]
    assert sum(each.epsilon > claim for each in found) >= 3  # ten of ten in docs/opacus.md
    assert all(each.valid and each.basis[-1][0] == "leak" for each in found)
    assert any("noise divided by c" in line for line in derivation_of(found[0]).formula)
    for scores in runs:
        assert em.epsilon_lower_bound(scores, delta=DELTA).epsilon < 0.8 * claim


def test_without_a_leak_nothing_is_proved(rng: np.random.Generator) -> None:
    scores = Scores(rng.normal(size=100), rng.normal(size=100), design="coins")
    assert bound(scores, ((1.0, 0.1, 20),)).epsilon < 1.0
    silent = Scores(np.zeros(50), np.zeros(50), design="coins")
    assert bound(silent, ((1.0, 0.1, 20),)).epsilon == 0


def test_curves_are_those_of_the_accountant_and_of_gaussians() -> None:
    family = scale_noise(((1.0, 0.1, 100),))
    right = np.linspace(0.01, 0.99, 9)
    curve = poisson_curve(1 - right, noise_multiplier=0.5, sampling_rate=0.1, steps=100)
    np.testing.assert_allclose(family.least_wrong(right, 2.0), curve, atol=1e-12)
    nearly = scale_noise(((1.0, 1 - 1e-9, 1),))
    assert nearly.epsilon(1.0, DELTA) == pytest.approx(gdp_epsilon(1.0, DELTA), rel=1e-2)


def test_changing_noise_is_composed(rng: np.random.Generator) -> None:
    one, two = scale_noise(((1.0, 0.1, 20),)), scale_noise(((1.0, 0.1, 12), (1.0, 0.1, 8)))
    right = np.array([0.2, 0.6])
    np.testing.assert_allclose(one.least_wrong(right, 1.3), two.least_wrong(right, 1.3), atol=1e-6)
