"""Draw the batches of many runs, with as many threads as there are cores."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler
from epsilometer.types import IntArray

_TOGETHER = 32  # runs per stream; one thread draws their batches


def draw_batches(
    sampler: Sampler,
    records: int,
    batch_size: int,
    *,
    runs: int,
    epochs: int,
    rng: np.random.Generator,
    together: int = _TOGETHER,
) -> Iterator[NDArray[np.int32]]:
    """Yield the batches of each epoch: ``(runs, steps, batch)``, padded with −1.

    Same ``rng``, same batches, whatever the number of threads. With ``together=1`` every run has
    its own stream, so its batches do not depend on the number of runs.
    """
    sizes = [min(together, runs - start) for start in range(0, runs, together)]
    streams = rng.spawn(len(sizes))
    draw = partial(_draw_epoch, sampler, records, batch_size)
    with ThreadPoolExecutor(min(len(sizes), os.cpu_count() or 1)) as pool:
        for _ in range(epochs):
            yield _join_runs(list(pool.map(draw, sizes, streams)))


def _draw_epoch(
    sampler: Sampler, records: int, batch_size: int, runs: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    block = getattr(sampler, "block", None)
    within = 0 if block is None else block(records)
    if within and records % batch_size == records % within == 0:  # all runs at once
        order = np.tile(np.arange(records, dtype=np.int32), (runs, 1)).reshape(-1, within)
        rng.permuted(order, axis=1, out=order)
        return order.reshape(runs, -1, batch_size)
    return _fill_up([list(sampler.batches(records, batch_size, rng=rng)) for _ in range(runs)])


def _fill_up(runs: list[list[IntArray]]) -> NDArray[np.int32]:
    steps = {len(batches) for batches in runs}
    if len(steps) > 1:
        raise InvalidArgument(
            f"Expected all runs to have as many batches per epoch, got {sorted(steps)}."
        )
    width = max(batch.size for batches in runs for batch in batches)
    filled = np.full((len(runs), steps.pop(), width), -1, np.int32)
    for run, batches in zip(filled, runs, strict=True):
        for row, batch in zip(run, batches, strict=True):
            row[: batch.size] = batch
    return filled


def _join_runs(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Return all runs together, as wide as the widest, and never without a column."""
    width = max(1, *(part.shape[2] for part in parts))
    same = [
        np.pad(part, ((0, 0), (0, 0), (0, width - part.shape[2])), constant_values=-1)
        if part.shape[2] < width
        else part
        for part in parts
    ]
    return np.concatenate(same)
