"""Times accountants, the start and reports as they grow, and writes ``benchmarks/accounting.md``.

OMP_NUM_THREADS=1 python benchmarks/accounting.py
"""

import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measurement import command_seconds
from msgspec.structs import replace
from results import machine
from sizes import choose_size, fit_power, write_page

import epsilometer as em
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.core.findings import RecordRisk

_PAGE = Path(__file__).resolve().parent / "accounting.md"
_STEPS = choose_size((10**3, 10**4, 10**5, 10**6), (20, 40))
_EPOCHS = choose_size((1, 10, 100, 1000), (1, 2))
_FINDINGS = choose_size((10**2, 10**3, 10**4, 10**5), (10, 20))
_REPEATS = choose_size(5, 1)
_DELTA = 1e-5
_POISSON = {  # noise, rate, steps
    "MNIST, batches of 256, 10 epochs": (1.0, 256 / 60_000, 2_344),
    "MNIST, batches of 256, 60 epochs": (1.12, 256 / 60_000, 14_062),
    "CIFAR-10, batches of 256, 30 epochs": (1.1, 256 / 50_000, 5_850),
    "CIFAR-10, batches of 4,096, 168 epochs": (3.0, 1 / 11, 1_848),
    "SST-2, 10 epochs": (0.79, 1 / 117, 1_170),
    "QNLI, 30 epochs": (0.87, 1 / 195, 5_850),
    "MNLI, 50 epochs": (0.73, 1 / 781, 39_050),
    "a million steps": (1.0, 1e-3, 10**6),
}
_BOUND = (
    "import numpy as np, epsilometer as em; x = np.arange(1000.0); "
    "em.epsilon_lower_bound(em.Scores(x + 300, x), delta=1e-5)"
)
_TEXT = """# Accountants, start and reports

Written by `make speed`; do not edit. CPU seconds in one thread, medians of {repeats} for Poisson
sampling and the start, one call for the others.
*Growth* is the exponent of the time in the size, fitted to the sizes shown.

Measured on {machine}.

## Shuffling, both ends

σ = 1, δ = 10⁻⁵. Target: at most 5 s and 1 GB up to a million steps and a thousand epochs,
{shuffled}.

| steps per epoch | epochs | ε | lower end (s) | upper end (s) | peak memory (MB) |
| --- | --- | --- | --- | --- | --- |
{shuffling}

Growth with steps: {by_steps}. Growth with epochs, of 10,000 steps: {by_epochs}.

## Poisson sampling

δ = 10⁻⁵. Target: at most 0.05 s for settings that users have; {poissoned}.

| setting | noise | steps | ε | seconds |
| --- | --- | --- | --- | --- |
{poisson}

## Start

| program | seconds | target | |
| --- | --- | --- | --- |
{start}

`import click` alone takes {click:.3f} s, Python {python:.3f} s.

## Reports

An audit of so many records. Target: a report of 10⁵ findings in at most 0.5 s, {reported}.

| findings | HTML (s) | Markdown (s) | terminal (s) | JSON (s) |
| --- | --- | --- | --- | --- |
{reports}

Growth: HTML {html}, JSON {json}.
"""


def main() -> None:
    """Measure and write the page."""
    shuffling, by_steps, by_epochs, worst = _time_shuffling()
    poisson, slow = _time_poisson()
    start = _time_start()
    reports, html, json = _time_reports()
    text = _TEXT.format(
        repeats=_REPEATS,
        machine=machine(),
        shuffling=shuffling,
        shuffled=_say(worst[0] <= 5 and worst[1] <= 1000),
        by_steps=f"{fit_power(_STEPS, by_steps):.2f}",
        by_epochs=f"{fit_power(_EPOCHS, by_epochs):.2f}",
        poisson=poisson,
        poissoned="met by all" if not slow else f"missed by {', '.join(slow)}",
        start=start,
        click=_time_program([sys.executable, "-c", "import click"]),
        python=_time_program([sys.executable, "-c", "pass"]),
        reports=reports,
        reported=_say(html[-1] <= 0.5),
        html=f"{fit_power(_FINDINGS, html):.2f}",
        json=f"{fit_power(_FINDINGS, json):.2f}",
    )
    write_page(_PAGE, text)


