r"""Bound ε where the mechanism is known except for its noise: DP-SGD with Poisson sampling.

A bound that holds for every mechanism pays for what it does not know: of the trade-off curve it
uses one point. Here the curve is known up to one number, the noise multiplier s: a step in which
the canary takes part is the pair N(1, s²) against N(0, s²), which is μ-GDP with μ = 1/s, and T
steps that each take it with probability q have a curve that is computed. So scores of any attack
limit s from above, and ε at δ of the whole training follows from the limit (Nasr et al. 2023):

1. Let g_s(F) be the largest TPR that noise s allows at FPR F; it falls as s grows. The claim "the
   noise is at least s" is refuted where scores do better than g_s allows.
2. Refuted claims are all those above some s⁺: an attack better than g_s is better than g_r for
   r > s. With probability ``confidence`` the true noise is not among them, so it is at most s⁺.
3. ε falls as s grows, so the true ε is at least ε(s⁺). Whatever is rounded is rounded so that s⁺
   gets no smaller and ε(s⁺) no larger.

How far scores do better than g_s is judged by their rank sum, the number of pairs (inside,
outside) in which the inside score is the higher (Mann & Whitney 1947). There is no threshold to
choose, so none to pay for; ``stats.rank_sum`` computes its distribution.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import scipy.special

from epsilometer import _validate
from epsilometer.accounting.loss_distribution import compose
from epsilometer.accounting.pld import SampledGaussian, poisson_epsilon_at_least
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import Adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.stats import rank_sum, search, thresholds
from epsilometer.stats.designs import refuse_canaries
from epsilometer.stats.estimators import ranks
from epsilometer.stats.estimators.method import Winner
from epsilometer.stats.estimators.ranks import Frontier
from epsilometer.stats.reach import compute_power
from epsilometer.stats.thresholds import Observed, RankGrid, Ranks, RankSum
from epsilometer.types import FloatArray

Seen: TypeAlias = Literal["step", "run"]

METHOD = "poisson_family"
_LARGEST = 16.0  # 1/s: less noise than a sixteenth of the clipping norm is as good as none
_CELLS = 500_000  # of a step's losses
_REACH = 9.0  # standard deviations: beyond lies less than 1e-18
_LOST = 1e-10  # more than FFT and cut tails may add to a probability
_CURVE_CELL = 0.02  # over √T: the curve of a run is then right to about 5e-5 of the loss
_RATIO = 1.002  # between noises whose curve is computed
_RELATIVE = 1e-3  # how near the noise of a claim is found
_ASSUMED = (
    "Holds for Gaussian noise on sums of clipped gradients, with batches drawn by Poisson "
    "sampling at the stated rate; only the amount of noise is not assumed. For other mechanisms "
    "(shuffled batches, other distributions of noise) the number can be far too large."
)
_IMPOSSIBLE = (
    "The scores are better than any noise of such a mechanism allows, so the mechanism is "
    "another one: bound its ε by a method that assumes nothing."
)
_STEPS_ALIKE = (
    "Each score is assumed to come from one step, and all steps to be alike except for the "
    "canary. The ε of the whole training is computed from the noise of a step, not measured."
)


Rule: TypeAlias = RankSum | RankGrid
_RANK_SUM = RankSum()


def poisson_bound(
    scores: Observed,
    *,
    sampling_rate: float,
    steps: int,
    delta: float,
    confidence: float = 0.95,
    per: Seen = "step",
    rule: Rule = _RANK_SUM,
    seed: int = 0,
    adjacency: Adjacency = "add_remove",
    adversary: str = "unstated",
) -> EpsilonLowerBound:
    """Bound the ε of Poisson-sampled DP-SGD from below, tightly: only its noise is unknown.

    Guarantees: exceeds the true ε in at most ``1 - confidence`` of audits of such a mechanism,
        whatever its noise and whatever the attack.
    Assumes: Gaussian noise, clipping, independent draws of records at ``sampling_rate`` (1: the
        full batch); independent scores. ``per="step"``: see ``noise_limit``.

    Args:
        scores: Scores of steps or of runs.
        sampling_rate: Probability q that a batch has a given record.
        steps: Steps T of the training whose ε is bounded.
        delta: δ, above 0.
        confidence: One-sided.
        per: What a score is computed from: a ``"step"`` in which the canary took part (inside) or
            did not (outside), or a whole ``"run"`` with the canary in the data or without it.
        rule: ``RankSum()``, or ``RankGrid()``.
        seed: Seed for ties, which are broken at random. Same seed, same bound.
        adjacency: ``"add_remove"`` or ``"zero_out"``, which are the same pair here.
        adversary: Whose view the scores are computed from, in words; copied to the bound.

    Example:
        >>> from epsilometer import Scores
        >>> rng = np.random.default_rng(0)
        >>> seen = Scores(inside=rng.normal(1, 1, 2_000), outside=rng.normal(0, 1, 2_000))
        >>> training = dict(sampling_rate=0.2, steps=10, delta=1e-5)  # the truth is 4.984
        >>> round(poisson_bound(seen, **training).epsilon, 1)
        4.1
    """
    _validate.open_unit(delta=delta)
    if adjacency not in ("add_remove", "zero_out"):
        raise InvalidArgument(
            f"Expected adjacency to be add_remove or zero_out, got {adjacency!r}: replacing a "
            "record moves a sum by up to twice the clipping norm, another family."
        )
    limit = noise_limit(
        scores,
        sampling_rate=sampling_rate,
        steps=steps,
        confidence=confidence,
        per=per,
        rule=rule,
        seed=seed,
    )
    epsilon = epsilon_at_least(
        noise_multiplier=limit.noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        delta=delta,
    )
    return EpsilonLowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=METHOD,
        threshold_rule=repr(rule),
        valid=True,
        direction="present→absent" if sampling_rate < 1 else "both",
        threshold=limit.threshold,
        n_in=scores.n_in,
        n_out=scores.n_out,
        adjacency=adjacency,
        adversary=adversary,
        seed=seed,
        cites=_cites(rule, composed=sampling_rate < 1),
        caveats=(
            *((_IMPOSSIBLE,) if limit.impossible else ()),
            _ASSUMED,
            *((_STEPS_ALIKE,) if per == "step" else ()),
        ),
        basis=(
            ("noise multiplier at most", limit.noise_multiplier),
            ("sampling rate", sampling_rate),
            ("steps", steps),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class NoiseLimit:
    """An upper limit on the noise that follows from scores.

    Attributes:
        noise_multiplier: Upper limit s⁺; infinite where the scores say nothing.
        threshold: Where the attack's errors decided; −inf for rank sums, which have none.
        impossible: Whether the scores do better than any noise allows: the mechanism is not this.
    """

    noise_multiplier: float
    threshold: float
    impossible: bool


def noise_limit(
    scores: Observed,
    *,
    sampling_rate: float,
    steps: int,
    confidence: float = 0.95,
    per: Seen = "step",
    rule: Rule = _RANK_SUM,
    seed: int = 0,
) -> NoiseLimit:
    """Return an upper limit on the noise multiplier of Poisson-sampled DP-SGD.

    Guarantees: is below the true noise multiplier in at most ``1 - confidence`` of audits.
    Assumes: as ``poisson_bound``. A score ``per="step"`` depends on one step only. Steps without
        the canary, of runs with it or without, are all outside scores, and the more the better.
        What other records add to a step is the same with the canary and without it.

    Args:
        scores: See ``poisson_bound``.
        sampling_rate: Probability q that a batch has a given record.
        steps: Steps T of a run.
        confidence: One-sided.
        per: What a score is computed from.
        rule: How scores are judged.
        seed: Seed for ties.

    Example:
        >>> from epsilometer import Scores
        >>> rng = np.random.default_rng(0)
        >>> seen = Scores(inside=rng.normal(1, 1, 2_000), outside=rng.normal(0, 1, 2_000))
        >>> limit = noise_limit(seen, sampling_rate=0.2, steps=10)
        >>> round(limit.noise_multiplier, 2)  # the truth is 1
        1.11
    """
    _validate.open_unit(confidence=confidence)
    _validate.whole(0, seed=seed)
    _rate_and_steps(sampling_rate, steps)
    refuse_canaries(scores, METHOD)
    if per not in ("step", "run"):
        raise InvalidArgument(f"Expected per to be 'step' or 'run', got {per!r}.")
    curve = (sampling_rate, steps) if per == "run" else (1.0, 1)
    alpha = 1 - confidence
    if isinstance(rule, RankGrid) or alpha < rank_sum.LEAST_ALPHA:
        ranked = rule if isinstance(rule, RankGrid) else RankGrid()
        best = _best_rank(scores, _frontier(*curve), ranked, alpha=alpha)
        merit, threshold = best.merit, best.threshold
    else:
        law = rank_sum.get_law(scores.n_in, scores.n_out, alpha)
        won = law.count(scores, np.random.default_rng(seed)).won
        merit, threshold = law.find_merit(won, _mover(*curve), largest=_LARGEST), -math.inf
    merit = min(merit, _LARGEST)  # beyond, all is allowed
    return NoiseLimit(
        noise_multiplier=1 / merit if merit > 0 else math.inf,
        threshold=threshold,
        impossible=merit > _LARGEST * (1 - 1e-6),
    )


def epsilon_at_least(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Return the ε of DP-SGD with Poisson sampling, rounded *down*: safe for a lower bound.

    ``pld.poisson_epsilon`` is the same rounded up, safe for a claim.

    Example:
        >>> training = dict(noise_multiplier=1.0, sampling_rate=0.1, steps=10, delta=1e-5)
        >>> round(epsilon_at_least(**training), 3)
        2.854
    """
    _rate_and_steps(sampling_rate, steps)
    return poisson_epsilon_at_least([(noise_multiplier, sampling_rate, steps)], delta=delta)


