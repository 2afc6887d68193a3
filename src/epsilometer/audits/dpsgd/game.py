"""Train DP-SGD with canaries and without them, and score runs as the adversary sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from epsilometer.audits.dpsgd.canaries import ManyCanaries, TargetCanary, random_direction
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.record import Record
from epsilometer.core.scores import Sides
from epsilometer.engine.run import Done
from epsilometer.engine.runs import add_lost_caveat, count_lost_scores, join_scores
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.networks.trainer import NoCanaries, Outcome, Trainer
from epsilometer.sampling.samplers import is_displacing
from epsilometer.stats.score_finding import measure_scores, name_scores
from epsilometer.types import BoolArray, FloatArray, IntArray

GradientView: TypeAlias = Literal["updates", "model", "steps"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientGame:
    """Play the game with a target gradient of the adversary's choice.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Records, the target first.
        labels: Their labels.
        canary: The target's gradient, and other gradients that the adversary inserts.
        views: ``"updates"``: likelihood ratio of all noisy sums. ``"model"``: how far the final
            model moved along the canary. ``"steps"``: noisy sums of single steps, minus other
            records' gradients, from steps with the target and from all others.
    """

    training: Trainer
    features: FloatArray
    labels: IntArray
    canary: TargetCanary
    views: tuple[GradientView, ...]

    def __post_init__(self) -> None:
        if self.canary.displaces and not is_displacing(self.training.sampler):
            raise InvalidArgument(
                f"Expected a canary with displaces=False for {self.training.sampler!r}, which adds "
                "the target to a batch, got displaces=True: it would refute a correct accountant."
            )

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Sides]:
        """Train ``runs`` models with the target and as many without; same ``rng``, same scores.

        A run that diverged is scored against the attack: −∞ with the target, +∞ without. If single
        steps are the only view, and at least half of them do not draw the target, it is in all
        runs.
        """
        rate = getattr(self.training.sampler, "rate", None)
        always = self.views == ("steps",) and rate is not None and rate <= 0.5
        sides = [self._train_side(present, runs, rng) for present in (True, always)]
        return {name: _join_sides([side[name] for side in sides]) for name in self.views}

    def _train_side(self, present: bool, runs: int, rng: np.random.Generator) -> dict[str, Sides]:
        """Return each view's scores, for both sides, of runs with or without the target."""
        canary = replace(self.canary, present=present)
        left_out = int(canary.adjacency == "add_remove" and not present)
        groups = []
        for training, stream in _split_runs(self.training, runs, rng):
            trained = training.train(
                self.features, self.labels, rng=stream, canaries=canary, left_out=left_out
            )
            groups.append({name: self._score_view(name, trained, canary) for name in self.views})
        return {name: _join_sides([group[name] for group in groups]) for name in self.views}

    def _score_view(self, view: GradientView, trained: Outcome, canary: TargetCanary) -> Sides:
        sums = trained.observations[..., 0]
        if view == "steps":
            # A step has the target if it is present and drawn; minus other gradients, which
            # the adversary knows, all other steps are alike.
            has = trained.drawn[..., 0] & canary.present
            alone = sums - trained.others[..., 0]
            inside, outside = alone[has], alone[~has]
            return Sides(
                score_lost(inside, np.isnan(inside), present=True),
                score_lost(outside, np.isnan(outside), present=False),
            )
        if view == "model":
            scores, lost = trained.moved[:, 0], trained.diverged
        else:
            lost = trained.diverged | np.isnan(sums).any((1, 2))
            scores = canary.log_ratio(
                np.nan_to_num(sums),
                sampler=self.training.sampler,
                noise_multiplier=self.training.noise_multiplier,
                rate=self.training.batch_size / len(self.features),
            )
        scores, none = score_lost(scores, lost, present=canary.present), np.empty(0)
        return Sides(scores, none) if canary.present else Sides(none, scores)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordGame:
    """Play the game with a target record, scored by the final models' loss on it.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Records; the target replaces the first.
        labels: Their labels.
        record: The target.
        adjacency: Training without it: with the record it replaced, with a gradient of 0 instead,
            or with one record less.
    """

    training: Trainer
    features: FloatArray
    labels: IntArray
    record: Record
    adjacency: Adjacency

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Sides]:
        """Train ``runs`` models with the target and as many without; same ``rng``, same scores."""
        inside, outside = (self._train_side(present, runs, rng) for present in (True, False))
        return {"loss": Sides(inside, outside)}

    def _train_side(self, present: bool, runs: int, rng: np.random.Generator) -> FloatArray:
        features, labels = self.features.copy(), self.labels.copy()
        if present:
            features[0], labels[0] = self.record.features, self.record.label
        left_out = int(self.adjacency == "add_remove" and not present)
        canaries = NoCanaries(zeroed=self.adjacency == "zero_out" and not present)
        scores = []
        for training, stream in _split_runs(self.training, runs, rng):
            trained = training.train(
                features, labels, rng=stream, canaries=canaries, left_out=left_out
            )
            losses = trained.losses(
                self.record.features[None], np.array([self.record.label]), loss=training.loss
            )[:, 0]
            scores.append(score_lost(-losses, trained.diverged | np.isnan(losses), present=present))
        return np.concatenate(scores)


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRun:
    """Train once with many gradient canaries, each included by a fair coin toss.

    Attributes:
        training: How the model is trained; one run.
        features: Records.
        labels: Their labels.
        canaries: How many.
        claim: The claim, if any.
        delta: δ of the bound.
        confidence: Confidence of this bound alone.
        seed: Seed of the audit.
        subject: What was audited, in words.
    """

    training: Trainer
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
        canaries = ManyCanaries(
            directions=directions, included=included[None], first=len(self.features)
        )
        trained = self.training.train(self.features, self.labels, rng=rng, canaries=canaries)
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
        """Return scores of a failed run: every canary counts against the attack."""
        inside = self.canaries // 2 if included is None else int(included.sum())
        return {
            "inside": np.full(inside, -np.inf),
            "outside": np.full(self.canaries - inside, np.inf),
        }

    def find(self, arrays: Arrays, done: Done, units: range) -> EpsilonFinding:
        """Return the finding of the run.

        Args:
            arrays: Return value of :meth:`play`.
            done: Which units of the plan were done.
            units: The unit of this run.
        """
        scores = name_scores(
            join_scores([arrays]),
            title=f"{self.subject}, one run with {self.canaries} canaries, all updates seen",
            adversary="sees every noisy sum and chooses the canaries' gradients, not the batches",
            design="coins",
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
        found = msgspec.structs.replace(
            found, bound=msgspec.structs.replace(found.bound, adjacency="zero_out")
        )
        none = np.zeros(2, np.int64)
        return add_lost_caveat(
            found, none if units[0] in done.failed else count_lost_scores(arrays), "canaries"
        )


def _join_sides(parts: list[Sides]) -> Sides:
    inside, outside = (np.concatenate(side) for side in zip(*parts, strict=True))
    return Sides(inside, outside)


def score_lost(scores: FloatArray, lost: BoolArray, *, present: bool) -> FloatArray:
    """Return scores in which failed runs count against the attack."""
    return np.asarray(np.where(lost, -np.inf if present else np.inf, scores), np.float64)


def _split_runs(
    training: Trainer, runs: int, rng: np.random.Generator
) -> list[tuple[Trainer, np.random.Generator]]:
    """Return groups of as many runs as fit at once, each with its own stream."""
    sizes = [min(training.runs, runs - start) for start in range(0, runs, training.runs)]
    streams = rng.spawn(len(sizes))
    return [(training.with_runs(size), stream) for size, stream in zip(sizes, streams, strict=True)]
