"""Define errors by type, so that a caller can tell them apart."""

import os
import sys
import warnings

from epsilometer._printable import printable

SHOW_ERRORS = "EPSILOMETER_SHOW_ERRORS"  # variable of the environment


class EpsilometerError(Exception):
    """Everything this package raises on purpose; the command line turns it into exit code 2.

    Attributes:
        shareable: What may stand in a log: the message without texts of users' exceptions, which
            may hold data. ``str`` has both.

    Example:
        >>> error = EpsilometerError("Unit 3 failed.", withheld="ValueError: ssn=123")
        >>> str(error), error.shareable
        ('Unit 3 failed. ValueError: ssn=123', 'Unit 3 failed.')
    """

    def __init__(self, message: str = "", *, withheld: str = "") -> None:
        """Take the message, and what only the caller's own process may see of the cause."""
        self.shareable = printable(message)  # it may repeat what a file or a service says
        whole = f"{self.shareable} {printable(withheld)}" if withheld else self.shareable
        super().__init__(whole)


class InvalidArgument(EpsilometerError, ValueError):
    """A value outside its domain: the message says what was expected and what came."""


class UnreadableFile(EpsilometerError):
    """A file that is missing, damaged, too large or not of the expected shape."""


class MissingExtra(EpsilometerError, ImportError):
    """An optional dependency is not installed: the message names the extra."""


class OutOfMemory(EpsilometerError, MemoryError):
    """What was asked for does not fit into memory: the message says how to ask for less."""


class EpsilometerWarning(UserWarning):
    """The answer stands, but the user should know something about it."""


def shows_errors() -> bool:
    """Tell whether the user asked to see texts of exceptions of their code, which may hold data."""
    return os.environ.get(SHOW_ERRORS, "") not in ("", "0")


def warn(text: str) -> None:
    """Warn at the line that called this package, however many calls of ours lie between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(text), EpsilometerWarning, stacklevel=level)


def _is_ours(names: dict[str, object]) -> bool:
    return str(names.get("__name__")).partition(".")[0] == __name__.partition(".")[0]
