"""Write the table of benchmarks/poisson.md: ``python -m tests.calibration.poisson``."""

from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np

from epsilometer import Scores
from epsilometer.accounting import pld
from epsilometer.accounting.family import Rule, Seen, poisson_bound
from epsilometer.rules import RankGrid, RankSum
from tests import printed_ratios

PAGE = Path(__file__).parents[2] / "benchmarks" / "poisson.md"
STEPS, DELTA, AUDITS = 10, 1e-5, 20
MARK = "<!-- table -->"
COLUMNS: tuple[tuple[str, Seen, Rule], ...] = (
    ("steps, `RankSum`", "step", RankSum()),
    ("steps, `RankGrid`", "step", RankGrid()),
    ("runs, `RankSum`", "run", RankSum()),
    ("runs, `RankGrid`", "run", RankGrid()),
)


@dataclass(frozen=True, eq=False)
class Played:
    """What the adversary saw of each step, shape ``(runs, steps)``, and where the canary was."""

    inside: np.ndarray
    outside: np.ndarray
    took_part: np.ndarray  # of the runs inside
    rate: float
    noise: float


def play(
    runs: int,
    *,
    rate: float,
    noise: float,
    rng: np.random.Generator,
    runs_without: int | None = None,
) -> Played:
    """Runs with the canary and (as many) without it."""
    took_part = rng.random((runs, STEPS)) < rate
    inside = rng.normal(0.0, noise, (runs, STEPS)) + took_part
    without = runs if runs_without is None else runs_without
    outside = rng.normal(0.0, noise, (without, STEPS))
    return Played(inside, outside, took_part, rate, noise)


def scores_of_steps(played: Played) -> Scores:
    """Steps with the canary, and all others."""
    others = played.inside[~played.took_part]
    return Scores(
        inside=played.inside[played.took_part],
        outside=np.concatenate([played.outside.ravel(), others]),
    )


def scores_of_runs(played: Played) -> Scores:
    """Log-likelihood ratios of whole runs, by an adversary who does not know the schedule."""
    inside, outside = (
        printed_ratios.poisson(each[:, None, :], sigma=played.noise, rate=played.rate)
        for each in (played.inside, played.outside)
    )
    return Scores(inside, outside)


def shares(rate: float, noise: float, runs: int, *, audits: int = AUDITS) -> np.ndarray:
    """Bounds over the true ε, shape ``(audits, columns)``; all columns see the same runs."""
    rng = np.random.default_rng([int(100 * rate), int(100 * noise), runs])
    truth = true_epsilon(rate, noise)
    found = np.zeros((audits, len(COLUMNS)))
    for i, row in enumerate(found):
        played = play(runs, rate=rate, noise=noise, rng=rng)
        scores = {"step": scores_of_steps(played), "run": scores_of_runs(played)}
        row[:] = [
            poisson_bound(
                scores[per],
                sampling_rate=rate,
                steps=STEPS,
                delta=DELTA,
                per=per,
                rule=rule,
                seed=i,
            ).epsilon
            / truth
            for _, per, rule in COLUMNS
        ]
    return found


def true_epsilon(rate: float, noise: float) -> float:
    """By privacy loss distributions."""
    return pld.poisson_epsilon(noise_multiplier=noise, sampling_rate=rate, steps=STEPS, delta=DELTA)


def main() -> None:
    """Plays, and writes the table into the page."""
    cells = [
        (rate, noise, runs)
        for rate in (1.0, 0.5, 0.2, 0.1)
        for noise in (0.7, 1.0, 2.0)
        for runs in (500, 1_000)
    ]
    found = joblib.Parallel(n_jobs=-1)(joblib.delayed(shares)(*cell) for cell in cells)
    lines = [
        "| q | noise | runs | true ε | "
        + " | ".join(name for name, _, _ in COLUMNS)
        + " | wrong |",
        "|---" * (5 + len(COLUMNS)) + "|",
    ]
    for (rate, noise, runs), values in zip(cells, found, strict=True):
        means = " | ".join(
            f"{mean:.0%} ± {spread:.0%}"
            for mean, spread in zip(values.mean(axis=0), values.std(axis=0), strict=True)
        )
        wrong = int(np.sum(values > 1))
        lines.append(
            f"| {rate:g} | {noise:g} | {runs:,} + {runs:,} | {true_epsilon(rate, noise):.2f} "
            f"| {means} | {wrong} of {values.size} |"
        )
    before, _, after = PAGE.read_text("utf-8").split(MARK)  # what stood between is replaced
    PAGE.write_text(f"{before}{MARK}\n" + "\n".join(lines) + f"\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
