"""Train models with a record and without it, and collect what they predict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.posterior.disclosure import ReleaseForm
from epsilometer.audits.posterior.forms import (
    Diverged,
    McDropout,
    PosteriorSampler,
    check_probabilities,
    predict_vector,
)
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Swept
from epsilometer.core.record import Record
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.networks.ensemble import EnsembleDPSGD

SamplerFactory: TypeAlias = Callable[[FloatArray, IntArray, np.random.Generator], PosteriorSampler]
LEARNED_FROM = 0.5  # share of the runs to learn from; the others are evaluated
_TRIED = 32  # samples that must not all be equal


class Predicted(NamedTuple):
    """Predictions of records by many models; nan where a model diverged.

    Attributes:
        samples: ``(runs, records, T, classes)``.
        vector: Without sampling, ``(runs, records, classes)``; None if models cannot do that.
    """

    samples: NDArray[np.float32]
    vector: NDArray[np.float32] | None


class Trainings(Protocol):
    """A way to train models with a record and without it.

    Must keep: runs are independent, and all randomness comes from ``rng``.
    """

    def predict(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """Return ``samples`` predictions of each of ``runs`` fresh models for records."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class OneByOne:
    """A user's own training, called run by run.

    Attributes:
        factory: ``factory(features, labels, rng)`` trains, and returns a ``PosteriorSampler``.
        features: Features of all records except the audited one.
        labels: Their labels.
        record: The audited record; it is added last.
    """

    factory: SamplerFactory
    features: FloatArray
    labels: IntArray
    record: Record

    def predict(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """Predict, each run with its own random streams."""
        parts = [
            self._train_one(records, samples, present, *stream.spawn(2))
            for stream in rng.spawn(runs)
        ]
        shapes = {part.samples.shape for part in parts if part is not None}
        if len(shapes) > 1:
            classes = sorted(shape[-1] for shape in shapes)
            raise InvalidArgument(
                f"Expected models of the same classes, got some of {classes[0]} and some of "
                f"{classes[-1]}."
            )
        shape = shapes.pop() if shapes else (len(records), samples, int(self.labels.max()) + 1)
        nothing = Predicted(np.full(shape, np.nan, np.float32), None)
        drawn = [nothing if part is None else part for part in parts]
        alone = [part.vector for part in drawn if part.vector is not None]
        if not alone:
            return Predicted(np.stack([part.samples for part in drawn]), None)
        lost = np.full_like(alone[0], np.nan)
        vectors = [lost if part.vector is None else part.vector for part in drawn]
        return Predicted(np.stack([part.samples for part in drawn]), np.stack(vectors))

    def _train_one(
        self,
        records: FloatArray,
        samples: int,
        present: bool,
        train_rng: np.random.Generator,
        sample_rng: np.random.Generator,
    ) -> Predicted | None:
        """Return the predictions of one model; None if it diverged."""
        features, labels = self.features.copy(), self.labels.copy()
        if present:
            features = np.concatenate([features, self.record.features[None].astype(features.dtype)])
            labels = np.append(labels, self.record.label)
        sampler = self.factory(features, labels, train_rng)
        if not callable(getattr(sampler, "predict", None)):
            raise InvalidArgument(
                "Expected the factory to return something with predict(x, samples, rng), got "
                f"{type(sampler).__name__}."
            )
        drawn, alone = [], []
        try:
            for x in records:
                drawn.append(self._check(sampler.predict(x, samples, sample_rng), samples))
                found = predict_vector(sampler, x)
                if found is not None:
                    alone.append(found)
        except Diverged:
            return None
        return Predicted(
            np.stack(drawn).astype(np.float32),
            np.stack(alone).astype(np.float32) if len(alone) == len(records) else None,
        )

    def _check(self, drawn: FloatArray, samples: int) -> FloatArray:
        found = check_probabilities(drawn, samples)
        least = int(max(self.labels.max(), self.record.label)) + 1
        if found.shape[1] < least:
            raise InvalidArgument(
                f"Expected probabilities of {least} classes, as many as there are labels, got "
                f"{found.shape[1]}."
            )
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class DropoutRuns:
    """Training runs of a module with dropout, whose models predict by MC dropout.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Features of the records; the first is the audited one.
        labels: Their labels.
    """

    training: "EnsembleDPSGD"
    features: FloatArray
    labels: IntArray

    def predict(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """Predict by ``runs`` fresh models; same ``rng``, same predictions on the same device."""
        parts = []
        streams = rng.spawn(-(-runs // self.training.runs))
        for start, stream in zip(range(0, runs, self.training.runs), streams, strict=True):
            some = replace(self.training, runs=min(self.training.runs, runs - start))
            train_rng, sample_rng = stream.spawn(2)
            trained = some.train(
                self.features, self.labels, rng=train_rng, left_out=int(not present)
            )
            drawn = trained.samples(records, samples, rng=sample_rng)
            alone = trained.probabilities(records).astype(np.float32)
            lost = trained.diverged
            drawn[lost], alone[lost] = np.nan, np.nan
            parts.append(Predicted(samples=drawn, vector=alone))
        return Predicted(
            samples=np.concatenate([part.samples for part in parts]),
            vector=np.concatenate([part.vector for part in parts if part.vector is not None]),
        )

    def check(self) -> None:
        """Refuse settings that cannot be trained, and a module without active dropout."""
        self.training.check(self.features, self.labels)
        try:
            McDropout(self.training.module).predict(
                self.features[0], _TRIED, np.random.default_rng(0)
            )
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{error} Without it there is no uncertainty to audit."
            ) from error


class AllFailed(InvalidArgument):
    """No run finished, so there is nothing to judge."""


@dataclass(frozen=True)
class Shown:
    """A form, and the number of samples it is computed from."""

    form: ReleaseForm
    samples: int

    def __str__(self) -> str:
        return f"{self.form} of {self.samples}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """What to compute from predictions, derived from a subject and its request.

    Attributes:
        forms: Forms that might be published, finest first.
        sweeps: What is varied, and the form that results.
        claim: The claim under test, if any.
        delta: δ of all bounds.
        confidence: Confidence of all forms together.
        line: Limit on ε: a form proved to exceed it must not be published.
        advantage: Largest advantage of an attack on a form that may be published.
    """

    forms: tuple[Shown, ...]
    sweeps: tuple[tuple[Swept, Shown], ...]
    claim: Claim | None
    delta: float
    confidence: float
    line: float
    advantage: float

    @property
    def samples(self) -> int:
        """Number of predictions per model."""
        return self.forms[0].samples

    @property
    def shown(self) -> tuple[Shown, ...]:
        """All forms that are checked, each once."""
        return tuple(dict.fromkeys([*self.forms, *(shown for _, shown in self.sweeps)]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """Predictions for the record by models trained with it, or by models trained without it.

    Attributes:
        samples: Samples of runs that succeeded, ``(runs, T, classes)``.
        vector: Without sampling, ``(runs, classes)``; None if models cannot do that.
        lost: Runs that diverged or failed.
    """

    samples: NDArray[np.float32]
    vector: NDArray[np.float32] | None
    lost: int

    @property
    def runs(self) -> int:
        """Number of all runs, lost ones included."""
        return len(self.samples) + self.lost


@dataclass(frozen=True, eq=False, kw_only=True)
class Collected:
    """Results of all units.

    Attributes:
        inside: Predictions of models trained with the record.
        outside: Predictions of models trained without it.
        utility: Utility of every shown form, ``(shown, 4)``; nan where nothing was tested.
        tested: Number of predictions of test records.
    """

    inside: Side
    outside: Side
    utility: FloatArray | None
    tested: int

    @classmethod
    def of(cls, units: Sequence[Arrays], blocks: int) -> Self:
        """Return the results of units; the first ``blocks`` of them had the record."""
        classes = {unit["samples"].shape[-1] for unit in units if "samples" in unit}
        if not classes:
            raise AllFailed("Expected predictions of some runs, all of them failed.")
        if len(classes) > 1:
            raise InvalidArgument(
                f"Expected models of the same classes, got some of {min(classes)} and some of "
                f"{max(classes)}."
            )
        inside, outside = (_join_side(some) for some in (units[:blocks], units[blocks:]))
        tested = [unit for unit in units if "utility" in unit and int(unit["rows"])]
        rows = [int(unit["rows"]) for unit in tested]
        utility = np.average([u["utility"] for u in tested], axis=0, weights=rows) if rows else None
        return cls(inside=inside, outside=outside, utility=utility, tested=sum(rows))


def _join_side(units: Sequence[Arrays]) -> Side:
    lost = sum(int(unit["lost"]) for unit in units if "lost" in unit)
    drawn = [unit["samples"] for unit in units if "samples" in unit]
    if not drawn:
        return Side(samples=np.zeros((0, 1, 1), np.float32), vector=None, lost=lost)
    samples = np.concatenate(drawn)
    well = np.isfinite(samples).all((1, 2))
    alone = [unit["vector"] for unit in units if "vector" in unit]
    # A block in which all runs diverged does not show whether models predict without sampling.
    known = max(part.shape[1] for part in alone)
    vector = None
    if known:
        whole = [part if part.shape[1] else np.full((len(part), known), np.nan) for part in alone]
        vector = np.concatenate(whole).astype(np.float32)[well]
    return Side(samples=samples[well], vector=vector, lost=lost + int((~well).sum()))
