"""Types of findings, to select with ``audit.find(type)`` and ``audit.one(type)``.

Example:
    >>> import epsilometer as em
    >>> audit = em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5)
    >>> audit.one(em.findings.EpsilonFinding).attack.auc
    1.0
"""

from epsilometer.core.findings import (
    AccuracyFinding,
    AttackSummary,
    Check,
    ConformanceFinding,
    Curve,
    EpsilonFinding,
    Evidence,
    FormDifference,
    FormFinding,
    FormPlan,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    MemorisationFinding,
    PosteriorRuns,
    PredictionChange,
    RecordRisk,
    RemedyFinding,
    RemovalPlan,
    RoundingStep,
    RuleFinding,
    SamplerFinding,
    SamplerNoise,
    SweepPoint,
    TheoryEpsilon,
    ThreatFinding,
    Variation,
)

__all__ = [
    "AccuracyFinding",
    "AttackSummary",
    "Check",
    "ConformanceFinding",
    "Curve",
    "EpsilonFinding",
    "Evidence",
    "FormDifference",
    "FormFinding",
    "FormPlan",
    "GroupRisk",
    "LeaveOneOut",
    "MembershipFinding",
    "MemorisationFinding",
    "PosteriorRuns",
    "PredictionChange",
    "RecordRisk",
    "RemedyFinding",
    "RemovalPlan",
    "RoundingStep",
    "RuleFinding",
    "SamplerFinding",
    "SamplerNoise",
    "SweepPoint",
    "TheoryEpsilon",
    "ThreatFinding",
    "Variation",
]
