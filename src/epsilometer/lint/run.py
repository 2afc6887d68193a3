"""Lint files: read them, check them, leave out what comments switch off."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

from epsilometer.lint.checks import Place, check
from epsilometer.lint.libraries import load_catalogue
from epsilometer.lint.module import Module
from epsilometer.lint.rules import Finding, Problem, Report
from epsilometer.lint.sampling import Sampling
from epsilometer.lint.sources import Source, find_files, parse, read_source, to_text
from epsilometer.lint.suggestion import Suggestions

_IGNORE = re.compile(r"#\s*epsilometer:\s*ignore(?:\[([^\]]*)\])?")
_EVERYTHING = "*"


def lint(paths: Iterable[Path], *, exclude: tuple[str, ...] = ()) -> Report:
    """Check every Python file and notebook among and below the paths.

    Raises:
        UnreadableFile: A path is not there.
        InvalidArgument: There is no Python file.
    """
    findings: list[Finding] = []
    files, problems = find_files(list(paths), exclude)
    for path in files:
        source, unread = read_source(path)
        problems += unread
        if source is not None:
            report = _check_source(source)
            findings += report.findings
            problems += report.problems
    return Report(tuple(findings), tuple(problems), len(files))


def lint_source(text: str, *, path: str = "<text>") -> Report:
    """Check one text.

    Example:
        >>> text = "engine.make_private(module=m, poisson_sampling=False)"
        >>> [(found.rule_id, found.line) for found in lint_source(text).findings]
        [('SHUF001', 1)]
    """
    return _check_source(Source(path, text))


def _check_source(source: Source) -> Report:
    tree = parse(source)
    if isinstance(tree, Problem):
        return Report((), (tree,), 1)
    text = to_text(source.content)
    if not any(marker in text for marker in load_catalogue().markers):
        return Report((), (), 1)
    sampling = Sampling(Module(tree))
    ignored = _find_ignored(source)
    places = [place for place in check(sampling) if not _is_ignored(place, ignored)]
    if not places:
        return Report((), (), 1)
    suggestions, lines = Suggestions(sampling), _split_lines(source)
    findings = {_make_finding(source, place, suggestions, lines) for place in places}
    ordered = sorted(
        findings, key=lambda each: (each.cell or 0, each.line, each.column, each.rule_id)
    )
    return Report(tuple(ordered), (), 1)


def _make_finding(
    source: Source, place: Place, suggestions: Suggestions, lines: list[bytes]
) -> Finding:
    command, unknown = suggestions.make_command(place.call)
    cell, line = None, place.line
    if source.cells:
        cell, line = source.cells[place.line - 1]
    return Finding(
        path=source.path,
        line=line,
        column=_count_column(lines, place),
        cell=cell,
        rule_id=place.rule_id,
        severity=place.severity,
        detail=place.detail,
        command=command,
        unknown=unknown,
    )


def _split_lines(source: Source) -> list[bytes]:
    """Return lines as the parser counts them, in UTF-8 as it measures them."""
    return re.split(b"\r\n|\r|\n", _decode(source).encode())


def _decode(source: Source) -> str:
    """Return the whole text, also where the parser, which reads less, forgives what is there."""
    content = source.content
    if isinstance(content, str):
        return content
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:
        encoding = "utf-8"
    return content.decode(encoding, "replace")


def _count_column(lines: list[bytes], place: Place) -> int:
    """Count from 1 and in characters, where the tree counts bytes from 0."""
    line = lines[place.line - 1] if place.line <= len(lines) else b""
    return len(line[: place.column].decode("utf-8", "ignore")) + 1


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


def _is_ignored(place: Place, ignored: dict[int, set[str]]) -> bool:
    """Tell whether a comment on a line of the call, or of what is pointed at, switches this off."""
    if not ignored:
        return False
    call = place.call
    assert isinstance(call, ast.expr)
    lines = {place.line, *range(call.lineno, (call.end_lineno or call.lineno) + 1)}
    return any(ignored.get(line, set()) & {place.rule_id, _EVERYTHING} for line in lines)
