"""A page as a parser sees it, and parts of a document."""

from html.parser import HTMLParser

from epsilometer.core.audit import Audit
from epsilometer.core.document import Notes, Section
from epsilometer.report.build import build


def meaning_of(audit: Audit) -> tuple[str, ...]:
    """The sentences under "What it means, and what it does not mean"."""
    blocks = [*build(audit).blocks]
    while blocks:
        block = blocks.pop(0)
        if isinstance(block, Notes) and block.title.startswith("What it means"):
            return block.lines
        blocks += block.blocks if isinstance(block, Section) else ()
    return ()


class Skeleton(HTMLParser):
    """The elements of a page with their attributes, the texts between them, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: dict[str, list[str]] = {}
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag if tag in ("script", "style") else ""
        if self._inside:
            kind = dict(attrs).get("id") or tag
            self.scripts.setdefault(kind, []).append("")
            self._kind = kind

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._inside = ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._kind][-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
