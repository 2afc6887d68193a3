"""What can go wrong, in types a caller can tell apart."""


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
