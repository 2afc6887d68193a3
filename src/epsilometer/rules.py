"""Give the rules: how thresholds are chosen, and by which rules a model may be released."""

from epsilometer.audits.release import AdvantageAtMost, CaughtAtMost, PdtpAtMost
from epsilometer.stats.thresholds import Best, Bonferroni, Fixed, HoldOut, RankGrid

__all__ = [
    "AdvantageAtMost",
    "Best",
    "Bonferroni",
    "CaughtAtMost",
    "Fixed",
    "HoldOut",
    "PdtpAtMost",
    "RankGrid",
]
