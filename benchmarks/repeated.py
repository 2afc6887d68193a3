"""The DP-SGD that is trained again and again; needs NumPy and scikit-learn only."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

RECORDS, RUNS, BATCH, EPOCHS, RATE = 100, 100, 50, 10, 2.0  # batches by Poisson sampling
NOISE = {"null": 100.0, "known": 1.0}  # 100: ε is as good as 0


def records() -> tuple[Any, Any]:
    """Digits; the first is the canary, with a wrong label."""
    x, y = load_digits(return_X_y=True)
    labels = y[:RECORDS].copy()
    labels[0] = (labels[0] + 1) % 10
    return (x[:RECORDS] / 16).astype(np.float32), labels
