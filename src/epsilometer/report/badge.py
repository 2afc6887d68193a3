"""Draw a verdict as a small SVG picture, for a README or a model card."""

from markupsafe import escape

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.words import number
from epsilometer.report.tones import LOOKS

_LETTER = 6.6  # pixels of a letter of 11 pixels, a little more than the mean
_PADDING = 6.0


def word_badge(audit: Audit) -> str:
    """Return the text of an audit's badge: the proved ε, if there is one, and the verdict.

    Example:
        >>> import epsilometer as em
        >>> word_badge(em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5))
        'ε ≥ 6.39 · refuted'
    """
    proved = f"ε ≥ {number(audit.epsilon)} · " if audit.views and audit.epsilon > 0 else ""
    return f"{proved}{audit.verdict}"


def badge(audit: Audit) -> str:
    """Return the badge of an audit as SVG; the same audit gives the same bytes."""
    name, said = "privacy audit", word_badge(audit)
    left, right = (round(len(text) * _LETTER + 2 * _PADDING) for text in (name, said))
    colour = LOOKS[judge.tone(audit.verdict)].day
    title = escape(f"{name}: {said}")
    font = "font-family='Verdana,DejaVu Sans,sans-serif' font-size='11' fill='#fff'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{left + right}' height='20' role='img' "
        f"aria-label='{title}'><title>{title}</title>"
        f"<rect width='{left + right}' height='20' rx='3' fill='#3b424c'/>"
        f"<path d='M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3}z' "
        f"fill='{colour}'/>"
        f"<g {font} text-anchor='middle'>"
        f"<text x='{left / 2:g}' y='14'>{escape(name)}</text>"
        f"<text x='{left + right / 2:g}' y='14'>{escape(said)}</text></g></svg>\n"
    )
