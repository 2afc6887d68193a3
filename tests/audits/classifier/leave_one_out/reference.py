"""Records with known answers: published ones, and those of an independent computation."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = Path(__file__).parents[3] / "reference"


def reference(name: str) -> dict[str, Any]:
    """Arrays of ``tests/reference/pdtp``."""
    with np.load(REFERENCE / "pdtp" / f"pdtp_{name}.npz") as file:
        return dict(file)


def adult(*columns: str) -> tuple[Any, Any]:
    """Columns of 5,000 records of Adult as whole numbers, and whether the income is high."""
    with gzip.open(REFERENCE / "adult_5k.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbered = [
        np.unique([row[column] for row in rows], return_inverse=True)[1] for column in columns
    ]
    return np.stack(numbered, axis=1), np.array([row["income"] == ">50K" for row in rows]).astype(
        int
    )
