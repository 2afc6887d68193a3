"""Check the auditor itself: it must refute broken mechanisms and spare sound ones."""

from dataclasses import dataclass, replace

import numpy as np

from epsilometer import _validate
from epsilometer.audits.scores.controls import Control, controls
from epsilometer.audits.scores.subject import run_audit
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.engine.request import Request

RUNS = 100_000
CONFIDENCE = 0.999  # so that three sound controls are all spared in 997 of 1,000 seeds


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A control, and its audit."""

    control: Control
    audit: Audit

    @property
    def right(self) -> bool:
        """Whether the broken was refuted, or the sound was not."""
        return (self.audit.verdict == judge.REFUTED) != self.control.sound


def selfcheck(*, runs: int = RUNS, seed: int = 0) -> tuple[Outcome, ...]:
    """Audit every control with the default method and rule. Same seed, same outcomes."""
    _validate.whole(0, seed=seed)
    known = controls()
    streams = np.random.default_rng(seed).spawn(len(known))
    return tuple(
        Outcome(control=control, audit=_audit_control(control, runs, stream))
        for control, stream in zip(known, streams, strict=True)
    )


def _audit_control(control: Control, runs: int, stream: np.random.Generator) -> Audit:
    scores = replace(
        control.play(runs, stream),
        title=control.name,
        adversary="knows all records but whether the target is there",
    )
    claim = control.claim
    return run_audit(scores, Request(claim=claim, delta=claim.delta, confidence=CONFIDENCE))
