"""Measure what `audited` adds to a step of Opacus: time and memory, beside the step without it.

    python benchmarks/conformance.py            # writes benchmarks/conformance.md
    python benchmarks/conformance.py --cuda     # prints the part for a card, the end of the page
    python benchmarks/conformance.py --growth   # prints the curves alone
    python benchmarks/conformance.py --tiny     # prints a page of three small steps

Both runs have the same weights and batches, and take their steps in turn. The part for a card is
kept as it is when the page is written elsewhere.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from opacus import PrivacyEngine
from results import machine
from sizes import fit_power
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.integrations.opacus import audited

_PAGE = Path(__file__).resolve().parent / "conformance.md"
_CARD, _GROWTH = "## On a card", "## Growth"
_FEATURES, _CLASSES, _RECORDS = 64, 10, 1280
WARM_UP = 9  # steps that are not counted: memory is taken, and more is measured in the first ones
_TEXT = """# What an audited step costs

Written by `python benchmarks/conformance.py`; do not edit. Fully connected networks, SGD,
{batch} records per batch by Poisson sampling; `audited` with all it does in a step: canaries, loud
records, checks of the noise, the updates, the books and the batches. Both runs take their steps in
turn: medians of {steps} steps after {warm_up}, and all of these steps together. In steps 1, 2, 4,
8, … clipping is measured exactly, which takes longer; so the second ratio is larger in short runs.
Memory is the peak of a separate process.

"""
_CPU = """Measured on {machine}, torch {torch}: CPU seconds, one thread.

"""
_ON_CARD = """{title}

Printed by `PYTHONPATH=src python3 benchmarks/conformance.py --cuda` on one {card}, torch {torch}:
milliseconds on the clock; memory is the peak that torch had allocated.

"""
_HEADER = (
    "| parameters | tensors | canaries | plain step, ms | audited step, ms | ratio | all steps "
    "| memory, plain | memory, ratio |\n",
    "|---|---|---|---|---|---|---|---|---|\n",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table.

    Attributes:
        parameters: About how many.
        layers: Fully connected; each has two tensors.
        canaries: Half of which are in.
        limit: Ratio of times that is aimed at; None for none.
        device: Where the model is.
        batch: Records per batch, on average.
    """

    parameters: int
    canaries: int = 500
    layers: int = 3
    limit: float | None = None
    device: str = "cpu"
    batch: int = 64


CPU_CASES = (
    Case(parameters=10**4),
    Case(parameters=10**5),
    *(
        Case(parameters=10**6, canaries=count, limit=1.3 if count == 500 else None)
        for count in (2, 100, 500, 2000)
    ),
    Case(parameters=10**6, layers=50),
)
CARD_CASES = (
    Case(parameters=10**6, device="cuda"),
    Case(parameters=10**7, device="cuda"),
    *(
        Case(parameters=10**8, canaries=count, limit=1.5 if count == 500 else None, device="cuda")
        for count in (2, 100, 500, 2000)
    ),
    Case(parameters=10**8, layers=75, device="cuda"),
)
TINY_CASES = (Case(parameters=2000, canaries=10, batch=8),)
_SMALL = 8  # records per batch where sizes are compared: gradients of all must fit into memory
CURVES = {
    "cpu": ((10**5, 10**6, 10**7, 3 * 10**7), (100, 500, 2000, 10_000)),
    "cuda": ((10**5, 10**6, 10**7, 10**8), (100, 500, 2000, 10_000)),
    "tiny": ((2000, 4000), (10, 20)),
}


def build(case: Case) -> nn.Module:
    """Return a fully connected network of about so many parameters."""
    inner = case.layers - 2
    # inner · w² + (features + classes) · w = parameters
    ends = _FEATURES + _CLASSES
    width = int((-ends + (ends**2 + 4 * inner * case.parameters) ** 0.5) / (2 * inner))
    sizes = [_FEATURES, *[width] * (inner + 1), _CLASSES]
    layers: list[nn.Module] = []
    for first, second in pairwise(sizes):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(case.device)


