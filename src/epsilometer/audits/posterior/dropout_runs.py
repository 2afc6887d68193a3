"""Networks with dropout, trained many at once with a record and without it, and sampled at once."""

from dataclasses import dataclass, replace

import numpy as np

from epsilometer.audits.posterior.forms import McDropout
from epsilometer.audits.posterior.predictions import Predicted
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import EnsembleDPSGD
from epsilometer.types import FloatArray, IntArray

_TRIED = 32  # samples that must not all be equal


@dataclass(frozen=True, eq=False, kw_only=True)
class DropoutRuns:
    """What MC dropout says of records, over many trainings.

    Attributes:
        training: How models are trained; its ``runs`` are trained at once.
        features: Records; the first is the one that is there or not.
        labels: Their labels.
    """

    training: EnsembleDPSGD
    features: FloatArray
    labels: IntArray

    def predicted(
        self,
        records: FloatArray,
        samples: int,
        *,
        runs: int,
        present: bool,
        rng: np.random.Generator,
    ) -> Predicted:
        """Of ``runs`` fresh models; same ``rng``, same predictions on the same device."""
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
        """Refuses what could not be trained, and a module without dropout at work."""
        self.training.check(self.features, self.labels)
        try:
            McDropout(self.training.module).predict(
                self.features[0], _TRIED, np.random.default_rng(0)
            )
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{error} Without it there is no uncertainty to audit."
            ) from error
