"""Does the audit find the ε of a mechanism whose ε is known?"""

from dataclasses import replace
from typing import Literal

import numpy as np

from epsilometer import _validate
from epsilometer.audits.one_shot import audit_cosines
from epsilometer.canaries.hadamard import HadamardCanaries
from epsilometer.canaries.sphere import Directions, SphereCanaries
from epsilometer.core.claim import Claim
from epsilometer.engine.plan import versions
from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import AuditResult, Provenance
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.types import FloatArray


def audit_gaussian_mechanism(
    sigma: float,
    dimension: int,
    *,
    canaries: int = 1000,
    delta: float,
    claim: float | None = None,
    family: Literal["hadamard", "sphere"] = "hadamard",
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """Plays the Gaussian mechanism once with many canaries, and audits what comes out.

    The mechanism sums unit vectors and adds noise of standard deviation ``sigma`` to every
    coordinate. All records are canaries; each is then looked for in the one noisy sum.

    Guarantees: those of ``audit_cosines``; the estimate with tied spread comes first.
    Assumes: nothing further; the mechanism is played, not imitated.

    Args:
        sigma: Standard deviation of the noise, for records of norm 1.
        dimension: Of the records.
        canaries: How many records.
        delta: δ.
        claim: A claimed ε to judge; by default the true one, which should stand.
        family: Directions from a Hadamard transform, or drawn one by one: slower, and the papers'.
        confidence: One-sided for bounds, two-sided for the intervals of estimates.
        seed: Of directions and noise.

    Example:
        >>> audit = audit_gaussian_mechanism(1.54, 100_000, delta=1e-6)
        >>> tied = audit.estimates[0]
        >>> round(audit.claim.epsilon, 2), round(tied.epsilon, 1), audit.verdict
        (3.01, 3.0, 'not refuted')
    """
    _validate.open_unit(delta=delta)
    cosines = mechanism_cosines(
        sigma, dimension, canaries=canaries, family=family, rng=np.random.default_rng(seed)
    )
    true = gaussian_epsilon(sigma, delta)
    audit = audit_cosines(
        cosines,
        dimension=dimension,
        delta=delta,
        claim=Claim(
            epsilon=true if claim is None else claim,
            delta=delta,
            adjacency="add_remove",
            accountant="Gaussian mechanism",
        ),
        confidence=confidence,
        seed=seed,
        subject=f"the Gaussian mechanism with σ = {sigma:g} in {dimension:,} dimensions",
        adversary="sees the noisy sum, knows all other records",
        provenance=Provenance(
            command=f"audit_gaussian_mechanism({sigma!r}, {dimension!r}, {canaries=!r}, "
            f"{delta=!r}, {family=!r}, {confidence=!r}, {seed=!r})",
            versions=versions(),
        ),
    )
    fitted, tied = audit.estimates
    return replace(audit, estimates=(tied, fitted))  # all canaries took part once: tied is right


def mechanism_cosines(
    sigma: float,
    dimension: int,
    *,
    canaries: int = 1000,
    family: Literal["hadamard", "sphere"] = "hadamard",
    rng: np.random.Generator,
) -> FloatArray:
    """Cosines of all canaries with one noisy sum of them, shape ``(canaries,)``."""
    _validate.positive(sigma=sigma)
    _validate.whole(2, dimension=dimension)
    _validate.whole(1, canaries=canaries)
    if canaries > dimension:
        raise InvalidArgument(
            f"Expected at most as many canaries as dimensions, got {canaries} in {dimension}."
        )
    planted = _directions(family, canaries, dimension, key=int(rng.integers(2**63)))
    total = planted.inject(np.arange(canaries), 1.0)
    total += rng.standard_normal(dimension, dtype=np.float32) * np.float32(sigma)
    return planted.cosines(total)


def _directions(family: str, count: int, dimension: int, *, key: int) -> Directions:
    if family == "hadamard":
        return HadamardCanaries(count=count, dimension=dimension, key=key)
    if family == "sphere":
        return SphereCanaries(count=count, dimension=dimension, key=key)
    raise InvalidArgument(f"Expected family to be 'hadamard' or 'sphere', got {family!r}.")
