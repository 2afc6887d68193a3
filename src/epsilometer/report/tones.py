"""Map tones and roles to colours and icons."""

from typing import NamedTuple

from epsilometer.core.document import Role
from epsilometer.core.judge import Tone


class Look(NamedTuple):
    """How a tone is shown.

    Attributes:
        day: Colour on light ground; 4.5 : 1 contrast or more against it, as text needs.
        night: Colour on dark ground, likewise.
        terminal: Colour on a terminal.
        icon: Icon on a page.
        emoji: Emoji in Markdown.
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
# Colours of roles in figures on light ground and on dark; each has 3 : 1 contrast or more.
COLOURS: dict[Role, tuple[str, str]] = {
    "attack": ("#1f5fbf", "#7db1ff"),
    "claim": ("#b3540c", "#ffae5c"),
    "gdp": ("#2f7d4b", "#77d39a"),
    "bound": ("#7a3ea8", "#cfa3f7"),
    "law": ("#a82c6a", "#f78fc2"),
    "outside": ("#6a7280", "#a3acba"),
    "chance": ("#868e99", "#7b8494"),
}
