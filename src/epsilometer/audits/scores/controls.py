"""Mechanisms whose ε is known: sound ones, and ones broken in the classic ways.

Each releases something about a small dataset, and is played with a target record and without it by
an adversary who knows everything but whether the target is there. An auditor must spare the sound
and refute the broken.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epsilometer.core.claim import Claim
from epsilometer.core.scores import Scores
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.types import FloatArray

EPSILON, DELTA = 1.0, 1e-5
_DIMENSION = 8
_OTHERS = 20


@dataclass(frozen=True, kw_only=True)
class Control:
    """A mechanism with a claim, and whether the claim is true.

    Attributes:
        name: In words.
        sound: Whether the claim holds.
        claim: What is claimed of it.
        play: (runs, rng) → scores of that many runs with the target and without it.
    """

    name: str
    sound: bool
    claim: Claim
    play: Callable[[int, np.random.Generator], Scores]


def controls() -> tuple[Control, ...]:
    """All controls, the sound ones first."""
    approximate = Claim(epsilon=EPSILON, delta=DELTA, adjacency="add_remove")
    pure = Claim(epsilon=EPSILON, delta=0.0, adjacency="replace")
    counted = Claim(epsilon=EPSILON, delta=0.0, adjacency="add_remove")
    return (
        Control(name="Gaussian sum", sound=True, claim=approximate, play=_gaussian_sum),
        Control(name="randomised response", sound=True, claim=pure, play=_randomised_response),
        Control(name="Laplace count", sound=True, claim=counted, play=_laplace),
        Control(name="noise halved", sound=False, claim=approximate, play=_noise_halved),
        Control(name="clipping forgotten", sound=False, claim=approximate, play=_unclipped),
        Control(name="same seed twice", sound=False, claim=approximate, play=_same_seed),
    )


def _gaussian_sum(runs: int, rng: np.random.Generator) -> Scores:
    return _sum_scores(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA))


def _noise_halved(runs: int, rng: np.random.Generator) -> Scores:
    return _sum_scores(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA) / 2)


def _unclipped(runs: int, rng: np.random.Generator) -> Scores:
    return _sum_scores(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA), clip=np.inf)


def _sum_scores(runs: int, rng: np.random.Generator, *, sigma: float, clip: float = 1.0) -> Scores:
    """A clipped sum of vectors with noise; the score is its part along the target."""
    others = _clipped(rng.normal(size=(_OTHERS, _DIMENSION)), clip)
    target = _clipped(5.0 * np.ones((1, _DIMENSION)) / np.sqrt(_DIMENSION), clip)[0]

    def release(present: bool) -> FloatArray:
        total = others.sum(axis=0) + present * target
        return np.asarray(total + rng.normal(0.0, sigma, (runs, _DIMENSION)))

    along = target / np.linalg.norm(target)
    return Scores(
        inside=(release(True) - others.sum(axis=0)) @ along,
        outside=(release(False) - others.sum(axis=0)) @ along,
    )


def _clipped(records: FloatArray, clip: float) -> FloatArray:
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    return np.asarray(records * np.minimum(1.0, clip / norms))


def _randomised_response(runs: int, rng: np.random.Generator) -> Scores:
    """The true bit with probability e^ε/(1+e^ε), else the other; the score is the answer."""
    honest = 1 / (1 + np.exp(-EPSILON))
    inside, outside = rng.random((2, runs)) < honest
    return Scores(inside=inside.astype(float), outside=(~outside).astype(float))


def _laplace(runs: int, rng: np.random.Generator) -> Scores:
    noise = rng.laplace(0.0, 1 / EPSILON, (2, runs))
    return Scores(inside=_OTHERS + 1 + noise[0], outside=_OTHERS + noise[1])


def _same_seed(runs: int, rng: np.random.Generator) -> Scores:
    """Two releases, before and after the target leaves, whose noise is drawn from one seed."""
    sigma = np.sqrt(2) * gaussian_sigma(EPSILON, DELTA)  # right for two independent draws
    noise = rng.normal(0.0, sigma, (2, runs))
    before_in, before_out = _OTHERS + 1 + noise[0], _OTHERS + noise[1]
    after_in, after_out = _OTHERS + noise[0], _OTHERS + noise[1]
    return Scores(inside=before_in - after_in, outside=before_out - after_out)
