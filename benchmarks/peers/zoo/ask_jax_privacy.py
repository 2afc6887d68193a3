"""jax-privacy: a lower bound on ε of scores, at its default."""

import zoo_answers
from jax_privacy.auditing import CanaryScoreAuditor
from zoo_answers import FloatArray


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    auditor = CanaryScoreAuditor(inside, outside)
    found = float(auditor.epsilon_clopper_pearson(significance=0.05, delta=delta))
    return found > epsilon, found


if __name__ == "__main__":
    zoo_answers.answer(judge, tool="jax-privacy")
