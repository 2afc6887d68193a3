"""One exact test of all ranks and both directions at once, calibrated under the worst mechanism.

Break ties at random, and let G(a) = min(e^ε·a + δ, 1 − e^(−ε)·(1 − δ − a), 1). An outside score has
an FPR value (the chance that another outside score is above it) that is uniform. An inside score
has one whose distribution is at most G, by both directions of (ε, δ)-DP. A statistic that only
grows when inside scores move up is therefore at its largest under the pair with exactly that
distribution, which is itself (ε, δ)-DP: its chance there is the p-value of ε, and no smaller one is
valid. The statistic here does not depend on ε, and chances only grow with ε, so the bound is where
the chance is α.
"""

import functools

import numpy as np

from epsilometer.core.bound import Basis, EpsilonLowerBound
from epsilometer.stats import derivation, rank_simulation, rank_walk, thresholds, tie_orders
from epsilometer.stats.derivation import Derivation, count, known, shown
from epsilometer.stats.estimators import ranks
from epsilometer.stats.estimators.counting import DP_FRONTIER
from epsilometer.stats.estimators.method import DIRECTIONS, Found, Method
from epsilometer.stats.rank_counts import RankCounts, count_ranks
from epsilometer.stats.rank_looks import LookFamily, get_family
from epsilometer.stats.rank_walk import Looks
from epsilometer.stats.thresholds import AllRanks, Observed, RankGrid, ThresholdRule

_LEAST_ALPHA = 1e-9  # below it neither distribution has digits or draws enough
_LEAST_SIMULATED = 1e-4


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """Return the largest ε that the looks which the scores reach refute."""
    assert isinstance(rule, AllRanks)
    n_in, n_out = observed.n_in, observed.n_out
    exact = rank_walk.is_affordable(n_in, n_out, delta=delta, alpha=alpha)
    if alpha < (_LEAST_ALPHA if exact else _LEAST_SIMULATED):
        return _find_at_one_rank(observed, delta=delta, alpha=alpha)
    family = get_family(n_in, n_out, delta, alpha)
    counts, mark = count_beyond(observed, family, rng)
    mark = mark if delta < 1 else None
    epsilon = 0.0 if mark is None else find_epsilon(n_in, n_out, delta, alpha, mark)
    return _describe(family, counts, 0 if mark is None else mark, epsilon, alpha)


def count_beyond(
    observed: Observed, family: LookFamily, rng: np.random.Generator
) -> tuple[RankCounts, int | None]:
    """Count beyond ranks, with ties broken, and return the mark that is reached."""

    def draw() -> tuple[RankCounts, int | None]:
        counts = count_ranks(observed, family.ranks_out, family.ranks_in, rng)
        return counts, family.reach(counts.beyond)

    first = draw()
    if not first[0].tied:
        return first
    return tie_orders.choose_order(
        first,
        draw,
        lambda seen: -1 if seen[1] is None else seen[1],
        tie_orders.count_orders(observed),
    )


@functools.lru_cache(maxsize=4096)
def find_epsilon(n_in: int, n_out: int, delta: float, alpha: float, mark: int) -> float:
    """Return the ε that reaching a mark refutes; cached, since it depends on no score."""
    family = get_family(n_in, n_out, delta, alpha)
    looks = family.looks(mark)
    if looks.k.size == 0:  # no scores of this number can reach it
        return 0.0
    if rank_walk.is_affordable(n_in, n_out, delta=delta, alpha=alpha):
        guess = float(family.value_of(mark))
        return rank_walk.find_epsilon(looks, guess, delta=delta, alpha=alpha)
    return rank_simulation.simulate_epsilon(looks, delta=delta, alpha=alpha)


def _find_at_one_rank(observed: Observed, *, delta: float, alpha: float) -> Found:
    """The rank grid: of so small a chance little is lost by sharing it out."""
    sides = thresholds.rank_grid(observed, RankGrid())
    best = ranks.best_rank(sides, DP_FRONTIER, delta=delta, alpha=alpha)
    return Found(
        epsilon=best.merit,
        direction=DIRECTIONS[best.row],
        threshold=best.threshold,
        basis=best.basis,
    )


