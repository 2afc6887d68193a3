"""ε̂ as the paper has it, of what models with a record and without it were kept to say."""

from pathlib import Path
from typing import Any

import numpy as np
from trainings import SAMPLES, WAYS, kept_at

from epsilometer.audits.posterior.disclosure import ReleaseForm, measure_utility
from epsilometer.stats.joint_thresholds import joint_bound
from epsilometer.stats.thresholds import Best

DELTA = 1e-5
STATISTICS = {  # of Figure 5
    "mean, std": ("mean", "std"),
    "min, max": ("min", "max"),
    "all four": ("mean", "std", "min", "max"),
}
SINGLE = {name: (name,) for name in ("mean", "std", "min", "max")}  # lines of Figure 6
NUMBERS = (1, 2, 5, 10, 50, 100, 1000)
ALL_NUMBERS = (1, 2, 5, 10, 50, 100, 500, 1000)  # of Figure 6
COUNTED = (1, 2, 5, 10, 50)  # samples whose mean's accuracy is printed
ACCURACY = "accuracy.npz"  # of ``letter.py``, which keeps means alone
UNITS = (None, 1e-4, 1e-3, 1e-2, 1e-1)
Sides = dict[str, tuple[Any, Any]]
"""Inside and outside, of one record: ``vector`` (runs,) and ``samples`` (runs, T)."""


def with_record(folder: Path, way: int, trials: list[int]) -> list[Sides]:
    """The models that had the record beside those of D, of each trial that has them."""
    found = []
    for trial in trials:
        if kept_at(folder, trial, way).exists():
            with (
                np.load(kept_at(folder, trial, way)) as inside,
                np.load(kept_at(folder, trial)) as outside,
            ):
                found.append(_sides((inside, 0), (outside, way)))
    return found


def with_none(folder: Path, trials: list[int]) -> list[Sides]:
    """D against D, of two trials, at each of the four records: what chance alone looks like."""
    found = []
    for one, other in zip(trials, trials[1:] + trials[:1], strict=True):
        if one != other:
            with (
                np.load(kept_at(folder, one)) as inside,
                np.load(kept_at(folder, other)) as outside,
            ):
                found += [_sides((inside, way), (outside, way)) for way in range(len(WAYS))]
    return found


def with_labels_permuted(every: list[Sides], count: int, *, seed: int = 0) -> list[Sides]:
    """The same models, of either side at random, so often for each trial: chance alone."""
    found = []
    for rng, sides in zip(np.random.default_rng(seed).spawn(len(every)), every, strict=True):
        half = len(sides["vector"][0])
        for _ in range(count):
            order = rng.permutation(half + len(sides["vector"][1]))
            pooled = {name: np.concatenate(both)[order] for name, both in sides.items()}
            found.append({name: (both[:half], both[half:]) for name, both in pooled.items()})
    return found


def _sides(inside: tuple[Any, int], outside: tuple[Any, int]) -> Sides:
    return {
        name: (inside[0][name][:, inside[1]], outside[0][name][:, outside[1]])
        for name in ("vector", "samples")
    }


def statistics_of(
    sides: Sides, names: tuple[str, ...], *, number: int = SAMPLES, unit: float | None = None
) -> list[Any]:
    """Columns of statistics of either side; of a published mean and spread where rounded."""
    found = []
    for samples in sides["samples"]:
        some = samples[:, :number].astype(np.float64)
        four = {"mean": some.mean(1), "std": -some.std(1), "min": some.min(1), "max": some.max(1)}
        columns = np.stack([four[name] for name in names], axis=1)
        found.append(columns if unit is None else np.round(columns / unit) * unit)
    return found


def estimate(inside: Any, outside: Any) -> float:
    """The paper's ε̂: the better of its two types of decision, rates floored at one run."""
    return max(
        joint_bound(inside, outside, joining=joining, delta=DELTA, rule=Best()).epsilon
        for joining in ("all", "any")
    )


def estimates(every: list[Sides], names: tuple[str, ...], **how: Any) -> list[float]:
    """ε̂ of each trial by statistics of its samples."""
    return [estimate(*statistics_of(sides, names, **how)) for sides in every]


def deterministic(every: list[Sides]) -> list[float]:
    """ε̂ of each trial by what the network without dropout says."""
    return [estimate(*(side[:, None] for side in sides["vector"])) for sides in every]


def estimates_of_figure_5(every: list[Sides]) -> dict[str, str]:
    """ε̂ by what is published, over trials."""
    found = {"deterministic": over(deterministic(every))}
    return found | {name: over(estimates(every, four)) for name, four in STATISTICS.items()}


def over(values: list[float]) -> str:
    """Mean ± standard deviation of trials."""
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def accuracy_by_number(folder: Path) -> list[float]:
    """Of means of so many samples as the paper counts, in %."""
    if (folder / ACCURACY).exists():
        with np.load(folder / ACCURACY) as known:
            return [100 * float(share) for share in known["shares"].mean(1)[: len(COUNTED)]]
    with np.load(kept_at(folder, 0)) as known:
        drawn, labels = known["test_samples"].astype(np.float64), known["test_labels"]
    tried = labels[: drawn.shape[1]]
    return [100 * float(np.mean(drawn[:, :, :n].mean(2).argmax(-1) == tried)) for n in COUNTED]


def accuracy_and_ties(folder: Path, unit: float | None) -> tuple[float, float]:
    """Of means of 50 samples rounded to a unit, in %: how many are right, how many tie."""
    by_model = _accuracy_and_ties(folder, unit)
    return float(by_model[0].mean()), float(by_model[1].mean())


def points_lost(folder: Path, unit: float) -> list[float]:
    """Of the accuracy of each model by rounding the mean of 50 samples, in points."""
    plain, rounded = (_accuracy_and_ties(folder, each)[0] for each in (None, unit))
    return list(plain - rounded)


def plain_accuracy(folder: Path) -> list[float]:
    """Of each model without dropout, in %."""
    if (folder / ACCURACY).exists():
        with np.load(folder / ACCURACY) as known:
            return list(100 * known["shares"][-1])
    with np.load(kept_at(folder, 0)) as known:
        said = known["test_vector"].astype(np.float64).argmax(-1)
        return list(100 * np.mean(said == known["test_labels"], axis=1))


def _accuracy_and_ties(folder: Path, unit: float | None) -> Any:
    """By model, ``(2, models)``."""
    if (folder / ACCURACY).exists():
        with np.load(folder / ACCURACY) as known:
            drawn, labels = known["means"][0][:, :, None].astype(np.float64), known["labels"]
    else:
        with np.load(kept_at(folder, 0)) as known:
            drawn, labels = known["test_samples"].astype(np.float64), known["test_labels"]
    form = ReleaseForm("mean", unit)
    tried = labels[: drawn.shape[1]]
    useful = [measure_utility(form.central(samples), tried, unit=unit) for samples in drawn]
    return 100 * np.array([[each.accuracy, each.ties] for each in useful]).T
