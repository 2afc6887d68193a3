"""Times training and trials on one GPU in every precision; prints a line of JSON for each.

    PYTHONPATH=src python benchmarks/gpu.py           # at most 200 s, all parts
    PYTHONPATH=src python benchmarks/gpu.py mlp       # one part

``gpu_page.py`` makes gpu.md of the lines.

Each part is a process of its own with a limit of its own: what fails, or hangs, loses no other. A
model-step is one step of one model on a batch of 100, as in training.py; the better of two takes.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import distributions
from typing import Any, get_args

import numpy as np
import torch
from batched_gaussian import time_trials
from sizes import ARGUMENTS, TINY, choose_size
from training import BATCH, MODELS, make_canary, make_ensemble, make_records
from transformer import Transformer, make_loop, make_texts, make_training

from epsilometer.networks.devices import choose_at_once, use_precision
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.many import ManyModels
from epsilometer.networks.trainer import Precision

_LIMIT = 200.0  # seconds of all parts
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [each for each in get_args(Precision) if DEVICE != "cpu" or each != "tf32"]
# Of each model: its name, steps of an epoch, the most models at once, and how many torch.func gets.
_PARTS: dict[str, tuple[str, int, int, tuple[int, ...]]] = {
    "mlp": ("MLP 600–32–100", 100, 8192, (256,)),
    "lenet": ("LeNet-5, 28×28", 20, 8192, (128,)),
    "cnn": ("CNN of Table II, 3×32×32", 5, 1024, (8,)),
}
_SECONDS = {"mlp": 35, "cnn": 65, "transformer": 50, "trials": 30, "lenet": 50}  # in this order


def main() -> None:
    """Run all parts, or the one that is asked for."""
    if ARGUMENTS or TINY:
        for part in ARGUMENTS or ("mlp", "transformer"):
            _run_part(part)
        return
    started = time.monotonic()
    _say(
        "machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, cores=os.cpu_count(),
        triton=next((found.version for found in distributions(name="triton")), "–"),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
    )  # fmt: skip
    for part, seconds in _SECONDS.items():
        left = min(seconds, _LIMIT - (time.monotonic() - started))
        if left < 5:
            _say(part, error="no time left")
            continue
        try:
            subprocess.run([sys.executable, __file__, part], timeout=left, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            _say(part, error=str(error)[-300:])


def _run_part(part: str) -> None:
    if part == "trials":
        _guard(part, 25, _time_trials)
    elif part == "transformer":
        _time_transformers()
    else:
        _time_models(part)


def _say(what: str, **found: Any) -> None:
    print(json.dumps({"what": what, **found}), flush=True)


def _guard(what: str, seconds: float, call: Callable[[], dict[str, Any]], **about: Any) -> Any:
    """Print what a call found, or how it failed; returns it."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{seconds} s are over")

    before, seconds = time.perf_counter(), choose_size(seconds, 600.0)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        found = call()
        _say(what, **about, **found, took=round(time.perf_counter() - before, 2))
        return found
    except Exception as error:  # the next measurement is worth having
        where = traceback.format_exc().splitlines()[-3].strip()
        _say(what, **about, error=f"{type(error).__name__}: {str(error)[:300]} at {where[-120:]}")
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def _synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# --- training ---


def _time_models(part: str) -> None:
    name, steps, most, others = _PARTS[part]
    build, shape, classes = MODELS[name]
    features, labels = (
        torch.from_numpy(each).to(DEVICE)
        for each in make_records(shape, classes, choose_size(steps, 2) * BATCH)
    )
    _guard(f"{part}: agreement", 25, lambda: _compare(build(), features, labels))
    for precision in PRECISIONS:
        one = make_ensemble(build(), 1, DEVICE, precision=precision)

        def measure(one: EnsembleDPSGD = one) -> dict[str, Any]:
            fit = choose_size(choose_at_once, lambda *_: 2)(one, features, labels)
            return _time_training(one.with_runs(min(fit, most)), features, labels)

        found = _guard(part, 25, measure, precision=precision)
        if found and DEVICE == "cuda":
            many = one.with_runs(found["at_once"])
            few = choose_size(5, 1) * BATCH
            _guard(
                f"{part}: profile", 15,
                lambda many=many, few=few: _profile(many, features[:few], labels[:few]),
                precision=precision,
            )  # fmt: skip
    few = choose_size(5, 1) * BATCH
    for runs in others:
        general = make_ensemble(build(), choose_size(runs, 1), DEVICE, "general")
        _guard(
            f"{part}: torch.func", 20,
            lambda general=general: _time_training(general, features[:few], labels[:few]),
        )  # fmt: skip


