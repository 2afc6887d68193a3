"""Train DP-SGD once, with many gradient canaries instead of many runs with one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epsilometer import _validate
from epsilometer.audits.dpsgd.canaries import ManyCanaries, TargetCanary, random_direction
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.run import Done
from epsilometer.engine.runs import join_scores, lost_scores, told_of_lost
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.stats.score_finding import measure_scores, name_scores
from epsilometer.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.networks.ensemble import EnsembleDPSGD

_FEWEST = 20  # canaries of one run: all heads or all tails come once in half a million


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRun:
    """One training with many gradient canaries, each in by its own coin.

    Attributes:
        training: How it is trained; one run.
        features: Records.
        labels: Their labels.
        canaries: How many.
        claim: What was claimed, if anything.
        delta: δ of the bound.
        confidence: Of this bound alone.
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
        """Train, and score every canary by all noisy sums along it."""
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
        """Return what proves nothing: every canary speaks against the attack."""
        inside = self.canaries // 2 if included is None else int(included.sum())
        return {
            "inside": np.full(inside, -np.inf),
            "outside": np.full(self.canaries - inside, np.inf),
        }

    def find(self, arrays: Arrays, done: Done, units: range) -> EpsilonFinding:
        """Return what it proves.

        Args:
            arrays: What :meth:`play` returned.
            done: What was done of the plan.
            units: The unit of this run.
        """
        scores = name_scores(
            join_scores([arrays]),
            title=f"{self.subject}, one run with {self.canaries} canaries, all updates seen",
            adversary="sees every noisy sum and chooses the canaries' gradients, not the batches",
            method="one_run",
        )
        found = measure_scores(
            scores,
            delta=self.delta,
            claim=self.claim,
            confidence=self.confidence,
            seed=self.seed,
            **done.counts(units),
        )
        found = replace(found, bound=replace(found.bound, adjacency="zero_out"))
        none = np.zeros(2, np.int64)
        return told_of_lost(
            found, none if units[0] in done.failed else lost_scores(arrays), "canaries"
        )


def check_canaries(canaries: int) -> None:
    """Refuse so few that one run with them could show nothing."""
    _validate.whole(0, canaries=canaries)
    if 0 < canaries < _FEWEST:
        raise InvalidArgument(
            f"Expected canaries=0, or {_FEWEST} or more, got {canaries}: each is in by a coin, "
            "and fewer prove nothing."
        )
