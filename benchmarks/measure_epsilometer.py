"""One question to epsilometer: ``python measure_epsilometer.py QUESTION SIZE``."""

import stopwatch
from stopwatch import FloatArray

from epsilometer.observations import ScoreCounts, Scores
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, Fixed


def default_bound(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside), delta=1e-5).epsilon


def best_threshold(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside), delta=1e-5, rule=Best()).epsilon


def one_run(inside: FloatArray, outside: FloatArray) -> float:
    return epsilon_lower_bound(Scores(inside, outside), delta=1e-6, method="one_run").epsilon


def joint_beta(fn: int, fp: int, tn: int, tp: int) -> float:
    counts = ScoreCounts([0.0], [fn, tp], [tn, fp])
    return epsilon_lower_bound(counts, delta=1e-5, method="joint_beta", rule=Fixed(0.0)).epsilon


if __name__ == "__main__":
    stopwatch.answer(
        {
            "default_bound": default_bound,
            "best_threshold": best_threshold,
            "one_run": one_run,
            "joint_beta": joint_beta,
        },
        tool="epsilometer",
    )
