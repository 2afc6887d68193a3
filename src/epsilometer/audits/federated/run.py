"""Bound ε by the iterates of one federated run with canary clients."""

import warnings
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from epsilometer.audits.federated.iterates import IteratesSeen
from epsilometer.audits.federated.one_shot import Cosines, measure_cosines
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.types import FloatArray

Participation: TypeAlias = Literal["hidden", "known", "unseen"]
_KNOWS = {"known": ", and knows who took part", "hidden": "", "unseen": ""}


def measure_iterates(
    seen: IteratesSeen,
    *,
    dimension: int,
    delta: float,
    claim: Claim | None = None,
    participation: Participation = "hidden",
    confidence: float = 0.95,
    seed: int = 0,
    subject: str = "one federated run",
    caveats: Sequence[str] = (),
    estimates: Sequence[EpsilonEstimate] = (),
    units: int = 1,
    used: int = 1,
    failed: int = 0,
) -> tuple[EpsilonFinding, ...]:
    """Return what is proved by who sees the final model, and by who sees that of every round.

    The first compares canaries with θ_T − θ_0, since the weights a run begins with are public; the
    second takes the largest of all rounds, and compares it with that of canaries that were never
    planted. After one round the two see the same, and only the first is there.

    Guarantee: that of ``Cosines``, for both together.
    Assumption: none with ``hidden``, where all canaries count, whether they were sampled or not;
        with ``known`` only those count that took part, so that the claim must not rest on
        amplification by sampling.

    Args:
        seen: What was seen of the canaries.
        dimension: Of their space.
        delta: δ of all bounds.
        claim: What was claimed, if anything.
        participation: ``hidden``, ``known``, or ``unseen`` where nobody counted who took part.
        confidence: One-sided, of all bounds together.
        seed: Of resampling.
        subject: What was audited, in words.
        caveats: What a reader must know before quoting a bound.
        estimates: Further ε by theory, after those of the cosines.
        units: Units of work that were planned for the run.
        used: Units that gave it.
        failed: Units that failed.

    Raises:
        InvalidArgument: No round moved the weights, or no canary took part.
    """
    counted = _select_counted(seen, participation)
    equal = participation != "unseen" and np.unique(seen.took[counted]).size == 1
    said = (*caveats, *_word_participation(seen, participation))
    planted = seen.took.size
    views: list[tuple[str, str, FloatArray, FloatArray | None]] = [
        (
            "final model",
            "the weights before and after training",
            seen.final[:planted][counted],
            None,
        )
    ]
    if seen.rounds > 1:
        largest = seen.largest[:planted][counted], seen.largest[planted:]
        views.append(("all rounds", "the weights after every round", *largest))
    found = []
    for name, view, inside, outside in views:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EpsilometerWarning)
            finding = measure_cosines(
                Cosines(
                    inside,
                    dimension=dimension,
                    unobserved=outside,
                    participation="equal" if equal else "unequal",
                    title=f"{subject}, {seen.rounds:,} rounds: {name}",
                    adversary=f"sees {view}{_KNOWS[participation]}",
                ),
                delta=delta,
                claim=claim,
                confidence=1 - (1 - confidence) / len(views) if len(views) > 1 else confidence,
                seed=seed,
                adjacency="zero_out",
                estimates=estimates,
                units=units,
                used=used,
                failed=failed,
            )
        warned = (str(warning.message) for warning in caught)
        every = dict.fromkeys((*finding.bound.caveats, *said, *warned))
        found.append(replace(finding, bound=replace(finding.bound, caveats=tuple(every))))
    return tuple(found)


def _select_counted(seen: IteratesSeen, participation: Participation) -> NDArray[np.bool_]:
    """Return which planted canaries count."""
    if participation not in _KNOWS:
        raise InvalidArgument(
            f"Expected participation to be one of {', '.join(_KNOWS)}, got {participation!r}."
        )
    if seen.rounds == 0:
        raise InvalidArgument(
            "Expected at least one round that moved the weights, saw none: every round failed, or "
            "no update changed anything."
        )
    if participation == "unseen":
        return np.ones(seen.took.size, np.bool_)
    if not seen.took.any():
        raise InvalidArgument(
            "Expected canaries that took part, but none was sampled in a round that moved the "
            "weights. Designate more canaries, sample more nodes, or train longer."
        )
    return seen.took > 0 if participation == "known" else np.ones(seen.took.size, np.bool_)


def _word_participation(seen: IteratesSeen, participation: Participation) -> list[str]:
    said = []
    if participation == "unseen":
        said.append("Who took part was not seen: all canaries count.")
    else:
        some = int(np.sum(seen.took > 0))
        least, most = int(seen.took.min()), int(seen.took.max())
        often = f"{most} times" if least == most else f"{least} to {most} times"
        often = "once" if least == most == 1 else often
        said.append(f"{some} of {seen.took.size} canaries took part, {often} each.")
    if seen.still:
        said.append(f"{seen.still} rounds with canaries moved no weight.")
    if seen.lost:
        said.append(f"{seen.lost} times the weights were not finite; seen as nothing.")
    return said
