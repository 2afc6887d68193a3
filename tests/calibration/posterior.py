"""How often audits of predictions are wrong where nothing leaks; ``python -m
tests.calibration.posterior`` prints a table.
"""

import sys

import numpy as np

from epsilometer.audits.posterior.disclosure import Kind, ReleaseForm
from epsilometer.audits.posterior.finding import _Attack
from epsilometer.audits.posterior.runs import Collected, Shown, Side
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, HoldOut

KINDS: tuple[Kind, ...] = ("mean", "mean+std", "quantiles", "samples")  # 1, 2, 3, 4 statistics
DELTA, SAMPLES, CLASSES = 1e-5, 6, 3


def null(runs: int, rng: np.random.Generator) -> _Attack:
    """One law with the record and without it, half of the time rounded, so that many are alike."""

    def side() -> Side:
        weights = rng.gamma(2.0, 2.0, (runs, 1, CLASSES)) + 0.5
        drawn = rng.gamma(np.repeat(weights, SAMPLES, axis=1))
        samples = drawn / drawn.sum(-1, keepdims=True)
        if ties:
            samples = samples.round(1)
        return Side(samples=samples.astype(np.float32), vector=None, lost=0)

    ties = rng.random() < 0.5
    seen = Collected(inside=side(), outside=side(), utility=None, tested=0)
    return _Attack(collected=seen, label=0, delta=DELTA, seed=int(rng.integers(2**32)))


def learned_bound(kind: Kind, runs: int, rng: np.random.Generator) -> float:
    """The bound that decides, of one simulated audit."""
    scores = null(runs, rng).score(Shown(ReleaseForm(kind), SAMPLES))
    return epsilon_lower_bound(scores, delta=DELTA).epsilon


def joint_bounds(kind: Kind, runs: int, rng: np.random.Generator) -> list[float]:
    """Of thresholds that must all be reached, or any, by hold-out."""
    found = null(runs, rng).bound_jointly(Shown(ReleaseForm(kind), SAMPLES), HoldOut(0.5), 0.95)
    return [bound.epsilon for bound in found]


def raw_estimate(kind: Kind, runs: int, rng: np.random.Generator) -> float:
    """The paper's: the larger of both decisions."""
    found = null(runs, rng).bound_jointly(Shown(ReleaseForm(kind), SAMPLES), Best(), 0.95)
    return max(bound.epsilon for bound in found)


def row(place: int, audits: int, *, runs: int = 100) -> str:
    """False alarms of valid bounds on a form, and how often the paper's estimate exceeds 0.5."""
    kind, rng = KINDS[place], np.random.default_rng(place)
    few = audits // 5 if kind == "samples" else audits  # four thresholds take a second
    learned = np.mean([learned_bound(kind, runs, rng) > 0 for _ in range(audits)])
    joint = np.mean(np.array([joint_bounds(kind, runs, rng) for _ in range(few)]) > 0, axis=0)
    raw = np.array([raw_estimate(kind, runs, rng) for _ in range(few)])
    of_all, of_any, *_ = (*(f"{share:.1%}" for share in joint), "–")
    cells = f"{place + 1} | {learned:.1%} | {of_all} | {of_any} | {np.mean(raw > 0.5):.1%}"
    return f"| {kind} | {cells} | {np.median(raw):.2f} |"


def main() -> None:
    """The table, a row for each form."""
    audits = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print("| published | statistics | learned | all | any | paper's ε̂ > 0.5 | its median |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for place in range(len(KINDS)):
        print(row(place, audits), flush=True)


if __name__ == "__main__":
    main()
