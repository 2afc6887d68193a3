"""What is asked of predictions with uncertainty, and what the runs of either world said."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.attacks.disclosure import ReleaseForm
from epsilometer.core.claim import Claim
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.core.findings import Swept
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
class Asked:
    """What is made of predictions.

    Attributes:
        forms: Finest first.
        sweeps: What was varied, and what is shown then.
        samples: T.
        claim: What was promised.
        delta: δ.
        confidence: Of all forms together.
        line: The ε of the user's line.
        advantage: The advantage of the user's line.
    """

    forms: tuple[ReleaseForm, ...]
    sweeps: tuple[tuple[Swept, Shown], ...]
    samples: int
    claim: Claim | None
    delta: float
    confidence: float
    line: float
    advantage: float

    @classmethod
    def of(
        cls,
        *,
        forms: tuple[ReleaseForm, ...],
        swept: tuple[ReleaseForm, ...],
        counts: tuple[int, ...],
        units: tuple[float, ...],
        samples: int,
        claim: Claim | None,
        delta: float,
        confidence: float,
        line: float,
        advantage: float,
    ) -> Self:
        """With sweeps over the first ``counts`` of the samples, and over units."""
        if not forms or len(set(forms)) < len(forms):
            raise InvalidArgument(
                "Expected forms of publishing, each once, got "
                f"{', '.join(map(str, forms)) or 'none'}."
            )
        for count in counts:
            _validate.whole(1, counts=count)
        fewer = sorted({count for count in counts if count < samples} | {samples})
        finer: list[float | None] = [None, *sorted(set(units))]
        sweeps: list[tuple[Swept, Shown]] = []
        for form in swept:
            if form.kind not in ("vector", "label") and len(fewer) > 1:
                sweeps += [("samples", Shown(form, count)) for count in fewer]
            if form.kind != "label" and len(finer) > 1:
                sweeps += [("unit", Shown(replace(form, unit=unit), samples)) for unit in finer]
        return cls(
            forms=forms,
            sweeps=tuple(sweeps),
            samples=samples,
            claim=claim,
            delta=delta,
            confidence=confidence,
            line=line,
            advantage=advantage,
        )

    @property
    def shown(self) -> tuple[Shown, ...]:
        """All that is looked at, each once."""
        every = [Shown(form, self.samples) for form in self.forms]
        return tuple(dict.fromkeys([*every, *(shown for _, shown in self.sweeps)]))


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """What the models of one world said of the record.

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

    inside: World
    outside: World
    utility: FloatArray | None
    tested: int

    @classmethod
    def of(cls, units: Sequence[Arrays], blocks: int) -> Self:
        """The first ``blocks`` units had the record."""
        classes = {unit["samples"].shape[-1] for unit in units if "samples" in unit}
        if not classes:
            raise AllFailed("Expected predictions of some runs, all of them failed.")
        if len(classes) > 1:
            raise InvalidArgument(
                f"Expected models of the same classes, got some of {min(classes)} and some of "
                f"{max(classes)}."
            )
        inside, outside = (_world(some) for some in (units[:blocks], units[blocks:]))
        tested = [unit for unit in units if "utility" in unit and int(unit["rows"])]
        rows = [int(unit["rows"]) for unit in tested]
        utility = np.average([u["utility"] for u in tested], axis=0, weights=rows) if rows else None
        return cls(inside=inside, outside=outside, utility=utility, tested=sum(rows))


def _world(units: Sequence[Arrays]) -> World:
    lost = sum(int(unit["lost"]) for unit in units if "lost" in unit)
    drawn = [unit["samples"] for unit in units if "samples" in unit]
    if not drawn:
        return World(samples=np.zeros((0, 1, 1), np.float32), vector=None, lost=lost)
    samples = np.concatenate(drawn)
    well = np.isfinite(samples).all((1, 2))
    alone = [unit["vector"] for unit in units if "vector" in unit]
    # A block that diverged wholly has no vectors to tell whether there are such.
    known = max(part.shape[1] for part in alone)
    vector = None
    if known:
        whole = [part if part.shape[1] else np.full((len(part), known), np.nan) for part in alone]
        vector = np.concatenate(whole).astype(np.float32)[well]
    return World(samples=samples[well], vector=vector, lost=lost + int((~well).sum()))
