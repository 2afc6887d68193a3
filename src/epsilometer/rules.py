"""Rules that choose thresholds, and rules that decide whether a model may be released.

Example:
    >>> import epsilometer as em
    >>> scores = em.Scores([2.0] * 90, [0.0] * 90, rule=em.rules.HoldOut(0.5))
    >>> em.audit(scores, delta=1e-5).bounds[0].threshold_rule
    'HoldOut(fraction=0.5)'
"""

from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    ChangeAtMost,
    GainAtMost,
    NoRecordInAnswers,
    NoRecordInFile,
    PdtpAtMost,
)
from epsilometer.stats.thresholds import (
    AllRanks,
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Published,
    RankGrid,
    RankSum,
)

__all__ = [
    "AdvantageAtMost",
    "AllRanks",
    "Best",
    "Bonferroni",
    "CaughtAtMost",
    "ChangeAtMost",
    "Fixed",
    "GainAtMost",
    "HoldOut",
    "NoRecordInAnswers",
    "NoRecordInFile",
    "PdtpAtMost",
    "Published",
    "RankGrid",
    "RankSum",
]
