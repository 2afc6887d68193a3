"""Figures 5 to 8 (Shibahara et al. 2021), row by row, as ``paper.toml`` names them.

    python reproductions/bayesian/figures.py --out FOLDER

prints Figure 7 of what ``reproduce.py train`` has left in FOLDER. Where there are no images, digits
of scikit-learn and a smaller network stand in.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from estimates import (
    ALL_NUMBERS,
    COUNTED,
    DELTA,
    NUMBERS,
    SINGLE,
    STATISTICS,
    UNITS,
    accuracy_and_ties,
    accuracy_by_number,
    estimates,
    estimates_of_figure_5,
    over,
    plain_accuracy,
    points_lost,
    with_labels_permuted,
    with_none,
    with_record,
)
from trainings import PAPER, SAMPLES, SIGMA, WAYS, Settings, train, train_stand_ins, trials_in

from epsilometer.accounting import pld, rdp

SIDES = ("with the record", "without it")


def figure_5(**how: Any) -> dict[str, str]:
    """ε̂ of the paper by record: what the network without dropout shows, and what samples show."""
    folder, trials = _trained(**how)
    every = {way: with_record(folder, place, trials) for place, way in enumerate(WAYS)}
    every["nothing: D against D"] = with_none(folder, trials)
    found = theoretical()
    return found | {
        f"{way}: {name}": value
        for way, sides in every.items()
        if sides
        for name, value in estimates_of_figure_5(sides).items()
    }


def theoretical() -> dict[str, str]:
    """ε that accounting promises of the paper's training, with σ = 0.5."""
    known: Any = {"noise_multiplier": SIGMA, "delta": DELTA, **PAPER}
    by_pld = pld.poisson_epsilon(**known)
    return {
        "theoretical ε": f"{rdp.poisson_epsilon(**known):.4f}",
        "theoretical ε by PLD": f"{by_pld:.4f}",
    }


def figure_6(**how: Any) -> dict[str, str]:
    """ε̂ by the number of samples."""
    folder, trials = _trained(**how)
    numbers = ", ".join(map(str, NUMBERS))
    found = {}
    for place, way in enumerate(WAYS):
        sides = with_record(folder, place, trials)
        for name, four in STATISTICS.items():
            values = (np.mean(estimates(sides, four, number=number)) for number in NUMBERS)
            found[f"{way}, {name}: {numbers} samples"] = ", ".join(f"{v:.2f}" for v in values)
    return found | _accuracy(folder)


def figure_7(**how: Any) -> dict[str, str]:
    """How the mean of 2 and of all samples is spread over models, on either side."""
    return _figure_7(*_trained(**how))


def _figure_7(folder: Path, trials: list[int]) -> dict[str, str]:
    found = {}
    for place, way in enumerate(WAYS):
        every = with_record(folder, place, trials)
        for number in (2, SAMPLES):
            inside, outside = (
                np.concatenate([each["samples"][side][:, :number].mean(1) for each in every])
                for side in (0, 1)
            )
            low = np.quantile(outside, 0.25)
            found[f"{way}, mean of {number:,}: spread {SIDES[0]}, {SIDES[1]}"] = (
                f"{inside.std(ddof=1):.3f}, {outside.std(ddof=1):.3f}"
            )
            found[f"{way}, mean of {number:,}: share {SIDES[0]} in the lowest quarter"] = (
                f"{(inside <= low).mean():.2f} ± {np.sqrt(0.25 * 0.75 * 2 / inside.size):.2f}"
            )
    return found


def figure_8(**how: Any) -> dict[str, str]:
    """ε̂ by mean and spread, rounded to a unit, and what rounding costs."""
    folder, trials = _trained(**how)
    found = {}
    for unit in UNITS:
        shown = unit or "none"
        for place, way in enumerate(WAYS):
            sides = with_record(folder, place, trials)
            found[f"{way}, unit {shown}"] = over(estimates(sides, ("mean", "std"), unit=unit))
        accuracy, ties = accuracy_and_ties(folder, unit)
        found[f"accuracy and ties, unit {shown}, %"] = f"{accuracy:.1f}, {ties:.1f}"
    return found


def to_the_letter(*, permutations: int, **how: Any) -> dict[str, str]:
    """Figures 5 and 6 of the record at random: all lines, all numbers of samples.

    The paper's 100 repetitions draw D or D′ each, so that some 50 are of either. What chance gives
    is shown by the same models with sides permuted.
    """
    folder, trials = _trained_to_the_letter(**how)
    sides = with_record(folder, 0, trials)
    numbers = ", ".join(map(str, ALL_NUMBERS))
    found = {f"{WAYS[0]}: {name}": value for name, value in estimates_of_figure_5(sides).items()}
    chance = estimates_of_figure_5(with_labels_permuted(sides, permutations))
    found |= {f"sides permuted: {name}": value for name, value in chance.items()}
    for name, four in {**SINGLE, **STATISTICS}.items():
        by_number = [estimates(sides, four, number=number) for number in ALL_NUMBERS]
        found[f"{WAYS[0]}, {name}: {numbers} samples"] = ", ".join(map(over, by_number))
    return found


def accuracy(**how: Any) -> dict[str, str]:
    """Accuracy of the mean by the number of samples, and what rounding to 0.01 leaves of it."""
    folder, _ = _trained_to_the_letter(**how)
    kept, ties = accuracy_and_ties(folder, 0.01)
    return _accuracy(folder) | {
        "accuracy without dropout, %": over(plain_accuracy(folder)),
        "accuracy and ties, unit 0.01, %": f"{kept:.1f}, {ties:.1f}",
        "points of accuracy lost, unit 0.01": over(points_lost(folder, 0.01)),
    }


def _trained_to_the_letter(*, work: Path, data: Path | None, **how: Any) -> tuple[Path, list[int]]:
    """Train the record at random in half precision, or digits with the stand-in's network."""
    if data is None:
        return _trained(work=work, data=None, ways=1, **how)
    from letter import Plan, train

    place = work / f"letter-{how['epochs']}-epochs-{how['runs']}-runs"
    train(Plan(data=data, out=place, **how))
    return place, list(range(how["trials"]))


def _accuracy(folder: Path) -> dict[str, str]:
    counted = ", ".join(map(str, COUNTED))
    shares = ", ".join(f"{share:.1f}" for share in accuracy_by_number(folder))
    return {f"accuracy of the mean of {counted} samples, %": shares}


def _trained(
    *,
    work: Path,
    data: Path | None,
    device: str,
    runs: int,
    trials: int,
    epochs: int,
    ways: int = len(WAYS),
) -> tuple[Path, list[int]]:
    """Trains what is missing in ``work``; the folder, and its trials."""
    place = work / f"{epochs}-epochs-{runs}-runs"
    place.mkdir(parents=True, exist_ok=True)
    if data is None:
        train_stand_ins(place, runs=runs, trials=trials, epochs=epochs, ways=ways, device=device)
    else:
        settings = Settings(epochs=epochs, train=20_000, runs=runs, trials=trials, ways=ways)
        train(place, settings, data=data, device=device)
    return place, list(range(trials))


def main() -> None:
    """Prints Figure 7, which ``reproduce.py tables`` does not have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for name, value in _figure_7(out, trials_in(out)[1]).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
