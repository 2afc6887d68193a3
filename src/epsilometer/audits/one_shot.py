"""What does one run with many canaries prove, from their cosines alone?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.audits.evidence import growth
from epsilometer.audits.scores import judged
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.engine.plan import versions
from epsilometer.errors import InvalidArgument, warn
from epsilometer.observations import Scores
from epsilometer.core.audit import AuditResult, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.findings import Curve
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.sphere import cosine_quantile, cosines_of
from epsilometer.stats.sphere_bounds import cosine_bound, one_shot_epsilon_lo, tied_bound
from epsilometer.stats.sphere_estimates import FEW, cosine_estimate, two_sample_estimate
from epsilometer.stats.sphere_rounds import largest_estimate
from epsilometer.stats.thresholds import Best
from epsilometer.types import FloatArray

_CROWDED = 10  # dimensions for each canary below which canaries blur each other


def audit_cosines(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    claim: Claim | None = None,
    unobserved: ArrayLike | None = None,
    participation: Literal["equal", "unequal"] = "equal",
    confidence: float = 0.95,
    seed: int = 0,
    subject: str = "one run with canaries",
    adversary: str = "unstated",
    curves: Sequence[Curve] = (),
    provenance: Provenance | None = None,
) -> AuditResult:
    """Bounds and estimates ε from one run's cosines with its canaries, and judges a claim.

    Without ``unobserved`` the cosines are those of one vector (the change of the model, say) with
    every canary that took part; the law of the others is known. With it, both are the largest
    cosines of all rounds, or samples of another statistic whose law is not known.

    Guarantees: ``bound`` exceeds the true ε with probability at most ``1 - confidence``, whatever
        the law of the cosines; the verdict rests on it alone.
    Assumes: cosines are independent of each other: canaries are far fewer than dimensions, and
        could not be foreseen. ``mean_cosine``, beside it where participation is equal, also
        assumes what it says; the papers' own bound is no valid one and says so; estimates (fitted
        spread first, then tied; of maxima their law first, then the papers' normal laws) are no
        bounds.

    Args:
        cosines: One for each canary that took part, shape ``(k,)``.
        dimension: Of the space: the number of trainable parameters.
        delta: δ; must be the claim's.
        claim: What was promised.
        unobserved: The same statistic of canaries that did not take part.
        participation: ``"equal"`` if every canary took part as often as every other.
        confidence: One-sided for bounds, two-sided for the intervals of estimates.
        seed: Of resampling.
        subject: What was audited, in words.
        adversary: Whose view the cosines are computed from, in words.
        curves: Trade-off curves to draw beside the attack's.
        provenance: How to do it again; by default this call.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> cosines = rng.normal(4, 1, 1000) / 1000  # the Gaussian mechanism with σ = ¼
        >>> claim = Claim(epsilon=8.0, delta=1e-6)
        >>> audit = audit_cosines(cosines, dimension=10**6, delta=1e-6, claim=claim)
        >>> audit.verdict, round(audit.bound.epsilon, 1), round(audit.estimates[1].epsilon, 1)
        ('refuted', 16.5, 25.9)
    """
    if participation not in ("equal", "unequal"):
        raise InvalidArgument(
            f"Expected participation to be 'equal' or 'unequal', got {participation!r}."
        )
    inside = cosines_of(cosines, dimension=dimension)
    outside = None if unobserved is None else cosines_of(unobserved, dimension=dimension)
    fewest = inside.size if outside is None else min(inside.size, outside.size)
    if fewest < FEW:
        warn(
            f"{fewest} canaries are few: below {FEW} the estimate scatters widely and the bound "
            "proves little. Plant more, they cost little."
        )
    asked: dict[str, Any] = {"delta": delta, "confidence": confidence}
    rng = np.random.default_rng(seed)
    if outside is None:
        bounds = _one_sample(inside, dimension, participation, asked)
        estimates = [
            cosine_estimate(
                inside, dimension=dimension, spread=spread, rng=rng, subject=subject, **asked
            )
            for spread in ("fitted", "tied")
        ]
        # The null law is known: even quantiles of it stand for canaries that took no part.
        even = cosine_quantile((np.arange(inside.size) + 0.5) / inside.size, dimension)
        scores = Scores(inside, even)
    else:
        scores = Scores(inside, outside)
        bounds = _two_sample(scores, seed, asked)
        estimates = [
            largest_estimate(
                inside, outside, dimension=dimension, rng=rng, subject=subject, **asked
            ),
            two_sample_estimate(inside, outside, rng=rng, subject=subject, **asked),
        ]

    def proved(part: Scores) -> float:
        if outside is None:
            return cosine_bound(part.inside, dimension=dimension, **asked).epsilon
        return epsilon_lower_bound(part, seed=seed, **asked).epsilon

    adjacency: Adjacency = "unstated" if claim is None else claim.adjacency
    crowded = _crowded(inside.size, dimension)
    return judged(
        scores,
        [_told(bound, adjacency, adversary, seed, crowded) for bound in bounds],
        claim=claim,
        subject=subject,
        growth=growth(scores, proved, seed=seed, in_order=False),
        estimates=[_of(estimate, adjacency, crowded) for estimate in estimates],
        curves=curves,
        provenance=provenance
        or Provenance(
            command=f"audit_cosines(cosines, {dimension=!r}, {delta=!r}, {participation=!r}, "
            f"{confidence=!r}, {seed=!r})",
            versions=versions(),
        ),
    )


def _one_sample(
    inside: FloatArray, dimension: int, participation: str, asked: dict[str, Any]
) -> list[EpsilonLowerBound]:
    bounds = [
        cosine_bound(inside, dimension=dimension, rule=rule, **asked)
        for rule in ("ranks", "quantiles")
    ]
    if participation == "equal":
        bounds.append(tied_bound(inside, dimension=dimension, **asked))
    return [*bounds, one_shot_epsilon_lo(inside, dimension=dimension, **asked)]


def _two_sample(scores: Scores, seed: int, asked: dict[str, Any]) -> list[EpsilonLowerBound]:
    return [
        epsilon_lower_bound(scores, seed=seed, **asked),
        epsilon_lower_bound(scores, method="jeffreys", rule=Best(), seed=seed, **asked),
    ]


def _crowded(count: int, dimension: int) -> tuple[str, ...]:
    if count * _CROWDED <= dimension:
        return ()
    return (
        f"{count} canaries are many for {dimension} dimensions: they blur each other, and their "
        "cosines are not quite independent. Plant fewer, or audit a larger model.",
    )


def _told(
    bound: EpsilonLowerBound,
    adjacency: Adjacency,
    adversary: str,
    seed: int,
    caveats: tuple[str, ...],
) -> EpsilonLowerBound:
    return replace(
        bound,
        adjacency=adjacency,
        adversary=adversary,
        seed=seed,
        caveats=(*bound.caveats, *caveats),
    )


def _of(
    estimate: EpsilonEstimate, adjacency: Adjacency, caveats: tuple[str, ...]
) -> EpsilonEstimate:
    return replace(estimate, adjacency=adjacency, caveats=(*estimate.caveats, *caveats))
