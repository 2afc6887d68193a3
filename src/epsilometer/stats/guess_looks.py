r"""Calibrate looks at the guesses of one run, all together, under every (ε, δ)-DP mechanism.

Canaries stand in the order of their scores, and each place has one guess: "in" from the top, "out"
from the bottom. A look (r, v) happens where v or more of the first r guesses are right. Let A be an
event that only grows when more guesses are right, such as "some look happens".

**Theorem.** If place j is right with chance at most c_j/(1 + c_j) under ε-DP, independently, let
V be the chance of A when all are right with exactly these chances. Under (ε, δ)-DP,
Pr[A] ≤ V + λ·m·δ, where λ is the largest Y_j(R) of any functions Y_j ≥ 0 on right-or-wrong vectors
R with 1_A(R) − V ≤ Σ_j Y_j(R) − c_j·Y_j(R with j turned round).

*Proof.* Take the mean over coins s and outputs t of law π(s)·M(t|s). Canary i of place j turned
round has the odds that make c_j·π(s′)·M(t|s′) = e^ε·π(s)·M(t|s′) where its guess is right. So
Pr[A] − V ≤ Σ_t Σ_j Σ_s Y_j·π(s)·(M(t|s) − e^ε·M(t|s′)) ≤ λ·Σ_i Σ_s π(s)·δ. Where Y_j is 0 on wrong
guesses, an "in" guess costs λ·m·δ only in the share p of coins that are in, an "out" guess 1 − p. ∎

With q_j = c_j/(1 + c_j), put r_j the indicator that j is right, and reveal guesses in any order:
Y_j = (1 − q_j)·r_j·Pr[j decides A | those before it] fulfils the condition with equality (Doob), and
so does the mean over all orders. For one look of equal chances that mean is largest where exactly v
are right: λ = β·(1 − β)/(v·Pr[W = v]), W ~ Bin(r, q), β = Pr[W ≥ v]. Of r = m it is the optimum of
the linear program over all mechanisms, so that no smaller p-value is valid; Theorem 5.2 of Steinke,
Nasr, Jagielski (2023) pays 2·maxᵢ Pr[v > W ≥ v − i]/i in its place. Of several looks one decides
only where one of them is decided: their λ are added.

Looks from the top, from the bottom and from both are three walks; their chances are added. What is
approximate in the order of looks costs power and never validity.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import betainc, betaincinv, expit, gammaln, logit

from epsilometer.stats import search
from epsilometer.types import FloatArray, IntArray

Side: TypeAlias = Literal["in", "out", "both"]

_RATIO, _COARSE = 1.2, 2.0  # of neighbouring ranks, where δ costs nothing and where it does
_ROOT = 0.5
_FINER = 0.6
_MILLS = 2.4
_VALUES = np.linspace(0.0, 10.0, 41)
_LEVELS: dict[Side, float] = {"in": 0.15, "out": 0.15, "both": 0.4}  # of α, of one look
_DEAREST = 0.03  # of α that δ may cost
_LARGEST_TWICE = 2.0
_MARGIN = 1e-3  # of α: more than what windows leave out
_BESIDE = 1e-6  # of α that each edge of a window may leave out
_NEAR = 1e-6  # of the answer, on the safe side
_LARGEST = 1e3
_MODE = .63
_DIRECT = 1 << 20  # products of a convolution that take less time than transforms


@dataclass(frozen=True, kw_only=True)
class Game:
    """How canaries were put in, and what is guessed of them.

    Attributes:
        canaries: m; or the number of pairs, of each of which one is in by a fair coin.
        inclusion: Chance p that a canary is in; ½ for pairs.
        paired: Whether they are pairs, which have one side only.
        steps: Neighbours from one side of a coin to the other: 2 for pairs of add/remove.
        delta: δ of the claim.
    """

    canaries: int
    inclusion: float = 0.5
    paired: bool = False
    steps: int = 1
    delta: float = 0.0

    def chance(self, side: Side, epsilon: FloatArray | float) -> FloatArray:
        """Return the largest chance that a guess is right under ε-DP."""
        return np.asarray(expit(self.steps * np.asarray(epsilon) + self._lean(side)))

    def epsilon(self, side: Side, chance: FloatArray) -> FloatArray:
        """Return the least ε that allows a chance of being right."""
        return np.asarray((logit(chance) - self._lean(side)) / self.steps)

    def cost(self, side: Side, epsilon: float) -> float:
        """Return what λ is multiplied with: m·δ, in the share of coins that can be right.

        Of two steps, M(t|s) − e^(2ε)·M(t|s′) is at most δ·(1 + e^ε) in sum.
        """
        share = {"in": self.inclusion, "out": 1 - self.inclusion, "both": 1.0}[side]
        more = 1 + math.exp(min(epsilon, 700.0)) if self.steps == 2 else 1.0
        return share * self.canaries * self.delta * more

    def _lean(self, side: Side) -> float:
        lean = float(logit(self.inclusion))
        return {"in": lean, "out": -lean, "both": 0.0}[side]

    @property
    def ends(self) -> dict[Side, int]:
        """How many guesses a side makes at most; each rank of "both" makes two, of pairs one."""
        if self.paired:
            return {"both": self.canaries}
        inside = min(max(round(self.canaries * self.inclusion), 1), self.canaries - 1)
        ends: dict[Side, int] = {"in": inside, "out": self.canaries - inside}
        if self.inclusion == 0.5:
            ends["both"] = self.canaries // 2
        return ends


def spread_ranks(end: int, ratio: float) -> IntArray:
    """Return ranks 1, 2, 3, … up to the end in such a ratio, closer to each other near it."""
    fine = 1 + (ratio - 1) * _FINER
    ranks = [1]
    while ranks[-1] < end:
        step = fine if ranks[-1] * ratio > end / 2 else ratio
        ranks.append(min(end, max(ranks[-1] + 1, math.floor(ranks[-1] * step))))
    return np.array(ranks)


class LookFamily:
    """Looks at a game's guesses and how they are ordered; nothing depends on the scores.

    Attributes:
        game: What is guessed.
        sides: Of each look.
        ranks: How far it goes from its end of the scores, or from both.
        made: Guesses it makes.
    """

    def __init__(self, game: Game, alpha: float) -> None:
        self.game, self._alpha = game, alpha
        ends = game.ends
        ratio = _RATIO
        ranks = {side: spread_ranks(end, ratio) for side, end in ends.items() if end > 0}
        self.sides = np.concatenate([np.full(some.size, side) for side, some in ranks.items()])
        self.ranks = np.concatenate(list(ranks.values()))
        twice = (self.sides == "both") & (not game.paired)
        self.made = np.where(twice, 2, 1) * self.ranks
        share = np.array([_LEVELS[side] for side in self.sides]) if len(ends) > 1 else 0.4
        self._levels = alpha*LEV(self)
        self._least_value = self._find_least_value()

    def _find_least_value(self) -> FloatArray:
        """The ε from which on a look is made: below, δ would cost too much."""
        least = np.zeros(self.made.size)
        for side in self.game.ends:
            some = self.sides == side
            made = self.made[some]
            chance = self.game.chance(side, _VALUES)[:, None]
            cost = np.array([[self.game.cost(side, value)] for value in _VALUES.tolist()])
            sd = np.sqrt(made * chance * (1 - chance))
            right = np.minimum(made, made * chance + _MILLS * sd)
            slopes = cost * np.maximum(1.0, sd / _MILLS) / right
            dear = slopes > np.maximum(_DEAREST * self._alpha, _LARGEST_TWICE * slopes[:, -1:])
            last = _VALUES.size - np.argmax(dear[::-1], axis=0)
            least[some] = np.append(_VALUES, np.inf)[np.where(dear.any(axis=0), last, 0)]
        return least

    def order(self, right: IntArray) -> tuple[float, int]:
        """Return the ε that the clearest look speaks for at its level, and which look it is."""
        at = np.flatnonzero(right > 0)
        if not at.size:
            return -math.inf, 0
        chance = betaincinv(right[at], self.made[at] - right[at] + 1, self._levels[at])
        values = np.full(at.size, -math.inf)
        for side in self.game.ends:
            some = self.sides[at] == side
            values[some] = self.game.epsilon(side, chance[some])
        values[values < self._least_value[at]] = -math.inf
        best = int(np.argmax(values))
        return float(values[best]), int(at[best])

    def find_least(self, value: float) -> IntArray:
        """Return the least right guesses that speak for an ε; more than are made where none do."""
        values = np.maximum(value, self._least_value)
        chance = np.empty(self.made.size)
        for side in self.game.ends:
            some = self.sides == side
            chance[some] = self.game.chance(side, values[some])

        def common(right: FloatArray) -> FloatArray:
            return np.asarray(betainc(right, self.made - right + 1, chance) > self._levels)

        return search_counts(common, np.zeros_like(self.made), self.made + 1)[1]


def search_counts(holds, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:  # type: ignore[no-untyped-def]
    """Halve brackets of whole numbers, at whose low ends something holds and at the high not."""
    while np.any(high - low > 1):
        middle = np.clip((low + high) // 2, 1, None)
        true = holds(np.minimum(middle, high - 1).astype(np.float64))
        open_ = high - low > 1
        low, high = np.where(open_ & true, middle, low), np.where(open_ & ~true, middle, high)
    return low, high


def compute_slope(made: FloatArray, right: FloatArray, chance: FloatArray) -> FloatArray:
    """λ of a look, but for 1 − β: Pr[W ≥ v]/(v·Pr[W = v]), W ~ Bin(r, q). Rises in q."""
    r, v = np.asarray(made, np.float64), np.asarray(right, np.float64)
    tail = betainc(v, r - v + 1, chance)
    logs = gammaln(r + 1) - gammaln(v + 1) - gammaln(r - v + 1)
    mass = np.exp(logs + v * np.log(chance) + (r - v) * np.log1p(-chance))
    falls = (r - v) * chance / ((v + 1) * (1 - chance))  # of the first two masses, the most
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(mass > 1e-290, tail / mass, 1 / (1 - falls)) / v)


def limit_slope(made: IntArray, right: IntArray, chance: float) -> float:
    """λ of several looks, at most."""
    alone = compute_slope(made, right, np.float64(chance))
    about = _MODE * np.sqrt((1 - chance) / (chance * made))
    split, slope = made.size - 1, float(alone[-1])
    for at in range(made.size - 2, -1, -1):
        slope += float(alone[at])
        if about[at] < slope:
            split, slope = at, float(about[at])
    if split == made.size - 1:
        return slope
    nested = limit_nested(int(made[split]), int(right[split]), chance)
    return float(min(nested, alone[split:].sum()) + alone[:split].sum())


def limit_nested(made: int, most: int, chance: float) -> float:
    sd = math.sqrt(made * chance * (1 - chance))
    low = max(1, math.floor(made * chance - 4 * sd))
    x = np.arange(min(low, most), most + 1).astype(np.float64)
    rare = betainc(made - x + 1, x, 1 - chance)  # fewer than x are right
    rare[0] = max(rare[0],0)
    tail = betainc(x, made - x + 1, chance)
    slopes = compute_slope(np.float64(made), x, np.float64(chance)) * rare
    slopes[0] /= tail[0]
    logs = gammaln(made + 1) - gammaln(x + 1) - gammaln(made - x + 1)
    return max(float(slopes.max()), (1 - chance) * .43/sd)


def compute_chance(made: IntArray, right: IntArray, chance: float, *, alpha: float) -> float:
    """Return the chance that some look (made, right) happens; guesses are right independently.

    Guarantee: too small by less than ``_MARGIN`` of α.
    """
    reach = math.sqrt(2 * math.log(1 / (_BESIDE * alpha)))
    happened, low, at = 0.0, 0, 0
    chances = np.ones(1)
    for r, v in zip(made.tolist(), right.tolist(), strict=True):
        first, kernel = _binomial(r - at, chance, reach)
        chances, low, at = _convolve(chances, kernel), low + first, r
        cut = max(v - low, 0)
        happened += float(chances[cut:].sum())
        least = max(0, math.floor(r * chance - _half(r, chance, reach)) - low)
        chances, low = chances[min(least, cut) : cut], low + min(least, cut)
        if not chances.size:
            break
    return happened


def find_epsilon(family: LookFamily, least: IntArray, guess: float, *, alpha: float) -> float:
    """Return the largest ε at which some look happens with chance ``alpha`` or less, or 0."""
    walks = []
    for side in family.game.ends:
        some = (family.sides == side) & (least <= family.made)
        if some.any():
            walks.append((side, *drop_needless(family.made[some], least[some])))
    target = math.log(alpha * (1 - _MARGIN))

    def excess(epsilon: float) -> float:
        total = 0.0
        for side, made, right in walks:
            chance = float(family.game.chance(side, epsilon))
            total += compute_chance(made, right, chance, alpha=alpha)
            cost = family.game.cost(side, epsilon)
            if cost > 0:
                total += cost * limit_slope(made, right, chance)
        return math.log(max(total, 1e-300)) - target

    if not walks or excess(0.0) > 0:
        return 0.0
    low, high = 0.0, max(guess, 1e-3)
    while (step := excess(high)) <= 0 and high < _LARGEST:
        low, high = high, high * 1.25
    if low == 0.0 and step > 0 and excess(0.8 * high) <= 0:
        low = 0.8 * high
    return search.root(excess, low, high, relative=_NEAR)[0]


def drop_needless(made: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Drop looks that happen only where another does: of fewer right, or of fewer wrong."""
    keep = right < np.minimum.accumulate(np.append(right, np.inf)[::-1])[::-1][1:]
    made, right = made[keep], right[keep]
    wrong = made - right
    keep = wrong > np.maximum.accumulate(np.append(-1, wrong))[:-1]
    return made[keep], right[keep]


