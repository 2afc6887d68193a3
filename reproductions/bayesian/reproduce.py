"""What MC dropout gives away (Shibahara et al. 2021, Figures 5, 6, 8), measured beside published.

    python reproductions/bayesian/reproduce.py train --data DATA --out FOLDER --device cuda
    python reproductions/bayesian/reproduce.py tables --out FOLDER

DATA has ``cifar10_train1.npz``, ``cifar10_train2.npz`` and ``cifar10_test.npz``; EPSILOMETER_DATA
names it too. A hundred models are trained at once, and what they say of the record is written to a
file: called again, training goes on with what is missing. ``--train``, ``--runs`` and ``--trials``
make it smaller.
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from estimates import (
    COUNTED,
    DELTA,
    NUMBERS,
    SINGLE,
    STATISTICS,
    UNITS,
    Sides,
    accuracy_and_ties,
    accuracy_by_number,
    deterministic,
    estimates,
    estimates_of_figure_5,
    over,
    plain_accuracy,
    statistics_of,
    with_none,
    with_record,
)
from trainings import BATCH, PAPER, SIGMA, WAYS, Settings, train, trials_in

from epsilometer.accounting import pld, rdp
from epsilometer.audits.posterior.finding import learn_scores
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.joint_thresholds import joint_bound


def main() -> None:
    """Trains, or prints tables."""
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "train":
        names = ("epochs", "train", "runs", "trials", "ways")
        train(
            given.out,
            Settings(**{name: getattr(given, name) for name in names}),
            data=given.data,
            device=given.device,
            shadows=given.shadows,
            stop_after=given.stop_after,
        )
    else:
        print(tables(given.out))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("train", "tables"))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EPSILOMETER_DATA", ".")))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--train", type=int, default=20_000, help="images")
    parser.add_argument("--runs", type=int, default=100, help="models of a trial")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--ways", type=int, default=len(WAYS), help="records, from the first")
    parser.add_argument("--shadows", type=int, default=10)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds")
    return parser.parse_args()


def tables(out: Path) -> str:
    """Figures 5, 6 and 8 of what is there."""
    settings, trials = trials_in(out)
    lines = [f"{json.dumps(asdict(settings))}; {len(trials)} trials", ""]
    lines += _theory(settings) + _figure_5(out, trials) + _by_record_and_by_chance(out, trials)
    lines += _figure_6(out, trials) + _figure_8(out, trials)
    return "\n".join(lines)


def _theory(settings: Settings) -> list[str]:
    """Theoretical ε of the paper's setting and of this one."""
    records = settings.train - 1  # two are taken out, one is added
    here = {"sampling_rate": BATCH / records, "steps": settings.epochs * (records // BATCH)}
    lines = ["| theoretical ε | by RDP | by PLD |", "|---|---|---|"]
    for name, known in {"the paper": PAPER, "here": here}.items():
        both = [
            accountant.poisson_epsilon(noise_multiplier=SIGMA, delta=DELTA, **known)
            for accountant in (rdp, pld)
        ]
        lines.append(f"| {name}: {known} | {both[0]:.2f} | {both[1]:.2f} |")
    return [*lines, ""]


def _by_record_and_by_chance(out: Path, trials: list[int]) -> list[str]:
    """How much more two statistics show than one vector: with a record, with none, apart."""
    if len(trials) < 2:
        return []

    def more(every: list[Sides]) -> np.ndarray:
        return np.subtract(estimates(every, ("mean", "std")), deterministic(every))

    ways = range(len(WAYS))
    record = np.array([more(with_record(out, way, trials)) for way in ways]).mean(0)  # by trial
    chance = more(with_none(out, trials)).reshape(len(trials), -1).mean(1)
    found = scipy.stats.ttest_ind(record, chance, equal_var=True)
    low, high = found.confidence_interval(0.95)
    return [
        f"ε̂ of mean, std less ε̂ deterministic: {record.mean():.2f} with a record, "
        f"{chance.mean():.2f} with none; apart {record.mean() - chance.mean():.2f} "
        f"(95 %: {low:.2f} to {high:.2f}, t over trials).",
        "",
    ]


def _figure_5(out: Path, trials: list[int]) -> list[str]:
    lines = [
        "Figure 5: ε̂ of the paper, mean ± standard deviation of trials; then what all runs of all",
        "trials together prove at 95 %: by hold-out, and by the learned attack.",
        "",
        "| record | deterministic | " + " | ".join(STATISTICS) + " | proved: deterministic | "
        "mean, std | all four | learned, mean + std | learned, all samples |",
        "|" + "---|" * 10,
    ]
    for way, name in enumerate(WAYS):
        every = with_record(out, way, trials)
        if every:
            cells = [*estimates_of_figure_5(every).values(), *_proved_of(every)]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    nothing = with_none(out, trials)
    cells = [*estimates_of_figure_5(nothing).values()] if nothing else []
    lines.append("| **nothing: D against D** | " + " | ".join(cells) + " | | | | | |")
    return [*lines, ""]


def _proved_of(every: list[Sides]) -> list[str]:
    """Valid bounds of all trials' runs together."""
    pooled = {
        key: tuple(np.concatenate([each[key][side] for each in every]) for side in (0, 1))
        for key in ("vector", "samples")
    }
    cells = [f"{_proved(*(v[:, None] for v in pooled['vector'])):.2f}"]
    for names in (STATISTICS["mean, std"], STATISTICS["all four"]):
        cells.append(f"{_proved(*statistics_of(pooled, names)):.2f}")
    for names in (STATISTICS["mean, std"], STATISTICS["all four"]):
        scores = learn_scores(*statistics_of(pooled, names), rng=np.random.default_rng(0))
        cells.append(f"{epsilon_lower_bound(scores, delta=DELTA).epsilon:.2f}")
    return cells


def _proved(inside: Any, outside: Any) -> float:
    """The valid bound of "any", fixed beforehand."""
    return joint_bound(inside, outside, joining="any", delta=DELTA).epsilon


def _figure_6(out: Path, trials: list[int]) -> list[str]:
    lines = ["Figure 6: ε̂ by the number of samples, mean of trials.", ""]
    lines += ["| record | statistics | " + " | ".join(map(str, NUMBERS)) + " |"]
    lines += ["|" + "---|" * (2 + len(NUMBERS))]
    for way, name in enumerate(WAYS):
        every = with_record(out, way, trials)
        for label, names in {**SINGLE, **STATISTICS}.items():
            cells = [
                f"{np.mean(estimates(every, names, number=number)):.2f}"
                for number in (NUMBERS if every else ())
            ]
            lines.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _figure_8(out: Path, trials: list[int]) -> list[str]:
    lines = ["Figure 8: mean and spread rounded to a unit: ε̂ by record; accuracy and ties.", ""]
    lines += [
        "| unit | "
        + " | ".join(WAYS)
        + " | nothing: D against D | accuracy of the mean of 50, % | ties, % |"
    ]
    lines += ["|" + "---|" * (4 + len(WAYS))]
    every = [with_record(out, way, trials) for way in range(len(WAYS))]
    every.append(with_none(out, trials))
    for unit in UNITS:
        cells = [
            over(estimates(sides, ("mean", "std"), unit=unit)) if sides else "" for sides in every
        ]
        accuracy, ties = accuracy_and_ties(out, unit)
        lines.append(
            f"| {unit or 'none'} | " + " | ".join(cells) + f" | {accuracy:.1f} | {ties:.2f} |"
        )
    plain = np.mean(plain_accuracy(out))
    shares = zip(COUNTED, accuracy_by_number(out), strict=True)
    said = ", ".join(f"{share:.1f} ({number})" for number, share in shares)
    return [
        *lines,
        "",
        f"Accuracy in %: {plain:.1f} without dropout; with means of {said} samples.",
    ]


if __name__ == "__main__":
    main()
