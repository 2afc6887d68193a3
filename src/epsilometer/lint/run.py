"""Lint files: read them, check them as a project, and drop findings that comments switch off."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from epsilometer.lint.cache import Cache, Result, make_key
from epsilometer.lint.checks import check
from epsilometer.lint.checks.place import Place
from epsilometer.lint.components import may_be_private, split_components
from epsilometer.lint.flow import Flow
from epsilometer.lint.module import Module
from epsilometer.lint.programs import Programs
from epsilometer.lint.project import Project
from epsilometer.lint.rules import RULES, Finding, Problem, Report
from epsilometer.lint.sources import Source, find_files, parse, read_source, to_text
from epsilometer.lint.suggestion import Suggestions
from epsilometer.lint.understanding import describe_files

_IGNORE = re.compile(r"#\s*epsilometer:\s*ignore(?:\[([^\]]*)\])?")
_EVERYTHING = "*"


def lint(paths: Iterable[Path], *, exclude: tuple[str, ...] = (), cached: bool = False) -> Report:
    """Check all Python files and notebooks among and below the paths as one project.

    Args:
        paths: Files and folders.
        exclude: Patterns of paths to leave out.
        cached: Whether to use and save cached results.

    Raises:
        UnreadableFile: A path does not exist.
        InvalidArgument: There is no Python file.
    """
    files, problems = find_files(list(paths), exclude)
    sources = []
    for path in files:
        source, unread = read_source(path)
        problems += unread
        if source is not None:
            sources.append(source)
    report = lint_sources(sources, cache=Cache() if cached else None)
    return Report(report.findings, (*problems, *report.problems), len(files), report.understood)


def lint_source(text: str, *, path: str = "<text>") -> Report:
    """Check one text.

    Example:
        >>> text = "engine.make_private(module=m, poisson_sampling=False)"
        >>> [(found.rule_id, found.line) for found in lint_source(text).findings]
        [('SHUF001', 1)]
    """
    return lint_sources([Source(path, text)])


def lint_sources(sources: Iterable[Source], *, cache: Cache | None = None) -> Report:
    """Check texts as the files of one project."""
    every = list(sources)
    results = []
    for part in split_components(every):
        key = "" if cache is None else make_key(part)
        result = None if cache is None else cache.find(key)
        if result is None:
            result = _check_part(part)
        if cache is not None:
            cache.keep(key, result)
        results.append(result)
    if cache is not None:
        cache.write()
    order = {source.path: number for number, source in enumerate(every)}
    return Report(
        findings=tuple(
            sorted(
                (each for result in results for each in result.findings),
                key=lambda each: (
                    order[each.path],
                    each.cell or 0,
                    each.line,
                    each.column,
                    each.rule_id,
                ),
            )
        ),
        problems=tuple(
            sorted(
                (each for result in results for each in result.problems),
                key=lambda each: order[each.path],
            )
        ),
        files=len(every),
        understood=tuple(
            sorted(
                (each for result in results for each in result.understood),
                key=lambda each: order[each.path],
            )
        ),
    )


def _check_part(sources: list[Source]) -> Result:
    """Check files that import each other."""
    problems: list[Problem] = []
    trees: list[tuple[Source, ast.Module]] = []
    for source in sources:
        tree = parse(source)
        if isinstance(tree, Problem):
            problems.append(tree)
        else:
            trees.append((source, tree))
    if not may_be_private(sources):
        return Result(problems=tuple(problems))
    modules = [Module(tree, source.path, source.cells) for source, tree in trees]
    project = Project(modules)
    programs = Programs(project, Flow(project))
    suggestions = Suggestions(programs)
    texts = {id(module): _Text(source) for module, (source, _) in zip(modules, trees, strict=True)}
    findings = {
        _make_finding(place, suggestions, texts[id(place.module)])
        for place in check(programs)
        if not texts[id(place.module)].ignores(place)
    }
    return Result(tuple(findings), tuple(problems), tuple(describe_files(programs)))


@dataclass
class _Text:
    """Hold the lines of a source, and the rules that its comments switch off."""

    source: Source
    _lines: list[bytes] | None = None
    _ignored: dict[int, set[str]] | None = field(default=None)

    def count_column(self, place: Place) -> int:
        """Convert a column from bytes counted from 0 to characters counted from 1."""
        if self._lines is None:
            # Lines as the parser counts them, in UTF-8 as it measures them.
            self._lines = re.split(b"\r\n|\r|\n", _decode(self.source).encode())
        lines = self._lines
        line = lines[place.line - 1] if place.line <= len(lines) else b""
        return len(line[: place.column].decode("utf-8", "ignore")) + 1

    def ignores(self, place: Place) -> bool:
        """Tell whether a comment at the node, or at the reported place, ignores the rule."""
        if self._ignored is None:
            self._ignored = _find_ignored(self.source)
        if not self._ignored:
            return False
        node = place.call
        start = getattr(node, "lineno", place.line)
        end = getattr(node, "end_lineno", start) or start
        if not isinstance(node, ast.expr):
            end = start  # of a loop or a class, its first line
        lines = {place.line, *range(start, end + 1)}
        return any(self._ignored.get(line, set()) & {place.rule_id, _EVERYTHING} for line in lines)


def _make_finding(place: Place, suggestions: Suggestions, text: _Text) -> Finding:
    command, unknown = suggestions.make_command(
        place.module,
        place.call,
        beside=place.beside,
        known=dict(place.numbers),
        sampler=RULES[place.rule_id].sampler,
    )
    cell, line = None, place.line
    if text.source.cells:
        cell, line = text.source.cells[place.line - 1]
    return Finding(
        path=text.source.path,
        line=line,
        column=text.count_column(place),
        cell=cell,
        rule_id=place.rule_id,
        severity=place.severity,
        detail=place.detail,
        command=command,
        unknown=unknown,
    )


def _decode(source: Source) -> str:
    """Return the whole text, even if only the parser, which reads less, accepts its encoding."""
    content = source.content
    if isinstance(content, str):
        return content
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:
        encoding = "utf-8"
    return content.decode(encoding, "replace")


def _find_ignored(source: Source) -> dict[int, set[str]]:
    """Return for each line the rules that its comment switches off."""
    text = to_text(source.content)
    if "epsilometer:" not in text:
        return {}
    ignored: dict[int, set[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(_decode(source)).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                named = _EVERYTHING if match[1] is None else match[1]
                ignored[token.start[0]] = {rule.strip() for rule in named.split(",")}
    except (tokenize.TokenError, SyntaxError):  # the parser is more lenient than the tokenizer
        pass
    return ignored