def _convolve(chances: FloatArray, kernel: FloatArray) -> FloatArray:
    if chances.size * kernel.size <= _DIRECT:
        return np.convolve(chances, kernel)
    size = chances.size + kernel.size - 1
    length = 1 << (size - 1).bit_length()
    product = np.fft.rfft(chances, length) * np.fft.rfft(kernel, length)
    return np.asarray(np.maximum(np.fft.irfft(product, length)[:size], 0.0))


def _half(trials: int, p: float, reach: float) -> float:
    """Bernstein's: beyond it are at most exp(−reach²/2) on a side."""
    return reach * math.sqrt(trials * p * (1 - p)) + reach**2 / 3


def _binomial(trials: int, p: float, reach: float) -> tuple[int, FloatArray]:
    half = _half(trials, p, reach)
    first = max(0, math.floor(trials * p - half))
    d = np.arange(first, min(trials, math.ceil(trials * p + half)) + 1)
    logs = gammaln(trials + 1.0) - gammaln(d + 1.0) - gammaln(trials - d + 1.0)
    return first, np.exp(logs + d * math.log(p) + (trials - d) * math.log1p(-p))


@functools.lru_cache(maxsize=64)
def get_family(game: Game, alpha: float) -> LookFamily:
    """Return the family of a game, which is kept."""
    return LookFamily(game, alpha)


@functools.lru_cache(maxsize=4096)
def find_least_and_epsilon(game: Game, alpha: float, value: float) -> tuple[IntArray, float]:
    """Return the looks that speak for an ε by their least right guesses, and the ε they refute."""
    family = get_family(game, alpha)
    least = family.find_least(value - 1e-9)  # whoever reached it reaches it after rounding too
    return least, find_epsilon(family, least, value, alpha=alpha)
