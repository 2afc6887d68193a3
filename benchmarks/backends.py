"""Times many-run DP-SGD with PyTorch and with JAX, where they are installed.

    python benchmarks/backends.py                          # the CPU
    python benchmarks/backends.py --device cuda --into h200.json --seconds 30
    python benchmarks/backends.py --page                   # writes backends.md from backends.json

Steps of models per second (of CPU time on a CPU, of wall time on a GPU), each in its own process
after one call of the same shape, so that what is compiled is compiled. Results of a device replace
those in backends.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sizes import ARGUMENTS, TINY, choose_size, repeat_arguments, write_page

_HERE = Path(__file__).resolve().parent
_RESULTS, _PAGE = _HERE / "backends.json", _HERE / "backends.md"
_RECORDS = choose_size(400, 40)
_RUNS = {"cpu": choose_size(64, 4), "cuda": choose_size(4096, 4)}
# Features of a record, classes, batch size.
_CASES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "MLP 64-32-10, batch 1": ((64,), 10, 1),
    "MLP 64-32-10, batch 20": ((64,), 10, 20),
    "MLP 600-32-100, batch 20": ((600,), 100, 20),
    "LeNet-5 28x28, batch 20": ((1, 28, 28), 2, 20),
}
_INTRO = """# Backends of many-run DP-SGD

