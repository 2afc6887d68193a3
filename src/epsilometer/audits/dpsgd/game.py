"""DP-SGD played with the target and without it, and scored as the adversary sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from epsilometer.audits.dpsgd.canaries import TargetCanary
from epsilometer.core.claim import Adjacency
from epsilometer.core.record import Record
from epsilometer.core.scores import Sides
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import EnsembleDPSGD, Trained
from epsilometer.networks.insertion import NoCanaries
from epsilometer.sampling.samplers import is_displacing
from epsilometer.types import BoolArray, FloatArray, IntArray

GradientView: TypeAlias = Literal["updates", "model", "steps"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientGame:
    """A target with a gradient of the adversary's choice.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Records, the target first.
        labels: Their labels.
        canary: The target's gradient, and whatever else the adversary inserts.
        views: ``"updates"``: likelihood ratio of all noisy sums. ``"model"``: the final model
            alone, by how far it went along the canary. ``"steps"``: the noisy sums of single steps
            without what other records add, of those that have the target, and of all others.
    """

    training: EnsembleDPSGD
    features: FloatArray
    labels: IntArray
    canary: TargetCanary
    views: tuple[GradientView, ...]

    def __post_init__(self) -> None:
        if self.canary.displaces and not is_displacing(self.training.sampler):
            raise InvalidArgument(
                f"Expected a canary with displaces=False for {self.training.sampler!r}, whose "
                "batches take the target beside the others, got displaces=True: it would refute "
                "an accountant who is right."
            )

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Sides]:
        """Trains ``runs`` models with the target and as many without; same ``rng``, same scores.

        A run that diverged is scored against the attack: −∞ with the target, +∞ without. Where
        single steps alone are looked at, and at least half of them do not draw the target, it is in
        all runs.
        """
        rate = getattr(self.training.sampler, "rate", None)
        always = self.views == ("steps",) and rate is not None and rate <= 0.5
        worlds = [self._world(present, runs, rng) for present in (True, always)]
        return {name: _joined([world[name] for world in worlds]) for name in self.views}

    def _world(self, present: bool, runs: int, rng: np.random.Generator) -> dict[str, Sides]:
        """What each view takes from the runs of a world, for either side."""
        canary = replace(self.canary, present=present)
        left_out = int(canary.adjacency == "add_remove" and not present)
        groups = []
        for training, stream in _groups(self.training, runs, rng):
            trained = training.train(
                self.features, self.labels, rng=stream, canaries=canary, left_out=left_out
            )
            groups.append({name: self._seen(name, trained, canary) for name in self.views})
        return {name: _joined([group[name] for group in groups]) for name in self.views}

    def _seen(self, view: GradientView, trained: Trained, canary: TargetCanary) -> Sides:
        sums = trained.observations[..., 0]
        if view == "steps":
            # A step shows the target where it is and was drawn; less what other records add, which
            # she knows, all other steps are alike.
            has = trained.drawn[..., 0] & canary.present
            alone = sums - trained.others[..., 0]
            inside, outside = alone[has], alone[~has]
            return Sides(
                against(inside, np.isnan(inside), present=True),
                against(outside, np.isnan(outside), present=False),
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
        scores, none = against(scores, lost, present=canary.present), np.empty(0)
        return Sides(scores, none) if canary.present else Sides(none, scores)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordGame:
    """A target record with its own gradient, scored by the final models' loss on it.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Records; the first gives way to the target.
        labels: Their labels.
        record: The target.
        adjacency: What training without it is: with the record it replaced, with a gradient of 0 in
            its place, or with a record less.
    """

    training: EnsembleDPSGD
    features: FloatArray
    labels: IntArray
    record: Record
    adjacency: Adjacency

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Sides]:
        """Trains ``runs`` models with the target and as many without; same ``rng``, same scores."""
        inside, outside = (self._world(present, runs, rng) for present in (True, False))
        return {"loss": Sides(inside, outside)}

    def _world(self, present: bool, runs: int, rng: np.random.Generator) -> FloatArray:
        features, labels = self.features.copy(), self.labels.copy()
        if present:
            features[0], labels[0] = self.record.features, self.record.label
        left_out = int(self.adjacency == "add_remove" and not present)
        canaries = NoCanaries(zeroed=self.adjacency == "zero_out" and not present)
        scores = []
        for training, stream in _groups(self.training, runs, rng):
            trained = training.train(
                features, labels, rng=stream, canaries=canaries, left_out=left_out
            )
            losses = trained.losses(
                self.record.features[None], np.array([self.record.label]), loss=training.loss
            )[:, 0]
            scores.append(against(-losses, trained.diverged | np.isnan(losses), present=present))
        return np.concatenate(scores)


def _joined(parts: list[Sides]) -> Sides:
    inside, outside = (np.concatenate(side) for side in zip(*parts, strict=True))
    return Sides(inside, outside)


def against(scores: FloatArray, lost: BoolArray, *, present: bool) -> FloatArray:
    """Scores, where runs that were lost speak against the attack."""
    return np.asarray(np.where(lost, -np.inf if present else np.inf, scores), np.float64)


def _groups(
    training: EnsembleDPSGD, runs: int, rng: np.random.Generator
) -> list[tuple[EnsembleDPSGD, np.random.Generator]]:
    """As many runs as fit at once, each group with a stream of its own."""
    sizes = [min(training.runs, runs - start) for start in range(0, runs, training.runs)]
    streams = rng.spawn(len(sizes))
    return [
        (training if size == training.runs else replace(training, runs=size), stream)
        for size, stream in zip(sizes, streams, strict=True)
    ]
