"""Split a project into groups of files that import each other, checked and cached separately."""

import re
from collections.abc import Iterable

from epsilometer.lint.libraries import load_catalogue
from epsilometer.lint.module import Import
from epsilometer.lint.project import find_imported, locate
from epsilometer.lint.sources import Source, to_text

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]{0,4000}\)|[^\n#]*)"
    r"|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
# A function that may be the project's own accountant, or that of an imported copy.
_OWN = re.compile(
    r"def \w*(?:eps|rdp|privacy|account|sigma|noise|budget|moment)\w*\("
    r"|import \w*compute_(?:rdp|eps)",
    re.I,
)
_MOST_IMPORTS = 500  # of one file


def split_components(sources: Iterable[Source]) -> list[list[Source]]:
    """Return the files in groups joined by imports, in the order of their first files."""
    every = list(sources)
    places: dict[tuple[str, ...], int] = {}
    for number, source in enumerate(every):
        places.setdefault(locate(source.path), number)
    leader = list(range(len(every)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for number, source in enumerate(every):
        for made in _list_imports(to_text(source.content)):
            other = find_imported(places, source.path, made)
            if other is not None:
                first, second = sorted((find(number), find(other)))
                leader[second] = first
    groups: dict[int, list[Source]] = {}
    for number, source in enumerate(every):
        groups.setdefault(find(number), []).append(source)
    return list(groups.values())


def _list_imports(text: str) -> list[Import]:
    """Return what a text imports, read without parsing it."""
    found: list[Import] = []
    for module, names, plain in _IMPORT.findall(text)[:_MOST_IMPORTS]:
        if module:
            level = len(module) - len(module.lstrip("."))
            path = module[level:]
            found.append(Import(level, path))
            for name in re.findall(r"\w+", names)[:_MOST_IMPORTS]:
                found.append(Import(level, f"{path}.{name}".strip(".")))
        else:
            found += [Import(0, name) for name in re.findall(r"(?:^|,)\s*([.\w]+)", plain)]
    return found


def may_be_private(sources: Iterable[Source]) -> bool:
    """Tell whether any of the texts names a DP library, or has its own accountant."""
    markers = load_catalogue().markers
    for source in sources:
        text = to_text(source.content)
        if any(marker in text for marker in markers) or _OWN.search(text):
            return True
    return False
