"""Measures how many small units go through the driver of a Dask cluster, and prints it."""

import time

import numpy as np
from distributed import LocalCluster
from sizes import choose_size

from epsilometer.engine.engines import Dask
from epsilometer.engine.shards import Arrays

_UNITS = choose_size(20_000, 200)


def make_kilobyte(unit: int) -> Arrays:
    """Return 1 KB."""
    return {"x": np.full(128, float(unit))}


def main() -> None:
    """Measures and prints."""
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        engine = Dask(cluster.scheduler_address)
        list(engine.outcomes(make_kilobyte, range(50)))  # starts everything
        wall, cpu = time.perf_counter(), time.process_time()
        count = sum(1 for _ in engine.outcomes(make_kilobyte, range(_UNITS)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rate, each = count / wall, 1e3 * cpu / count
    print(f"{count:,} units of 1 KB: {rate:,.0f} per second, {each:.3f} ms of CPU")


if __name__ == "__main__":
    main()
