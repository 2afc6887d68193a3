"""Import optional dependencies explicitly, and name the extra that is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from epsilometer.errors import MissingExtra


@contextmanager
def needs(package: str, *, extra: str) -> Iterator[None]:
    """``with needs("sklearn", extra="sklearn"): import sklearn`` — linters still see the import."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise  # installed but broken: do not blame the install
        raise MissingExtra(
            f"{package} is not installed. Get it with: pip install 'epsilometer[{extra}]'"
        ) from error


def has(package: str) -> bool:
    """Tell whether an optional package for speed is installed, and load it."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # installed but broken: say so instead of being slow
        return False
    return True