def _describe(
    family: LookFamily, counts: RankCounts, mark: int, epsilon: float, alpha: float
) -> Found:
    chosen, beyond = family.choose(counts.beyond, mark), counts.beyond
    out = chosen < family.ranks_out.size
    ranked, other = ("outside", "inside") if out else ("inside", "outside")
    rank = np.concatenate([family.ranks_out, family.ranks_in])[chosen]
    threshold = np.concatenate([counts.at_out, counts.at_in])[chosen : chosen + 1]
    if out:
        threshold = thresholds.just_above(threshold)
    looks = family.looks(mark) if epsilon > 0 else None
    return Found(
        epsilon=epsilon,
        direction="both",
        threshold=float(threshold[0]),
        basis=(
            (f"rank {ranked}", int(rank)),
            (f"{other} beyond", int(beyond[chosen])),
            ("scores inside", family.n_in),
            ("scores outside", family.n_out),
            ("ties broken", int(counts.tied)),
            ("α", alpha),
            *(_list(looks) if looks is not None else ()),
        ),
    )


def _list(looks: Looks) -> Basis:
    return tuple(
        pair
        for i, (k, x) in enumerate(zip(looks.k.tolist(), looks.x.tolist(), strict=True), 1)
        for pair in ((f"outside rank of look {i}", k), (f"inside rank of look {i}", x))
    )


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    if "level" in has:
        return derivation.two_rates("clopper_pearson")(bound)
    counted: tuple[str, ...] = (derivation.read_texts()["lines"]["not_kept"][0],)
    looks, last = "", "ε = 0 where no ε is refuted"
    if has:
        out = "rank outside" in has
        ranked, other = ("outside", "inside") if out else ("inside", "outside")
        place, beyond = ("highest", "above") if out else ("lowest", "below")
        counted = (
            f"{count(has[f'{other} beyond'])} of {count(has[f'scores {other}'])} {other} scores "
            f"are {beyond} rank {count(has[f'rank {ranked}'])} of the "
            f"{count(has[f'scores {ranked}'])} {ranked} scores, counted from the {place}. It is "
            "the clearest of the looks at ranks 1, 2, 3, 4, 6, 9, … of both sides."
            + (" Equal scores were ordered at random." if has["ties broken"] else ""),
        )
        pairs = [name for name in has if name.startswith("outside rank of look ")]
        if pairs:
            looks = ": " + ", ".join(
                f"({shown(has[name])}, {shown(has[name.replace('outside', 'inside', 1)])})"
                for name in pairs
            )
            last = (
                f"ε is where Pr[some look happens] = α: p({shown(bound.epsilon)}) = "
                f"{shown(has['α'])}"
            )
    return Derivation(
        counted=counted,
        formula=(
            "A look (k, x) happens where the x-th highest inside score is above the k-th highest "
            f"outside score. Counts so clear have one of these{looks}",
            "U ~ uniform: FPR values of outside scores",
            "V = max(e^(−ε)·(W − δ), 1 − δ − e^ε·(1 − W), 0), W ~ uniform: the least that FPR "
            "values of inside scores can be under (ε, δ)-DP",
            "p(ε) = Pr[V₍x₎ < U₍k₎ for one of the looks], with n of U and m of V in order",
            last,
        ),
        holds=(
            "Whatever the attack and the distribution of the scores, outside ranks are those of "
            "uniform numbers, and both directions of (ε, δ)-DP keep inside ones from ranking "
            "above V. So the probability that some look happens is at most p(ε). All looks are "
            "one event, whose probability is computed, so choosing among them costs nothing. "
            "Equal scores are ordered at random by the seed, independently of who was in.",
        ),
    )


METHOD = Method(
    find=find,
    derive=_derive,
    rules=(AllRanks,),
    exact=True,
    guarantees="The bound exceeds the true ε in at most 1 − confidence of audits, for any "
    "attack; no larger bound from its statistic is valid.",
    assumes="Runs are independent; those without the record are identically distributed.",
    cites=("kairouz2015", "wilks1941", "paulson1942"),
)
