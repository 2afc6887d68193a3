"""Writes docs/power.md: what the rules prove of Gaussian scores; part of ``make calibration``."""

from pathlib import Path

import joblib
import numpy as np

import epsilometer as em
from epsilometer import Scores
from epsilometer.rules import AllRanks, Best, Bonferroni, HoldOut, RankGrid

PAGE = Path(__file__).parents[2] / "docs" / "power.md"
RULES = (AllRanks(), RankGrid(), HoldOut(), Bonferroni(), Best())
AUDITS = 200
INTRO = f"""# Power: what the rules prove

Mean bound of {AUDITS} audits of Gaussian scores N(μ, 1) against N(0, 1), δ = 10⁻⁵, 95 %
confidence (`make calibration`): `AllRanks()`, the default, is the rule of `calibrated`; the others
choose one threshold for `clopper_pearson`. `Best()` is not valid and is shown as the value to
approach. Other scores, sizes and δ, beside the bounds of jax-privacy:
[many runs](../benchmarks/power.md), and [one run](../benchmarks/one_run.md).

| μ | n + n | true ε | {" | ".join(f"`{rule!r}`" for rule in RULES)} | default / Best |
|---|---|---|{"---|" * len(RULES)}---|
"""


def mean_bounds(mu: float, n: int, *, audits: int = AUDITS) -> np.ndarray:
    """Mean bound of each rule over the same audits."""
    rng = np.random.default_rng([int(10 * mu), n])
    found = np.zeros((audits, len(RULES)))
    for row in found:
        scores = Scores(rng.normal(mu, 1, n), rng.normal(0, 1, n))
        row[:] = [em.epsilon_lower_bound(scores, delta=1e-5, rule=rule).epsilon for rule in RULES]
    return found.mean(axis=0)


def main() -> None:
    """Plays and writes."""
    cells = [(mu, n) for mu in (0.5, 1.0, 2.0, 4.0) for n in (100, 1_000, 10_000)]
    means = joblib.Parallel(n_jobs=-1)(joblib.delayed(mean_bounds)(*cell) for cell in cells)
    lines = [
        f"| {mu:g} | {n:,} | {em.gaussian_epsilon(1 / mu, 1e-5):.2f} | "
        + " | ".join(f"{value:.2f}" for value in values)
        + f" | {values[0] / values[-1]:.0%} |"
        for (mu, n), values in zip(cells, means, strict=True)
    ]
    PAGE.write_text(INTRO + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
