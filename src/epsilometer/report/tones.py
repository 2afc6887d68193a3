"""Map the tone of a verdict to its look: the one table of colours and icons."""

from typing import NamedTuple

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Outcome, RuleFinding
from epsilometer.core.judge import Tone


class Look(NamedTuple):
    """How a tone is shown.

    Attributes:
        day: Colour on light ground; 4.5 : 1 contrast or more against it, as text needs.
        night: Colour on dark ground, likewise.
        terminal: Colour on a terminal.
        icon: On a page.
        emoji: In Markdown.
    """

    day: str
    night: str
    terminal: str
    icon: str
    emoji: str


LOOKS: dict[Tone, Look] = {
    "bad": Look("#b3261e", "#ff8a80", "red", "✕", "❌"),
    "unclear": Look("#875200", "#f5bf62", "yellow", "?", "❓"),
    "neutral": Look("#545d69", "#a4aebb", "grey62", "–", "⚪"),
    "good": Look("#1e6b3c", "#7ddaa0", "green", "✓", "✅"),
}
OUTCOMES: dict[Outcome, str] = {"pass": "PASS", "fail": "FAIL", "unclear": "UNCLEAR"}


def look_of(audit: Audit) -> Look:
    """Return how the verdict of an audit is shown."""
    return LOOKS[judge.tone(audit.verdict)]


def rule_tone(rule: RuleFinding) -> Tone:
    """Return the tone in which the outcome of a rule is shown."""
    return judge.tone(judge.judge_finding(None, rule))
