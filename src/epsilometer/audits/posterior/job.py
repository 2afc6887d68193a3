"""Train models in blocks, with the record and without it, and keep what they predict."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epsilometer.accounting import pld, rdp
from epsilometer.audits.posterior.disclosure import utility
from epsilometer.audits.posterior.finding import judge_forms
from epsilometer.audits.posterior.predictions import Predicted, Trainings
from epsilometer.audits.posterior.runs import Collected, Question
from epsilometer.core.audit import Audit
from epsilometer.core.findings import TheoryEpsilon
from epsilometer.core.record import Record
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.types import FloatArray, IntArray

_CELLS = 2**23  # probabilities of test records that a unit holds
_LEAST = 0.2  # noise that PLD accounts for in seconds


class Noise(NamedTuple):
    """What an accountant needs to know of training.

    Attributes:
        multiplier: Noise multiplier.
        rate: Share of records in a batch.
        steps: Of all epochs.
        poisson: Whether batches are drawn as accountants assume.
    """

    multiplier: float
    rate: float
    steps: int
    poisson: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class PosteriorJob:
    """Train blocks of models, all with the record or all without it; a block is a unit.

    Attributes:
        plan: Everything that determines the result.
        trainings: What trains, with the record and without it.
        record: The record that is there or not.
        runs: With the record, and as many without it.
        block: Runs that make a unit.
        question: What is made of the predictions.
        test: Features and labels that utility is measured on; None: it is not.
        noise: What an accountant needs to know, where it is known.
        title: What is audited, in words.
    """

    plan: Plan
    trainings: Trainings
    record: Record
    runs: int
    block: int
    question: Question
    test: tuple[FloatArray, IntArray] | None
    noise: Noise | None
    title: str

    @property
    def blocks(self) -> int:
        """Return how many units train with the record; as many train without it."""
        return -(-self.runs // self.block)

    def unit(self, index: int) -> Arrays:
        """Train one block, and ask what its models say of the record; and of test records."""
        present, size = index < self.blocks, self._size(index)
        rng, chosen = self.plan.stream(index).spawn(2)
        records = [self.record.features[None]]
        tested = None if present or self.test is None else self._draw_tests(size, chosen)
        if tested is not None:
            records.append(tested[0].astype(self.record.features.dtype))
        said = self.trainings.predicted(
            np.concatenate(records), self.question.samples, runs=size, present=present, rng=rng
        )
        classes = said.samples.shape[-1]
        alone = np.zeros((size, 0), np.float32) if said.vector is None else said.vector[:, 0]
        arrays: dict[str, NDArray[Any]] = {"samples": said.samples[:, 0], "vector": alone}
        if tested is not None:
            arrays["utility"], arrays["rows"] = self._measure_utility(said, tested[1], classes)
        return arrays

    def missing(self, index: int) -> Arrays:
        """Return what failed runs count as: as if they had diverged."""
        return {"lost": np.array(self._size(index))}

    def watch(self) -> Watch:
        """Return a watch that sees nothing: both kinds of runs are needed to say anything."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return all forms, judged on the same predictions."""
        return judge_forms(
            Collected.of(list(units), self.blocks),
            self.question,
            label=self.record.label,
            theory=_account(self.noise, self.question.delta),
            title=self.title,
            done=done,
        )

    def _size(self, index: int) -> int:
        start = index % self.blocks * self.block
        return min(self.block, self.runs - start)

    def _draw_tests(self, runs: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        """Draw test records for these runs: as many as can be held."""
        assert self.test is not None
        features, labels = self.test
        each = runs * self.question.samples * (int(labels.max()) + 1)
        most = max(1, min(len(labels), _CELLS // each))
        chosen = np.sort(rng.choice(len(labels), most, replace=False))
        return features[chosen], labels[chosen]

    def _measure_utility(
        self, said: Predicted, labels: IntArray, classes: int
    ) -> tuple[FloatArray, IntArray]:
        """Return accuracy, ties, calibration error and log loss of every form."""
        drawn = said.samples[:, 1:].reshape(-1, self.question.samples, classes)
        alone = None if said.vector is None else said.vector[:, 1:].reshape(-1, classes)
        kept = np.isfinite(drawn).all((1, 2))
        truth = np.tile(labels, len(said.samples))[kept]
        rows = []
        for shown in self.question.shown:
            if not kept.any() or (alone is None and shown.form.kind == "vector"):
                rows.append((np.nan,) * 4)
                continue
            central = shown.form.central(
                drawn[kept, : shown.samples], None if alone is None else alone[kept]
            )
            rows.append(astuple(utility(central, truth, unit=shown.form.unit)))
        return np.array(rows), np.array(int(kept.sum()))


def _account(noise: Noise | None, delta: float) -> tuple[TheoryEpsilon, ...]:
    """Return ε by Rényi moments, as papers print it, and by privacy loss distributions."""
    if noise is None or not noise.multiplier:
        return ()
    note = (
        f"Poisson sampling at rate {noise.rate:.4g}, {noise.steps:,} steps, "
        f"noise multiplier {noise.multiplier:g}"
    )
    if not noise.poisson:
        note = f"as if batches were drawn by {note}; they are not"
    known: dict[str, Any] = {
        "noise_multiplier": noise.multiplier,
        "sampling_rate": noise.rate,
        "steps": noise.steps,
        "delta": delta,
    }
    found = [TheoryEpsilon(method="RDP", epsilon=rdp.poisson_epsilon(**known), note=note)]
    if noise.multiplier >= _LEAST:
        found.append(TheoryEpsilon(method="PLD", epsilon=pld.poisson_epsilon(**known), note=note))
    return tuple(found)
