"""Write an audit into a model card: metadata for machines, and a section for people.

A card is Markdown with YAML between two lines of dashes before it. Both parts are replaced if an
earlier audit wrote them, and everything else stays unchanged.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from epsilometer.core.audit import Audit
from epsilometer.core.document import NONE, Table
from epsilometer.core.words import claimed, number, number_up
from epsilometer.errors import InvalidArgument
from epsilometer.report import texts
from epsilometer.report.markdown import plain

KEY = "privacy_audit"
BEGIN, END = "<!-- privacy audit: begin -->", "<!-- privacy audit: end -->"
TITLE = "## Privacy audit"
_DASHES = "---"
_ENTRY = re.compile(rf"^{KEY}:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
_SECTION = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}\r?\n?", re.DOTALL)
# As the Hub finds them: after blank lines, and with the line ends of any system.
_METADATA = re.compile(
    rf"(\s*{_DASHES}\r?\n)(.*?)(^{_DASHES}(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE
)


def list_metadata(audit: Audit) -> dict[str, Any]:
    """Return machine-readable metadata of an audit: plain values, none from records.

    Guarantees: a verdict by ``epsilometer.core.judge``; numbers that are infinite or unknown are
        None, and what is proved is never rounded up.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5)
        >>> found = list_metadata(audit)
        >>> found["verdict"], found["claimed_epsilon"], found["proved_epsilon"]
        ('refuted', 3.0, 6.39)
    """
    claim, conformance = audit.claim, audit.conformance
    return {
        "verdict": audit.verdict,
        "claimed_epsilon": None if claim is None else claim.epsilon,
        "delta": audit.provenance.delta,
        "proved_epsilon": _round_down(audit.epsilon) if audit.views else None,
        "reach": _round_down(audit.reach),
        "power": _round_up(audit.power),
        "confidence": audit.confidence,
        "conformance": None if conformance is None else conformance.verdict,
        "subject": audit.subject,
        "tool": "epsilometer",
        "version": dict(audit.provenance.versions).get("epsilometer"),
    }


def write_model_card(card: str, audit: Audit) -> str:
    """Return a model card with the metadata and the section of an audit.

    Guarantees: written twice, the second replaces the first; nothing else changes.

    Args:
        card: The card so far; empty if there is none.
        audit: Audit of the model.

    Raises:
        InvalidArgument: The card begins with metadata that do not end.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5)
        >>> card = write_model_card("# My model\\n", audit)
        >>> card.splitlines()[0], "## Privacy audit" in card
        ('---', True)
        >>> write_model_card(card, audit) == card
        True
    """
    begin, metadata, end, body = _split_card(card)
    entry = f"{KEY}: {_write_yaml(list_metadata(audit))}\n"
    metadata = _ENTRY.sub("", metadata) + entry
    section = f"{BEGIN}\n{write_section(audit)}{END}\n"
    if _SECTION.search(body):
        body = _SECTION.sub(lambda _: section, body, count=1)
    else:
        body = f"{body.rstrip()}\n\n{section}" if body.strip() else section
    return f"{begin}{metadata}{end}{'' if end.endswith(chr(10)) else chr(10)}{body}"


def write_section(audit: Audit) -> str:
    """Return the section of an audit: verdict, what it could have refuted, caveats, what is next.

    It is a part of the report, of which the page has all.
    """
    meta = list_metadata(audit)
    rows = [
        ("verdict", f"**{audit.verdict}**"),
        ("claimed ε", NONE if audit.claim is None else claimed(audit.claim.epsilon)),
        ("δ", NONE if meta["delta"] is None else f"{meta['delta']:g}"),
        ("proved by attack", NONE if not audit.views else f"ε ≥ {number(audit.epsilon)}"),
        ("largest claim it could refute", _word_number(audit.reach, endless="any")),
        (
            "true ε at which it refutes this claim, 4 times in 5",
            _word_number(audit.power, number_up, endless="at none"),
        ),
        ("did the run do what was accounted for", meta["conformance"] or "not checked"),
        ("confidence", f"{audit.confidence:g}"),
    ]
    lines = [
        TITLE,
        "",
        f"Subject: {plain(audit.subject)}. {plain(audit.judgement.reason)}".rstrip(),
        "",
        *_tabulate(("", ""), rows),
        "",
    ]
    for table in _choose_tables(audit):
        cells = [tuple(map(plain, row)) for row in table.rows[: table.most]]
        lines += [f"{plain(table.title)}", "", *_tabulate(table.head, cells), ""]
    said = (*audit.caveats, *texts.list_next(audit))
    lines += [*(f"- {plain(line)}" for line in said), ""]
    lines += [
        "A lower bound never proves privacy. Written by `epsilometer report --model-card`.",
        "",
    ]
    return "\n".join(lines)


def _choose_tables(audit: Audit) -> list[Table]:
    """Return the tables for a model card: views and memorisation."""
    wanted = ("Views of the adversary", "What the model memorised")
    return [table for table in texts.list_tables(audit) if table.title in wanted]


def _split_card(card: str) -> tuple[str, str, str, str]:
    """Return the line before the metadata of a card, these, the line after them, and the body."""
    found = _METADATA.match(card)
    if found is not None:
        begin, metadata, end = found.groups()
        return begin, metadata, end, card[found.end() :]
    if card.startswith(f"{_DASHES}\n"):
        raise InvalidArgument(
            "Expected a model card whose metadata end with a line of dashes, found none."
        )
    return f"{_DASHES}\n", "", f"{_DASHES}\n", card


def _write_yaml(values: dict[str, Any]) -> str:
    """Return a mapping as YAML in one line, which JSON is; numbers as every version reads them."""
    parts = (f"{json.dumps(name)}: {_write_value(value)}" for name, value in values.items())
    return f"{{{', '.join(parts)}}}"


def _write_value(value: Any) -> str:
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        # Without a point, YAML 1.1 takes 1e-05 for a text.
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return json.dumps(value, ensure_ascii=True)


def _round_down(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(number(value))


def _round_up(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return math.ceil(value * 100) / 100


def _word_number(
    value: float | None, word: Callable[[float], str] = number, *, endless: str
) -> str:
    if value is None:
        return NONE
    return endless if math.isinf(value) else word(value)


def _tabulate(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *rows)]
