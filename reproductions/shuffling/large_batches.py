r"""Measure the bias of large batches, and what of it can be taken out.

    python reproductions/shuffling/large_batches.py --data DATA

The partially informed adversary sees o_t = mean + b_t + noise, where b_t is what the other records
of a batch add along her direction. The ratio of Annamalai et al. (2025) takes b_t to be 0. Here
b_t is recorded in real trainings and split into a part that all steps of an epoch share (variance
c²) and one of its own for each step (w²). With these, the law of what is seen is drawn, and ε_emp
computed by three scores:

- *plain*: the paper's ratio, with σ and no bias;
- *debiased*: the ratio of the law with bias, noise σ² + w² and a shared N(0, c²), which has a
  closed form;
- *no bias*: plain, where b_t = 0.

Exact ε is printed for noise σ, and for √(σ² + w²): w² is noise to whoever does not know the other
records of a batch, and no score takes it out; c² is taken out by comparing steps.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from reproduce import DELTA, noise_for, task
from scipy.special import logsumexp

from epsilometer import shuffle_epsilon
from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction
from epsilometer.core.scores import Scores
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.sampling.samplers import Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Published
from epsilometer.types import FloatArray


def record_bias(
    data: Path | None, claim: float, steps: int, runs: int, name: str = "shopping"
) -> FloatArray:
    """Return b_t of real trainings on the data of a name, ``(runs, steps)``."""
    what = task(data, name)
    batch = len(what.labels) // steps
    training = EnsembleDPSGD(
        what.module,
        cross_entropy,
        runs=runs,
        sampler=Shuffle(),
        noise_multiplier=noise_for(claim, steps),
        learning_rate=what.learning_rate,
        batch_size=batch,
    )
    rng = np.random.default_rng(1)
    canary = TargetCanary(
        adversary="partially_informed",
        direction=random_direction(training.size, rng=rng),
        batch_size=batch,
    )
    trained = training.train(what.features, what.labels, rng=rng, canaries=canary)
    return np.asarray(trained.others[:, 0, :, 0], np.float64)


def split_variance(bias: FloatArray) -> tuple[float, float]:
    """Return the variances c² of what steps share and w² of what they do not (one-way ANOVA)."""
    steps = bias.shape[1]
    own = float(bias.var(axis=1, ddof=1).mean())
    shared = float(bias.mean(axis=1).var(ddof=1)) + float(bias.mean()) ** 2 - own / steps
    return max(0.0, shared), own


def score_plain(seen: FloatArray, sigma: float) -> FloatArray:
    """Return the paper's log-ratio: others −1, the target's batch +1 or 0."""
    x = (seen + 1) / sigma**2
    return logsumexp(2 * x, axis=1) - logsumexp(x, axis=1) - 1.5 / sigma**2


def score_debiased(seen: FloatArray, sigma: float, shared: float, own: float) -> FloatArray:
    """Return the log-ratio of the law with a shared bias N(0, c²) and one per step N(0, w²).

    With v = σ² + w² the inverse covariance is (I − r 11ᵀ)/v, r = c²/(v + T c²). For a batch k of
    mean m the exponent is m (x_k − r Σ x) / v − m² (1 − r)/2v.
    """
    v = sigma**2 + own
    rest = shared / (v + seen.shape[1] * shared)
    x = seen + 1
    x = (x - rest * x.sum(axis=1, keepdims=True)) / v

    def mix(mean: float) -> FloatArray:
        return logsumexp(mean * x, axis=1) - mean**2 * (1 - rest) / (2 * v)

    return np.asarray(mix(2.0) - mix(1.0))


def draw_seen(
    runs: int, steps: int, sigma: float, shared: float, own: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw what is seen with the target and without it."""
    sides = []
    for mean in (2.0, 1.0):
        seen = rng.normal(-1.0, np.sqrt(sigma**2 + own), (runs, steps))
        seen += rng.normal(0.0, np.sqrt(shared), (runs, 1))
        seen[np.arange(runs), rng.integers(steps, size=runs)] += mean
        sides.append(seen)
    return sides[0], sides[1]


def estimate(inside: FloatArray, outside: FloatArray) -> float:
    """Return ε_emp as published."""
    scores = Scores(inside=inside, outside=outside)
    return epsilon_lower_bound(scores, delta=DELTA, rule=Published()).epsilon


def exact_epsilon(sigma: float, steps: int) -> float:
    """Return ε of the adversary without bias: what no number of observations exceeds."""
    return shuffle_epsilon(noise_multiplier=sigma, steps=steps, delta=DELTA).epsilon


def compare(
    claim: float, steps: int, bias: FloatArray, observations: int, repeats: int
) -> dict[str, Any]:
    """Return ε_emp of the three scores, means and spreads over repetitions."""
    sigma = noise_for(claim, steps)
    shared, own = split_variance(bias)
    found: dict[str, list[float]] = {"plain": [], "debiased": [], "no bias": []}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        with_it, without = draw_seen(observations // 2, steps, sigma, shared, own, rng)
        found["plain"].append(estimate(score_plain(with_it, sigma), score_plain(without, sigma)))
        found["debiased"].append(
            estimate(*(score_debiased(side, sigma, shared, own) for side in (with_it, without)))
        )
        with_it, without = draw_seen(observations // 2, steps, sigma, 0.0, 0.0, rng)
        found["no bias"].append(estimate(score_plain(with_it, sigma), score_plain(without, sigma)))
    return {
        "claim": claim,
        "batches": steps,
        "σ": round(sigma, 3),
        "c": round(shared**0.5, 3),
        "w": round(own**0.5, 3),
        "exact": round(exact_epsilon(sigma, steps), 3),
        "exact with w": round(exact_epsilon(float(np.hypot(sigma, own**0.5)), steps), 3),
        **{name: f"{np.mean(each):.2f} ± {np.std(each):.2f}" for name, each in found.items()},
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="Folder of data; digits without it.")
    parser.add_argument("--set", choices=("shopping", "fashion"), default="shopping")
    parser.add_argument("--runs", type=int, default=40, help="Train so many models.")
    parser.add_argument("--observations", type=float, default=1e5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--claims", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100])
    options = parser.parse_args()
    for steps in options.steps:
        for claim in options.claims:
            bias = record_bias(options.data, claim, steps, options.runs, options.set)
            row = compare(claim, steps, bias, int(options.observations), options.repeats)
            print(" | ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
