r"""Calibrate looks at the guesses of one run, all together, under every (ε, δ)-DP mechanism.

Canaries stand in the order of their scores, and every place has one guess: "in" from the top, "out"
from the bottom. A look (r, v) happens where v or more of the first r guesses are right. Let A be an
event that only grows where more guesses are right, such as "some look happens".

**Theorem.** Let q = c/(1 + c) be the largest chance under ε-DP that the guess of a place is right,
and V the chance of A if guesses are right independently with these chances. Let Y_j ≥ 0 be
functions of which places are right, 0 where j is wrong, with Σ_j Y_j(R) − c_j·Y_j(R′) ≥ 1_A(R) − V,
where R′ is R with place j turned round. Under (ε, δ)-DP, Pr[A] ≤ V + λ·m·δ, λ = max Y.

*Proof.* Take the mean of the condition over coins s and outputs t of the distribution π(s)·M(t|s).
With s′ the coins s with canary i of place j turned round, c_j·π(s′)·M(t|s′) = e^ε·π(s)·M(t|s′)
where i is right in s. So Pr[A] − V ≤ Σ_t Σ_s π(s) Σ_i Y·(M(t|s) − e^ε·M(t|s′)) ≤ λ·m·δ. An "in"
guess is right only where the coin says in, a share p of π: it costs λ·m·δ·p, an "out" one 1 − p. ∎

Such Y are (1 − q)·Pr[j decides A | places revealed before j], where j is right and places are
revealed in any order (Doob's decomposition, an equality), and their means over random orders.

* **One look**, all orders alike: the mean is largest where exactly v are right, and
  λ = β·(1 − β)/(v·Pr[W = v]) with W ~ Bin(r, q), β = Pr[W ≥ v]. Of r = m this is the optimum of the
  linear program over all mechanisms: no smaller p-value is valid. (Theorem 5.2 of Steinke, Nasr,
  Jagielski 2023 has 2·maxᵢ Pr[v > W ≥ v − i]/i in its place, which is several times as much.)
* **Nested looks** r₁ < r₂ < …: reveal the places of the largest look that are in no other first,
  and so on. Places up to r₁ come last, in a random order; what was seen leaves one number x that
  they must reach, so λ is at most that of a look (r₁, x), x ≤ v₁. Any other place decides only
  where the r₁ or more places after it give one number: λ ≤ (1 − q)·max_k Pr[Bin(r₁, q) = k].
* Of two groups of looks one decides A only if it decides a group: their λ are added.

Looks from the top, from the bottom and from both are three walks, whose chances are added.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from epsilometer.stats import search
from epsilometer.types import FloatArray, IntArray

Side: TypeAlias = Literal["in", "out", "both"]

_RATIO, _FINE = 1.2, 1.12  # of neighbouring ranks, and of those of more than half a side
_SIDES: dict[Side, float] = {"in": 0.22, "out": 0.06, "both": 0.06}  # level of a look, of α;
_EVERYBODY = 0.38  # and so much more of α for the look at both sides that guesses everybody
_DEAREST = 0.015  # of α that δ may cost at a look, or twice that where mδ ≥ 1. Near the largest
_DEAREST_NEAR, _DEARER = 0.06, 2.5  # look it may cost more: of α, and times as much as there
_DEAR = 1.2  # times as much where δ costs more than that anyway
_VALUES = np.linspace(0.0, 10.0, 41)  # ε at which this is asked
_MILLS = 2.4  # tails of looks, in masses, per standard deviation
_NESTED = 0.63  # λ of nested looks, in such units
_MARGIN = 1e-3  # of α: more than what windows leave out
_BESIDE = 1e-6  # of α that each edge of a window may leave out
_NEAR = 1e-6  # of the answer, on the safe side
_LARGEST = 1e3
_DIRECT = 1 << 20  # products of a convolution that take less time than transforms


@dataclass(frozen=True, kw_only=True)
class Game:
    """How canaries were included.

    Attributes:
        canaries: m; or the number of pairs, one of each of which is in by a fair coin.
        inclusion: Chance p that a canary is in; ½ for pairs.
        paired: Whether they are pairs, whose guesses have one side only.
        steps: Neighbours from one face of a coin to the other: 2 for pairs of add/remove.
        delta: δ of the claim.
    """

    canaries: int
    inclusion: float = 0.5
    paired: bool = False
    steps: int = 1
    delta: float = 0.0

    def chance(self, side: Side, epsilon: FloatArray | float) -> FloatArray:
        """Return the largest chance under ε-DP that a guess is right."""
        most = 1 - 2.0**-53
        return np.minimum(
            scipy.special.expit(self.steps * np.asarray(epsilon) + self._lean(side)), most
        )

    def epsilon(self, side: Side, chance: FloatArray) -> FloatArray:
        """Return the smallest ε that allows a chance of being right."""
        return np.asarray((scipy.special.logit(chance) - self._lean(side)) / self.steps)

    def cost(self, side: Side, epsilon: FloatArray | float) -> FloatArray:
        """Return what λ is multiplied by: m·δ, times the share of coins that can be right.

        Two steps of (ε, δ)-DP are one of (2ε, (1 + e^ε)·δ)-DP.
        """
        share = {"in": self.inclusion, "out": 1 - self.inclusion, "both": 1.0}[side]
        grow = 1 + np.exp((self.steps - 1) * np.minimum(epsilon, 700.0)) * (self.steps > 1)
        return np.asarray(share * self.canaries * self.delta * grow)

    @property
    def ends(self) -> dict[Side, int]:
        """The largest rank of each side; "both" guesses this many from either end, pairs once.

        With unequal coins the guesses of both ends have unequal chances, and are not added up.
        """
        if self.paired:
            return {"both": self.canaries}
        inside = min(max(round(self.canaries * self.inclusion), 1), self.canaries - 1)
        ends: dict[Side, int] = {"in": inside, "out": self.canaries - inside}
        return {**ends, "both": self.canaries // 2} if self.inclusion == 0.5 else ends

    def _lean(self, side: Side) -> float:
        lean = float(scipy.special.logit(self.inclusion))
        return {"in": lean, "out": -lean, "both": 0.0}[side]


class LookFamily:
    """Looks at the guesses of a game and their order; nothing depends on the scores.

    Every look has a level. So many right guesses *speak for* the ε at which so many or more would
    be as likely as the level; observations are ordered by the largest ε that a look speaks for.

    Attributes:
        game: What is guessed.
        sides: Side of each look.
        ranks: How far it goes from its end of the scores, or from both.
        made: Guesses it makes.
    """

    def __init__(self, game: Game, alpha: float) -> None:
        self.game, self._alpha = game, alpha
        ranks = {side: _spread_ranks(end) for side, end in game.ends.items()}
        self.sides = np.concatenate([np.full(some.size, side) for side, some in ranks.items()])
        self.ranks = np.concatenate(list(ranks.values()))
        both = self.sides == "both"
        self.made = np.where(both & (not game.paired), 2, 1) * self.ranks
        levels = np.array([_SIDES[side] for side in self.sides.tolist()])
        levels += np.where(both, _EVERYBODY * (self.made / game.canaries) ** 3, 0.0)
        if not both.any():
            levels[:] = _SIDES["in"]
        self._levels = alpha * levels
        self._least_value = self._find_least_value()

    def order(self, right: IntArray) -> tuple[float, int]:
        """Return the largest ε that right guesses speak for, and of which look they are."""
        some = np.maximum(right, 1)
        values = self._spread(
            self.game.epsilon, scipy.special.betaincinv(some, self.made - some + 1, self._levels)
        )
        values[(right < 1) | (values < self._least_value)] = -math.inf
        best = int(np.argmax(values))
        return float(values[best]), best

    def find_least(self, value: float) -> IntArray:
        """Return the least right guesses that speak for an ε; more than are made where none do."""
        chance = self._spread(self.game.chance, np.maximum(value, self._least_value))
        low, high = np.zeros_like(self.made), self.made + 1
        while np.any(high - low > 1):
            middle = np.maximum((low + high) // 2, 1)
            common = scipy.special.betainc(middle, self.made - middle + 1, chance) > self._levels
            open_ = high - low > 1
            low = np.where(open_ & common, middle, low)
            high = np.where(open_ & ~common, middle, high)
        return np.asarray(high)

    def _find_least_value(self) -> FloatArray:
        """The ε from which on looks are made: below it, by a rough estimate, δ costs too much."""
        least = np.zeros(self.made.size)
        lost = self.game.canaries * self.game.delta
        for side in self.game.ends:
            some = self.sides == side
            made, chance = self.made[some], self.game.chance(side, _VALUES)[:, None]
            sd = np.sqrt(made * chance * (1 - chance))
            slope = np.maximum(1.0, sd / _MILLS) / np.minimum(made, made * chance + _MILLS * sd)
            cost = self.game.cost(side, _VALUES)[:, None] * slope
            largest, few = cost[:, -1:], _DEAREST * self._alpha * (1 + min(1.0, lost))
            spared = np.minimum(_DEARER * largest, _DEAREST_NEAR * self._alpha)
            if side == tuple(self.game.ends)[-1]:  # one is always made
                spared = np.maximum(spared, _DEAR * largest)
            dear = cost > np.maximum(few, spared)
            dear &= made * np.log(chance) <= np.log(self._levels[some])  # it can happen there
            last = np.where(dear.any(axis=0), _VALUES.size - np.argmax(dear[::-1], axis=0), 0)
            least[some] = np.append(_VALUES, np.inf)[last]
        return least

    def _spread(
        self, ask: Callable[[Side, FloatArray], FloatArray], values: FloatArray
    ) -> FloatArray:
        """Ask something of the value of every look, by its side."""
        answers = np.empty(self.made.size)
        for side in self.game.ends:
            some = self.sides == side
            answers[some] = ask(side, values[some])
        return answers


def _spread_ranks(end: int) -> IntArray:
    ranks = [1]
    while ranks[-1] < end:
        ratio = _FINE if ranks[-1] * _RATIO > end / 2 else _RATIO
        ranks.append(min(end, max(ranks[-1] + 1, math.floor(ranks[-1] * ratio))))
    return np.array(ranks)


@functools.lru_cache(maxsize=64)
def get_family(game: Game, alpha: float) -> LookFamily:
    """Return the family of a game; cached."""
    return LookFamily(game, alpha)


@functools.lru_cache(maxsize=4096)
def find_epsilon(game: Game, alpha: float, value: float) -> float:
    """Return the ε that an observation of this ``value`` refutes, or 0; cached.

    Guarantee: under (ε, δ)-DP a larger value is reached with chance ``alpha`` at most.
    """
    excess = functools.cache(_make_excess(game, alpha, value))
    low, high = max(0.8 * value, 0.0), max(value, 1e-3)
    if excess(low) > 0 and excess(0.0) > 0:
        return 0.0
    low = low if excess(low) <= 0 else 0.0
    while excess(high) <= 0 and high < _LARGEST:
        low, high = high, 1.25 * high
    return search.root(excess, low, high, relative=_NEAR)[0]


def is_refuted(epsilon: float, game: Game, *, alpha: float, value: float) -> bool:
    """Whether speaking for ``value`` refutes ``epsilon``: one evaluation, no search."""
    return _make_excess(game, alpha, value)(epsilon) <= 0


def _make_excess(game: Game, alpha: float, value: float) -> Callable[[float], float]:
    """Return by how much the chance of ``value`` under ε exceeds ``alpha``, in logarithms."""
    family = get_family(game, alpha)
    least = family.find_least(value - _NEAR)  # so that rounding loses no observation
    walks = []
    for side in game.ends:
        some = (family.sides == side) & (least <= family.made)
        if some.any():
            walks.append((side, *_drop_needless(family.made[some], least[some])))
    target = math.log(alpha * (1 - _MARGIN))

    def excess(epsilon: float) -> float:
        if not walks:  # no look speaks for so much
            return math.inf
        total = 0.0
        for side, made, right in walks:
            chance = float(game.chance(side, epsilon))
            total += compute_chance(made, right, chance, alpha=alpha)
            if game.delta > 0:
                total += float(game.cost(side, epsilon)) * limit_slope(made, right, chance)
        return math.log(max(total, 1e-300)) - target

    return excess


def compute_chance(made: IntArray, right: IntArray, chance: float, *, alpha: float) -> float:
    """Return the chance that some nested look happens, of guesses right independently.

    Guarantee: too small by less than ``_MARGIN`` of α.
    """
    reach = math.sqrt(2 * math.log(1 / (_BESIDE * alpha)))
    happened, low, at = 0.0, 0, 0
    chances: FloatArray = np.ones(1)
    for r, v in zip(made.tolist(), right.tolist(), strict=True):
        first, kernel = _compute_window(r - at, chance, reach)
        chances, low, at = _convolve(chances, kernel), low + first, r
        beyond = max(v - low, 0)
        happened += float(chances[beyond:].sum())
        least = min(max(math.floor(r * chance - _half(r, chance, reach)) - low, 0), beyond)
        chances, low = chances[least:beyond], low + least
        if not chances.size:
            break
    return happened


def compute_slope(made: ArrayLike, right: ArrayLike, chance: ArrayLike) -> FloatArray:
    """λ of one look but for 1 − β: Pr[W ≥ v]/(v·Pr[W = v]), W ~ Bin(r, q); it rises in q."""
    r, v, chance = (np.asarray(each, np.float64) for each in (made, right, chance))
    mass = np.exp(_log_choose(r, v) + v * np.log(chance) + (r - v) * np.log1p(-chance))
    falls = (r - v) * chance / ((v + 1) * (1 - chance))  # the next mass in this one, and further
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        masses = np.where(
            mass > 1e-290, scipy.special.betainc(v, r - v + 1, chance) / mass, 1 / (1 - falls)
        )
    return np.asarray(masses / v)


def limit_slope(made: IntArray, right: IntArray, chance: float) -> float:
    """Return an upper limit of λ of nested looks: some are taken together, smaller ones alone."""
    alone = compute_slope(made, right, chance)
    about = _NESTED * np.sqrt((1 - chance) / (chance * made))
    split, slope = made.size - 1, float(alone[-1])
    for at in reversed(range(made.size - 1)):
        slope += float(alone[at])
        if about[at] < slope:
            split, slope = at, float(about[at])
    nested = _limit_nested(int(made[split]), int(right[split]), chance)
    return float(alone[:split].sum()) + min(nested, float(alone[split:].sum()))


def _limit_nested(made: int, most: int, chance: float) -> float:
    """λ of looks of which the smallest is (made, most): the largest of all looks (made, x).

    It rises in x but for β, which is nearly 1 four standard deviations below the mean.
    """
    sd = math.sqrt(made * chance * (1 - chance))
    x = np.arange(min(max(1, math.floor(made * chance - 4 * sd)), most), most + 1.0)
    slopes = compute_slope(made, x, chance)
    fewer = scipy.special.betainc(made - x + 1, x, 1 - chance)  # 1 − β
    fewer[0] /= max(1 - fewer[0], 1e-300)  # so β is left out of the first, for all below it
    mode = 1 / (sd * math.sqrt(2 * math.e))  # no binomial mass is larger (Herzog 1947)
    return max(float((slopes * fewer).max()), (1 - chance) * min(1.0, mode))


def _drop_needless(made: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Drop looks that happen only where another does: of fewer right, or of fewer wrong."""
    least = np.minimum.accumulate(np.append(right, np.iinfo(right.dtype).max)[::-1])[::-1][1:]
    made, right = made[right < least], right[right < least]
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


def _compute_window(trials: int, p: float, reach: float) -> tuple[int, FloatArray]:
    """The masses of Bin(trials, p) that matter, and the number of the first."""
    half = _half(trials, p, reach)
    first = max(0, math.floor(trials * p - half))
    d = np.arange(first, min(trials, math.ceil(trials * p + half)) + 1.0)
    odds = d * math.log(p) + (trials - d) * math.log1p(-p)
    return first, np.exp(_log_choose(float(trials), d) + odds)


def _log_choose(n: FloatArray | float, k: FloatArray) -> FloatArray:
    return np.asarray(
        scipy.special.gammaln(n + 1)
        - scipy.special.gammaln(k + 1)
        - scipy.special.gammaln(n - k + 1)
    )
