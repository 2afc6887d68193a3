"""epsilometer's own bound on the numbers that its peers are given."""

import warnings

import zoo_answers
from zoo_answers import FloatArray

from epsilometer.core.scores import Scores
from epsilometer.errors import EpsilometerWarning
from epsilometer.stats.estimators import epsilon_lower_bound


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    """Lower bound on ε by Clopper and Pearson."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpsilometerWarning)  # of scores that are all alike
        found = epsilon_lower_bound(Scores(inside, outside), delta=delta).epsilon
    return found > epsilon, found


if __name__ == "__main__":
    zoo_answers.answer(judge, tool="epsilometer")
