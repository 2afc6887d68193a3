"""What do these attack scores prove?"""

from collections.abc import Sequence

from epsilometer.audits.evidence import evidence, growth
from epsilometer.claims import PrivacyClaim
from epsilometer.engine.plan import versions
from epsilometer.results import (
    AttackSummary,
    AuditResult,
    Curve,
    EpsilonEstimate,
    EpsilonLowerBound,
    Provenance,
    RecordRisk,
)
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Observed, RankGrid, ThresholdRule
from epsilometer.stats.tradeoff import tradeoff_curve

_RANK_GRID = RankGrid()
_LOW_FPR = (0.001, 0.01, 0.1)


def audit_scores(
    scores: Observed,
    *,
    delta: float,
    claim: PrivacyClaim | None = None,
    confidence: float = 0.95,
    method: str = "clopper_pearson",
    rule: ThresholdRule = _RANK_GRID,
    also: Sequence[str] = (),
    seed: int = 0,
    subject: str = "attack scores",
    adversary: str = "unstated",
    curves: Sequence[Curve] = (),
    records: Sequence[RecordRisk] = (),
    provenance: Provenance | None = None,
) -> AuditResult:
    """Bounds ε from scores, and judges a claim by it.

    Args:
        scores: Scores with the record and without it.
        delta: δ of the bound; must be the claim's.
        claim: What was promised.
        confidence: One-sided confidence of the bound.
        method: The method that decides.
        rule: How thresholds are chosen.
        also: Methods whose bounds are shown beside it and decide nothing.
        seed: For rules that split at random.
        subject: What was audited, in words.
        adversary: Whose view the scores are computed from, in words.
        curves: Trade-off curves to draw beside the attack's, where more is known than (ε, δ).
        records: Risks of single records, to show beside it.
        provenance: How to do it again; by default this call.

    Example:
        >>> import numpy as np
        >>> from epsilometer import Scores
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(inside=rng.normal(4, 1, 500), outside=rng.normal(0, 1, 500))
        >>> claim = PrivacyClaim(epsilon=1.0, delta=1e-5)
        >>> audit_scores(scores, delta=1e-5, claim=claim).verdict
        'refuted'
    """

    def bounded(part: Observed, name: str = method) -> EpsilonLowerBound:
        return epsilon_lower_bound(
            part,
            delta=delta,
            confidence=confidence,
            method=name,
            rule=rule,
            seed=seed,
            adjacency="unstated" if claim is None else claim.adjacency,
            adversary=adversary,
        )

    bounds = [bounded(scores, name) for name in (method, *also)]
    return judged(
        scores,
        bounds,
        claim=claim,
        subject=subject,
        growth=growth(
            scores,
            lambda part: bounds[0].epsilon if part is scores else bounded(part).epsilon,
            seed=seed,
            in_order=method == "anytime",
        ),
        curves=curves,
        records=records,
        provenance=provenance
        or Provenance(
            command=f"audit_scores(scores, {delta=!r}, {confidence=!r}, {method=!r}, {rule=!r}, "
            f"{seed=!r})",
            versions=versions(),
        ),
    )


def judged(
    scores: Observed,
    bounds: Sequence[EpsilonLowerBound],
    *,
    claim: PrivacyClaim | None,
    subject: str,
    growth: Sequence[tuple[int, float]],
    estimates: Sequence[EpsilonEstimate] = (),
    curves: Sequence[Curve] = (),
    records: Sequence[RecordRisk] = (),
    provenance: Provenance,
) -> AuditResult:
    """Bounds and the scores they rest on, as an audit; the first bound decides."""
    curve = tradeoff_curve(scores)
    rates = curve.tpr_at(_LOW_FPR)
    return AuditResult(
        subject=subject,
        claim=claim,
        bound=bounds[0],
        also=tuple(bounds[1:]),
        estimates=tuple(estimates),
        attack=AttackSummary(
            auc=curve.auc,
            tpr_at_fpr=tuple(zip(_LOW_FPR, map(float, rates), strict=True)),
            n_in=scores.n_in,
            n_out=scores.n_out,
        ),
        evidence=evidence(
            scores, curve, confidence=bounds[0].confidence, growth=growth, curves=curves
        ),
        records=tuple(records),
        provenance=provenance,
    )
