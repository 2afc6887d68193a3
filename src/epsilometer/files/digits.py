"""Read the handwritten digits that ship with the package."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer.files.readers import hash_file
from epsilometer.types import FloatArray, IntArray


def read_digits() -> tuple[FloatArray, IntArray]:
    """Return 1,797 images of 8 × 8 pixels with values 0 to 16, and the digits they show.

    They are the test images of the UCI dataset "Optical Recognition of Handwritten Digits", in the
    order and with the values of scikit-learn's ``load_digits``.

    Example:
        >>> features, labels = read_digits()
        >>> features.shape, labels[:5].tolist()
        ((1797, 64), [0, 1, 2, 3, 4])
    """
    with resources.as_file(_find_file()) as path, np.load(path, allow_pickle=False) as stored:
        return stored["features"].astype(np.float64), stored["labels"].astype(np.int64)


@dataclass(frozen=True)
class Digits:
    """Refer to the handwritten digits in results instead of storing them."""

    def load(self) -> dict[str, Any]:
        """Read ``features`` and ``labels``."""
        features, labels = read_digits()
        return {"features": features, "labels": labels}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name and the SHA-256 of their file."""
        with resources.as_file(_find_file()) as path:
            return (hash_file(Path(path)),)


def _find_file() -> Any:
    return resources.files("epsilometer").joinpath("data/digits.npz")
