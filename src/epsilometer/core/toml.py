"""Read settings as TOML, and refuse files for which Python's parser would take minutes."""

import re
import tomllib
from typing import Any

from epsilometer import _validate
from epsilometer.errors import UnreadableFile

_LONGEST = 2**18  # characters
_PARTS = 16  # parts of a dotted key: the parser's time grows with their square
# Every character is in one token, and a string ends with its line: so no text takes long.
_TOKEN = re.compile(
    r""" "(?:[^"\\\n]|\\.)*+"?+ | '[^'\n]*+'?+ | [\w-]++ | [ \t]++ | \. | [^\w\s."'-]++ | \s """,
    re.VERBOSE | re.ASCII,
)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Raises:
        UnreadableFile: It is not TOML, too long, or has keys of too many parts.
        UnicodeDecodeError: It is not text.

    Example:
        >>> parse_toml(b"[claim]\\nepsilon = 3")
        {'claim': {'epsilon': 3}}
    """
    text = data.decode("utf-8-sig")
    if len(text) > _LONGEST or _count_parts(text) > _PARTS:
        raise UnreadableFile(
            f"Expected settings of at most {_LONGEST:,} characters, with keys of at most {_PARTS} "
            "parts, got more."
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers too long and lists too deep, too
        raise UnreadableFile(f"Expected TOML: {_validate.excerpt(error)}.") from error


def _count_parts(text: str) -> int:
    """Return the number of parts of the longest dotted key, or of text that looks like one."""
    longest = parts = 0
    joined = False
    for token in _TOKEN.findall(text):
        if token[0] in " \t":
            continue
        if token == ".":
            joined = parts > 0
        elif token[0].isalnum() or token[0] in "_-\"'":
            parts = parts + 1 if joined else 1
            longest, joined = max(longest, parts), False
        else:
            parts, joined = 0, False
    return longest
