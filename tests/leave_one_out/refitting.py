"""The oracle of leave-one-out: scikit-learn itself, fitted again without each record."""
# ruff: noqa: N803 - X, as in scikit-learn

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

REFERENCE = Path(__file__).parents[1] / "reference"


def refitted(estimator: Any, X: Any, y: Any, records: Any) -> Any:
    """ln p at each record without it; −inf for a class that is gone with it."""
    classes = np.unique(y)
    result = np.full((len(records), classes.size), -np.inf)
    for row, record in enumerate(records):
        kept = np.arange(len(y)) != record
        model = clone(estimator).fit(X[kept], y[kept])
        columns = np.searchsorted(classes, model.classes_)
        result[row, columns] = model.predict_log_proba(X[[record]])[0]
    return result


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
