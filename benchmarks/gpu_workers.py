"""Run the same units on one GPU in this process, in two processes, and without a GPU; compare.

    PYTHONPATH=src python benchmarks/gpu_workers.py

Prints one line per engine. Fails where two processes on one GPU do not give the bytes of one, or
where a worker that was given no GPU sees one.
"""

import os
import time

import numpy as np
import torch
from sizes import choose_size

from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.leases import Outcome
from epsilometer.engine.shards import Arrays

_UNITS = choose_size(12, 4)
_SIZE = choose_size(512, 32)


def train(unit: int) -> Arrays:
    """Train a linear map for 50 steps, and return it with who did it where."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    time.sleep(choose_size(0.5, 0.0))  # or a worker that starts first does everything
    torch.manual_seed(unit)
    x = torch.randn(_SIZE, _SIZE).to(device)
    weights = torch.zeros(_SIZE, _SIZE, device=device)
    for _ in range(50):
        weights -= 1e-4 * x.T @ (x @ weights - x)
    return {
        "weights": weights.cpu().numpy(),
        "process": np.array(os.getpid()),
        "device": np.array(device),
    }


def collect(outcomes: list[Outcome]) -> list[Arrays]:
    """Return what units gave, in their order; no unit may have failed."""
    found = sorted(outcomes, key=lambda each: each.unit)
    failed = [each.error for each in found if each.arrays is None]
    assert not failed, failed[0]
    return [each.arrays for each in found if each.arrays is not None]


def main() -> None:
    """Run and compare."""
    engines: dict[str, InProcess | Local] = {
        "this process": InProcess(),
        "two processes on GPU 0": Local(devices=("0", "0")),
        "one process on GPU 0, one without": Local(devices=("0", "")),
        "two processes without a GPU": Local(devices=("", "")),
    }
    expected: list[Arrays] = []
    for name, engine in engines.items():
        started = time.perf_counter()
        found = collect(list(engine.outcomes(train, range(_UNITS))))
        seconds = time.perf_counter() - started
        workers = {int(each["process"]): str(each["device"]) for each in found}
        expected = expected or found
        close = [
            np.array_equal(one["weights"], other["weights"])
            if one["device"] == other["device"]
            else np.allclose(one["weights"], other["weights"], atol=1e-3)
            for one, other in zip(found, expected, strict=True)
        ]
        print(
            f"{name}: {sorted(workers.values())}, {seconds:.1f} s, same: {sum(close)} of {_UNITS}"
        )
        assert all(close)
        if "without a GPU" in name:
            assert set(workers.values()) == {"cpu"}


if __name__ == "__main__":
    main()
