"""Check the words that people read against docs/terms.toml: ``python docs/terms.py``.

Read are the README and its neighbours, the documentation, docstrings, help texts, messages and the
texts of reports. Code, generated tables of results and other people's titles are not. Patterns of
the table ``texts`` apply to the package only: its docstrings, and what its results and pages show.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    *("*.md", "docs/**/*.md", "reproductions/*/README.md", "benchmarks/*.md", "tests/*/[a-z]*.md"),
    ".github/**/*.md",
)
TEXTS = (
    "src/epsilometer/report/texts.toml",
    "src/epsilometer/lint/rules.toml",
    "src/epsilometer/stats/derivations.toml",
    "src/epsilometer/zoo/catalogue.csv",
    "src/epsilometer/zoo/page_head.md",
)
# Programs as others write them, and names of what once was.
LEFT_OUT = ("src/epsilometer/zoo/sources", "src/epsilometer/_reproductions")
_CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->", re.M | re.S)


@cache
def read_terms(*, shown: bool = False) -> dict[str, str]:
    """Return what to say instead, by pattern; ``shown`` adds those for texts of the package."""
    tables = tomllib.loads((ROOT / "docs" / "terms.toml").read_text("utf-8"))
    words = tables["words"] | (tables["texts"] if shown else {})
    return {f"\\b(?:{pattern})(?!\\w)": instead for pattern, instead in words.items()}


def find_terms(text: str, *, shown: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the words found, and what to say instead.

    Example:
        >>> list(find_terms("It was mended."))
        [(1, 'mended', 'fix')]
        >>> list(find_terms("One process per core."))
        []
    """
    for pattern, instead in read_terms(shown=shown).items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, found[0], instead


def list_texts() -> Iterator[tuple[str, int, str]]:
    """Yield every text that people read, with its file and its first line."""
    pages = {each for pattern in PAGES for each in ROOT.glob(pattern)}
    for path in sorted(pages):
        yield path.relative_to(ROOT).as_posix(), 1, _blank_code(path.read_text("utf-8"))
    for name in TEXTS:
        yield name, 1, (ROOT / name).read_text("utf-8")
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(LEFT_OUT):
            yield from ((name, line, text) for line, text in _list_strings(path))


def _blank_code(markdown: str) -> str:
    """Return a page with spaces in place of code and addresses; lines keep their numbers."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), markdown)


def _list_strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings, help texts and messages of a module: strings of two words or more."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"``[^`]*``|^\s*(>>>|\.\.\.).*$", " ", node.value, flags=re.M)


def check_words() -> list[str]:
    """Return a line for every word that should not be there."""
    return [
        f"{name}:{first + line - 1}: {found!r}: say {instead}"
        for name, first, text in list_texts()
        for line, found, instead in find_terms(text, shown=name.startswith("src/"))
    ]


if __name__ == "__main__":
    complaints = check_words()
    print("\n".join(complaints) or "No word of docs/terms.toml was found.")
    sys.exit(bool(complaints))
