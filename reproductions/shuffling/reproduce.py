"""Audits of real DP-SGD (Annamalai et al. 2025, Sections VI and VII), measured beside published.

    python reproductions/shuffling/reproduce.py --data DATA --observations 2000
    python reproductions/shuffling/reproduce.py --data DATA --observations 1e6 --device cuda

DATA has ``fashion_mnist_2class.npz``, ``shopping100.npz`` and the ``cifar10_*.npz``;
EPSILOMETER_DATA names it too, and without it digits of scikit-learn stand in for all. Each row is a
run directory under --runs: killed and called again, it goes on. Prints one line per row.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction
from epsilometer.audits.dpsgd.game import GradientGame
from epsilometer.core.scores import Scores, Sides
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import gather
from epsilometer.engine.shards import Arrays
from epsilometer.networks.devices import choose_at_once
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.models import cnn, lenet5, mlp
from epsilometer.sampling.samplers import BatchThenShuffle, PartialShuffle, Sampler, Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Published, RankGrid

DELTA = 1e-5
GUESSES = (1, *range(10, 101, 10))


@dataclass(frozen=True)
class Row:
    """One number of the paper.

    Attributes:
        name: Where it stands.
        data: Which records.
        adversary: Who attacks.
        claim: The ε that Poisson sampling would give.
        published: ε_emp there.
        buffer: Within how many batches records are shuffled; 0 for all, −1 for batches that are
            shuffled whole.
        guessed: Whether the adversary must guess within how many batches the target is.
        steps: Batches of the epoch.
    """

    name: str
    data: str
    adversary: Any
    claim: float
    published: float | None
    buffer: int = 0
    guessed: bool = False
    steps: int = 100

    def sampler(self, batch: int) -> Sampler:
        """How batches of so many are drawn."""
        if self.buffer < 0:
            return BatchThenShuffle()
        return PartialShuffle(self.buffer * batch) if self.buffer else Shuffle()


def rows() -> list[Row]:
    """All of them, in the order of the paper."""
    every = [Row("Fig. 4, 5", "cifar", "partially_informed", 1.0, None)]
    for adversary, published in (
        ("partially_informed", (3.46, 4.66, 5.78)),
        ("worst_case", (4.06, 5.18, 6.43)),
        ("target_canary", (None, None, None)),
    ):
        for claim, value in zip((1.0, 2.0, 4.0), published, strict=True):
            every.append(Row("Fig. 6, 7", "fashion", adversary, claim, value))
    for claim, value in zip((1.0, 2.0, 4.0), (3.42, 4.48, 5.55), strict=True):
        every.append(Row("Fig. 6", "shopping", "partially_informed", claim, value))
    for data in ("fashion", "shopping"):  # of batches of 1,000 the paper has bars, no numbers
        for claim in (1.0, 2.0, 4.0):
            every.append(Row("Fig. 6", data, "partially_informed", claim, None, steps=10))
    guessing = partial(Row, "Fig. 9", "shopping", "partially_informed", guessed=True)
    for claim, full, part, none in (  # none: 10.4, 6.16 and 1.72 times the first
        (0.1, 0.09, 0.29, 0.94),
        (0.2, 0.31, 1.12, 1.91),
        (0.4, 1.80, 2.51, 3.10),
    ):
        every.append(guessing(claim, full))
        every.append(guessing(claim, part, buffer=10))
        every.append(guessing(claim, none, buffer=1))
    for claim, sound, bug in ((0.1, 0.09, 1.00), (0.2, 0.28, 1.86), (0.4, 1.61, 3.06)):
        every.append(Row("Fig. 10", "shopping", "worst_case", claim, sound))
        every.append(Row("Fig. 10", "shopping", "batch_then_shuffle", claim, bug, buffer=-1))
    return every


@dataclass(frozen=True, eq=False)
class GuessingGame:
    """As ``GradientGame``, scored by the first batches alone, for each guess of their number."""

    game: GradientGame

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Scores]:
        """Scores by guess."""
        sides = []
        for present in (True, False):
            canary = replace(self.game.canary, present=present)
            trained = replace(self.game.training, runs=runs).train(
                self.game.features, self.game.labels, rng=rng, canaries=canary
            )
            seen = trained.observations[..., 0]
            sides.append([self._scores(seen[..., :guess], canary) for guess in GUESSES])
        pairs = zip(*sides, strict=True)
        return {
            f"first {guess} ": Scores(inside=inside, outside=outside)
            for guess, (inside, outside) in zip(GUESSES, pairs, strict=True)
        }

    def _scores(self, seen: Any, canary: TargetCanary) -> Any:
        noise = self.game.training.noise_multiplier
        return canary.log_ratio(seen, sampler=Shuffle(), noise_multiplier=noise)


@dataclass(frozen=True, eq=False)
class Trainings:
    """The trainings of a row, with the canary and without it, in blocks that are units of work.

    Attributes:
        plan: Everything that determines the scores.
        play: ``play(runs, rng)`` returns the scores of that many runs of either kind, by view.
        views: Names of the views.
        runs: Runs of either kind.
        block: Runs of either kind that make a unit.
    """

    plan: Plan
    play: Callable[[int, np.random.Generator], Mapping[str, Scores | Sides]]
    views: tuple[str, ...]
    runs: int
    block: int

    def unit(self, index: int) -> Arrays:
        """Train one block, and return its scores by view and side."""
        size = min(self.block, self.runs - index * self.block)
        found = self.play(size, self.plan.stream(index))
        return {
            f"{view}{side}": getattr(found[view], side)
            for view in self.views
            for side in ("inside", "outside")
        }


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on, and what."""

    features: Any
    labels: Any
    module: Any
    learning_rate: float


