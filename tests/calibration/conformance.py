"""How often right runs are accused: ``python -m tests.calibration.conformance [RUNS]``."""

import math
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.conformance.summary import summarise_step
from epsilometer.conformance.watch import StepWatch
from epsilometer.types import FloatArray

LEVELS = (1e-3, 0.01, 0.05)
STEPS = 24
Noise = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A right program: residuals of its steps, in units of the noise that was booked."""

    name: str
    draw: Callable[[np.random.Generator, int], Iterator[Noise]]
    declared: Any = None
    sketched: bool = False

    def watch(self, rng: np.random.Generator, *, steps: int, level: float = 1e-3) -> StepWatch:
        """Watch one run."""
        watch = StepWatch(level=level, noise=self.declared)
        for residuals in self.draw(rng, steps):
            if self.sketched:
                watch.see_summary(summarise_step(residuals))
            else:
                watch.see(residuals)
        return watch


def to_bfloat16(value: Any) -> FloatArray:
    """Keep 8 bits of precision."""
    mantissa, exponent = np.frexp(value)
    return np.asarray(np.ldexp(np.round(mantissa * 256) / 256, exponent))


def release(
    shapes: dict[str, tuple[int, ...]], store: Callable[[Any], Any], noise: Callable[[int], float]
) -> Callable[[np.random.Generator, int], Iterator[Noise]]:
    """Add noise to sums that change, store both as the program does, and take the difference."""

    def draw(rng: np.random.Generator, steps: int) -> Iterator[Noise]:
        for step in range(steps):
            unit = noise(step)
            residuals = []
            for name, shape in shapes.items():
                total = store(unit * np.clip(rng.normal(size=shape), -2, 2))
                released = store(total + unit * rng.normal(size=shape))
                residuals.append((name, (np.asarray(released, np.float64) - total) / unit))
            yield residuals

    return draw


def mix(mixing: FloatArray, shape: tuple[int, ...]) -> Callable[..., Iterator[Noise]]:
    """Draw noise that depends on earlier steps."""

    def draw(rng: np.random.Generator, steps: int) -> Iterator[Noise]:
        white = rng.normal(size=(steps, *shape))
        for mixed in np.tensordot(mixing[:steps, :steps], white, axes=1):
            yield [("weight", mixed[1:]), ("bias", mixed[0])]

    return draw


SMALL = {"scale": (1,), "bias": (3,), "weight": (2, 2), "head": (8,)}
USUAL = {"first": (12, 8), "bias": (12,), "second": (12, 8), "out": (3, 12)}
LARGE = {"embedding": (300, 40), "bias": (300,), "out": (10, 300)}
BANDED = np.linalg.inv(np.eye(64) + 0.5 * np.eye(64, k=-1) + 0.375 * np.eye(64, k=-2))


def keep(value: Any) -> Any:
    """Store without rounding."""
    return value


PROGRAMS = (
    Program(name="float64", draw=release(USUAL, keep, lambda _: 1.0)),
    Program(name="float32", draw=release(USUAL, np.float32, lambda _: 1.0)),
    Program(name="bfloat16", draw=release(USUAL, to_bfloat16, lambda _: 1.0)),
    Program(
        name="rounded to 1/16", draw=release(USUAL, lambda v: np.round(16 * v) / 16, lambda _: 1.0)
    ),
    Program(
        name="large, rounded to 1/16",
        draw=release(LARGE, lambda v: np.round(16 * v) / 16, lambda _: 1.0),
    ),
    Program(name="small tensors", draw=release(SMALL, np.float32, lambda _: 1.0)),
    Program(name="large tensors", draw=release(LARGE, np.float32, lambda _: 1.0)),
    Program(
        name="noise that varies", draw=release(USUAL, np.float32, lambda step: 4.0 * 0.9**step)
    ),
    Program(name="declared bands", draw=mix(BANDED, (9, 20)), declared=BANDED),
    Program(
        name="declared bands, sketch", draw=mix(BANDED, (9, 20)), declared=BANDED, sketched=True
    ),
)


def measure_evidence(
    program: Program, *, runs: int, steps: int = STEPS, seed: int = 0
) -> FloatArray:
    """Return the largest evidence of each run, so that it is accused at levels of its e^-1 or more.

    Evidence is as of one check: divided by how many of them share the level.
    """
    rng = np.random.default_rng([seed, zlib.crc32(program.name.encode())])
    found = np.empty(runs)
    for run in range(runs):
        checks = program.watch(rng, steps=steps).finding().checks
        largest = max(check.log_e for check in checks if check.log_e is not None)
        found[run] = largest - math.log(len(checks))
    return found


def count_accused(evidence: FloatArray, level: float) -> int:
    """Count runs that are accused at a level."""
    return int(np.sum(evidence >= -math.log(level)))


def main() -> None:
    """Print the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    heads = " | ".join(f"accused at {level:g}" for level in LEVELS)
    print(f"| right program | runs × steps | {heads} | seconds |\n|---|---|---|---|---|---|")
    for program in PROGRAMS:
        started = time.process_time()
        evidence = measure_evidence(program, runs=runs)
        cells = " | ".join(str(count_accused(evidence, level)) for level in LEVELS)
        seconds = time.process_time() - started
        print(f"| {program.name} | {runs:,} × {STEPS} | {cells} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
