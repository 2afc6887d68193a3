"""What can go wrong, in types a caller can tell apart."""

import sys
import warnings


class EpsilometerError(Exception):
    """Everything this package raises on purpose; the command line turns it into exit code 2."""


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


def warn(text: str) -> None:
    """Warns at the line that called this package, however many calls of ours lie between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, EpsilometerWarning, stacklevel=level)


def _is_ours(names: dict[str, object]) -> bool:
    return str(names.get("__name__")).partition(".")[0] == __name__.partition(".")[0]
