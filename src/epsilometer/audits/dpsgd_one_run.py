"""DP-SGD once, with many gradient canaries instead of many runs with one."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epsilometer import _validate
from epsilometer.audits.diverged import lost_scores, told_of_lost
from epsilometer.audits.runs import joined
from epsilometer.audits.scores import audit_scores
from epsilometer.canaries.gradient import ManyCanaries, TargetCanary, random_direction
from epsilometer.core.claim import Claim
from epsilometer.engine.run import Done
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import AuditResult
from epsilometer.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.training.ensemble import EnsembleDPSGD

_FEWEST = 20  # canaries of one run: all heads or all tails come once in half a million


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRun:
    """One training with many gradient canaries, each in by its own coin.

    Attributes:
        training: How it is trained; one run.
        features: Records.
        labels: Their labels.
        canaries: How many.
        claim: What was promised.
        delta: δ.
        confidence: One-sided.
        seed: Of the audit.
        subject: What was audited, in words.
    """

    training: "EnsembleDPSGD"
    features: FloatArray
    labels: IntArray
    canaries: int
    claim: Claim | None
    delta: float
    confidence: float
    seed: int
    subject: str

    def play(self, rng: np.random.Generator) -> Arrays:
        """Trains, and scores every canary by all noisy sums along it."""
        included = rng.integers(2, size=self.canaries).astype(np.bool_)
        directions = np.stack([random_direction(self.training.size, rng=rng) for _ in included])
        planted = ManyCanaries(
            directions=directions, included=included[None], first=len(self.features)
        )
        trained = self.training.train(self.features, self.labels, rng=rng, canaries=planted)
        alone = TargetCanary(
            adversary="target_canary",
            direction=directions[0],
            batch_size=self.training.batch_size,
        )
        seen = np.moveaxis(trained.observations[0], -1, 0)
        scores = alone.log_ratio(
            np.nan_to_num(seen),
            sampler=self.training.sampler,
            noise_multiplier=self.training.noise_multiplier,
            rate=self.training.batch_size / (len(self.features) + self.canaries),
        )
        if trained.diverged[0] or np.isnan(seen).any():
            return self.missing(included)
        return {"inside": scores[included], "outside": scores[~included]}

    def missing(self, included: BoolArray | None = None) -> Arrays:
        """A run that proves nothing: every canary speaks against the attack."""
        inside = self.canaries // 2 if included is None else int(included.sum())
        return {
            "inside": np.full(inside, -np.inf),
            "outside": np.full(self.canaries - inside, np.inf),
        }

    def audit(self, arrays: Arrays, done: Done, units: range) -> AuditResult:
        """What it proves."""
        found = audit_scores(
            joined([arrays]),
            delta=self.delta,
            claim=self.claim,
            confidence=self.confidence,
            method="one_run",
            seed=self.seed,
            subject=f"{self.subject}, one run with {self.canaries} canaries, all updates seen",
            adversary="sees every noisy sum and chooses the canaries' gradients, not the batches",
            provenance=done.provenance(units),
        )
        found = replace(found, bound=replace(found.bound, adjacency="zero_out"))
        none = np.zeros(2, np.int64)
        return told_of_lost(
            found, none if units[0] in done.failed else lost_scores(arrays), "canaries"
        )


def enough_canaries(canaries: int) -> None:
    """Refuses so few that one run with them could show nothing."""
    _validate.whole(0, canaries=canaries)
    if 0 < canaries < _FEWEST:
        raise InvalidArgument(
            f"Expected canaries=0, or {_FEWEST} or more, got {canaries}: each is in by a coin, "
            "and fewer prove nothing."
        )
