"""One question to privacy-estimates: ``python measure_privacy_estimates.py QUESTION SIZE``."""

import stopwatch
from privacy_estimates import AttackResults, compute_eps_lo
from privacy_estimates.joint_density import Beta


def joint_beta(fn: int, fp: int, tn: int, tp: int) -> float:
    counts = AttackResults(FN=fn, FP=fp, TN=tn, TP=tp)
    return compute_eps_lo(counts, delta=1e-5, alpha=0.05, method="joint-beta")


def joint_beta_tight(fn: int, fp: int, tn: int, tp: int) -> float:
    """The same, with the root and the integrals to 1e-6; ``compute_eps_lo`` stops at 0.01."""
    counts = AttackResults(FN=fn, FP=fp, TN=tn, TP=tp)
    return Beta(counts).eps_lo(delta=1e-5, alpha=0.05, xtol=1e-6)


if __name__ == "__main__":
    stopwatch.answer(
        {"joint_beta": joint_beta, "joint_beta_tight": joint_beta_tight}, tool="privacy-estimates"
    )
