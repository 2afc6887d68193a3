"""Bound ε from the scores of canaries that may consist of several records each."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.scores import Scores
from epsilometer.errors import EpsilometerWarning
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.group_privacy import bound_one_record, group_delta
from epsilometer.stats.reach import compute_power, compute_reach, separate_scores
from epsilometer.stats.score_finding import make_finding, measure_growth
from epsilometer.stats.thresholds import Observed

_METHOD = "one_run"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Hold the settings of one view's bound.

    Attributes:
        delta: δ of one record.
        confidence: Confidence of this view alone.
        copies: Number of records per canary.
        paired: Whether canaries are twins, of which one is planted.
        replaced: Whether the claim is about replaced records, as twins are.
        seed: Seed for breaking ties.
    """

    delta: float
    confidence: float
    copies: int = 1
    paired: bool = False
    replaced: bool = False
    seed: int = 0

    @property
    def design(self) -> Literal["coins", "paired"]:
        """Design of the scores, see ``Scores``."""
        return "paired" if self.paired else "coins"

    @property
    def adjacency(self) -> Adjacency:
        """Adjacency that canaries test: one record more, or another record instead."""
        return "replace" if self.replaced else "add_remove"

    def bound(self, scores: Observed, *, delta: float) -> EpsilonLowerBound:
        """Return the bound on the ε of one canary with all its copies."""
        return epsilon_lower_bound(
            replace(scores, design=self.design),
            delta=delta,
            confidence=self.confidence,
            method=_METHOD,
            seed=self.seed,
            adjacency=self.adjacency,
            adversary=scores.adversary,
        )

    def prove(self, scores: Observed) -> float:
        """Return the bound that scores prove on one record's ε, without warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EpsilometerWarning)
            return bound_one_record(
                lambda delta: self.bound(scores, delta=delta).epsilon,
                delta=self.delta,
                copies=self.copies,
            )


def forecast_view(
    asked: Question, claim: float | None, *, learnt: tuple[int, int], size: tuple[int, int]
) -> tuple[float, float | None]:
    """Return reach and power of scores that were not observed; no power without a claim.

    If only some planted canaries were trained on, an attack can at best separate those from all
    others. Held-out ones that were trained on look like planted ones.

    Args:
        asked: Settings of the bound.
        claim: The claimed ε.
        learnt: Numbers of planted and held-out canaries that were trained on.
        size: Numbers of all planted and held-out canaries.
    """
    n_in, n_out = sum(learnt), sum(size) - sum(learnt)
    if 0 in (n_in, n_out):
        return 0.0, None if claim is None else math.inf
    as_declared = learnt == (size[0], 0)

    def prove(part: Observed) -> float:
        if as_declared or not isinstance(part, Scores):
            return asked.prove(part)
        rng = np.random.default_rng(0)
        shifted, others = rng.permutation(part.inside), rng.permutation(part.outside)
        cut, fill = learnt[0], size[0] - learnt[0]
        inside = np.concatenate([shifted[:cut], others[:fill]])
        outside = np.concatenate([shifted[cut:], others[fill:]])
        return asked.prove(Scores(inside, outside, adversary=part.adversary))

    reach = compute_reach(prove, separate_scores(n_in, n_out))
    if claim is None or claim >= reach:
        return reach, None if claim is None else math.inf
    power = compute_power(
        prove,
        claim=claim,
        delta=asked.delta,
        n_in=n_in,
        n_out=n_out,
        # Copies add up: a canary of k copies is shifted k times as far as one record.
        epsilon_of=(
            (lambda mu: mu / asked.copies)
            if asked.delta == 0
            else (lambda mu: gdp_epsilon(mu / asked.copies, asked.delta))
        ),
        counted=as_declared and not asked.paired,
    )
    return reach, power


def measure_view(
    scores: Scores,
    asked: Question,
    *,
    claim: Claim | None,
    learnt: tuple[int, int] | None = None,
    valid: bool = True,
) -> EpsilonFinding:
    """Return the finding from the scores of one kind of canaries.

    Guarantees: the bound exceeds the true ε of one record with probability at most
        ``1 - asked.confidence``.
    Assumes: canaries were planted as their design says.

    Args:
        scores: Scores of canaries, with title and adversary.
        asked: Settings of the bound.
        claim: What was claimed, if anything.
        learnt: Numbers of planted and held-out canaries that were trained on and have a score; by
            default as declared.
        valid: Whether each canary was a separate record.
    """
    epsilon = asked.prove(scores)
    own = asked.bound(scores, delta=group_delta(epsilon, asked.delta, copies=asked.copies))
    said = own.caveats
    if asked.copies > 1:
        said = (
            *said,
            f"Every canary is {asked.copies} records: the bound for one record follows from that "
            "for all copies by group privacy.",
        )
    bound = msgspec.structs.replace(
        own, epsilon=epsilon, delta=asked.delta, caveats=said, valid=own.valid and valid
    )
    reach, power = forecast_view(
        asked,
        None if claim is None else claim.epsilon,
        learnt=(scores.n_in, 0) if learnt is None else learnt,
        size=(scores.n_in, scores.n_out),
    )
    return make_finding(
        scores,
        [bound],
        prove=asked.prove,
        claim=claim,
        subject=scores.title,
        growth=measure_growth(scores, asked.prove, seed=asked.seed, in_order=False),
        reach=max(epsilon, reach),
        power=power if valid or claim is None else math.inf,
    )
