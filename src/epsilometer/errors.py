"""Define errors by type, with messages that are safe to print."""

import os
import re
import sys
import warnings

# Unicode's Cc, Cf, Cs, Zl and Zp without tab and newline: terminal controls (C0, C1), direction
# controls, invisible letters and tags, surrogates, and other line separators.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
SHOW_ERRORS = "EPSILOMETER_SHOW_ERRORS"  # environment variable


def printable(text: str) -> str:
    """Replace characters that control a terminal, the text direction or line ends.

    Tabs and newlines stay.

    Example:
        >>> printable("a\\x1b[2Jb\\u202ec\\td")
        'a\ufffd[2Jb\ufffdc\\td'
    """
    return UNSAFE.sub("\ufffd", text)


class EpsilometerError(Exception):
    """Everything this package raises on purpose; the command line turns it into exit code 2.

    Attributes:
        shareable: The message that is safe to log: without texts of users' exceptions, which may
            hold data. ``str`` has both.

    Example:
        >>> error = EpsilometerError("Unit 3 failed.", withheld="ValueError: ssn=123")
        >>> str(error), error.shareable
        ('Unit 3 failed. ValueError: ssn=123', 'Unit 3 failed.')
    """

    def __init__(self, message: str = "", *, withheld: str = "") -> None:
        """Store the message, and details of the cause that only the caller's process may see."""
        self.shareable = printable(message)  # it may repeat what a file or a service says
        whole = f"{self.shareable} {printable(withheld)}" if withheld else self.shareable
        super().__init__(whole)


class InvalidArgument(EpsilometerError, ValueError):
    """A value outside its domain: the message says what was expected and what was given."""


class UnreadableFile(EpsilometerError):
    """A file that is missing, damaged, too large or not of the expected shape."""


class MissingExtra(EpsilometerError, ImportError):
    """An optional dependency is not installed: the message names the extra."""


class OutOfMemory(EpsilometerError, MemoryError):
    """The request does not fit into memory: the message says how to reduce it."""


class EpsilometerWarning(UserWarning):
    """The result is valid, but the user should know something about it."""


def shows_errors() -> bool:
    """Tell whether the user asked to see exception texts of their code, which may hold data."""
    return os.environ.get(SHOW_ERRORS, "") not in ("", "0")


def warn(text: str) -> None:
    """Warn at the line that called this package, however deep the call is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(text), EpsilometerWarning, stacklevel=level)


def _is_ours(names: dict[str, object]) -> bool:
    """Tell whether a frame is of this package, or of ``functools``, which dispatches for it."""
    return str(names.get("__name__")).partition(".")[0] in (__name__.partition(".")[0], "functools")
