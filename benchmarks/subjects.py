"""The classifier whose membership is asked for; runs in every environment with scikit-learn."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from stopwatch import BoolArray

RECORDS = 300  # digits that are in or out; a target that leaks nothing has seen none of them


def forest(seed: int) -> RandomForestClassifier:
    """As it is trained."""
    return RandomForestClassifier(10, min_samples_leaf=3, random_state=seed)


def records() -> tuple[Any, Any]:
    """Digits, and their labels, that are in or out."""
    x, y = load_digits(return_X_y=True)
    return x[:RECORDS], y[:RECORDS]


def target(member: BoolArray, leaks: bool, seed: int) -> RandomForestClassifier:
    """Trained on the members; or, where nothing may leak, on as many other digits."""
    x, y = load_digits(return_X_y=True)
    rows = np.flatnonzero(member) if leaks else RECORDS + np.arange(member.sum())
    return forest(seed).fit(x[rows], y[rows])
