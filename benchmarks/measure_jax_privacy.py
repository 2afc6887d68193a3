"""One question to jax-privacy: ``python measure_jax_privacy.py QUESTION SIZE``."""

import stopwatch
from jax_privacy.auditing import CanaryScoreAuditor
from stopwatch import FloatArray


def clopper_pearson(inside: FloatArray, outside: FloatArray) -> float:
    """At every corner of the convex hull of the ROC curve, the error divided by their number."""
    auditor = CanaryScoreAuditor(inside, outside)
    return auditor.epsilon_clopper_pearson(significance=0.05, delta=1e-5, one_sided=False)


def one_run(inside: FloatArray, outside: FloatArray) -> float:
    return CanaryScoreAuditor(inside, outside).epsilon_one_run(significance=0.05, delta=1e-6)


if __name__ == "__main__":
    stopwatch.answer({"clopper_pearson": clopper_pearson, "one_run": one_run}, tool="jax-privacy")
