"""Questions to privacy-estimates: ``stopwatch.answer``."""

import stopwatch
from privacy_estimates import AttackResults, compute_eps_lo
from privacy_estimates.joint_density import Beta
from stopwatch import BoolArray, FloatArray

THRESHOLD = 1.5  # above the middle of both laws, where ε shows best; fixed before any score


def joint_beta(fn: int, fp: int, tn: int, tp: int) -> float:
    counts = AttackResults(FN=fn, FP=fp, TN=tn, TP=tp)
    return compute_eps_lo(counts, delta=1e-5, alpha=0.05, method="joint-beta")


def joint_beta_tight(fn: int, fp: int, tn: int, tp: int) -> float:
    """The same, with the root and the integrals to 1e-6; ``compute_eps_lo`` stops at 0.01."""
    counts = AttackResults(FN=fn, FP=fp, TN=tn, TP=tp)
    return Beta(counts).eps_lo(delta=1e-5, alpha=0.05, xtol=1e-6)


def scores_joint_beta(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"joint_beta": _lower(scores, member, "joint-beta")}


def scores_intervals(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return {"beta": _lower(scores, member, "beta"), "jeffreys": _lower(scores, member, "jeffreys")}


def _lower(scores: FloatArray, member: BoolArray, method: str) -> float:
    guesses = (scores > THRESHOLD).astype(int)
    counts = AttackResults.from_guesses_and_labels(guesses, member.astype(int))
    return float(compute_eps_lo(counts, delta=1e-5, alpha=0.05, method=method))


if __name__ == "__main__":
    stopwatch.answer(
        {
            "joint_beta": joint_beta,
            "joint_beta_tight": joint_beta_tight,
            "scores_joint_beta": scores_joint_beta,
            "scores_intervals": scores_intervals,
        },
        tool="privacy-estimates",
    )
