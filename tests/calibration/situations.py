"""Audits whose true ε is known, to count how often a bound exceeds it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.stats

import epsilometer as em
from epsilometer import Scores
from tests import oracles

DELTA = 1e-5
Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Two laws of scores, how many are drawn, and what is true of them.

    Attributes:
        name: In words, with the sizes.
        inside: (rng, n) → scores with the record.
        outside: (rng, n) → scores without it.
        sizes: How many of each.
        epsilon: The true ε at ``DELTA``.
        threshold: One that somebody could have fixed in advance.
        gaussian: Whether the trade-off curve is Gaussian, as some methods assume.
    """

    name: str
    inside: Draw
    outside: Draw
    sizes: tuple[int, int]
    epsilon: float
    threshold: float
    gaussian: bool = True

    def draw(self, rng: np.random.Generator, *, shrink: int = 1) -> Scores:
        """Scores of many runs."""
        n_in, n_out = (max(size // shrink, 25) for size in self.sizes)
        return Scores(self.inside(rng, n_in), self.outside(rng, n_out))

    def draw_one_run(self, rng: np.random.Generator, *, shrink: int = 1) -> Scores:
        """Scores of the canaries of one run: a fair coin puts each in or out."""
        canaries = sum(max(size // shrink, 25) for size in self.sizes)
        n_in = min(max(int(rng.binomial(canaries, 0.5)), 2), canaries - 2)
        sides = self.inside(rng, n_in), self.outside(rng, canaries - n_in)
        return Scores(*sides, design="coins")


def _normal(mu: float, decimals: int | None = None) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        values = rng.normal(mu, 1, n)
        return values if decimals is None else np.round(values, decimals)

    return draw


def _gaussian(mu: float, n_in: int, n_out: int) -> Situation:
    return Situation(
        name=f"Gaussian μ = {mu:g}, {n_in} + {n_out}",
        inside=_normal(mu),
        outside=_normal(0.0),
        sizes=(n_in, n_out),
        epsilon=em.gaussian_epsilon(1 / mu, DELTA),
        threshold=mu / 2 + 1,
    )


def _randomised_response(epsilon: float) -> Situation:
    honest = 1 / (1 + np.exp(-epsilon))
    return Situation(
        name="randomised response ε = 1, 1000 + 1000",
        inside=lambda rng, n: (rng.random(n) < honest).astype(float),
        outside=lambda rng, n: (rng.random(n) >= honest).astype(float),
        sizes=(1000, 1000),
        epsilon=oracles.discrete_epsilon(
            np.array([1 - honest, honest]), np.array([honest, 1 - honest]), DELTA
        ),
        threshold=0.5,
        gaussian=False,
    )


def _poisson() -> Situation:
    points = np.arange(200)
    laws = scipy.stats.poisson.pmf(points, 2), scipy.stats.poisson.pmf(points, 1)
    return Situation(
        name="skewed counts: Poisson 2 against 1, 300 + 300",
        inside=lambda rng, n: rng.poisson(2, n).astype(float),
        outside=lambda rng, n: rng.poisson(1, n).astype(float),
        sizes=(300, 300),
        epsilon=oracles.discrete_epsilon(*laws, DELTA),
        threshold=4.0,
        gaussian=False,
    )


SITUATIONS = (
    Situation(
        name="ε = 0, 500 + 500",
        inside=_normal(0.0),
        outside=_normal(0.0),
        sizes=(500, 500),
        epsilon=0.0,
        threshold=1.0,
    ),
    Situation(
        name="ε = 0, 5000 + 5000",
        inside=_normal(0.0),
        outside=_normal(0.0),
        sizes=(5000, 5000),
        epsilon=0.0,
        threshold=1.0,
    ),
    Situation(
        name="ε = 0, ties, 50 + 50",
        inside=_normal(0.0, 0),
        outside=_normal(0.0, 0),
        sizes=(50, 50),
        epsilon=0.0,
        threshold=1.0,
    ),
    _gaussian(0.5, 1000, 1000),
    _gaussian(1.0, 50, 50),
    _gaussian(2.0, 5000, 5000),
    _gaussian(1.0, 200, 3000),
    _randomised_response(1.0),
    Situation(
        name="Laplace ε = 1, 500 + 500",
        inside=lambda rng, n: rng.laplace(1, 1, n),
        outside=lambda rng, n: rng.laplace(0, 1, n),
        sizes=(500, 500),
        epsilon=1 + 2 * np.log1p(-DELTA),
        threshold=0.5,
        gaussian=False,
    ),
    _poisson(),
)