def train(case: Case, *, audit: bool, seed: int = 0) -> Iterator[float]:
    """Take private steps for ever; yield the seconds of each."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(_RECORDS, _FEATURES, generator=generator)
    y = torch.randint(_CLASSES, (_RECORDS,), generator=generator)
    engine = PrivacyEngine()
    bare = build(case)
    model, optimizer, loader = engine.make_private(
        module=bare,
        optimizer=torch.optim.SGD(bare.parameters(), lr=0.01),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=case.batch, generator=generator),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    watched = (
        audited(engine, optimizer, loader, canaries=case.canaries, seed=seed) if audit else None
    )
    now = _clock(case.device)
    while True:
        start = now()
        for features, labels in loader:
            outputs = model(features.to(case.device))
            nn.functional.cross_entropy(outputs, labels.to(case.device)).backward()
            optimizer.step()
            optimizer.zero_grad()  # at the end: the other run needs the memory
            yield now() - start
            start = now()
        assert watched is None or watched.steps > 0


def measure_seconds(case: Case, steps: int) -> tuple[list[float], list[float]]:
    """Return seconds of plain and of audited steps, taken in turn."""
    _free_memory(case)
    plain, audit = train(case, audit=False), train(case, audit=True)
    both = [(next(plain), next(audit)) for _ in range(WARM_UP + steps)][WARM_UP:]
    return [first for first, _ in both], [second for _, second in both]


def measure_memory(case: Case, steps: int, *, audit: bool) -> int:
    """Return the largest memory in bytes: of a process of its own, or on the card."""
    if case.device == "cpu":
        given = [str(getattr(case, name)) for name in ("parameters", "canaries", "layers", "batch")]
        command = [sys.executable, __file__, "--memory", *given, str(steps), str(int(audit))]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(run.stdout)
    _free_memory(case)
    torch.cuda.reset_peak_memory_stats()
    run_steps(case, steps, audit=audit)
    return torch.cuda.max_memory_allocated()


def run_steps(case: Case, steps: int, *, audit: bool) -> None:
    """Take so many steps."""
    for _ in zip(range(steps), train(case, audit=audit), strict=False):
        pass


def write_table(cases: Iterable[Case], steps: int, memory_steps: int = 6) -> Iterator[str]:
    """Measure all cases; yield the lines of the table, each as soon as it is known."""
    yield from _HEADER
    for case in cases:
        plain, audit = measure_seconds(case, steps)
        ratio = statistics.median(audit) / statistics.median(plain)
        count = sum(each.numel() for each in build(case).parameters())
        cells = (
            f"{count:,}",
            f"{2 * case.layers}",
            f"{case.canaries:,}",
            f"{1e3 * statistics.median(plain):.3g}",
            f"{1e3 * statistics.median(audit):.3g}",
            f"{ratio:.2f}{_judge(ratio, case.limit)}",
            f"{sum(audit) / sum(plain):.2f}",
            *_compare_memory(case, memory_steps),
        )
        yield f"| {' | '.join(cells)} |\n"


def write_growth(
    sizes: tuple[Sequence[int], Sequence[int]], steps: int, *, device: str = "cpu"
) -> Iterator[str]:
    """Measure what `audited` adds, over parameters and over canaries; yield two tables."""
    parameters, canaries = sizes
    usual = Case(parameters=parameters[1], canaries=canaries[1], device=device, batch=_SMALL)
    for name, values in (("parameters", parameters), ("canaries", canaries)):
        rows, added = [], []
        for value in values:
            plain, audit = (
                statistics.median(each)
                for each in measure_seconds(replace(usual, **{name: value}), steps)
            )
            added.append(max(audit - plain, 1e-6))
            rows.append(
                f"| {value:,} | {1e3 * plain:.3g} | {1e3 * added[-1]:.3g} | {audit / plain:.2f} |\n"
            )
        power = fit_power(values, added)
        other = (
            f"{usual.canaries:,} canaries"
            if name == "parameters"
            else f"{usual.parameters:,} parameters"
        )
        yield (
            f"\n{other}, {_SMALL} records per batch: what is added grows as {name} to the power "
            f"{power:.2f}.\n\n| {name} | plain step, ms | added, ms | ratio |\n|---|---|---|---|\n"
        )
        yield from rows


def _compare_memory(case: Case, steps: int) -> tuple[str, str]:
    if steps == 0:
        return "–", "–"
    plain, audit = (measure_memory(case, steps, audit=audit) for audit in (False, True))
    return f"{plain / 2**20:,.0f} MiB", f"{audit / plain:.2f}"


def write_page(cases: Sequence[Case], steps: int, **options: int) -> Iterator[str]:
    """Yield the page for a CPU, as far as it is known."""
    yield _TEXT.format(batch=cases[0].batch, steps=steps, warm_up=WARM_UP)
    yield _CPU.format(machine=machine(), torch=torch.__version__)
    yield from write_table(cases, steps, **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write or print what the options say."""
    warnings.simplefilter("ignore")  # of Opacus and torch, about themselves
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--growth", action="store_true", help="curves alone, printed")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--memory", nargs=6, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.memory:
        parameters, canaries, layers, batch, steps, audit = given.memory
        case = Case(parameters=parameters, canaries=canaries, layers=layers, batch=batch)
        run_steps(case, steps, audit=bool(audit))
        print(_read_peak())
    elif given.tiny:
        _show(write_page(TINY_CASES, 3, memory_steps=0))
        _show(write_growth(CURVES["tiny"], 2))
    elif given.cuda:
        # Batches vary in size, and so do the gaps that they leave in memory.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        card = torch.cuda.get_device_name()
        print(_ON_CARD.format(title=_CARD, card=card, torch=torch.__version__), end="")
        if not given.growth:
            _show(write_table(CARD_CASES, given.steps))
        _show(write_growth(CURVES["cuda"], given.steps, device="cuda"))
    elif given.growth:
        _write_parts(growth=_show(_head_growth(given.steps)))
    else:
        _write_parts(cpu=_show(write_page(CPU_CASES, given.steps)))


