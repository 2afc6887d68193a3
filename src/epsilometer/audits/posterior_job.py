"""The work of judging predictions with uncertainty: blocks of trainings of either world."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.accounting import pld, rdp
from epsilometer.attacks.disclosure import utility
from epsilometer.attacks.predictions import Predicted, Trainings
from epsilometer.audits.posterior_finding import found
from epsilometer.audits.posterior_runs import Asked, Collected
from epsilometer.canaries.data import Record
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.findings import TheoryEpsilon
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    pass

_CELLS = 2**23  # probabilities of test records that a unit holds
_LEAST = 0.2  # noise that PLD accounts for in seconds


@dataclass(frozen=True, eq=False, kw_only=True)
class PosteriorJob:
    """Blocks of trainings with the record and without it: a block of either world is a unit.

    Attributes:
        plan: Everything that determines the result.
        trainings: What trains, with the record and without it.
        record: The record that is there or not.
        runs: Of either world.
        block: Of them that make a unit.
        asked: What is made of the predictions.
        test: Features and labels that utility is measured on; None: it is not.
        noise: Noise multiplier, sampling rate and steps, where they are known.
        poisson: Whether batches are drawn as accountants assume.
        subject: What is audited, in words.
    """

    plan: Plan
    trainings: Trainings
    record: Record
    runs: int
    block: int
    asked: Asked
    test: tuple[FloatArray, IntArray] | None
    noise: tuple[float, float, int] | None
    poisson: bool
    subject: str

    @property
    def blocks(self) -> int:
        """Units of either world."""
        return -(-self.runs // self.block)

    def unit(self, index: int) -> Arrays:
        """Trains one block, and asks what its models say of the record; and of test records."""
        present, size = index < self.blocks, self._size(index)
        rng, chosen = self.plan.stream(index).spawn(2)
        asked = [self.record.features[None]]
        tested = None if present or self.test is None else self._tested(size, chosen)
        if tested is not None:
            asked.append(tested[0].astype(self.record.features.dtype))
        said = self.trainings.predicted(
            np.concatenate(asked), self.asked.samples, runs=size, present=present, rng=rng
        )
        classes = said.samples.shape[-1]
        alone = np.zeros((size, 0), np.float32) if said.vector is None else said.vector[:, 0]
        arrays: dict[str, NDArray[Any]] = {"samples": said.samples[:, 0], "vector": alone}
        if tested is not None:
            arrays["utility"], arrays["rows"] = self._utility(said, tested[1], classes)
        return arrays

    def missing(self, index: int) -> Arrays:
        """Runs that failed: as if they had diverged."""
        return {"lost": np.array(self._size(index))}

    def watch(self) -> Watch:
        """Nothing can be said before both worlds are there."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> PosteriorAudit:
        """All forms, judged on the same predictions."""
        return found(
            Collected.of(list(units), self.blocks),
            self.asked,
            label=self.record.label,
            theory=_theory(self.noise, self.asked.delta, poisson=self.poisson),
            subject=self.subject,
            provenance=done.provenance(range(self.plan.units)),
            seed=self.plan.seed,
        )

    def _size(self, index: int) -> int:
        start = index % self.blocks * self.block
        return min(self.block, self.runs - start)

    def _tested(self, runs: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        """Some test records for these runs: as many as can be held."""
        assert self.test is not None
        features, labels = self.test
        each = runs * self.asked.samples * (int(labels.max()) + 1)
        most = max(1, min(len(labels), _CELLS // each))
        chosen = np.sort(rng.choice(len(labels), most, replace=False))
        return features[chosen], labels[chosen]

    def _utility(
        self, said: Predicted, labels: IntArray, classes: int
    ) -> tuple[FloatArray, IntArray]:
        """Of every form that is asked for, as accuracy, ties, calibration error and log loss."""
        drawn = said.samples[:, 1:].reshape(-1, self.asked.samples, classes)
        alone = None if said.vector is None else said.vector[:, 1:].reshape(-1, classes)
        kept = np.isfinite(drawn).all((1, 2))
        truth = np.tile(labels, len(said.samples))[kept]
        rows = []
        for shown in self.asked.shown:
            if not kept.any() or (alone is None and shown.form.kind == "vector"):
                rows.append((np.nan,) * 4)
                continue
            central = shown.form.central(
                drawn[kept, : shown.samples], None if alone is None else alone[kept]
            )
            rows.append(astuple(utility(central, truth, unit=shown.form.unit)))
        return np.array(rows), np.array(int(kept.sum()))


def _theory(
    noise: tuple[float, float, int] | None, delta: float, *, poisson: bool
) -> tuple[TheoryEpsilon, ...]:
    """By Rényi moments, as papers print it, and by privacy loss distributions, which is tighter."""
    if noise is None or not noise[0]:
        return ()
    sigma, rate, steps = noise
    note = f"Poisson sampling at rate {rate:.4g}, {steps:,} steps, noise multiplier {sigma:g}"
    if not poisson:
        note = f"as if batches were drawn by {note}; they are not"
    known: dict[str, Any] = {"noise_multiplier": sigma, "sampling_rate": rate, "steps": steps}
    said = [
        TheoryEpsilon(method="RDP", epsilon=rdp.poisson_epsilon(**known, delta=delta), note=note)
    ]
    if sigma >= _LEAST:
        said.append(
            TheoryEpsilon(
                method="PLD", epsilon=pld.poisson_epsilon(**known, delta=delta), note=note
            )
        )
    return tuple(said)
