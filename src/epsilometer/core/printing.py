"""Make text from outside safe to show: on a terminal, in Markdown, in JSON and in tables.

Names of files, fields of results, texts of exceptions and answers of services are written by
others. Every output passes them through :func:`one_line` first.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from epsilometer.errors import UNSAFE, printable

__all__ = [
    "LONGEST",
    "name_error",
    "one_line",
    "printable",
    "to_csv_text",
    "to_json_text",
]
# Commands that CI services take from a log: GitHub's "::error::" at the start of a line, which may
# be broken anywhere; GitHub's "##[error]" and Azure's "##vso[…]" within a line too.
_COLONS = re.compile(r"::(?=\w)")
_HASHES = re.compile(r"##(?=\[|vso\[)", re.IGNORECASE)
_FORMULA = re.compile(r"\s*[=+\-@|%]")  # how spreadsheets recognise a formula, or a call of DDE
_OURS = ("The worker died", "It took longer than")  # begin what the engine says itself
LONGEST = 2_000  # letters of a text; nobody reads more in one line


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return text from outside as every output shows it: one printable line of limited length.

    Guarantee: no control, C1 or bidi character, no line's end, no command of a CI service, at most
        ``longest`` letters.
    Assumption: the caller shows it as text: ``rich.text.Text``, ``markdown.plain``, autoescape.

    Example:
        >>> one_line("all\\nis\\r\\x07 well"), one_line("::error::no"), one_line("a" * 9, longest=4)
        ('all is\ufffd\ufffd well', ': :error: :no', 'aaa…')
    """
    line = " ".join(printable(text[: 4 * longest]).split())
    line = _HASHES.sub("# #", _COLONS.sub(": :", line))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def name_error(traceback: str) -> str:
    """Return the exception that a traceback ends with, without its text, which may hold data.

    Example:
        >>> name_error("Traceback (most recent call last):\\n  File …\\nValueError: ssn=123\\nmore")
        'ValueError'
        >>> name_error("The worker died 3 times.\\nsignal 9")
        'The worker died 3 times.'
    """
    if traceback.startswith(_OURS):
        return traceback.partition("\n")[0]
    _, _, frames = traceback.rpartition("Traceback (most recent call last):\n")
    last = next((line for line in frames.splitlines() if not line.startswith(" ")), "")
    named = re.match(r"[A-Za-z_][\w.]*(?=:|$)", last)
    return named[0].rpartition(".")[2] if named and traceback != frames else "an error"


def to_json_text(plain: Any, *, indent: int | None = 2) -> str:
    """Return JSON values as text that a terminal can show: unsafe characters are escaped.

    Guarantee: reading the text returns the same values.

    Example:
        >>> to_json_text({"é": "\\x9b\\u202e"}, indent=None)
        '{"é": "\\\\u009b\\\\u202e"}'
    """
    import json  # here, because the start of every command pays for what is imported above

    text = _spell_out(json.dumps(plain, ensure_ascii=False, allow_nan=False))
    if indent is None:
        return text
    import msgspec

    try:
        return msgspec.json.format(text, indent=indent)  # ten times as fast as json.dumps
    except msgspec.DecodeError:  # it rejects half of a surrogate pair, as in some file names
        return _spell_out(json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False))


def _spell_out(text: str) -> str:
    return _HASHES.sub(r"#\\u0023", UNSAFE.sub(_escape, text))


def to_csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV without formulas: no text starts like one.

    Numbers are written as they are, negative ones too.

    Example:
        >>> to_csv_text(("name", "value"), [("=1+1", -2.5)])
        "name,value\\n'=1+1,-2.5\\n"
    """
    import csv  # not at every start of the command
    import io

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([_write_cell(cell) for cell in row])
    return file.getvalue()


def _write_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    line = one_line(cell)
    return f"'{line}" if _FORMULA.match(line) and not _is_number(line) else line


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escape(letter: re.Match[str]) -> str:
    import json

    return json.dumps(letter[0])[1:-1] if letter[0] != "\x7f" else "\\u007f"
