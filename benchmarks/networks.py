"""Times networks without one record, beside an ordinary loop and IBM's toolbox.

    python benchmarks/networks.py    # writes networks.md

CPU seconds of one thread, in one run.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from measurement import ask
from results import machine
from sizes import TINY, choose_size, write_page
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.naive_bayes import GaussianNB
from torch import nn

from epsilometer.audits.classifier.leave_one_out.networks import NetworkClassifier
from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp, dtp_over, pdtp
from epsilometer.engine.engines import InProcess
from epsilometer.errors import EpsilometerWarning
from epsilometer.networks.local import local_batches
from epsilometer.networks.models import mlp

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE / "networks.md"
_PEER = "adversarial_robustness_toolbox"
_HIDDEN, _RATE = 64, 1e-3
_RECORDS = choose_size(1000, 40)
_LOOPED = choose_size(5, 1)  # models that the loop trains, for each take
_FIFTY = 50
_TAKES = choose_size(2, 1)
_INTRO = """# Networks without one record

Written by `python benchmarks/networks.py`; do not edit. CPU seconds of one thread, in one run.

Measured on {machine}.

"""
_SPEED = """## All models at once

PDTP of every record of an MLP with 64 hidden units, by Adam, everything counted (full model, null
floor, estimate of the time), beside an ordinary torch loop (tensors, no loader) that trains the
same models one after the other; the loop's time is that of {looped} models, times n. The better of
two takes of both. IBM's Adversarial Robustness Toolbox {version} (`PDTP`, `num_iter=1`) trains in
batches of 128, 10 epochs; its time is that of {fifty} models, times n, once.

| data | records | batch, epochs | ours, s | loop, s | ratio | toolbox, s | ratio |
|---|---|---|---|---|---|---|---|
{rows}

"""
_FLOOR = """## Apart from the null floor

{fifty} records of breast cancer and the same MLP (batches of 128, 10 epochs). Two-sided
Mann–Whitney test of values with a record removed against values with nothing removed:

| | median value | median with nothing removed | p |
|---|---|---|---|
| ours: common random numbers, at the record | {ours} | {ours_floor} | {ours_p} |
| toolbox: fresh weights, largest over all rows | {theirs} | {theirs_floor} | {theirs_p} |

With fresh weights a value is what re-initialisation does, whoever is removed. With common random
numbers it is what the record does, and lies below the floor where records do little.

"""
_FLAGS = """## Who is flagged

Gaussian naive Bayes, breast cancer (standardised), {count} records: values above 1.

| | flagged |
|---|---|
| PDTP by its definition: at the record, ln of binned probabilities | {binned} |
| the same without bins | {unbinned} |
| largest over all training rows, ln (`dtp_over` with bins) | {over} |
| toolbox, ln of its ratio | {theirs} |
"""


def main() -> None:
    """Measures and writes the page."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EpsilometerWarning)  # that it takes longer than a minute
    asked = () if TINY else ("cancer", "digits")
    toolbox = {data: _toolbox("mlp", data, _FIFTY) for data in asked}
    parts = [
        _INTRO.format(machine=machine()),
        _SPEED.format(
            looped=_LOOPED,
            fifty=_FIFTY,
            version=toolbox["cancer"]["version"] if toolbox else "(not asked)",
            rows="\n".join(_rows(toolbox)),
        ),
    ]
    if toolbox:
        parts += [_floor(toolbox["cancer"]), _flags()]
    write_page(_PAGE, "".join(parts))


def _rows(toolbox: dict[str, Any]) -> list[str]:
    rows = []
    for data, batch, epochs in (
        ("cancer", 32, 20),
        ("digits", 32, 20),
        ("cancer", 128, 10),
        ("digits", 128, 10),
    ):
        x, y = _records(data)
        ours, loop = _ours(x, y, batch, epochs), _loop(x, y, batch, epochs)
        row = f"| {data} | {len(x)} | {batch}, {epochs} | {ours:.1f} | {loop:.0f} | "
        row += f"{loop / ours:.0f} |"
        if batch == 128 and toolbox:
            theirs = toolbox[data]["cpu_seconds"] * len(x) / _FIFTY
            rows.append(f"{row} {theirs:.0f} | {theirs / ours:.0f} |")
        else:
            rows.append(f"{row} – | – |")
    return rows


def _records(name: str) -> tuple[Any, Any]:
    """As of ``peers/ask_adversarial_robustness_toolbox.py``."""
    load = load_digits if name == "digits" else load_breast_cancer
    x, y = (part[:_RECORDS] for part in load(return_X_y=True))
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1), y


def _network(x: Any, y: Any, batch: int, epochs: int) -> NetworkClassifier:
    module = mlp(x.shape[1], int(y.max()) + 1, _HIDDEN)
    return NetworkClassifier(module, epochs=epochs, batch_size=batch, learning_rate=_RATE)


def _measured(model: Any, x: Any, y: Any, records: Any = None) -> Pdtp:
    return pdtp(model, x, y, records=records, engine=InProcess(), patience=1e6)


def _ours(x: Any, y: Any, batch: int, epochs: int) -> float:
    model = _network(x, y, batch, epochs)
    takes = []
    for _ in range(_TAKES):
        start = time.process_time()
        _measured(model, x, y)
        takes.append(time.process_time() - start)
    return min(takes)


def _loop(features: Any, labels: Any, batch: int, epochs: int) -> float:
    """An ordinary loop: seconds for all records, from those of a few."""
    x, y = torch.from_numpy(features).float(), torch.from_numpy(labels)
    takes = []
    for _ in range(_TAKES):
        start = time.process_time()
        for record in range(_LOOPED):
            _train(x, y, record, batch, epochs)
        takes.append(time.process_time() - start)
    return min(takes) / _LOOPED * len(x)


def _train(x: Any, y: Any, record: int, batch: int, epochs: int) -> nn.Module:
    module = mlp(x.shape[1], int(y.max()) + 1, _HIDDEN)
    adam = torch.optim.Adam(module.parameters(), lr=_RATE)
    for order in local_batches(len(x), batch, epochs=epochs, rng=np.random.default_rng(0)):
        rows = torch.from_numpy(order[order != record])
        adam.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        adam.step()
    return module


def _toolbox(model: str, data: str, count: int) -> dict[str, Any]:
    return ask(_PEER, "pdtp", f"{model} {data} {count}")


def _floor(toolbox: dict[str, Any]) -> str:
    x, y = _records("cancer")
    found = _measured(_network(x, y, 128, 10), x, y, np.arange(_FIFTY))
    test = scipy.stats.mannwhitneyu
    return _FLOOR.format(
        fifty=_FIFTY,
        ours=f"{np.median(found.values):.3f}",
        ours_floor=f"{np.median(found.floor):.3f}",
        ours_p=f"{test(found.values, found.floor).pvalue:.1g}",
        theirs=f"{np.median(toolbox['values']):.2f}",
        theirs_floor=f"{np.median(toolbox['null']):.2f}",
        theirs_p=f"{test(toolbox['values'], toolbox['null']).pvalue:.1g}",
    )


def _flags() -> str:
    x, y = _records("cancer")
    at, over = pdtp(GaussianNB(), x, y), dtp_over(GaussianNB(), x, y, x)
    theirs = np.array(_toolbox("gaussian", "cancer", len(x))["values"])
    return _FLAGS.format(
        count=len(x),
        binned=int((at.binned > 1).sum()),
        unbinned=int((at.values > 1).sum()),
        over=int((over.binned > 1).sum()),
        theirs=int((theirs > 1).sum()),
    )


if __name__ == "__main__":
    main()
