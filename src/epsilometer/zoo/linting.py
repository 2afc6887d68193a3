"""Score ``epsilometer lint`` on programs known to be wrong or right.

``sources/`` has the programs as text: rules were tuned on those in ``tuned``, and not on those in
``held_out``. A comment ``# expect: SHUF001`` marks the line of a mistake.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, TypeAlias

from epsilometer.lint.run import lint_sources
from epsilometer.lint.sources import Source

Part: TypeAlias = Literal["tuned", "held_out"]
Place: TypeAlias = tuple[str, str, int]  # rule, path, line
PARTS: tuple[Part, ...] = ("tuned", "held_out")
_PROGRAM = re.compile(r"^## (EPS-\d{4}): (.+)$", re.MULTILINE)
_FILE = re.compile(r"^`([^`\n]+)`\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPECTED = re.compile(r"# expect: (\S+)")


@dataclass(frozen=True)
class SourceProgram:
    """Hold a program as text, with its mistakes.

    Attributes:
        id: ``EPS-0301`` etc.; it never changes and is never reused.
        title: What the program does, in a few words.
        files: Its files, by their paths.
        part: Whether rules were tuned on it.
    """

    id: str
    title: str
    files: tuple[tuple[str, str], ...]
    part: Part

    @property
    def expected(self) -> frozenset[Place]:
        """Its mistakes."""
        return frozenset(
            (rule, path, number)
            for path, text in self.files
            for number, line in enumerate(text.splitlines(), start=1)
            for rule in _EXPECTED.findall(line)
        )

    @property
    def right(self) -> bool:
        """Whether it has no mistake."""
        return not self.expected

    @property
    def source(self) -> str:
        """All its files in one text."""
        return "\n".join(f"# {path}\n{text}" for path, text in self.files)


@dataclass(frozen=True)
class Score:
    """Count what was found in some programs.

    Attributes:
        found: Mistakes that were reported at their place.
        missed: Mistakes that were not.
        invented: Reports that are not mistakes.
    """

    found: tuple[tuple[str, Place], ...]
    missed: tuple[tuple[str, Place], ...]
    invented: tuple[tuple[str, Place], ...]

    @property
    def recall(self) -> float:
        """The fraction of mistakes that were reported."""
        return len(self.found) / max(1, len(self.found) + len(self.missed))

    @property
    def precision(self) -> float:
        """The fraction of reports that are mistakes."""
        return len(self.found) / max(1, len(self.found) + len(self.invented))


def list_sources(*parts: Part) -> tuple[SourceProgram, ...]:
    """Return the programs of some parts, sorted by id; all by default.

    Example:
        >>> len(list_sources()) >= 120
        True
    """
    programs = [each for part in parts or PARTS for each in _read_part(part)]
    return tuple(sorted(programs, key=lambda program: program.id))


def _read_part(part: Part) -> Iterator[SourceProgram]:
    folder = files("epsilometer.zoo").joinpath("sources", part)
    for page in sorted(folder.iterdir(), key=lambda each: each.name):
        text = page.read_text("utf-8")
        heads = list(_PROGRAM.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            body = text[head.end() : None if following is None else following.start()]
            yield SourceProgram(head[1], head[2], tuple(_FILE.findall(body)), part)


def score_sources(programs: Iterable[SourceProgram]) -> Score:
    """Lint programs, each as a separate project, and count what is found.

    Guarantee: a mistake counts as found only where its rule is reported on its line; a right line
        that is reported counts against precision, in wrong programs too.
    """
    found: list[tuple[str, Place]] = []
    missed: list[tuple[str, Place]] = []
    invented: list[tuple[str, Place]] = []
    for program in programs:
        report = lint_sources(Source(path, text) for path, text in program.files)
        reported = {(each.rule_id, each.path, each.line) for each in report.findings}
        expected = program.expected
        found += [(program.id, place) for place in sorted(reported & expected)]
        missed += [(program.id, place) for place in sorted(expected - reported)]
        invented += [(program.id, place) for place in sorted(reported - expected)]
    return Score(tuple(found), tuple(missed), tuple(invented))


def describe_score(programs: Iterable[SourceProgram], score: Score) -> str:
    """Return a sentence on the score of lint on some programs."""
    every = list(programs)
    wrong = sum(not program.right for program in every)
    return (
        f"lint on {wrong} wrong and {len(every) - wrong} right programs: "
        f"recall {score.recall:.3f} ({len(score.found)} of {len(score.found) + len(score.missed)} "
        f"mistakes), precision {score.precision:.3f} ({len(score.invented)} false reports)"
    )


def render_scores() -> tuple[str, bool]:
    """Return lint's scores on all programs, in Markdown, and whether any right line is flagged."""
    lines = ["## Sources, for lint\n"]
    accused = False
    titles = {each.id: each.title for each in list_sources()}
    for part, words in zip(PARTS, ("Rules were made on these", "Held out"), strict=True):
        programs = list_sources(part)
        score = score_sources(programs)
        accused |= bool(score.invented)
        lines.append(f"- {words}: {describe_score(programs, score)}.")
        for word, places in (("missed", score.missed), ("flagged", score.invented)):
            lines += [
                f"    - {word}: {name} ({titles[name]}), {rule} at {path} line {line}"
                for name, (rule, path, line) in places
            ]
    return "\n".join(lines), accused