@cache
def task(folder: Path | None, name: str) -> Task:
    """Records in an order of their own; digits of scikit-learn where there is no folder."""
    if folder is None:
        x, y, module, rate = _digits()
    elif name == "fashion":
        with np.load(folder / "fashion_mnist_2class.npz") as file:
            x, y = file["x"][:, None] / np.float32(255), file["y"].astype(np.int64)
        module, rate = lenet5(classes=2), 0.5
    elif name == "cifar":
        x, y = _two_classes(folder)
        module, rate = cnn(classes=2), 0.5
    else:
        with np.load(folder / "shopping100.npz") as file:
            x = np.unpackbits(file["bits"][:10_000], axis=1)[:, :600].astype(np.float32)
            y = file["y"][:10_000].astype(np.int64)
        module, rate = mlp(600, 100), 1.0
    order = np.random.default_rng(0).permutation(len(y))
    return Task(x[order], y[order], module, rate)


def _digits() -> tuple[Any, ...]:
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    return x[:1700].astype(np.float32) / 16, y[:1700], mlp(64, 10, 16), 1.0


def _two_classes(folder: Path) -> tuple[Any, Any]:
    """Airplanes and automobiles: 6,000 of the paper's 10,000, the others are not available here."""
    images, labels = [], []
    for part in ("train1", "train2", "test"):
        with np.load(folder / f"cifar10_{part}.npz") as file:
            x = file["d"].cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
            x[[0, 2]] += x[1]
            chosen = file["y"] < 2
            images.append(x.transpose(1, 0, 2, 3)[chosen])
            labels.append(file["y"][chosen].astype(np.int64))
    x, y = np.concatenate(images)[:6000], np.concatenate(labels)[:6000]
    return x.astype(np.float32) / 255, y


@cache
def noise_for(claim: float, steps: int = 100) -> float:
    """What accounting by Poisson sampling asks for."""
    return pld.poisson_noise(
        epsilon=claim, delta=DELTA, sampling_rate=1 / steps, steps=steps, adjacency="zero_out"
    )


