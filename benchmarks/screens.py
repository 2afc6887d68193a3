"""Compares screens for PDTP with its exact order; writes ``benchmarks/screens.md``.

Adult is read from EPSILOMETER_DATA; without it, and with ``--tiny``, it is left out.
"""

import csv
import gzip
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from results import machine
from sizes import TINY, choose_size, write_page
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from epsilometer import InProcess
from epsilometer.audits.classifier.leave_one_out.pdtp import LARGEST, pdtp
from epsilometer.audits.classifier.leave_one_out.screens import SCREENS, screen_records

_PAGE = Path(__file__).resolve().parent / "screens.md"
_RECORDS = choose_size(400, 60)
_RISKIEST, _LOOKED_AT = 20, 5  # one in so many: records to find, and records that are looked at
_TEXT = """# Screens for PDTP

Written by `python benchmarks/screens.py`; do not edit. PDTP of {records} records, exactly (by
leaving out every one), beside four screens that leave out none
(`epsilometer.audits.classifier.leave_one_out.screens`). Each cell: Spearman's rank correlation of
the screen with PDTP, and how many of the riskiest 5 % are among the 20 % that the screen ranks
highest (20 % of them are by chance). CPU seconds: all refits, or the exact path where there is
one, and the 32 models of *subsamples*; the other screens fit one logistic regression.

Measured on {machine}.

| data | model | {screens} | CPU s, exact | CPU s, subsamples |
|{lines}|
{rows}

Means of all rows: {means}.

*subsamples* trains the model itself on halves, and is the one that `records="screen:500"` takes: on
average it finds the largest share of the riskiest, and most more where a logistic regression is no
picture of the model (trees, support vectors). No screen follows every model, and where PDTP is
mostly that of other random draws (forests), hardly any helps. So none is a substitute for
leaving records out: half of what is left out is drawn at random, and the limits on the share of
exposed records rest on that half.
"""


def models() -> dict[str, Any]:
    """Every family of which people ask, deterministic or with a seed."""
    return {
        "logistic regression": LogisticRegression(max_iter=2000),
        "Gaussian naive Bayes": GaussianNB(),
        "5 nearest neighbours": KNeighborsClassifier(5),
        "tree": DecisionTreeClassifier(random_state=0),
        "tree, leaves of 5": DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
        "forest of 30": RandomForestClassifier(30, random_state=0),
        "support vectors": SVC(),
        "boosting, 20 rounds": HistGradientBoostingClassifier(max_iter=20, random_state=0),
        "network of 16": MLPClassifier((16,), max_iter=60, random_state=0),
    }


def data() -> Iterator[tuple[str, Any, Any]]:
    """Yield names, features and labels."""
    x, y = load_breast_cancer(return_X_y=True)
    yield "breast cancer", StandardScaler().fit_transform(x)[:_RECORDS], y[:_RECORDS]
    folder = os.environ.get("EPSILOMETER_DATA")
    if folder and not TINY:
        yield "Adult", *_adult(Path(folder) / "adult.csv.gz")


def _adult(path: Path) -> tuple[Any, Any]:
    """Draw records: numbers standardised, a column per category."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    table = np.array(rows)
    table = table[np.random.default_rng(0).choice(len(table), _RECORDS, replace=False)]
    columns = []
    for name, values in zip(names, table.T, strict=True):
        if name in ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"):
            columns.append(StandardScaler().fit_transform(values.astype(np.float64)[:, None]))
        elif name not in ("fnlwgt", "income", "split"):
            columns.append((values[:, None] == np.unique(values)).astype(np.float64))
    return np.hstack(columns), (table[:, names.index("income")] == ">50K").astype(np.int64)


def compare(estimator: Any, x: Any, y: Any) -> tuple[dict[str, tuple[float, float]], list[float]]:
    """Return correlation and share found of each screen, and CPU seconds: exact, subsamples."""
    begun = time.process_time()
    exact = np.minimum(pdtp(estimator, x, y, engine=InProcess()).values, LARGEST)
    seconds = [time.process_time() - begun]
    riskiest = np.argsort(-exact, kind="stable")[: exact.size // _RISKIEST]
    found = {}
    for screen in SCREENS:
        begun = time.process_time()
        ranked = screen_records(estimator, x, y, screen=screen, engine=InProcess())
        if screen == "subsamples":
            seconds.append(time.process_time() - begun)
        looked_at = np.argsort(-ranked, kind="stable")[: exact.size // _LOOKED_AT]
        correlation = float(scipy.stats.spearmanr(ranked, exact).statistic)
        found[screen] = correlation, float(np.isin(riskiest, looked_at).mean())
    return found, seconds


def main() -> None:
    """Write the page, or print it."""
    rows, every = [], []
    chosen = dict(list(models().items())[:4]) if TINY else models()
    for name, x, y in data():
        for model, estimator in chosen.items():
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of networks that have not converged
                found, seconds = compare(estimator, x, y)
            every.append([found[screen] for screen in SCREENS])
            cells = [f"{one:.2f}, {share:.0%}" for one, share in found.values()]
            rows.append(" | ".join([f"| {name}", model, *cells, *map("{:.2g}".format, seconds)]))
            print(rows[-1], flush=True)
    means = np.mean(every, axis=0)
    said = (
        f"{screen} {one:.2f} and {share:.0%}"
        for screen, (one, share) in zip(SCREENS, means, strict=True)
    )
    text = _TEXT.format(
        records=_RECORDS,
        machine=machine(),
        screens=" | ".join(SCREENS),
        lines=" --- |" * (len(SCREENS) + 3) + " ---",
        rows="\n".join(f"{row} |" for row in rows),
        means=", ".join(said),
    )
    write_page(_PAGE, text)


if __name__ == "__main__":
    main()