def step_power(
    claim: float,
    *,
    n_in: int,
    n_out: int,
    sampling_rate: float,
    steps: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return the smallest true ε at which scores of single steps refute a claim 4 times in 5.

    The family is the one that ``poisson_bound`` assumes: a step with the canary is μ-GDP, and ε of
    the whole training follows from μ.

    Args:
        claim: The claimed ε.
        n_in: Scores of steps with the canary.
        n_out: Scores of steps without it.
        sampling_rate: Probability q that a batch has a given record.
        steps: Steps T of the training.
        delta: δ of claim and bound.
        confidence: Confidence of the bound.

    Returns:
        Infinite where no ε is large enough.

    Example:
        >>> training = dict(sampling_rate=0.2, steps=10, delta=1e-5)  # ε = 4.984 at noise 1
        >>> round(step_power(4.0, n_in=2_000, n_out=2_000, **training), 1)
        4.7
    """
    _validate.at_least(0, claim=claim)
    _validate.open_unit(delta=delta, confidence=confidence)
    _validate.whole(1, n_in=n_in, n_out=n_out)

    def epsilon_of(merit: float) -> float:
        return epsilon_at_least(
            noise_multiplier=1 / merit, sampling_rate=sampling_rate, steps=steps, delta=delta
        )

    low, high = 0.0, 1 / 64
    while high < _LARGEST and epsilon_of(high) <= claim:
        low, high = high, 2 * high
    if epsilon_of(high) <= claim:  # noise so small is as good as none
        return math.inf
    _, claimed = search.root(
        lambda merit: epsilon_of(merit) - claim if merit else -claim,
        low,
        high,
        relative=_RELATIVE,
    )
    law = rank_sum.get_law(n_in, n_out, max(1 - confidence, rank_sum.LEAST_ALPHA))
    least = law.find_least(rank_sum.shift_normals, claimed)

    def prove(scores: Observed) -> float:
        """Return a number above the claim if it is refuted."""
        return math.inf if law.count(scores, np.random.default_rng(0)).won >= least else 0.0

    return compute_power(
        prove, claim=claimed, delta=delta, n_in=n_in, n_out=n_out, epsilon_of=epsilon_of
    )


def _rate_and_steps(sampling_rate: float, steps: int) -> None:
    _validate.probability(sampling_rate=sampling_rate)
    if sampling_rate == 0:
        raise InvalidArgument("Expected sampling_rate > 0, got 0: a record that never takes part.")
    _validate.whole(1, steps=steps)


def _cites(rule: Rule, *, composed: bool) -> tuple[str, ...]:
    by_rule = ("wilks1941",) if isinstance(rule, RankGrid) else ("mann1947",)
    return ("nasr2023", "dong2022", *by_rule, *(("doroshenko2022",) if composed else ()))


def _best_rank(scores: Observed, frontier: Frontier, rule: RankGrid, *, alpha: float) -> Winner:
    """The largest 1/s refuted at a rank, each side by its own reading of the curve.

    Inside scores are ranked from below: what is rare there is a miss, and what is caught are the
    outside scores. A sampled batch's curve is another read from that end.
    """
    above, below = thresholds.rank_grid(scores, rule)
    swapped = Frontier(
        least_fpr=lambda tnr, merit, delta: 1 - frontier.most_tpr(1 - tnr, merit, delta),
        most_tpr=lambda fnr, merit, delta: 1 - frontier.least_fpr(1 - fnr, merit, delta),
    )
    found = [
        ranks.best_rank((side, _none(side)), seen, delta=0.0, alpha=alpha)
        for side, seen in ((above, frontier), (below, swapped))
    ]
    return max(found, key=lambda winner: winner.merit)


def _none(side: Ranks) -> Ranks:
    """No looks."""
    nothing = np.zeros(0, np.int64)
    return replace(side, thresholds=np.zeros(0), ranks=nothing, beyond=nothing, share=np.zeros(0))


@lru_cache(maxsize=64)
def _mover(sampling_rate: float, steps: int) -> rank_sum.Move:
    """Return where noise s = 1/merit lets an attack move the normal scores of inside runs."""
    if sampling_rate == 1:
        root = math.sqrt(steps)
        return lambda normals, merit: rank_sum.shift_normals(normals, root * merit)
    frontier = _frontier(sampling_rate, steps)

    def move(normals: rank_sum.Normals, merit: float) -> rank_sum.Normals:
        fpr = frontier.least_fpr(_ndtr(-normals.astype(np.float64)), np.asarray(merit), 0.0)
        return np.asarray(-_ndtri(fpr), np.float32)

    return move


def _frontier(sampling_rate: float, steps: int) -> Frontier:
    """Return the error rates that noise s = 1/merit allows an attack that observes the steps."""
    if sampling_rate == 1:  # a Gaussian pair, μ = √T/s
        root = math.sqrt(steps)
        return Frontier(
            least_fpr=lambda tpr, merit, _: _ndtr(_ndtri(tpr) - root * merit),
            most_tpr=lambda fpr, merit, _: _ndtr(_ndtri(fpr) + root * merit),
        )

    def read(rate: FloatArray, merit: FloatArray, *, to_tpr: bool) -> FloatArray:
        shape = np.broadcast_shapes(np.shape(rate), np.shape(merit))
        rate, found = np.broadcast_to(rate, shape), np.empty(shape)
        for one in np.unique(merit):
            fpr, tpr = _curve(_round_up(float(one)), sampling_rate, steps)
            at = np.broadcast_to(merit == one, shape)
            found[at] = np.interp(rate[at], *((fpr, tpr) if to_tpr else (tpr, fpr)))
        return found

    return Frontier(
        least_fpr=lambda tpr, merit, _: read(tpr, merit, to_tpr=False),
        most_tpr=lambda fpr, merit, _: read(fpr, merit, to_tpr=True),
    )


_ndtr, _ndtri = scipy.special.ndtr, scipy.special.ndtri


def _round_up(merit: float) -> float:
    """Round to a grid whose curves are cached: less noise allows more, so this refutes no more."""
    if not 0 < merit < _LARGEST:
        return merit
    return min(float(_RATIO ** math.ceil(math.log(merit) / math.log(_RATIO))), _LARGEST)


@lru_cache(maxsize=1024)
def _curve(merit: float, sampling_rate: float, steps: int) -> tuple[FloatArray, FloatArray]:
    """Return FPR and the largest TPR of an attack on a run, rising; linear between points.

    Losses are rounded up, which can only help an attack, and by little: the error falls with the
    square of the cell. The curve of the composition goes through the points (Σ m e^{−ℓ}, Σ m), the
    sums over all losses ℓ from the largest down.
    """
    if not 0 < merit <= _LARGEST:  # nothing is allowed, or all
        return np.array([0.0, 0.0, 1.0]), np.array([0.0, float(merit > 0), 1.0])
    one = SampledGaussian(1 / merit, sampling_rate, steps)
    least, top = one.find_ends(_REACH)
    cell = max(_CURVE_CELL / math.sqrt(steps), (top - least) / _CELLS)
    law = compose([(one.tabulate(cell, _REACH, "up")[0], steps)], rounding="up", outside=1e-15)
    # Rounding is not let grow with e^{−ℓ} where ℓ is far below 0; what is dropped is in _LOST.
    kept = np.where(law.masses > _LOST / (4 * law.masses.size), law.masses, 0.0)[::-1]
    fpr = np.cumsum(kept * np.exp(-law.losses[::-1]))
    tpr = np.cumsum(kept) + _LOST
    whole = int(np.searchsorted(tpr, 1.0)) + 1
    fpr = np.minimum(np.concatenate([[0.0, 0.0], fpr[:whole], [1.0]]), 1.0)
    tpr = np.minimum(np.concatenate([[0.0, _LOST], tpr[:whole], [1.0]]), 1.0)
    return fpr, tpr
