"""Count lines of code, without blank lines, comments and docstrings: ``python -m tests.size``."""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

import epsilometer

SOURCE = Path(epsilometer.__file__).parent
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_code_lines(path: Path) -> int:
    """Count the lines of a file that hold code."""
    text = path.read_text("utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def count_by_package() -> Counter[str]:
    """Count lines of code of every package."""
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        found[path.relative_to(SOURCE).parts[0].removesuffix(".py")] += count_code_lines(path)
    return found


if __name__ == "__main__":
    counted = count_by_package()
    for package, lines in counted.most_common():
        sys.stdout.write(f"{lines:7,} {package}\n")
    sys.stdout.write(f"{counted.total():7,} in all\n")