def _time_training(training: EnsembleDPSGD, features: Any, labels: Any) -> dict[str, Any]:
    """Of two takes the better: the first also compiles."""
    seconds = []
    for seed in range(2):
        _synchronize()
        before = time.perf_counter()
        training.train(
            features, labels, rng=np.random.default_rng(seed), canaries=make_canary(training)
        )
        _synchronize()
        seconds.append(time.perf_counter() - before)
    steps = training.runs * (len(features) // training.batch_size)
    return {
        "at_once": training.runs,
        "per_second": round(steps / min(seconds), 1),
        "seconds": [round(each, 3) for each in seconds],
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if DEVICE == "cuda" else 0,
    }


def _compare(module: Any, features: Any, labels: Any) -> dict[str, Any]:
    """How far sums are from those in single precision, and whether two runs have the same bytes."""
    x, y = (part[: 2 * BATCH].unflatten(0, (2, BATCH)) for part in (features, labels))
    keep = torch.ones(2, BATCH, device=DEVICE)
    found: dict[str, Any] = {}
    sums, noise = {}, {}
    for precision in PRECISIONS:
        models = ManyModels(module, 2, device=DEVICE, precision=precision)
        sums[precision] = models.sum_clipped(x, y, loss=cross_entropy, clip=0.1, keep=keep).clone()
        training = make_ensemble(module, 3, DEVICE, precision=precision)
        seen = [
            training.train(
                features[: 2 * BATCH], labels[: 2 * BATCH],
                rng=np.random.default_rng(0), canaries=make_canary(training),
            )
            for _ in range(2)
        ]  # fmt: skip
        same = torch.equal(seen[0].models.parameters, seen[1].models.parameters)
        noise[precision] = seen[0].observations - seen[0].others
        found[precision] = {
            "sums_off": float((sums[precision] - sums["float32"]).norm() / sums["float32"].norm()),
            "canary_off": float(np.abs(noise[precision] - noise["float32"]).max()),
            "same_bytes": same,
        }
    return found


def _profile(training: EnsembleDPSGD, features: Any, labels: Any) -> dict[str, Any]:
    """Microseconds of the GPU per model-step, and the kernels that take most of them."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        training.train(
            features, labels, rng=np.random.default_rng(0), canaries=make_canary(training)
        )
        _synchronize()
    parts = sorted(seen.key_averages(), key=lambda part: -part.self_device_time_total)
    total = sum(part.self_device_time_total for part in parts)
    steps = training.runs * (len(features) // training.batch_size)
    return {
        "us_per_step": round(total / steps, 3),
        "kernels": [
            [part.key[:60], round(part.self_device_time_total / total, 3)] for part in parts[:8]
        ],
    }


# --- transformers ---


def _time_transformers() -> None:
    batch, steps = choose_size(100, 2), choose_size(4, 1)
    x, y = (torch.from_numpy(part).to(DEVICE) for part in make_texts(batch * steps))
    size = sum(part.numel() for part in Transformer().parameters())
    for tf32 in (False, True):
        _guard(
            "transformer: torch.func", 15,
            lambda tf32=tf32: _time_loop(x[:batch], y[:batch], tf32=tf32), tf32=tf32,
        )  # fmt: skip
    for precision in PRECISIONS:
        for runs in choose_size((8, 24), (1,)):
            training = make_training(batch, runs=runs, device=DEVICE, precision=precision)
            found = _guard(
                "transformer", 15, lambda training=training: _time_training(training, x, y),
                precision=precision, size=size, batch=batch,
            )  # fmt: skip
    if found and DEVICE == "cuda":
        _guard("transformer: profile", 15, lambda: _profile(training, x, y), precision=precision)


def _time_loop(x: Any, y: Any, *, tf32: bool) -> dict[str, Any]:
    step = make_loop(x, y)
    seconds = []
    with use_precision("tf32" if tf32 else "float32"):
        for _ in range(choose_size(6, 2)):
            _synchronize()
            before = time.perf_counter()
            step()
            _synchronize()
            seconds.append(time.perf_counter() - before)
    return {"at_once": 1, "per_second": round(1 / min(seconds), 2)}


# --- trials ---


def _time_trials() -> dict[str, Any]:
    trials = choose_size(10**9, 2000)
    return {"trials": trials, "seconds": round(time_trials(trials // 2, device=DEVICE), 4)}


if __name__ == "__main__":
    main()
