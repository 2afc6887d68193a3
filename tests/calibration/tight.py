"""Mechanisms that are exactly as leaky as they claim, to count the errors of calibrated bounds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

import epsilometer as em
from epsilometer import Scores
from epsilometer.stats.estimators import calibrated
from epsilometer.stats.rank_counts import count_ranks
from epsilometer.stats.rank_looks import get_family
from tests import oracles

ALPHA = 0.05
Rates = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A law of scores whose ε at δ is known.

    Attributes:
        name: In words.
        epsilon: The true ε.
        delta: At this δ.
        draw: (rng, n_in, n_out) → scores.
        most: FPR → TPR of the best attack; ties count as broken at random.
        least: Its inverse.
    """

    name: str
    epsilon: float
    delta: float
    draw: Callable[[np.random.Generator, int, int], Scores]
    most: Rates
    least: Rates


def respond(epsilon: float, delta: float = 0.0) -> Mechanism:
    """Randomised response; with δ, a third and a fourth answer that reveal."""
    low = (1 - delta) / (1 + np.exp(epsilon))
    inside = np.array([0.0, low, 1 - delta - low, delta])
    return _of_atoms(
        f"randomised response ε = {epsilon:g}, δ = {delta:g}", inside, inside[::-1], delta
    )


def respond_among(atoms: int, epsilon: float, mass: float) -> Mechanism:
    """Some atoms that leak, of a mass, and one that does not."""
    leak = np.linspace(-epsilon, epsilon, atoms)
    base = np.exp(-leak / 2)
    inside, outside = mass * base[::-1] / base.sum(), mass * base / base.sum()
    middle = atoms // 2
    inside, outside = (np.insert(side, middle, 1 - mass) for side in (inside, outside))
    return _of_atoms(f"{atoms} atoms of mass {mass:g}, ε = {epsilon:g}", inside, outside, 0.0)


def tight_pair(epsilon: float, delta: float) -> Mechanism:
    """The worst (ε, δ)-DP pair with continuous scores."""
    most, least = _worst(epsilon, delta)

    def draw(rng: np.random.Generator, n_in: int, n_out: int) -> Scores:
        return Scores(-least(rng.random(n_in)), -rng.random(n_out))

    name = f"continuous tight pair ε = {epsilon:g}, δ = {delta:g}"
    return Mechanism(name=name, epsilon=epsilon, delta=delta, draw=draw, most=most, least=least)


def gaussian(mu: float, delta: float = 1e-5) -> Mechanism:
    """The Gaussian mechanism."""
    return Mechanism(
        name=f"Gaussian μ = {mu:g}",
        epsilon=em.gaussian_epsilon(1 / mu, delta),
        delta=delta,
        draw=lambda rng, m, n: Scores(rng.normal(mu, 1, m), rng.normal(0, 1, n)),
        most=lambda rate: ndtr(ndtri(rate) + mu),
        least=lambda rate: ndtr(ndtri(rate) - mu),
    )


def laplace(epsilon: float) -> Mechanism:
    """The Laplace mechanism at δ = 0."""

    def below(x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, np.exp(-np.abs(x)) / 2, 1 - np.exp(-np.abs(x)) / 2)

    def quantile(p: np.ndarray) -> np.ndarray:
        return np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p)))

    return Mechanism(
        name=f"Laplace ε = {epsilon:g}",
        epsilon=epsilon,
        delta=0.0,
        draw=lambda rng, m, n: Scores(rng.laplace(epsilon, 1, m), rng.laplace(0, 1, n)),
        most=lambda rate: below(quantile(rate) + epsilon),
        least=lambda rate: below(quantile(rate) - epsilon),
    )


def _worst(epsilon: float, delta: float) -> tuple[Rates, Rates]:
    grow = np.exp(epsilon)
    return (
        lambda a: np.minimum(np.minimum(grow * a + delta, 1 - (1 - delta - a) / grow), 1.0),
        lambda w: np.maximum(np.maximum((w - delta) / grow, 1 - delta - grow * (1 - w)), 0.0),
    )


def _of_atoms(name: str, inside: np.ndarray, outside: np.ndarray, delta: float) -> Mechanism:
    """Scores 0, 1, 2, … with these chances."""

    def draw(rng: np.random.Generator, n_in: int, n_out: int) -> Scores:
        return Scores(
            *(
                rng.choice(side.size, n, p=side / side.sum()).astype(float)
                for side, n in ((inside, n_in), (outside, n_out))
            )
        )

    fpr, tpr = (np.append(0.0, np.cumsum(side[::-1])) for side in (outside, inside))
    return Mechanism(
        name=name,
        epsilon=oracles.discrete_epsilon(inside, outside, delta + 1e-12),
        delta=delta,
        draw=draw,
        most=lambda rate: np.interp(rate, fpr, tpr),
        least=lambda rate: np.interp(rate, tpr, fpr),
    )


def find_mark(mechanism: Mechanism, n_in: int, n_out: int, alpha: float = ALPHA) -> int:
    """The first mark whose bound is above the truth, or that nobody reaches."""
    family = get_family(n_in, n_out, mechanism.delta, alpha)
    low, high = -1, family.marks
    while high - low > 1:
        middle = (low + high) // 2
        bound = calibrated.find_epsilon(n_in, n_out, mechanism.delta, alpha, middle)
        above = bound > mechanism.epsilon or not family.looks(middle).k.size
        low, high = (low, middle) if above else (middle, high)
    return high


