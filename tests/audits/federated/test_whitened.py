"""Canaries in rounds of correlated noise: all rounds show more than the last model."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
from torch import nn

import epsilometer as em
from epsilometer import federation
from epsilometer.audits.federated.directions import HadamardCanaries
from epsilometer.audits.federated.iterates import MatchedFilter
from epsilometer.audits.federated.whitened import WhitenedFilter, make_filter, make_whitened
from epsilometer.conformance.whitening import Whitening
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.stats.sphere import cosine_bound, cosine_cdf, tied_bound
from tests.conftest import run_often

FLAKE = 1e-6
NOISES = [federation.TreeNoise(), federation.MatrixNoise(), federation.MatrixNoise(np.eye(6) + 0.0)]


@pytest.mark.parametrize("noise", NOISES[:2])
def test_an_encoder_does_what_a_stream_does(noise: Any, rng: np.random.Generator) -> None:
    residuals = rng.normal(size=(11, 3))
    stream = Whitening(noise).start()
    one_by_one = [stream.next([each])[0] for each in residuals]
    encoder = Whitening(noise).make_encoder(11)
    np.testing.assert_allclose(encoder @ residuals, one_by_one)


def simulate(
    rng: np.random.Generator, encoder: Any, *, canaries: int = 60, sigma: float = 1.0
) -> tuple[Any, Any, Any]:
    """Return cosines with matched filters and with the last model, and a loop's own."""
    rounds, dimension = len(encoder), 3000
    family = HadamardCanaries(count=canaries, dimension=dimension, key=int(rng.integers(2**62)))
    noise = sigma * np.linalg.solve(encoder, rng.normal(size=(rounds, dimension)))
    found, who = WhitenedFilter(canaries, Whitening.by_encoder(encoder)), np.arange(canaries)
    steps = []
    for place in range(rounds):
        members = who[who % rounds == place]
        step = noise[place]
        if members.size:
            step = step + family.inject(members, 1.0)
        found.see(step, family.cosines(step), members)
        steps.append(step)
    white, rows = encoder @ np.array(steps), family.rows(who).astype(np.float64)
    slow = [
        rows[each] @ (vector := encoder[:, each % rounds] @ white) / np.linalg.norm(vector)
        for each in who
    ]
    return found.summarise(), family.cosines(np.sum(steps, axis=0)), np.array(slow)


def test_the_filter_is_that_of_a_loop(rng: np.random.Generator) -> None:
    found, _, slow = simulate(rng, Whitening.by_tree().make_encoder(6))
    np.testing.assert_allclose(found, slow, atol=1e-5)  # float32


def test_who_took_no_part_has_the_null_law(rng: np.random.Generator) -> None:
    """Also where noise is not what was declared."""
    family = HadamardCanaries(count=1000, dimension=4096, key=1)
    found = WhitenedFilter(1000, Whitening.by_tree())
    for place in range(6):
        step = rng.standard_cauchy(size=4096)
        found.see(step, family.cosines(step), np.flatnonzero(np.arange(1000) % 6 == place))
    law = cosine_cdf(found.summarise(), 4096)
    assert scipy.stats.kstest(law, "uniform").pvalue > FLAKE


def _count_wrong(rng: np.random.Generator, noise: Any, audits: int) -> list[int]:
    encoder = Whitening(noise).make_encoder(6)
    sigma = 2.0
    truth = gaussian_epsilon(sigma / float(np.linalg.norm(encoder, axis=0).max()), 1e-5)
    wrong = [0, 0]
    for _ in range(audits):
        found, _, _ = simulate(rng, encoder, sigma=sigma)
        wrong[0] += cosine_bound(found, dimension=3000, delta=1e-5).epsilon > truth
        wrong[1] += tied_bound(found, dimension=3000, delta=1e-5, orthonormal=True).epsilon > truth
    return wrong


@pytest.mark.parametrize("noise", run_often(NOISES[:2], NOISES[:1]))
def test_bounds_are_wrong_no_more_often_than_they_say(noise: Any, rng: np.random.Generator) -> None:
    assert max(_count_wrong(rng, noise, 60)) <= scipy.stats.binom.isf(FLAKE, 60, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("cell", range(6))
@pytest.mark.parametrize("noise", NOISES, ids=["tree", "matrix", "independent"])
def test_bounds_cover(noise: Any, cell: int) -> None:
    wrong = _count_wrong(np.random.default_rng([cell, 9]), noise, 1000)
    assert max(wrong) <= scipy.stats.binom.isf(FLAKE, 1000, 0.05)


@pytest.mark.parametrize("repetitions", [1, 2])
@pytest.mark.parametrize("noise", NOISES[:2], ids=["tree", "matrix"])
def test_all_rounds_prove_more_than_the_last_model(
    noise: Any, repetitions: int, rng: np.random.Generator
) -> None:
    """They proved less: 0.0 and 0.5, where the last model proved 1.0 to 3.6."""
    clients = [(rng.normal(size=(n, 99)), rng.integers(40, size=n)) for n in range(1, 21)]
    training = em.Federated(
        nn.Linear(99, 40),
        clients,
        rounds=16,
        cohort=4,
        noise_multiplier=1.0,
        learning_rate=0.1,
        canaries=300,
        noise=noise,
        repetitions=(repetitions,),
    )
    found = em.audit(training, delta=1e-5, engine=em.InProcess())
    final, rounds = found.view("final model"), found.view("all rounds")
    assert final.bound.epsilon + 0.5 < rounds.bound.epsilon < rounds.estimates[-1].epsilon


def test_noise_whose_law_is_unknown_is_looked_at_as_it_is() -> None:
    class Own:
        steady = True

    asked: dict[str, Any] = {"rounds": 6, "dimension": 100, "memory": 0}
    assert isinstance(make_filter(3, noise=Own(), **asked), MatchedFilter)
    assert isinstance(make_filter(3, noise=NOISES[0], **asked), WhitenedFilter)
    huge = {**asked, "dimension": 10**9}
    assert isinstance(make_filter(3, noise=NOISES[0], **huge), MatchedFilter)


def test_rounds_beyond_memory_or_beyond_what_is_declared_are_not_whitened() -> None:
    small = WhitenedFilter(1, Whitening.by_tree(), memory=1000)
    short = make_whitened(1, np.array([[1.0, 0.0], [-0.5, 1.0]]))
    assert short is not None
    for found, rounds in ((small, 2), (short, 2)):
        for _ in range(rounds):
            found.see(np.ones(100), np.array([0.5]), [0])
            assert not found.full
        found.see(np.ones(100), np.array([0.5]), [0])
        assert found.full
    assert make_whitened(1, federation.IndependentNoise()) is None
    assert make_whitened(1, None) is None