def job(
    row: Row, folder: Path | None, observations: int, device: str, at_once: int | None = None
) -> Trainings:
    """Return the trainings of a row."""
    what = task(folder, row.data)
    batch = len(what.labels) // row.steps
    training = EnsembleDPSGD(
        what.module,
        cross_entropy,
        runs=1,
        sampler=row.sampler(batch),
        noise_multiplier=noise_for(row.claim, row.steps),
        learning_rate=what.learning_rate,
        batch_size=batch,
        device=device,
    )
    together = at_once or choose_at_once(training, what.features, what.labels)
    runs = observations // 2
    canary = TargetCanary(
        adversary=row.adversary,
        direction=random_direction(training.size, rng=np.random.default_rng(1)),
        batch_size=batch,
    )
    game = GradientGame(
        training=replace(training, runs=together),
        features=what.features,
        labels=what.labels,
        canary=canary,
        views=("updates",),
    )
    names = [f"first {guess} " for guess in GUESSES] if row.guessed else ["updates"]
    return Trainings(
        plan=Plan(
            audit="reproduction",
            parameters={
                "row": repr(row),
                "observations": observations,
                "at_once": together,
                "records": len(what.labels),
            },
            units=-(-runs // together),
            seed=0,
        ),
        play=GuessingGame(game).play if row.guessed else game.play,
        views=tuple(names),
        runs=runs,
        block=together,
    )


def collect_scores(work: Trainings, where: Path, engine: Engine) -> list[Scores]:
    """Return the scores of each view, from a run directory that is continued."""
    units = gather(work.plan, work.unit, where, engine=engine)
    return [
        Scores(
            inside=np.concatenate([unit[f"{view}inside"] for unit in units]),
            outside=np.concatenate([unit[f"{view}outside"] for unit in units]),
        )
        for view in work.views
    ]


def bounds(every: list[Scores]) -> dict[str, float]:
    """Both bounds: as published, uncorrected, and valid, at 95 % over all guesses together."""
    valid, best = 0.0, 0.0
    for scores in every:
        confidence = 1 - 0.05 / len(every)
        paid = epsilon_lower_bound(scores, delta=DELTA, confidence=confidence, rule=RankGrid())
        free = epsilon_lower_bound(scores, delta=DELTA, rule=Published())
        valid, best = max(valid, paid.epsilon), max(best, free.epsilon)
    return {"uncorrected": round(best, 3), "valid": round(valid, 3)}


def measured(row: Row, work: Trainings, where: Path, engine: Engine) -> dict[str, Any]:
    """A row's bounds, and how quick it was."""
    start = time.perf_counter()
    every = collect_scores(work, where, engine)
    seconds = time.perf_counter() - start
    return {
        "figure": row.name,
        "data": row.data,
        "adversary": row.adversary,
        "buffer": row.buffer,
        "steps": row.steps,
        "claim": row.claim,
        "noise": round(noise_for(row.claim, row.steps), 4),
        "observations": 2 * work.runs,
        "published": row.published,
        **bounds(every),
        "model_steps_per_second": round(2 * work.runs * row.steps / seconds),
    }


def figure(
    *,
    name: str,
    observations: float,
    claims: list[float],
    adversaries: list[str] | None = None,
    sets: list[str] | None = None,
    steps: int = 100,
    data: Path | None,
    device: str,
    work: Path,
) -> dict[str, str]:
    """The rows of a figure at some claims: ε_emp as published, and what is proved."""
    engine = Local() if device == "cpu" and data is not None else InProcess()
    found = {}
    for row in rows():
        if name not in row.name or row.claim not in claims or row.steps != steps:
            continue
        if row.adversary not in (adversaries or [row.adversary]):
            continue
        if row.data not in (sets or [row.data]):
            continue
        asked = job(row, data, int(observations), device)
        where = work / f"{label(row)}-{int(observations)}".replace(" ", "-").replace(",", "")
        values = bounds(collect_scores(asked, where, engine))
        found[f"{label(row)}: ε_emp"] = f"{values['uncorrected']:.2f}"
        found[f"{label(row)}: proved ε ≥"] = f"{values['valid']:.2f}"
    return found


def label(row: Row) -> str:
    """A row in words."""
    words = [
        {"fashion": "Fashion-MNIST", "shopping": "Shopping-100", "cifar": "CIFAR-10"}[row.data],
        row.adversary.replace("_", " "),
        f"claim {row.claim:g}",
    ]
    if row.steps != 100:
        words.append(f"{row.steps} batches")
    if row.guessed:
        words.append({0: "shuffled", 10: "within 10 batches", 1: "not shuffled"}[row.buffer])
    return ", ".join(words)


def main() -> None:
    """Prints one line per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--observations", type=float, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int)
    parser.add_argument(
        "--only", action="append", help="Rows whose description contains this; may be repeated."
    )
    parser.add_argument("--runs", type=Path, default=Path("reproduction-runs"))
    given = parser.parse_args()
    engine = Local() if given.device == "cpu" else InProcess()
    for number, row in enumerate(rows()):
        if given.only and not any(text in f"{row}" for text in given.only):
            continue
        folder = given.data and Path(given.data)
        work = job(row, folder, int(given.observations), given.device, given.at_once)
        where = given.runs / f"{number:02d}-{int(given.observations)}"
        print(json.dumps(measured(row, work, where, engine)), flush=True)


if __name__ == "__main__":
    main()
