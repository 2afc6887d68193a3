"""Times dropout samples of many models beside a loop over models and samples; writes
``benchmarks/posterior.md``.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import machine
from sizes import choose_size, write_page
from torch import nn

from epsilometer.audits.posterior.forms import McDropout
from epsilometer.networks.ensemble import EnsembleDPSGD, Trained, cross_entropy
from epsilometer.networks.models import dropout_cnn

_PAGE = Path(__file__).resolve().parent / "posterior.md"
_MODELS, _SAMPLES, _REPEATS, _TARGET = *choose_size((100, 1000, 5), (3, 5, 1)), 20
_LOOPED = choose_size(10, 2)  # models of the loop: it takes as long for each
_PAPERS_SAMPLES, _PAPERS_LOOPED = choose_size(
    (40, 3), (2, 1)
)  # a thousand would take hours in the loop
_TEXT = """# Dropout samples of many models

Written by `python benchmarks/posterior.py`; do not edit. Predictions of {models} models for one
record, with dropout on: `Trained.samples` in one call, beside a loop over models and samples, and
beside a loop over models of which each draws its samples in one batch (`McDropout`). CPU seconds in
one process with one thread; medians of {repeats} calls; loops went over {looped} models
({papers_looped} of the paper's CNN), and what they took is told for {models}.

Measured on {machine}, torch {torch}.

| | samples | in one call | loop over models | loop over models and samples | ratio |
| --- | --- | --- | --- | --- | --- |
{rows}

The largest difference between mean predictions, in standard errors of it: {apart:.1f} over {means}
means. What comes before the first dropout is computed once; the rest is spent on random bits, on
convolutions and on memory. In the paper's CNN a single prediction has so much to multiply that a
loop wastes little: there is not so much to win.
"""


def main() -> None:
    """Measures and writes the page."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, worst = [], []
    for name, module, shape, samples, looped in (
        ("MLP 64–64–10", _mlp(), (1, 8, 8), _SAMPLES, _LOOPED),
        ("CNN 8–8–64, digits, bundled", _small_cnn(8, 64, 0.2), (1, 8, 8), _SAMPLES, _LOOPED),
        ("CNN 16–16–32, digits", _small_cnn(16, 32, 0.5), (1, 8, 8), _SAMPLES, _LOOPED),
        ("CNN of the paper", dropout_cnn(), (3, 32, 32), _PAPERS_SAMPLES, _PAPERS_LOOPED),
    ):
        row, apart = _measured(name, module, shape, samples, looped)
        rows.append(row)
        worst += apart
    write_page(
        _PAGE,
        _TEXT.format(
            models=_MODELS,
            repeats=_REPEATS,
            looped=_LOOPED,
            papers_looped=_PAPERS_LOOPED,
            machine=machine(),
            torch=torch.__version__.partition("+")[0],
            rows="\n".join(rows),
            apart=max(worst),
            means=len(worst),
        ),
    )


def _mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
    )


def _small_cnn(filters: int, hidden: int, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (1, filters):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(), nn.Dropout(dropout)]
        layers += [nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(4 * filters, hidden), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def _measured(
    name: str, module: nn.Module, shape: tuple[int, ...], samples: int, looped: int
) -> tuple[str, list[float]]:
    """A line of the table, and how far the ways are apart."""
    rng = np.random.default_rng(0)
    features = rng.random((32, *shape))
    training = EnsembleDPSGD(
        module, cross_entropy, runs=_MODELS, noise_multiplier=1.0, learning_rate=0.1, batch_size=32
    )
    trained = training.train(features, np.arange(32) % 10, rng=rng)
    modules = [trained.models.model(run) for run in range(looped)]
    x = features[0]
    here, ours = _timed(lambda: _at_once(trained, x, samples, rng))
    batch, _ = _timed(lambda: [McDropout(one).predict(x, samples, rng) for one in modules])
    loop, theirs = _timed(lambda: [_one_by_one(one, x, samples) for one in modules])
    times = _MODELS / looped
    said = f"{times * loop / here:.1f}"
    if samples == _SAMPLES:
        met = "met" if times * loop >= _TARGET * here else "missed"
        said += f" (target: ≥ {_TARGET}, {met})"
    row = f"| {name} | {samples:,} | {here:.3f} | {times * batch:.2f} | {times * loop:.1f} "
    row += f"| {said} |"
    return row, _apart(ours[:looped], np.stack(theirs))


def _at_once(trained: Trained, x: np.ndarray, samples: int, rng: np.random.Generator) -> Any:
    return trained.samples(x[None], samples, rng=rng)[:, 0]


def _one_by_one(module: nn.Module, x: np.ndarray, samples: int) -> np.ndarray:
    """As one writes it down: the module in training mode, asked again and again."""
    given = torch.tensor(x[None], dtype=torch.float32)
    module.train()
    with torch.no_grad():
        return np.concatenate([module(given).softmax(1).numpy() for _ in range(samples)])


def _apart(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Differences of means of samples, each model and class, in standard errors."""
    errors = np.sqrt((ours.var(1) + theirs.var(1)) / ours.shape[1])
    return list((np.abs(ours.mean(1) - theirs.mean(1)) / errors).ravel())


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    found: Any = None
    seconds = []
    for _ in range(_REPEATS):
        start = time.process_time()
        found = call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), found


if __name__ == "__main__":
    main()
