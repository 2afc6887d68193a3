"""Docstrings of the house, for the generated reference of the site.

"Guarantees: …" and "Assumes: …" are paragraphs here, one after the other without a blank line; the
parser of Google's style would take a first line for the title of a box, and knows "Examples:" only.
"""

import re
from typing import Any

import griffe

_OWN = re.compile(r"^(Guarantees|Assumes|Must keep): ")
_ROLE = re.compile(r":(?:math|func|class|meth|mod):`([^`]*)`")


class HouseSections(griffe.Extension):
    """Makes paragraphs of the sections that only this house has."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object before its docstring is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = paragraphs(obj.docstring.value)


def paragraphs(text: str) -> str:
    r"""The docstring with its own sections as paragraphs in Markdown.

    Example:
        >>> print(paragraphs("Adds.\n\nGuarantees: a sum,\n    always.\nAssumes: numbers."))
        Adds.
        <BLANKLINE>
        **Guarantees** a sum,
        always.
        <BLANKLINE>
        **Assumes** numbers.
    """
    lines: list[str] = []
    inside = False
    for line in _ROLE.sub(r"`\1`", text).splitlines():
        if own := _OWN.match(line):
            if lines and lines[-1]:
                lines.append("")
            lines.append(f"**{own[1]}** {line[own.end() :]}")
            inside = True
        elif inside and line.startswith("    "):
            lines.append(line.strip())
        else:
            inside = False
            lines.append("Examples:" if line == "Example:" else line)
    return "\n".join(lines)
