"""What does one federated run with canary clients prove, by its iterates?"""

import warnings
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.attacks.iterates import IteratesSeen
from epsilometer.audits.one_shot import audit_cosines
from epsilometer.core.claim import Claim
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.core.audit import AuditGroup, AuditResult, Provenance
from epsilometer.types import FloatArray

Participation: TypeAlias = Literal["hidden", "known", "unseen"]
_KNOWS = {"known": ", and knows who took part", "hidden": "", "unseen": ""}


def audit_iterates(
    seen: IteratesSeen,
    *,
    dimension: int,
    delta: float,
    claim: Claim | None = None,
    participation: Participation = "hidden",
    confidence: float = 0.95,
    seed: int = 0,
    subject: str = "one federated run",
    told: tuple[str, ...] = (),
    provenance: Provenance | None = None,
) -> AuditGroup:
    """Judges a promise by who sees the final model, and by who sees the model of every round.

    The first compares canaries with θ_T − θ_0, since the weights a run begins with are public; the
    second takes the largest of all rounds, and compares it with that of canaries that were never
    planted. After one round the two see the same, and only the first is there.

    Guarantees: those of ``audit_cosines``, for each of the two alone.
    Assumes: nothing with ``hidden``, where all canaries count, whether they were sampled or not;
        with ``known`` only those count that took part, so that the claim must not rest on
        amplification by sampling.

    Args:
        seen: What was seen of the canaries.
        dimension: Of their space.
        delta: δ; must be the claim's.
        claim: What was promised.
        participation: ``hidden``, ``known``, or ``unseen`` where nobody counted who took part.
        confidence: One-sided, of each bound.
        seed: Of resampling.
        subject: What was audited, in words.
        told: What a reader must know before quoting a bound.
        provenance: How to do it again.

    Raises:
        InvalidArgument: No round moved the weights, or no canary took part.
    """
    counted = _counted(seen, participation)
    often = np.unique(seen.took[counted])
    equal = participation != "unseen" and often.size == 1
    said = [*told, *_about(seen, participation)]
    planted = seen.took.size

    def judged(inside: FloatArray, outside: FloatArray | None) -> AuditResult:
        view, short = "the weights before and after training", "final model"
        if outside is not None:
            view, short = "the weights after every round", "all rounds"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EpsilometerWarning)
            result = audit_cosines(
                inside,
                dimension=dimension,
                delta=delta,
                claim=claim,
                unobserved=outside,
                participation="equal" if equal else "unequal",
                confidence=confidence,
                seed=seed,
                subject=f"{subject}, {seen.rounds:,} rounds: {short}",
                adversary=f"sees {view}{_KNOWS[participation]}",
                provenance=provenance,
            )
        caveats = (*result.bound.caveats, *said, *(str(warning.message) for warning in caught))
        return replace(result, bound=replace(result.bound, caveats=tuple(dict.fromkeys(caveats))))

    results = [judged(seen.final[:planted][counted], None)]
    if seen.rounds > 1:
        results.append(judged(seen.largest[:planted][counted], seen.largest[planted:]))
    return AuditGroup(subject=subject, results=tuple(results))


def _counted(seen: IteratesSeen, participation: Participation) -> NDArray[np.bool_]:
    """Which planted canaries count."""
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


def _about(seen: IteratesSeen, participation: Participation) -> list[str]:
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
