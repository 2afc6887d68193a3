"""Audit the Gaussian mechanism, whose ε is known: a check of the audit itself."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.audits.federated.hadamard import HadamardCanaries
from epsilometer.audits.federated.one_shot import Cosines, measure_cosines
from epsilometer.audits.federated.sphere import Directions, SphereCanaries
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.types import FloatArray

Family: TypeAlias = Literal["hadamard", "sphere"]


@dataclass(frozen=True, eq=False)
class GaussianMechanism:
    """The Gaussian mechanism, run once with many canaries.

    The mechanism sums unit vectors and adds noise of standard deviation ``sigma`` to every
    coordinate. All records are canaries; each is then looked for in the one noisy sum.

    Guarantee: that of ``Cosines``. Estimates are those of the cosines, tied spread first, and the
        true ε as a reference.
    Assumption: nothing further; the mechanism is run, not imitated.

    Attributes:
        sigma: Standard deviation of the noise, for records of norm 1.
        dimension: Of the records.
        canaries: How many records.
        family: Directions from a Hadamard transform, or drawn one by one: slower, and the papers'.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.GaussianMechanism(1.54, 100_000), 3.02, delta=1e-6)
        >>> tied, _, true = audit.estimates
        >>> round(true.epsilon, 2), round(tied.epsilon, 1), audit.verdict
        (3.01, 3.0, 'not refuted')
    """

    sigma: float
    dimension: int
    _: KW_ONLY
    canaries: int = 1000
    family: Family = "hadamard"

    def __post_init__(self) -> None:
        _validate.positive(sigma=self.sigma)
        _validate.whole(2, dimension=self.dimension)
        _validate.whole(1, canaries=self.canaries)
        if self.family not in get_args(Family):
            raise InvalidArgument(
                f"Expected family to be 'hadamard' or 'sphere', got {self.family!r}."
            )
        if self.canaries > self.dimension:
            raise InvalidArgument(
                f"Expected at most as many canaries as dimensions, got {self.canaries} in "
                f"{self.dimension}."
            )

    def cosines(self, rng: np.random.Generator) -> FloatArray:
        """Run the mechanism; return the cosines of its canaries, shape ``(canaries,)``."""
        kind = HadamardCanaries if self.family == "hadamard" else SphereCanaries
        planted: Directions = kind(
            count=self.canaries, dimension=self.dimension, key=int(rng.integers(2**63))
        )
        total = planted.inject(np.arange(self.canaries), 1.0)
        total += rng.standard_normal(self.dimension, dtype=np.float32) * np.float32(self.sigma)
        return planted.cosines(total)


SUBJECTS = (GaussianMechanism,)


def run_audit(subject: GaussianMechanism, request: Request) -> Audit:
    """Run the mechanism once, and judge the claim by what its canaries show."""
    request = replace(request, claim=request.fill_claim(adjacency="add_remove"))
    delta = request.known_delta
    _validate.open_unit(delta=delta)
    title = f"the Gaussian mechanism with σ = {subject.sigma:g} in {subject.dimension:,} dimensions"
    finding = measure_cosines(
        Cosines(
            subject.cosines(np.random.default_rng(request.seed)),
            dimension=subject.dimension,
            title=title,
            adversary="sees the noisy sum, knows all other records",
        ),
        delta=delta,
        claim=request.claim,
        confidence=request.confidence,
        seed=request.seed,
        adjacency="add_remove",
        estimates=(_true_epsilon(subject, delta),),
    )
    fitted, tied, true = finding.estimates
    return Audit(
        subject=title,
        claim=request.claim,
        # All canaries took part once: of the two estimates the tied one is right.
        findings=(msgspec.structs.replace(finding, estimates=(tied, fitted, true)),),
        provenance=request.make_provenance(subject),
    )


def _true_epsilon(subject: GaussianMechanism, delta: float) -> EpsilonEstimate:
    epsilon = gaussian_epsilon(subject.sigma, delta)
    return EpsilonEstimate(
        epsilon=epsilon,
        low=epsilon,
        high=epsilon,
        delta=delta,
        confidence=1.0,
        method="Gaussian mechanism",
        direction="both",
        subject="the mechanism itself, by its σ",
        role="reference",
        adjacency="add_remove",
        cites=("balle2018",),
    )
