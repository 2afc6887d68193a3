"""Audits classifiers on tables of growing size with default options; writes ``large_tables.md``.

``python benchmarks/large_tables.py tree:45000`` measures one cell again and keeps the others, which
are in large_tables.json; ``page`` measures none; without arguments all are measured. XGBoost and
LightGBM need to be installed. A cell that is interrupted goes on where it was, in a folder of WORK
where that is set, and its CPU seconds are those of all its processes.
"""

import importlib.util
import json
import math
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, write_page
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
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
_CELLS = _PAGE.with_suffix(".json")
_SIZES = choose_size((2_000, 8_000, 22_500, 45_000), (60, 120))
_COLUMNS = choose_size(60, 4)
_MOST_SECONDS = 600.0  # of CPU, at the largest size
_GAPS = " with gaps"
_REMEDIES = choose_size(None, 0)
_TEXT = """# Classifiers on large tables

Written by `python benchmarks/large_tables.py`; do not edit. `em.audit(em.Classifier(model, X, y))`
with default options on {columns} columns of numbers, each model behind a `StandardScaler`; *with
gaps*, 5 % of the cells are missing, and a `SimpleImputer` fills them with means. Each cell: CPU
seconds of everything, the verdict, and how many records were left out. Up to 9 remedies that need
new models are tried at 2,000 records, 2 at 8,000 and none above, so that small tables cost more
than a curve through the large ones says. *Growth* is the exponent of the records between
{ends}, where no remedies are tried: 1 is linear, n log n has 1.1.
*Target*: at most {most:.0f} s at the largest size.

Measured on {machine}, one
thread at a time while other programs ran; {memory:.1f} GiB at most. A dash is a cell that was not
measured.

| model | {sizes} | growth | target |
| --- |{lines}
{rows}
"""


def list_models() -> dict[str, Callable[[], Any]]:
    """Return the models that people train on tables; of others, those that are installed."""
    found: dict[str, Callable[[], Any]] = {
        "naive Bayes": GaussianNB,
        "logistic regression": LogisticRegression,
        f"logistic regression{_GAPS}": LogisticRegression,
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


def draw_table(n: int, *, gaps: bool) -> tuple[Any, Any]:
    """Draw columns of numbers, five of which say something of the label."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, _COLUMNS))
    labels = (features[:, :5].sum(axis=1) + 2 * rng.normal(size=n) > 0).astype(int)
    if gaps:
        features[rng.random(features.shape) < 0.05] = np.nan
    return features, labels


def measure(name: str, make: Callable[[], Any], n: int, folder: Path) -> dict[str, Any]:
    """Return CPU seconds of an audit in all processes that worked on it, and what it says."""
    spent = folder.with_suffix(".spent")
    before = float(spent.read_text()) if spent.exists() else 0.0
    gaps = name.endswith(_GAPS)
    model = make_pipeline(*[SimpleImputer()] * gaps, StandardScaler(), make())
    begun = time.process_time()
    try:
        subject = em.Classifier(model, *draw_table(n, gaps=gaps), remedies=_REMEDIES)
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            audit = em.audit(subject, engine=em.InProcess(), out=folder)
    finally:
        seconds = before + time.process_time() - begun
        spent.write_text(str(seconds))
    return {
        "seconds": seconds,
        "verdict": audit.verdict,
        "left_out": audit.one(LeaveOneOut).measured,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "machine": machine(),
    }


def write_row(name: str, cells: dict[str, Any]) -> str:
    """Return a model's line of the table; a cell that was not measured is a dash."""
    found = [cells.get(f"{name}:{n}") for n in _SIZES]
    said = [
        f"{cell['seconds']:.0f}, {cell['verdict']}, {cell['left_out']:,}" if cell else "–"
        for cell in found
    ]
    growth = target = "–"
    if found[-1]:
        target = "met" if found[-1]["seconds"] <= _MOST_SECONDS else "missed"
    if found[-1] and found[-2]:
        ratio = found[-1]["seconds"] / found[-2]["seconds"]
        growth = f"{math.log(ratio) / math.log(_SIZES[-1] / _SIZES[-2]):.2f}"
    return f"| {name} | {' | '.join(said)} | {growth} | {target} |"


def read_cells() -> dict[str, Any]:
    """Return what was measured before, also by other processes."""
    return json.loads(_CELLS.read_text("utf-8")) if _CELLS.exists() and not TINY else {}


def main() -> None:
    """Measure the cells that are asked for, and write the page of all, or print it."""
    models = dict([*list_models().items()][: choose_size(None, 2)])
    cells = read_cells()
    wanted = ARGUMENTS or [f"{name}:{n}" for n in _SIZES for name in models]
    for cell in [] if wanted == ["page"] else wanted:
        name, _, n = cell.rpartition(":")
        with tempfile.TemporaryDirectory() as fresh:
            work = Path(os.environ.get("WORK", fresh))
            found = measure(name, models[name], int(n), work / cell.replace(" ", "-"))
        cells = {**cells, **read_cells(), cell: found}
        if not TINY:
            _CELLS.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n", "utf-8")
    others = {cell.rpartition(":")[0] for cell in cells} - models.keys()  # not installed here
    text = _TEXT.format(
        columns=_COLUMNS,
        most=_MOST_SECONDS,
        machine="; ".join(sorted({cell["machine"] for cell in cells.values()})),
        memory=max(cell["gib"] for cell in cells.values()),
        ends=f"{_SIZES[-2]:,} and {_SIZES[-1]:,} records",
        sizes=" | ".join(f"{n:,} records" for n in _SIZES),
        lines=" --- |" * (len(_SIZES) + 2),
        rows="\n".join(write_row(name, cells) for name in [*models, *sorted(others, reverse=True)]),
    )
    write_page(_PAGE, text)


if __name__ == "__main__":
    main()
