"""Read the project's own docstring sections for the generated reference of the site.

"Guarantee: …" and "Assumption: …" are paragraphs here, one after the other without a blank line;
the parser of Google's style would take a first line for the title of a box, and knows "Examples:"
only.
"""

import re
from typing import Any

import griffe

_OWN = re.compile(r"^(Guarantees?|Assumes|Assumption|Must keep): ")
_ROLE = re.compile(r":(?:math|func|class|meth|mod):`([^`]*)`")


class OwnSections(griffe.Extension):
    """Make paragraphs of the sections that only this project has."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite a docstring; griffe calls this for every object before it parses them."""
        if obj.docstring is not None:
            obj.docstring.value = split_paragraphs(obj.docstring.value)


def split_paragraphs(text: str) -> str:
    r"""Return the docstring with its own sections as paragraphs in Markdown.

    Example:
        >>> print(split_paragraphs("Add.\n\nGuarantee: a sum,\n    always.\nAssumption: numbers."))
        Add.
        <BLANKLINE>
        **Guarantee:** a sum,
        always.
        <BLANKLINE>
        **Assumption:** numbers.
    """
    lines: list[str] = []
    inside = False
    for line in _ROLE.sub(r"`\1`", text).splitlines():
        if own := _OWN.match(line):
            if lines and lines[-1]:
                lines.append("")
            lines.append(f"**{own[1]}:** {line[own.end() :]}")
            inside = True
        elif inside and line.startswith("    "):
            lines.append(line.strip())
        else:
            inside = False
            lines.append("Examples:" if line == "Example:" else line)
    return "\n".join(lines)
