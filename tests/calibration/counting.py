"""How often each bound exceeds the truth, and how far below it stays."""

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import epsilometer as em
from epsilometer import Scores
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.rules import Bonferroni, Fixed, HoldOut, Published, RankGrid
from epsilometer.stats import binomial, tradeoff
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.thresholds import UNPAID
from tests.calibration.situations import DELTA, Situation

ONE_RUN = ("one_run", "one_run_fdp")
GAUSSIAN_ONLY = ("gdp", "one_run_fdp")
_SLOW = {
    ("one_run", "Bonferroni"),
    *(("one_run_fdp", rule.__name__) for rule in (RankGrid, HoldOut, Bonferroni, Fixed)),
}
SHRINK = 20  # by which the samples of slow pairs are smaller


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A way of bounding ε: a method and a rule, or a peer's."""

    name: str
    method: str
    rule: type | None = None
    of_scores: Callable[[Scores, Situation, int], float] | None = None

    @property
    def valid(self) -> bool:
        """Whether it says that it holds."""
        exact = self.rule is not None and REGISTRY[self.method].exact
        return exact and self.rule not in UNPAID

    @property
    def shrink(self) -> int:
        """How much smaller the samples are, to be done in time."""
        slow = self.rule is not None and (self.method, self.rule.__name__) in _SLOW
        return SHRINK if slow else 1

    def applies(self, situation: Situation) -> bool:
        """Whether what it assumes is true there."""
        fair_coins = self.method not in ONE_RUN or situation.sizes[0] == situation.sizes[1]
        return fair_coins and (situation.gaussian or self.method not in GAUSSIAN_ONLY)

    def draw(self, situation: Situation, rng: np.random.Generator) -> Scores:
        """Scores as it assumes them."""
        draw = situation.draw_one_run if self.method in ONE_RUN else situation.draw
        return draw(rng, shrink=self.shrink)

    def epsilon(self, scores: Scores, situation: Situation, seed: int) -> float:
        """The bound."""
        if self.of_scores is not None:
            return self.of_scores(scores, situation, seed)
        rule = Fixed(situation.threshold) if self.rule is Fixed else self.rule()  # type: ignore[misc]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EpsilometerWarning)
                return em.epsilon_lower_bound(
                    scores, delta=DELTA, method=self.method, rule=rule, seed=seed
                ).epsilon
        except InvalidArgument:  # a blind split of 50 canaries may leave a side empty: no bound
            return 0.0


def hull_bonferroni(scores: Scores, situation: Situation, seed: int) -> float:
    """jax-privacy 2.0's default: α divided by the vertices of the hull, which the data chose."""
    x, y = em.tradeoff_curve(scores).hull()
    alpha = 0.05 / (2 * x.size)
    fpr = binomial.clopper_pearson_upper(np.round(x * scores.n_out), scores.n_out, alpha=alpha)
    fnr = binomial.clopper_pearson_upper(np.round(y * scores.n_in), scores.n_in, alpha=alpha)
    return float(tradeoff.epsilon_of_rates(fpr, fnr, DELTA).max())


OURS = tuple(
    Bound(name=f"`{method}` {rule.__name__}", method=method, rule=rule)
    for method, row in REGISTRY.items()
    if row.exact
    for rule in row.rules
    if rule not in UNPAID
)
OTHERS = (
    Bound(name="papers: `clopper_pearson` Published", method="clopper_pearson", rule=Published),
    Bound(name="one-shot papers: `jeffreys` Published", method="jeffreys", rule=Published),
    Bound(name="Bayesian: `joint_beta` Fixed", method="joint_beta", rule=Fixed),
    Bound(name="`jeffreys` Fixed", method="jeffreys", rule=Fixed),
    Bound(name="jax-privacy 2.0: hull", method="clopper_pearson", of_scores=hull_bonferroni),
)


def bounds_of(bound: Bound, situation: Situation, *, audits: int, seed: int = 0) -> np.ndarray:
    """The bound of each of many independent audits."""
    name = f"{bound.name}|{situation.name}"
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return np.array(
        [bound.epsilon(bound.draw(situation, rng), situation, seed=i) for i in range(audits)]
    )
