"""Bound ε from attack scores, and judge a claim by them."""

from epsilometer.core.audit import Audit
from epsilometer.core.scores import Observations, ScoreCounts, Scores
from epsilometer.engine.request import Request
from epsilometer.stats.score_finding import measure_scores
from epsilometer.stats.thresholds import Observed

SUBJECTS: tuple[type[Observations], ...] = (Scores, ScoreCounts)


def run_audit(scores: Observed, request: Request) -> Audit:
    """Bound ε from scores, and judge the claim by it.

    Guarantee: that of the method; the default exceeds the true ε in at most ``1 - confidence`` of
        audits.
    Assumption: that of the method; the default's is that scores are independent.
    """
    finding = measure_scores(
        scores,
        delta=request.known_delta,
        claim=request.claim,
        confidence=request.confidence,
        seed=request.seed,
    )
    return Audit(
        subject=scores.title,
        claim=request.claim,
        findings=(finding,),
        provenance=request.make_provenance(scores),
    )
