"""Hold the measurements of a threat, and turn them into a finding with limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from epsilometer.core.findings import Outcome, RuleFinding, ThreatFinding
from epsilometer.stats import clusters
from epsilometer.stats.membership import Limited

ATTRIBUTE, RANGE, STRUCTURE, USAGE = "attribute", "range", "structure", "usage"
THREATS = (ATTRIBUTE, RANGE, STRUCTURE, USAGE)


@dataclass(frozen=True, eq=False, kw_only=True)
class Threat:
    """Measurements of a threat.

    Attributes:
        kind: One of ``THREATS``.
        column: Name of the hidden column; empty if there is none.
        observed: Scores of members and non-members; None if all records were examined.
        threshold: Threshold for scores, if it was fixed beforehand; None: the best one.
        share: Share of records concerned, if all were examined.
        high: Largest share, where a part could not be examined; None: ``share``.
        baseline: Share of right guesses without any model; None if there are no guesses.
        note: What was found, in a sentence.
    """

    kind: str
    column: str = ""
    observed: clusters.ScoresByRecord | None = None
    threshold: float | None = None
    share: float = 0.0
    high: float | None = None
    baseline: float | None = None
    note: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the finding rests on samples."""
        return self.observed is not None

    @property
    def decides(self) -> bool:
        """Whether a rule uses it: estimating the use of a dataset harms no single person."""
        return self.kind != USAGE

    def measure(self, *, confidence: float) -> ThreatFinding:
        """Return the finding, with limits that hold together with probability ``confidence``."""
        inside = outside = None
        if self.observed is None:
            limits = Limited(self.share, self.share, self.high or self.share)
        elif self.threshold is None:
            limits = clusters.advantage(self.observed, confidence=confidence)
        else:
            limits = clusters.advantage_at(self.observed, self.threshold, confidence=confidence)
            inside = float((self.observed.inside >= self.threshold).mean())
            outside = float((self.observed.outside >= self.threshold).mean())
        return ThreatFinding(
            threat=self.kind,
            column=self.column,
            value=limits.value,
            low=limits.low,
            high=limits.high,
            inside=inside,
            outside=outside,
            baseline=self.baseline,
            confidence=confidence if self.is_sampled else 1.0,
            note=self.note,
        )


def limit_threats(threats: Sequence[Threat], limit: float, *, confidence: float) -> RuleFinding:
    """Fail if any threat's lower limit is above ``limit``; pass if no upper limit is."""
    found = [threat.measure(confidence=confidence) for threat in threats if threat.decides]
    outcome: Outcome = "unclear"
    interval, why = Limited(0.0, 0.0, 1.0), "No threat was measured."
    if found:
        convicting = max(found, key=lambda each: each.low)
        strongest = max(found, key=lambda each: each.high)
        worst = convicting if convicting.low > limit else strongest
        interval = Limited(worst.value, worst.low, worst.high)
        what = f"{worst.threat} {worst.column}".strip()
        why = f"{what}: {worst.value:.3f} ({worst.low:.3f} to {worst.high:.3f})"
        if worst.low > limit:
            outcome, why = "fail", f"{_word_threat(worst)} {why}, above {limit:g}."
        elif worst.high > limit:
            more = worst.note or "More records would narrow it."
            why += f": it may be on either side of {limit:g}. {more}"
        else:
            outcome, why = "pass", f"{why}, the largest; at most {limit:g} is allowed."
    return RuleFinding(
        rule=f"no threat's gain above {limit:g}",
        outcome=outcome,
        finding=why,
        **interval._asdict(),
        limit=limit,
        confidence=confidence,
    )


def _word_threat(found: ThreatFinding) -> str:
    if found.inside is not None and found.outside is not None:
        return (
            f"A hidden {found.column} is guessed correctly for {100 * found.inside:.0f} of 100 "
            f"people in the data; for others, for {100 * found.outside:.0f} of 100."
        )
    if found.note:
        return found.note
    return (
        f"Whether someone like this was in the data is decided correctly for "
        f"{50 * (1 + found.value):.0f} of 100 people; guessing is right for 50."
    )
