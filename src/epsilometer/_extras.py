"""Optional dependencies: imported in plain sight, missed by the name of their extra."""

from collections.abc import Iterator
from contextlib import contextmanager

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