def least_counts(mechanism: Mechanism, n_in: int, n_out: int, alpha: float = ALPHA) -> np.ndarray:
    """Counts of which any makes the bound exceed the truth."""
    family = get_family(n_in, n_out, mechanism.delta, alpha)
    return family.find_least(find_mark(mechanism, n_in, n_out, alpha))


def count_errors(
    mechanism: Mechanism, n_in: int, n_out: int, *, audits: int, seed: int | None = None
) -> int:
    """How many of so many audits end above the truth: scores drawn, ties broken, ranks counted.

    Args:
        mechanism: What is audited.
        n_in: Scores inside.
        n_out: Scores outside.
        audits: How many.
        seed: Of all audits; None for one each.
    """
    family = get_family(n_in, n_out, mechanism.delta, ALPHA)
    least = least_counts(mechanism, n_in, n_out)
    rng = np.random.default_rng(1)
    wrong = 0
    for audit in range(audits):
        scores = mechanism.draw(rng, n_in, n_out)
        ties = np.random.default_rng(audit if seed is None else seed)
        counts = count_ranks(scores, family.ranks_out, family.ranks_in, ties)
        wrong += bool((counts.beyond >= least).any())
    return wrong


def count_errors_at_once(
    mechanism: Mechanism, n_in: int, n_out: int, *, audits: int, alpha: float = ALPHA
) -> int:
    """The same of many scores, by the law of order statistics alone: all audits together."""
    family = get_family(n_in, n_out, mechanism.delta, alpha)
    least = least_counts(mechanism, n_in, n_out, alpha)
    rng = np.random.default_rng(2)
    outs = _draw_places(family.ranks_out, n_out, audits, rng)
    ins = _draw_places((n_in + 1 - family.ranks_in)[::-1], n_in, audits, rng)
    ranks_in = (n_in + 1 - family.ranks_in)[::-1]
    above = _count_front(mechanism.most(outs), ranks_in, ins, n_in, rng)
    in_front = _count_front(mechanism.least(ins), family.ranks_out, outs, n_out, rng)
    below = (n_out - in_front)[::-1]
    return int((np.vstack([above, below]) >= least[:, None]).any(axis=0).sum())


def _draw_places(ranks: np.ndarray, size: int, audits: int, rng: np.random.Generator) -> np.ndarray:
    """Order statistics of uniform numbers, shape (ranks, audits)."""
    shapes = np.diff(ranks, prepend=0, append=size + 1)
    sums = np.cumsum(rng.standard_gamma(shapes[:, None], (shapes.size, audits)), axis=0)
    return np.asarray(sums[:-1] / sums[-1])


def _count_front(
    points: np.ndarray, ranks: np.ndarray, places: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """How many of so many uniform numbers lie in front of rising points, given some of them."""
    audits = points.shape[1]
    ranks = np.concatenate([[0], ranks, [size + 1]])
    places = np.vstack([np.zeros(audits), places, np.ones(audits)])
    column = np.arange(audits)
    last, start, count = np.full(audits, -1), np.zeros(audits), np.zeros(audits, np.int64)
    counts = np.zeros(points.shape, np.int64)
    for i, point in enumerate(points):
        interval = np.minimum((places < point).sum(axis=0) - 1, ranks.size - 2)
        interval = np.maximum(interval, 0)
        fresh = interval != last
        start = np.where(fresh, places[interval, column], start)
        count = np.where(fresh, ranks[interval], count)
        left = ranks[interval + 1] - 1 - count
        width = np.maximum(places[interval + 1, column] - start, 1e-300)
        count = count + rng.binomial(left, np.clip((point - start) / width, 0.0, 1.0))
        start, last = np.maximum(point, start), interval
        counts[i] = count
    return counts


MECHANISMS = (
    respond(1.0),
    respond(1.0, 0.05),
    respond(3.0),
    respond(0.5, 0.01),
    respond_among(3, 2.0, 0.3),
    respond_among(5, 1.0, 0.8),
    tight_pair(0.0, 0.0),
    tight_pair(1.0, 0.0),
    tight_pair(0.5, 0.1),
    tight_pair(2.0, 1e-3),
    gaussian(1.0),
    laplace(1.0),
    laplace(2.0),
)
SIZES = [
    (20, 20),
    (100, 100),
    (1_000, 1_000),
    (20, 5_000),
    (5_000, 20),
    (10_000, 10_000),
    (100_000, 100_000),
    (100, 100_000),
]
AUDITS = 20_000
_SCORES = 6_000  # up to which they are drawn; beyond it ranks alone


def count_cell(mechanism: Mechanism, n_in: int, n_out: int, *, audits: int) -> int:
    """How many audits end above the truth, by everybody's seed where there are ties to break."""
    if n_in + n_out <= _SCORES:
        return count_errors(mechanism, n_in, n_out, audits=audits, seed=0)
    return count_errors_at_once(mechanism, n_in, n_out, audits=audits)
