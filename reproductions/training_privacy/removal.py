"""Figure 6 of the training-privacy paper: dropping the riskiest records, one after the other.

    python reproductions/training_privacy/removal.py --data DATA

Naive Bayes for income above 50,000 from age, marital status, race and sex. Records are put in the
order of their risk once, dropped in that order, and all that are left are measured after each.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from records import survey
from sklearn.naive_bayes import CategoricalNB

from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.types import IntArray

SMOOTHING = {"Laplace": 1.0, "none": 1e-10}


def dropped(x: IntArray, y: IntArray, *, alpha: float, most: int, again: bool) -> dict[str, Any]:
    """The largest risk after 0, 1, … records were dropped, binned and not.

    Args:
        x: Categories, ``(n, columns)``.
        y: Classes.
        alpha: Smoothing.
        most: How many are dropped.
        again: Whether the riskiest of those left is next, or the next of the first order.
    """
    values = x.max(axis=0) + 1
    left = np.arange(y.size)
    order: IntArray | None = None
    found: dict[str, Any] = {"binned": [], "unbinned": [], "above_1": [], "accuracy": []}
    for count in range(most + 1):
        model = CategoricalNB(alpha=alpha, force_alpha=True, min_categories=values)
        risk = pdtp(model, x[left], y[left])
        if order is None:
            order = left[np.lexsort((-risk.values, -risk.binned))]
        found["binned"].append(round(float(risk.binned.max()), 4))
        found["unbinned"].append(round(float(risk.values.max()), 4))
        found["above_1"].append(int((risk.binned > 1).sum()))
        found["accuracy"].append(round(float((risk.full.argmax(1) == y[left]).mean()), 5))
        worst = left[np.lexsort((-risk.values, -risk.binned))[0]] if again else order[count]
        left = left[left != worst]
    return found


def main() -> None:
    """Prints a line a variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--out", type=Path, help="A folder for what figures.py draws.")
    given = parser.parse_args()
    x, y = survey(given.data)
    lines = [
        {"smoothing": name, "again": again, "records": int(y.size)}
        | dropped(x, y, alpha=alpha, most=given.most, again=again)
        for name, alpha in SMOOTHING.items()
        for again in (False, True)
    ]
    for line in lines:
        print(json.dumps(line), flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "removal.json").write_text(json.dumps(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