def _show(lines: Iterable[str]) -> str:
    """Print lines as they come, and return them."""
    shown = ""
    for line in lines:
        print(line, end="", flush=True)
        shown += line
    return shown


def _read_peak() -> int:
    """Return the peak of this process; ``ru_maxrss`` would begin with that of its parent."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _free_memory(case: Case) -> None:
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()


def _clock(device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


def _judge(ratio: float, limit: float | None) -> str:
    if limit is None:
        return ""
    return f" (target: ≤ {limit:g}, {'met' if ratio <= limit else 'missed'})"


def _head_growth(steps: int) -> Iterator[str]:
    yield (
        f"{_GROWTH}\n\nWritten by `python benchmarks/conformance.py --growth`, same machine, "
        f"medians of {steps} steps: CPU milliseconds.\n"
    )
    yield from write_growth(CURVES["cpu"], steps)


def _write_parts(cpu: str = "", growth: str = "") -> None:
    """Write the page; parts that were not measured now are kept."""
    page = _PAGE.read_text("utf-8") if _PAGE.exists() else ""
    rest, found, card = page.partition(_CARD)
    old_cpu, _, old_growth = rest.partition(_GROWTH)
    old_growth = f"{_GROWTH}{old_growth}" if old_growth else ""
    parts = [cpu or old_cpu, growth or old_growth, f"{found}{card}"]
    _PAGE.write_text("\n".join(part.strip() + "\n" for part in parts if part.strip()), "utf-8")


if __name__ == "__main__":
    main()
