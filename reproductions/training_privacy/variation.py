"""Figures 7 and 8 of the training-privacy paper: how predictions vary by other chances.

    python reproductions/training_privacy/variation.py --data DATA --quick
    python reproductions/training_privacy/variation.py --data DATA --device cuda

100 networks on the same 10,000 records of Adult, and 100 on other 10,000 each; all are asked about
two people whom none of them was trained on, one of either class.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from nets import Nets, Training, answers
from records import Records, adult
from sklearn.linear_model import LogisticRegression

from epsilometer.types import FloatArray, IntArray

PEOPLE, TRAINED_ON = 48_842, 10_000


def asked(people: Records) -> IntArray:
    """The person in the middle of either class by logistic regression, low salary first."""
    model = LogisticRegression(max_iter=1000).fit(people.features, people.labels)
    likely = model.decision_function(people.features)
    middle = []
    for income in (0, 1):
        those = np.flatnonzero(people.labels == income)
        middle.append(int(those[np.argsort(likely[those])[those.size // 2]]))
    return np.array(middle)


def varied(how: Training, folder: Path, *, nets: int, sampling: bool) -> FloatArray:
    """p of a high salary for both people, ``(networks, 2)``."""
    people = adult(folder, PEOPLE)
    return varied_on(people, how, trained_on=TRAINED_ON, nets=nets, sampling=sampling)


def varied_on(
    people: Records, how: Training, *, trained_on: int, nets: int, sampling: bool
) -> FloatArray:
    """The same of any people."""
    who = asked(people)
    others = np.setdiff1d(np.arange(people.labels.size), who)
    rng = np.random.default_rng(0)
    member = np.zeros((nets if sampling else 1, people.labels.size), bool)
    for row in member:
        row[rng.choice(others, trained_on, replace=False)] = True
    seeds = np.arange(nets)
    found = answers(
        how,
        Nets(
            members=seeds if sampling else np.zeros(nets, np.int64),
            seeds=seeds,
            left_out=np.full(nets, -1),
        ),
        people.features,
        people.labels,
        member,
        classes=2,
        asked=who,
    )
    return np.asarray(np.exp(found[:, :, 1].astype(np.float64)))


def summary(found: FloatArray) -> list[dict[str, float]]:
    """Of either person: mean, spread, range, and how often two networks are a factor e apart."""
    lines = []
    for p in found.T:
        other = np.log(np.stack([p, 1 - p]))
        apart = np.abs(other[:, :, None] - other[:, None, :]).max(axis=0)
        pairs = apart[np.triu_indices(len(p), 1)]
        line = {
            "mean": p.mean(),
            "sd": p.std(ddof=1),
            "least": p.min(),
            "most": p.max(),
            "median_apart": np.median(pairs),
            "share_apart_by_1": (pairs > 1).mean(),
        }
        lines.append({name: round(float(value), 4) for name, value in line.items()})
    return lines


def main() -> None:
    """Prints a line a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--quick", action="store_true", help="20 networks, 10 epochs.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="A folder for what figures.py draws.")
    given = parser.parse_args()
    how = Training(epochs=10 if given.quick else 100, batch=32, device=given.device)
    nets = 20 if given.quick else 100
    lines: list[dict[str, Any]] = []
    for figure, sampling in ((7, False), (8, True)):
        begun = time.perf_counter()
        found = varied(how, given.data, nets=nets, sampling=sampling)
        lines.append(
            {
                "figure": figure,
                "by": "sampling" if sampling else "initialisation",
                "nets": nets,
                "epochs": how.epochs,
                "low": summary(found)[0],
                "high": summary(found)[1],
                "p": found.round(5).tolist(),
                "seconds": round(time.perf_counter() - begun, 1),
            }
        )
        print(json.dumps({k: v for k, v in lines[-1].items() if k != "p"}), flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "variation.json").write_text(json.dumps(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
