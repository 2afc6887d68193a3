"""Figures 5 to 8 (Shibahara et al. 2021) of what ``reproduce.py train`` has left, by figure.

    python reproductions/bayesian/figures.py --out FOLDER

``FOLDER`` is that of the training. Where there are no images, digits of scikit-learn and a smaller
network stand in: ``stand_ins`` trains them into such a folder.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import reproduce

from epsilometer._extras import needs
from epsilometer.attacks.disclosure import ReleaseForm, utility
from epsilometer.canaries.data import Record, adversarial
from epsilometer.mechanisms.samplers import Poisson
from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.training.models import dropout_cnn

WAYS = reproduce.WAYS
SIDES = ("with the record", "without it")


def figure_5(**how: Any) -> dict[str, str]:
    """ε̂ of the paper by record: what the network without dropout shows, and what samples show."""
    out, trials = _trained(**how)
    names = ("deterministic", *reproduce.FIGURE_5)
    every = {way: reproduce._sides(out, place, trials) for place, way in enumerate(WAYS)}
    every["nothing: D against D"] = reproduce._nothing_added(out, trials)
    return {
        f"{way}: {name}": value
        for way, sides in every.items()
        if sides
        for name, value in zip(names, reproduce._estimated(sides), strict=True)
    }


def figure_6(**how: Any) -> dict[str, str]:
    """ε̂ by the number of samples."""
    out, trials = _trained(**how)
    numbers = ", ".join(map(str, reproduce.NUMBERS))
    found = {}
    for place, way in enumerate(WAYS):
        sides = reproduce._sides(out, place, trials)
        for name, statistics in reproduce.FIGURE_5.items():
            values = (
                np.mean([_estimate(each, statistics, number=number) for each in sides])
                for number in reproduce.NUMBERS
            )
            found[f"{way}, {name}: {numbers} samples"] = ", ".join(f"{v:.2f}" for v in values)
    return found


def figure_7(**how: Any) -> dict[str, str]:
    """How the mean of 2 and of all samples is spread over models, on either side."""
    return _figure_7(*_trained(**how))


def _figure_7(out: Path, trials: list[int]) -> dict[str, str]:
    found = {}
    for place, way in enumerate(WAYS):
        every = reproduce._sides(out, place, trials)
        for number in (2, reproduce.SAMPLES):
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
    out, trials = _trained(**how)
    found = {}
    for unit in reproduce.UNITS:
        shown = unit or "none"
        for place, way in enumerate(WAYS):
            sides = reproduce._sides(out, place, trials)
            values = [_estimate(each, ("mean", "std"), unit=unit) for each in sides]
            found[f"{way}, unit {shown}"] = reproduce._over(values)
        useful = _useful(out, unit)
        accuracy = 100 * np.mean([each.accuracy for each in useful])
        ties = 100 * np.mean([each.ties for each in useful])
        found[f"accuracy and ties, unit {shown}, %"] = f"{accuracy:.1f}, {ties:.1f}"
    return found


def _estimate(sides: dict[str, Any], statistics: tuple[str, ...], **how: Any) -> float:
    return reproduce._raw(*reproduce._statistics(sides, statistics, **how))


def _useful(out: Path, unit: float | None) -> list[Any]:
    with np.load(out / f"0-{len(WAYS)}.npz") as known:
        drawn, labels = known["test_samples"].astype(np.float64), known["test_labels"]
    form = ReleaseForm("mean", unit)
    tried = labels[: drawn.shape[1]]
    return [utility(form.central(samples), tried, unit=unit) for samples in drawn]


def _trained(
    *, work: Path, data: Path | None, device: str, runs: int, trials: int, epochs: int
) -> tuple[Path, list[int]]:
    """Trains what is missing in ``work``; the folder, and its trials."""
    work.mkdir(parents=True, exist_ok=True)
    if data is None:
        stand_ins(work, runs=runs, trials=trials, epochs=epochs, device=device)
    else:
        asked = argparse.Namespace(data=data, device=device, runs=runs, trials=trials)
        vars(asked).update(epochs=epochs, train=20_000, shadows=10, stop_after=float("inf"))
        reproduce._train(asked, work)
    return work, list(range(trials))


def stand_ins(out: Path, *, runs: int, trials: int, epochs: int, device: str) -> None:
    """As ``reproduce.py train``, of 298 digits and a small network with dropout."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    x, y, rest, other = images[:300], labels[:300], images[300:600], labels[300:600]

    def training(models: int) -> EnsembleDPSGD:
        return EnsembleDPSGD(
            dropout_cnn(1, 8, 8, dropout=0.2, filters=4, kernel=3, padding=1, hidden=16),
            cross_entropy,
            runs=models,
            sampler=Poisson(rate=0.1),
            noise_multiplier=reproduce.SIGMA,
            learning_rate=0.3,
            batch_size=30,
            epochs=epochs,
            device=device,
        )

    rng = np.random.default_rng(2021)
    shadows = training(5).train(rest, other, rng=rng)
    hardest = int(shadows.losses(x, y, loss=cross_entropy).mean(0).argmax())
    drawn = int(rng.choice(np.setdiff1d(np.arange(300), [hardest])))
    modules = [shadows.models.model(run) for run in range(5)]
    plain = [Record(features=x[at], label=int(y[at])) for at in (drawn, hardest)]
    moved = [adversarial(record, modules) for record in plain]
    records = [plain[0], moved[0], plain[1], moved[1]]
    kept = np.setdiff1d(np.arange(300), [drawn, hardest])
    for trial in range(trials):
        for world in range(len(WAYS) + 1):  # the last is D itself
            path = out / f"{trial}-{world}.npz"
            if path.exists():
                continue
            added = records[world : world + 1]
            with_x = np.concatenate([*(r.features[None] for r in added), x[kept]])
            with_y = np.concatenate([[r.label for r in added], y[kept]]).astype(np.int64)
            tried = (rest, other) if trial == 0 and not added else None
            arrays = reproduce._answers(
                training(runs),
                with_x,
                with_y,
                added or records,
                tried,
                np.random.default_rng([trial, world]),
            )
            partly = path.with_suffix(".tmp.npz")
            np.savez_compressed(partly, **arrays)
            partly.rename(path)


def main() -> None:
    """Prints Figure 7, which ``reproduce.py tables`` does not have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    settings = json.loads((out / "settings.json").read_text())
    trials = [t for t in range(settings["trials"]) if (out / f"{t}-{len(WAYS)}.npz").exists()]
    for name, value in _figure_7(out, trials).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