def _time_shuffling() -> tuple[str, list[float], list[float], tuple[float, float]]:
    """Time both ends over steps, and over epochs at the second number of steps."""
    rows, found = [], {}
    settings = [(steps, 1) for steps in _STEPS]
    settings += [(_STEPS[1], epochs) for epochs in _EPOCHS[1:]] + [(_STEPS[-1], _EPOCHS[-1])]
    memory = 0.0
    for i, (steps, epochs) in enumerate(settings):
        # Noise of its own each time: what was computed of an epoch is kept.
        asked = {
            "noise_multiplier": 1.0 + 1e-9 * i,
            "steps": steps,
            "epochs": epochs,
            "delta": _DELTA,
        }
        low, lower = _time(lambda asked=asked: em.shuffle_epsilon(**asked).epsilon)
        high, upper = _time(lambda asked=asked: em.shuffle_upper(**asked).high)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found[steps, epochs] = low + high
        ends = f"[{lower:.4g}, {upper:.4g}]"
        rows.append(f"| {steps:,} | {epochs:,} | {ends} | {low:.2f} | {high:.2f} | {memory:.0f} |")
    by_steps = [found[steps, 1] for steps in _STEPS]
    by_epochs = [found[_STEPS[1], epochs] for epochs in _EPOCHS]
    return "\n".join(rows), by_steps, by_epochs, (max(found.values()), memory)


def _time_poisson() -> tuple[str, list[str]]:
    rows, slow = [], []
    for name, (noise, rate, steps) in _POISSON.items():
        if steps > choose_size(10**6, 3_000):
            continue
        timed = []
        for i in range(_REPEATS):  # δ of its own each time, lest anything be kept
            seconds, epsilon = _time(
                lambda i=i, given=(noise, rate, steps): poisson_epsilon(
                    noise_multiplier=given[0],
                    sampling_rate=given[1],
                    steps=given[2],
                    delta=_DELTA * (1 - 1e-6 * i),
                )
            )
            timed.append(seconds)
        seconds = statistics.median(timed)
        if seconds > 0.05:
            slow.append(name)
        rows.append(f"| {name} | {noise} | {steps:,} | {epsilon:.3f} | {seconds:.3f} |")
    return "\n".join(rows), slow


def _time_start() -> str:
    tool = str(Path(sys.executable).with_name("epsilometer"))
    rows = []
    for name, command, target in (
        ("`epsilometer --help`", [tool, "--help"], 0.05),
        ("`import epsilometer` and one bound", [sys.executable, "-c", _BOUND], 0.25),
    ):
        seconds = _time_program(command)
        rows.append(f"| {name} | {seconds:.3f} | ≤ {target} | {_say(seconds <= target)} |")
    return "\n".join(rows)


def _time_program(command: list[str]) -> float:
    timed = [command_seconds(command) for _ in range(_REPEATS + 1)][1:]
    return statistics.median(math.nan if seconds is None else seconds for seconds in timed)


def _time_reports() -> tuple[str, list[float], list[float]]:
    scores = em.Scores(np.repeat(2.0, 100), np.repeat(0.0, 100))
    audit = em.audit(scores, em.Claim(3.0, delta=_DELTA))
    rows, html, json = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("html", "md", "json"):
            audit.save(Path(folder, f"first.{suffix}"))  # loads what there is to load
        for count in _FINDINGS:
            records = tuple(
                RecordRisk(rank=i + 1, risk=r, measure="PDTP", note="rare", shown=r, unbinned=r)
                for i, r in enumerate(np.linspace(2, 0, count).tolist())
            )
            many = replace(audit, findings=(*audit.findings, *records))
            times = [
                _time(lambda s=suffix, m=many: m.save(Path(folder, f"a.{s}")))[0]
                for suffix in ("html", "md")
            ]
            times.append(_time(lambda m=many: str(m))[0])
            times.append(_time(lambda m=many: m.save(Path(folder, "a.json")))[0])
            html.append(times[0])
            json.append(times[3])
            rows.append(f"| {count:,} | " + " | ".join(f"{t:.3f}" for t in times) + " |")
    return "\n".join(rows), html, json


def _time(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def _say(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
