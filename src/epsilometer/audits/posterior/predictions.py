"""What trained models say of records, with a record in training and without it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.posterior.forms import Diverged, PosteriorSampler, probabilities, vector
from epsilometer.core.record import Record
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

SamplerFactory: TypeAlias = Callable[[FloatArray, IntArray, np.random.Generator], PosteriorSampler]


class Predicted(NamedTuple):
    """Predictions of records by many models; nan where a model diverged.

    Attributes:
        samples: ``(runs, records, T, classes)``.
        vector: Without sampling, ``(runs, records, classes)``; None where models have no such.
    """

    samples: NDArray[np.float32]
    vector: NDArray[np.float32] | None


class Trainings(Protocol):
    """Models trained with a record and without it.

    Must keep: runs are independent, and all randomness comes from ``rng``.
    """

    def predicted(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """What ``runs`` fresh models say of records, with ``samples`` predictions each."""
        ...

    def check(self) -> None:
        """Refuses what could not be trained."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class OneByOne:
    """A user's own training, called run by run.

    Attributes:
        factory: ``factory(features, labels, rng)`` trains, and returns a ``PosteriorSampler``.
        features: Records without the one that is there or not.
        labels: Their labels.
        record: That record; it is added last.
    """

    factory: SamplerFactory
    features: FloatArray
    labels: IntArray
    record: Record

    def predicted(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """Each run with streams of its own."""
        parts = [
            self._one(records, samples, present, *stream.spawn(2)) for stream in rng.spawn(runs)
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

    def check(self) -> None:
        """Nothing can be known before it is called."""

    def _one(
        self,
        records: FloatArray,
        samples: int,
        present: bool,
        train_rng: np.random.Generator,
        sample_rng: np.random.Generator,
    ) -> Predicted | None:
        """Of one model; None where it diverged."""
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
                drawn.append(self._checked(sampler.predict(x, samples, sample_rng), samples))
                found = vector(sampler, x)
                if found is not None:
                    alone.append(found)
        except Diverged:
            return None
        return Predicted(
            np.stack(drawn).astype(np.float32),
            np.stack(alone).astype(np.float32) if len(alone) == len(records) else None,
        )

    def _checked(self, drawn: FloatArray, samples: int) -> FloatArray:
        found = probabilities(drawn, samples)
        least = int(max(self.labels.max(), self.record.label)) + 1
        if found.shape[1] < least:
            raise InvalidArgument(
                f"Expected probabilities of {least} classes, as many as there are labels, got "
                f"{found.shape[1]}."
            )
        return found
