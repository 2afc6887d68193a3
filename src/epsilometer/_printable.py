"""Replace characters that control a terminal, a direction or a line's end."""

import re

# Unicode's Cc, Cf, Cs, Zl and Zp without tab and new line: controls of terminals (C0, C1), controls
# of direction, invisible letters and tags, halves of letters, and further ends of lines.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return the text without characters that control a terminal, a direction or a line's end.

    Tabs and new lines stay.

    Example:
        >>> printable("a\\x1b[2Jb\\u202ec\\td")
        'a\ufffd[2Jb\ufffdc\\td'
    """
    return UNSAFE.sub("\ufffd", text)
