"""The records of the training-privacy reproduction: Adult, Shopping, and the community survey."""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from epsilometer.types import FloatArray, IntArray

CANDIDATES = 2000
_NOT_FEATURES = ("fnlwgt", "income", "split")
_ADULT_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")


@dataclass(frozen=True, eq=False, kw_only=True)
class Records:
    """Records with their classes, as each kind of model takes them.

    Attributes:
        features: Numbers, standardised, and a column for each category, shape ``(n, features)``.
        numbers: Those columns that are numbers, as they are.
        categories: Those that are categories, as codes.
        labels: Places of classes, shape ``(n,)``.
        classes: How many classes.
    """

    features: FloatArray
    numbers: FloatArray
    categories: IntArray
    labels: IntArray
    classes: int


def adult(folder: Path, size: int = CANDIDATES, *, seed: int = 0) -> Records:
    """Random records of UCI Adult with all features but the final weight."""
    columns = _table(folder / "adult.csv.gz")
    chosen = np.random.default_rng(seed).choice(len(columns["age"]), size, replace=False)
    kept = {name: values[chosen] for name, values in columns.items() if name not in _NOT_FEATURES}
    numbers = np.stack([kept.pop(name).astype(np.float64) for name in _ADULT_NUMBERS], axis=1)
    known = [np.unique(columns[name]) for name in kept]
    codes = [np.searchsorted(k, values) for k, values in zip(known, kept.values(), strict=True)]
    spread = np.maximum(numbers.std(axis=0), 1e-9)
    return Records(
        features=np.hstack(
            [
                (numbers - numbers.mean(axis=0)) / spread,
                *(np.eye(k.size)[code] for k, code in zip(known, codes, strict=True)),
            ]
        ),
        numbers=numbers,
        categories=np.stack(codes, axis=1),
        labels=(columns["income"][chosen] == ">50K").astype(np.int64),
        classes=2,
    )


def shopping_100(folder: Path, *, seed: int = 0) -> Records:
    """Random rows of Shopping-100: what a household bought in a week, and its class of 100."""
    bought, labels, _ = _shopping(folder)
    chosen = np.random.default_rng(seed).choice(len(bought), CANDIDATES, replace=False)
    return _binary(bought[chosen], labels[chosen], 100)


def shopping_10(folder: Path, *, seed: int = 0) -> Records:
    """Random households: what each bought in the year, in ten clusters by k-means.

    That is how the paper made its Purchase data: a record a customer, a feature a product.
    """
    bought, _, household = _shopping(folder)
    _, who = np.unique(household, return_inverse=True)
    year = np.zeros((who.max() + 1, bought.shape[1]), np.uint8)
    np.maximum.at(year, who, bought)
    labels = KMeans(10, n_init=3, random_state=0).fit(year.astype(np.float64)).labels_
    chosen = np.random.default_rng(seed).choice(len(year), CANDIDATES, replace=False)
    return _binary(year[chosen], labels[chosen], 10)


def survey(folder: Path) -> tuple[IntArray, IntArray]:
    """Age, marital status, race and sex of everybody with an income, and whether above 50,000."""
    columns = _table(folder / "acs2019_excerpts.csv.gz")
    paid = columns["PINCP"] != "N"
    codes = []
    for name in ("AGEP", "MSP", "RAC1P", "SEX"):
        _, code = np.unique(columns[name][paid], return_inverse=True)
        codes.append(code)
    above = columns["PINCP"][paid].astype(np.float64) > 50_000
    return np.stack(codes, axis=1).astype(np.int64), above.astype(np.int64)


def _binary(bought: NDArray[np.uint8], labels: IntArray, classes: int) -> Records:
    return Records(
        features=bought.astype(np.float64),
        numbers=np.empty((len(bought), 0)),
        categories=bought.astype(np.int64),
        labels=labels.astype(np.int64),
        classes=classes,
    )


def _shopping(folder: Path) -> tuple[NDArray[np.uint8], IntArray, IntArray]:
    with np.load(folder / "shopping100.npz") as file:
        bought = np.unpackbits(file["bits"], axis=1)[:, :600]
        return bought, file["y"].astype(np.int64), file["household"].astype(np.int64)


def _table(path: Path) -> dict[str, NDArray[np.str_]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    table = np.array(rows)
    return {name: table[:, place] for place, name in enumerate(names)}
