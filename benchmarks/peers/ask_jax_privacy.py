"""Questions to jax-privacy: ``stopwatch.answer``."""

from collections.abc import Callable

import stopwatch
from jax_privacy.auditing import CanaryScoreAuditor, MultiSplit, Split
from stopwatch import BoolArray, FloatArray


def clopper_pearson(inside: FloatArray, outside: FloatArray) -> float:
    """At every corner of the convex hull of the ROC curve, the error divided by their number."""
    auditor = CanaryScoreAuditor(inside, outside)
    return auditor.epsilon_clopper_pearson(significance=0.05, delta=1e-5, one_sided=False)


def one_run(inside: FloatArray, outside: FloatArray) -> float:
    return CanaryScoreAuditor(inside, outside).epsilon_one_run(significance=0.05, delta=1e-6)


def scores_default(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    found = _auditor(scores, member).epsilon_clopper_pearson(significance=0.05, delta=1e-5)
    return {"default": float(found)}


def scores_multi_split(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    found = _auditor(scores, member).epsilon_clopper_pearson(
        significance=0.05, delta=1e-5, threshold_strategy=MultiSplit(seed=0)
    )
    return {"multi_split": float(found)}


def scores_one_run(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    found = _auditor(scores, member).epsilon_one_run(significance=0.05, delta=1e-5)
    return {"one_run": float(found)}


def scores_gdp(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    found = _auditor(scores, member).epsilon_from_gdp(significance=0.05, delta=1e-5)
    return {"gdp": float(found)}


def power(inside: FloatArray, outside: FloatArray, delta: float, seed: int) -> dict[str, float]:
    """Return the bound of every call that chooses its threshold itself, by the names of them."""
    bound, seed = CanaryScoreAuditor(inside, outside).epsilon_clopper_pearson, int(seed)
    calls = {
        "hull": {"one_sided": False},
        "split": {"one_sided": False, "threshold_strategy": Split(seed=seed)},
        "split_one_sided": {"threshold_strategy": Split(seed=seed)},
        "multi_split": {"one_sided": False, "threshold_strategy": MultiSplit(seed=seed)},
    }
    return {name: float(bound(0.05, delta, **how)) for name, how in calls.items()}


def power_one_run(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    """Return the bounds of two ways to choose a threshold."""
    return _choose_both(_auditor(scores, member).epsilon_one_run)


def power_one_run_fdp(scores: FloatArray, member: BoolArray) -> dict[str, float]:
    return _choose_both(_auditor(scores, member).epsilon_one_run_fdp)


def _choose_both(bound: Callable[..., float]) -> dict[str, float]:
    split = bound(0.05, 1e-5, threshold_strategy=Split(seed=0))
    return {"hull": float(bound(0.05, 1e-5)), "split": float(split)}


def _auditor(scores: FloatArray, member: BoolArray) -> CanaryScoreAuditor:
    return CanaryScoreAuditor(scores[member], scores[~member])


if __name__ == "__main__":
    stopwatch.answer(
        {
            "clopper_pearson": clopper_pearson,
            "one_run": one_run,
            "scores_default": scores_default,
            "scores_multi_split": scores_multi_split,
            "scores_one_run": scores_one_run,
            "scores_gdp": scores_gdp,
            "power": power,
            "power_one_run": power_one_run,
            "power_one_run_fdp": power_one_run_fdp,
        },
        tool="jax-privacy",
    )
