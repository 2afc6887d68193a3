"""Times the accountants of shuffling on reference settings; writes ``benchmarks/shuffling.md``."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from measurement import command_seconds
from results import machine
from sizes import choose_size, write_page

import epsilometer as em
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.core.bound import Direction

# One of the oracles of the tests is timed too.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.accounting.monte_carlo import monte_carlo_epsilon

_PAGE = Path(__file__).resolve().parent / "shuffling.md"
# σ, T, E, reference present→absent, absent→present, and what it is
_SETTINGS: tuple[tuple[float, int, int, float, float, str], ...] = (
    (0.5, 100, 1, 9.9972, 3.9921, ""),
    (1.0, 100, 1, 4.0660, 0.8795, ""),
    (1.5, 100, 1, 1.4669, 0.3949, ""),
    (0.5, 1000, 1, 9.9965, 2.5092, ""),
    (1.0, 1000, 1, 2.8834, 0.3693, ""),
    (1.5, 1000, 1, 0.3560, 0.1360, ""),
    (0.79, 117, 10, 17.754, 7.344, "SST-2"),
    (0.87, 195, 30, 20.661, 10.271, "QNLI"),
    (0.73, 781, 50, 35.308, 16.299, "MNLI"),
    (0.82, 254, 30, 23.563, 11.217, "Persona-Chat"),
    (3.00, 11, 168, 7.732, 7.473, "CIFAR-10"),
    (1.00, 440, 509, 43.824, 32.966, "Places-365"),
)
_WAYS: tuple[Direction, Direction] = ("present→absent", "absent→present")
_HEADLINE = (
    *("shuffle", "--noise-multiplier", "0.73", "--steps", "781", "--epochs", "50"),
    *("--delta", "1e-5", "--claim", "3"),
)
_INTRO = """# Accountants of shuffling

Written by `make speed`; do not edit. δ = 10⁻⁵; ε of the batched Gaussian mechanism, the reference
beside it; CPU seconds of both directions together, of one process.

Measured on {machine}.

"""
_HEADERS = (
    *("σ", "T", "E", "", "direction", "reference", "exact", "off"),
    *("Monte Carlo (95 % interval)", "off", "exact (CPU s)", "Monte Carlo (CPU s)"),
)


def main() -> None:
    """Measures and writes the page."""
    text = _INTRO.format(machine=machine())
    text += f"| {' | '.join(_HEADERS)} |\n|{' --- |' * len(_HEADERS)}\n"
    worst = {"exact": 0.0, "Monte Carlo": 0.0}
    for sigma, steps, epochs, present, absent, name in choose_size(_SETTINGS, _SETTINGS[1:2]):
        draws = choose_size(None, 5_000)
        setting = {"noise_multiplier": sigma, "steps": steps, "epochs": epochs, "delta": 1e-5}
        rows, seconds = [], [0.0, 0.0]
        for way, reference in zip(_WAYS, (present, absent), strict=True):
            start = time.process_time()
            exact = shuffle_epsilon(**setting, direction=way)  # type: ignore[arg-type]
            seconds[0] += time.process_time() - start
            start = time.process_time()
            rng = np.random.default_rng(0)
            drawn = monte_carlo_epsilon(**setting, direction=way, draws=draws, rng=rng)  # type: ignore[arg-type]
            seconds[1] += time.process_time() - start
            off = [exact.epsilon / reference - 1, drawn.epsilon / reference - 1]
            worst["exact"] = max(worst["exact"], abs(off[0]))
            worst["Monte Carlo"] = max(worst["Monte Carlo"], abs(off[1]))
            rows.append(
                f"{way} | {reference} | {exact.epsilon:.4f} | {off[0]:+.3%} | {drawn.epsilon:.4f} "
                f"({drawn.low:.4f} to {drawn.high:.4f}) | {off[1]:+.2%}"
            )
        for row in rows:
            text += f"| {sigma} | {steps} | {epochs} | {name} | {row} "
            text += f"| {seconds[0]:.1f} | {seconds[1]:.1f} |\n"
        sys.stderr.write(text.splitlines()[-1] + "\n")
    text += f"\nLargest differences: exact {worst['exact']:.3%} (target 0.1 %), Monte Carlo "
    text += f"{worst['Monte Carlo']:.2%} (target 1 %, 2 % for Places-365).\n"
    write_page(_PAGE, text + choose_size(_headline, str)() + _early_stop())


def _headline() -> str:
    tool = str(Path(sys.executable).with_name("epsilometer"))
    subprocess.run([tool, *_HEADLINE], check=False, capture_output=True)  # compiles the kernels
    before = time.perf_counter()
    spent = command_seconds(["bash", "-c", f"{tool} {' '.join(_HEADLINE)}; test $? = 1"])
    wall = time.perf_counter() - before
    return (
        f"\n`epsilometer {' '.join(_HEADLINE)}`: {spent:.1f} s of CPU, {wall:.1f} s by the clock "
        "(target: at most 20 s of CPU).\n"
    )


def _early_stop() -> str:
    trials = choose_size(20_000, 200)
    epochs = choose_size(50, 1)
    training = em.ShuffledSGD(noise_multiplier=0.73, steps=781, epochs=epochs, observations=trials)
    used = []
    for seed in range(choose_size(5, 1)):
        audit = em.audit(training, 3.0, delta=1e-5, until=em.UntilRefuted(), seed=seed)
        used.append(trials * audit.provenance.used // audit.provenance.units)
    return f"\nRefuting ε = 3 for MNLI by the game alone, stopped early, took {used} plays.\n"


if __name__ == "__main__":
    main()
