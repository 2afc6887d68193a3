"""Does the auditor itself work? It must refute broken mechanisms and spare sound ones."""

from dataclasses import dataclass

import numpy as np

from epsilometer import _validate
from epsilometer.audits.scores import audit_scores
from epsilometer.mechanisms.controls import Control, controls
from epsilometer.core.audit import AuditResult

RUNS = 100_000
CONFIDENCE = 0.999  # so that three sound controls are all spared in 997 of 1,000 seeds


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A control, and what the audit said of it."""

    control: Control
    result: AuditResult

    @property
    def right(self) -> bool:
        """Whether the broken was refuted, or the sound spared."""
        return (self.result.verdict == "refuted") != self.control.sound


def selfcheck(*, runs: int = RUNS, seed: int = 0) -> tuple[Outcome, ...]:
    """Audits every control with the default method and rule. Same seed, same outcomes."""
    _validate.whole(0, seed=seed)
    known = controls()
    streams = np.random.default_rng(seed).spawn(len(known))
    return tuple(
        Outcome(
            control=control,
            result=audit_scores(
                control.play(runs, stream),
                delta=control.claim.delta,
                claim=control.claim,
                confidence=CONFIDENCE,
                subject=control.name,
                adversary="knows all records but whether the target is there",
            ),
        )
        for control, stream in zip(known, streams, strict=True)
    )
