"""Collect what models predicted, with the record and without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.posterior.disclosure import ReleaseForm
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Swept
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

LEARNED_FROM = 0.5  # of the runs; the others are judged


class AllFailed(InvalidArgument):
    """No run ended: there is nothing to judge."""


@dataclass(frozen=True)
class Shown:
    """A form, and of how many samples it is made."""

    form: ReleaseForm
    samples: int

    def __str__(self) -> str:
        return f"{self.form} of {self.samples}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """What is computed of predictions, as it follows from a subject and its request.

    Attributes:
        forms: What might be published, finest first.
        sweeps: What was varied, and what is shown then.
        claim: What was claimed, if anything.
        delta: δ of all bounds.
        confidence: Of all forms together.
        line: The ε that no form may be proved to exceed.
        advantage: The largest advantage of an attack on a form that may be published.
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
        """Predictions of each model."""
        return self.forms[0].samples

    @property
    def shown(self) -> tuple[Shown, ...]:
        """All that is looked at, each once."""
        return tuple(dict.fromkeys([*self.forms, *(shown for _, shown in self.sweeps)]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """What models said of the record: those trained with it, or those trained without it.

    Attributes:
        samples: Of runs that ended well, ``(runs, T, classes)``.
        vector: Without sampling, ``(runs, classes)``; None where models have no such.
        lost: Runs that diverged or failed.
    """

    samples: NDArray[np.float32]
    vector: NDArray[np.float32] | None
    lost: int

    @property
    def runs(self) -> int:
        """All of them."""
        return len(self.samples) + self.lost


@dataclass(frozen=True, eq=False, kw_only=True)
class Collected:
    """What all units returned.

    Attributes:
        inside: With the record.
        outside: Without it.
        utility: Of everything that is shown, ``(shown, 4)``; nan where nothing was tested.
        tested: Predictions of test records.
    """

    inside: Side
    outside: Side
    utility: FloatArray | None
    tested: int

    @classmethod
    def of(cls, units: Sequence[Arrays], blocks: int) -> Self:
        """Return what units say, of which the first ``blocks`` had the record."""
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
    # A block that diverged wholly has no vectors to tell whether there are such.
    known = max(part.shape[1] for part in alone)
    vector = None
    if known:
        whole = [part if part.shape[1] else np.full((len(part), known), np.nan) for part in alone]
        vector = np.concatenate(whole).astype(np.float32)[well]
    return Side(samples=samples[well], vector=vector, lost=lost + int((~well).sum()))