Written by `python benchmarks/backends.py --page`; do not edit. The same training (clipping, noise,
one canary, plain SGD) with PyTorch, whose layers have rules for gradients of single examples, and
with JAX, which differentiates every example and compiles an epoch. Thousands of steps of single
models per second, after one call of the same shape: of CPU time of all threads on a CPU, of wall
time on a GPU. JAX's first call compiles for the seconds in the last column. The model decides the
backend: a `torch.nn.Module` or a `JaxModel`. `jax.lax.conv` is slow where every run has its own
weights: LeNet-5 with it did not end in 290 s of a busy CPU, nor in 35 s of the GPU. Here it has
`epsilometer.networks.jax_convolution.convolve`, a product of matrices, which was not measured on
the GPU. LeNet-5 on the CPU was timed with OMP_NUM_THREADS=1 on a busy machine, so that CPU time
may be high. With batches of 20, JAX writes the gradient of every example to memory, which the rules
of PyTorch's layers avoid.
"""


def make_trainer(backend: str, case: str, device: str) -> Any:
    """Return the training of a case."""
    shape, classes, batch = _CASES[case]
    settings = {
        "runs": _RUNS[device], "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": batch,
        "device": device,
    }  # fmt: skip
    if backend == "torch":
        from epsilometer.networks.ensemble import TORCH
        from epsilometer.networks.models import build

        name = "mlp" if len(shape) == 1 else "lenet5"
        return TORCH.make_trainer(build(name, shape, classes), None, **settings)
    from epsilometer.networks.jax_trainer import JAX, JaxModel

    apply, draw = make_mlp(shape[0], classes) if len(shape) == 1 else make_lenet(classes)
    import jax

    model = JaxModel(apply, draw(jax.random.key(0)), init=draw)
    return JAX.make_trainer(model, None, **settings)


def make_mlp(inputs: int, classes: int, hidden: int = 32) -> tuple[Any, Any]:
    """Return one hidden layer of ReLU, as ``epsilometer.networks.models.mlp``."""
    import jax
    import jax.numpy as jnp

    def apply(params: Any, x: Any) -> Any:
        (a, b), (c, d) = params
        return jnp.maximum(x @ a + b, 0) @ c + d

    def draw(key: Any) -> Any:
        first, last = jax.random.split(key)
        return [
            (jax.random.normal(first, (inputs, hidden)) / inputs**0.5, jnp.zeros(hidden)),
            (jax.random.normal(last, (hidden, classes)) / hidden**0.5, jnp.zeros(classes)),
        ]

    return apply, draw


def make_lenet(classes: int) -> tuple[Any, Any]:
    """Return LeNet-5 with Tanh and average pooling, as ``epsilometer.networks.models.lenet5``."""
    import jax
    import jax.numpy as jnp

    from epsilometer.networks.jax_convolution import convolve

    shapes = [(6, 1, 5, 5), (16, 6, 5, 5), (400, 120), (120, 84), (84, classes)]

    def pool(x: Any, weight: Any, bias: Any, padding: int) -> Any:
        made = jnp.tanh(convolve(x, weight, padding=padding) + bias[:, None, None])
        n, channels, height, width = made.shape
        return made.reshape(n, channels, height // 2, 2, width // 2, 2).mean((3, 5))

    def apply(params: Any, x: Any) -> Any:
        x = pool(x, *params[0], padding=2)
        x = pool(x, *params[1], padding=0).reshape(len(x), -1)
        for weight, bias in params[2:4]:
            x = jnp.tanh(x @ weight + bias)
        weight, bias = params[4]
        return x @ weight + bias

    def draw(key: Any) -> Any:
        drawn = []
        for own, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
            inputs, outputs = shape if len(shape) == 2 else (int(np.prod(shape[1:])), shape[0])
            drawn.append((jax.random.normal(own, shape) / inputs**0.5, jnp.zeros(outputs)))
        return drawn

    return apply, draw


def measure(backend: str, case: str, device: str) -> dict[str, Any]:
    """Train once to warm up, then once with a clock."""
    from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction

    shape, classes, batch = _CASES[case]
    rng = np.random.default_rng(0)
    features = rng.normal(size=(_RECORDS, *shape)).astype(np.float32)
    labels = np.arange(_RECORDS) % classes
    how = make_trainer(backend, case, device)
    canary = TargetCanary(
        adversary="target_canary", direction=random_direction(how.size, rng=rng), batch_size=batch
    )
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds = []
    for seed in (1, 2):
        start = clock()
        how.train(features, labels, rng=np.random.default_rng(seed), canaries=canary)
        seconds.append(clock() - start)
    steps = how.runs * (_RECORDS // batch)
    return {
        "device": describe_device(device),
        "case": case,
        "backend": backend,
        "version": version(backend),
        "runs": how.runs,
        "parameters": how.size,
        "thousand_steps_per_second": round(steps / seconds[1] / 1000, 3),
        "first_call_seconds": round(seconds[0] - seconds[1], 2),
    }


def describe_device(device: str) -> str:
    """Return the device in words."""
    if device == "cpu":
        return f"{os.cpu_count()} CPU cores, {platform.machine()}"
    import torch

    return str(torch.cuda.get_device_name())


def measure_all(device: str, cases: list[str]) -> list[dict[str, Any]]:
    """Measure every case with every backend that is installed, each in a process of its own."""
    rows = []
    for case in cases:
        for backend in ("torch", "jax"):
            if find_spec(backend) is None:
                print(f"{backend} is not installed: left out")
                continue
            done = subprocess.run(
                [
                    sys.executable, __file__, *repeat_arguments(), "--device", device,
                    "--one", backend, "--case", case,
                ],
                env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                print(f"{backend}, {case}: failed\n{done.stderr[-2000:]}", flush=True)
                continue
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_here(device: str, cases: list[str], seconds: float, into: Path) -> None:
    """Measure in this one process until the time is over; every result is written as it comes."""
    start, rows = time.perf_counter(), []
    for case in cases:
        for backend in ("torch", "jax"):
            if time.perf_counter() - start > seconds:
                print(f"{backend}, {case}: no time left", flush=True)
                continue
            rows.append(measure(backend, case, device))
            into.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
            print(json.dumps(rows[-1]), f"{time.perf_counter() - start:.1f} s", flush=True)


def write_table(rows: list[dict[str, Any]]) -> str:
    """Return the page: one line per device and case."""
    lines = [_INTRO]
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        versions = ", ".join(dict.fromkeys(f"{row['backend']} {row['version']}" for row in own))
        lines.append(f"\n## {device}\n\n{versions}; {own[0]['runs']:,} runs at once.\n")
        lines.append("| model | parameters | torch | jax | jax / torch | jax compiles, s |")
        lines.append("|---|---|---|---|---|---|")
        for case in dict.fromkeys(row["case"] for row in own):
            found = {row["backend"]: row for row in own if row["case"] == case}
            torch, jax = (found.get(name) for name in ("torch", "jax"))
            speeds = [r and r["thousand_steps_per_second"] for r in (torch, jax)]
            ratio = f"{speeds[1] / speeds[0]:.2f}" if all(speeds) else "–"
            shown = [f"{speed:,.2f}" if speed else "–" for speed in speeds]
            compiles = "–" if jax is None else f"{jax['first_call_seconds']:.1f}"
            size = next(iter(found.values()))["parameters"]
            lines.append(f"| {case} | {size:,} | {' | '.join(shown)} | {ratio} | {compiles} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--into", type=Path, default=_RESULTS)
    parser.add_argument("--one", choices=["torch", "jax"])
    parser.add_argument("--case", choices=list(_CASES), action="append")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--seconds", type=float, help="Measure in one process for so long.")
    asked = parser.parse_args(ARGUMENTS)
    if asked.one:
        print(json.dumps(measure(asked.one, asked.case[0], asked.device)))
        return
    if asked.seconds is not None:
        measure_here(asked.device, asked.case or list(_CASES), asked.seconds, asked.into)
        return
    kept = json.loads(_RESULTS.read_text("utf-8")) if _RESULTS.exists() else []
    if not asked.page:
        cases = asked.case or list(_CASES)[: choose_size(None, 1)]
        rows = measure_all(asked.device, cases)
        if TINY:
            write_page(_PAGE, write_table(rows))
            return
        new = {(row["device"], row["case"], row["backend"]) for row in rows}
        old = json.loads(asked.into.read_text("utf-8")) if asked.into.exists() else []
        kept = [r for r in old if (r["device"], r["case"], r["backend"]) not in new] + rows
        asked.into.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        if asked.into != _RESULTS:
            return
    write_page(_PAGE, write_table(kept))


if __name__ == "__main__":
    try:
        main()
    except PackageNotFoundError as error:  # a source tree without its metadata
        sys.exit(f"not installed: {error}")
