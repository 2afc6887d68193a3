"""Audits classifiers on tables of growing size with default options; writes ``large_tables.md``.

``--most 8000`` leaves larger tables out. XGBoost and LightGBM are measured where installed.
"""

import importlib.util
import math
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import machine
from sizes import ARGUMENTS, choose_size, write_page
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

import epsilometer as em
from epsilometer.findings import LeaveOneOut

_PAGE = Path(__file__).resolve().parent / "large_tables.md"
_SIZES = choose_size((2_000, 8_000, 45_000), (60, 120))
_COLUMNS = choose_size(60, 4)
_REMEDIES = choose_size(None, 0)
_TEXT = """# Classifiers on large tables

Written by `python benchmarks/large_tables.py`; do not edit. `em.audit(em.Classifier(model, X, y))`
with default options on {columns} columns of numbers, each model behind a `StandardScaler`. Each
cell: CPU seconds of everything, the verdict, and how many records were left out. *Growth* is the
exponent of the records between the two largest sizes: 1 is linear, and n log n has 1.1 there.

Measured on {machine}, one core at a time; {memory:.1f} GiB at most.

| model | {sizes} | growth |
| --- |{lines}
{rows}
"""


def list_models() -> dict[str, Callable[[], Any]]:
    """Return the models that people train on tables; of others, those that are installed."""
    found: dict[str, Callable[[], Any]] = {
        "naive Bayes": GaussianNB,
        "logistic regression": LogisticRegression,
        "5 nearest neighbours": KNeighborsClassifier,
        "tree": DecisionTreeClassifier,
        "HistGradientBoosting": HistGradientBoostingClassifier,
    }
    if importlib.util.find_spec("xgboost"):
        from xgboost import XGBClassifier

        found["XGBoost"] = lambda: XGBClassifier(n_jobs=1)
    if importlib.util.find_spec("lightgbm"):
        from lightgbm import LGBMClassifier

        found["LightGBM"] = lambda: LGBMClassifier(n_jobs=1, verbose=-1)
    return found


def draw_table(n: int) -> tuple[Any, Any]:
    """Draw columns of numbers, five of which say something of the label."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, _COLUMNS))
    return features, (features[:, :5].sum(axis=1) + 2 * rng.normal(size=n) > 0).astype(int)


def measure(make: Callable[[], Any], n: int) -> tuple[float, str]:
    """Return CPU seconds of an audit, and what it says."""
    model = make_pipeline(StandardScaler(), make())
    begun = time.process_time()
    subject = em.Classifier(model, *draw_table(n), remedies=_REMEDIES)
    audit = em.audit(subject, engine=em.InProcess())
    seconds = time.process_time() - begun
    return seconds, f"{seconds:.0f}, {audit.verdict}, {audit.one(LeaveOneOut).measured:,}"


def main() -> None:
    """Write the page, or print it."""
    most = int(ARGUMENTS[ARGUMENTS.index("--most") + 1]) if "--most" in ARGUMENTS else _SIZES[-1]
    sizes = [n for n in _SIZES if n <= most]
    rows = []
    for name, make in [*list_models().items()][: choose_size(None, 2)]:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [measure(make, n) for n in sizes]
        *_, before, last = [seconds for seconds, _ in found]
        growth = math.log(last / before) / math.log(sizes[-1] / sizes[-2])
        rows.append(" | ".join([f"| {name}", *(said for _, said in found), f"{growth:.2f} |"]))
        sys.stderr.write(f"{rows[-1]}\n")
    text = _TEXT.format(
        columns=_COLUMNS,
        machine=machine(),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        sizes=" | ".join(f"{n:,} records" for n in sizes),
        lines=" --- |" * (len(sizes) + 1),
        rows="\n".join(rows),
    )
    write_page(_PAGE, text)


if __name__ == "__main__":
    main()
