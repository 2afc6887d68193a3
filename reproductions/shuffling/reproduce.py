"""Audits of real DP-SGD (Annamalai et al. 2025, Sections VI and VII), measured beside published.

    python reproductions/shuffling/reproduce.py --data DATA --observations 2000
    python reproductions/shuffling/reproduce.py --data DATA --observations 1e6 --device cuda

DATA has ``fashion_mnist_2class.npz`` and ``shopping100.npz``; EPSILOMETER_DATA names it too. Each
row is a run directory under --runs: killed and called again, it goes on. Prints a table.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer.accounting import pld
from epsilometer.audits.runs import Program, RunsJob, View, joined
from epsilometer.canaries.gradient import TargetCanary, random_direction
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import run
from epsilometer.engine.store import Store
from epsilometer.mechanisms.samplers import BatchThenShuffle, PartialShuffle, Sampler, Shuffle
from epsilometer.observations import Scores
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, RankGrid
from epsilometer.training import memory
from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.training.game import GradientGame
from epsilometer.training.models import lenet5, mlp

DELTA, BATCH, RECORDS = 1e-5, 100, 10_000
STEPS = RECORDS // BATCH
_SHUFFLE = Shuffle()
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
        sampler: How batches are drawn.
        guessed: Whether the adversary must guess within how many batches the target is.
    """

    name: str
    data: str
    adversary: Any
    claim: float
    published: float | None
    sampler: Sampler = _SHUFFLE
    guessed: bool = False


def rows() -> list[Row]:
    """All of them, in the order of the paper."""
    every = []
    for adversary, published in (
        ("partially_informed", (3.46, 4.66, 5.78)),
        ("worst_case", (4.06, 5.18, 6.43)),
        ("target_canary", (None, None, None)),
    ):
        for claim, value in zip((1.0, 2.0, 4.0), published, strict=True):
            every.append(Row("Fig. 6, 7", "fashion", adversary, claim, value))
    for claim, value in zip((1.0, 2.0, 4.0), (3.42, 4.48, 5.55), strict=True):
        every.append(Row("Fig. 6", "shopping", "partially_informed", claim, value))
    for claim, full, part in ((0.1, 0.09, 0.29), (0.2, 0.31, 1.12), (0.4, 1.80, 2.51)):
        every.append(Row("Fig. 9", "shopping", "partially_informed", claim, full, guessed=True))
        buffer = PartialShuffle(1000)
        every.append(Row("Fig. 9", "shopping", "partially_informed", claim, part, buffer, True))
    for claim, sound, bug in ((0.1, 0.09, 1.00), (0.2, 0.28, 1.86), (0.4, 1.61, 3.06)):
        every.append(Row("Fig. 10", "shopping", "worst_case", claim, sound))
        batched = BatchThenShuffle()
        every.append(Row("Fig. 10", "shopping", "batch_then_shuffle", claim, bug, batched))
    return every


@dataclass(frozen=True, eq=False)
class GuessingGame:
    """As ``GradientGame``, scored by the first batches alone, for each guess of their number."""

    game: GradientGame

    def play(self, runs: int, rng: np.random.Generator) -> Mapping[str, Scores]:
        """Scores by guess."""
        worlds = []
        for present in (True, False):
            canary = replace(self.game.canary, present=present)
            trained = replace(self.game.training, runs=runs).train(
                self.game.features, self.game.labels, rng=rng, canaries=canary
            )
            seen = trained.observations[..., 0]
            worlds.append([self._scores(seen[..., :guess], canary) for guess in GUESSES])
        pairs = zip(*worlds, strict=True)
        return {
            f"first {guess} ": Scores(inside=inside, outside=outside)
            for guess, (inside, outside) in zip(GUESSES, pairs, strict=True)
        }

    def _scores(self, seen: Any, canary: TargetCanary) -> Any:
        noise = self.game.training.noise_multiplier
        return canary.log_ratio(seen, sampler=Shuffle(), noise_multiplier=noise)


@cache
def records(folder: Path, name: str) -> tuple[Any, Any]:
    """10,000 records, and their classes."""
    if name == "fashion":
        with np.load(folder / "fashion_mnist_2class.npz") as file:
            x, y = file["x"][:, None] / np.float32(255), file["y"].astype(np.int64)
    else:
        with np.load(folder / "shopping100.npz") as file:
            x = np.unpackbits(file["bits"][:RECORDS], axis=1)[:, :600].astype(np.float32)
            y = file["y"][:RECORDS].astype(np.int64)
    order = np.random.default_rng(0).permutation(RECORDS)
    return x[order], y[order]


@cache
def noise_for(claim: float) -> float:
    """What accounting by Poisson sampling asks for."""
    return pld.poisson_noise(
        epsilon=claim, delta=DELTA, sampling_rate=1 / STEPS, steps=STEPS, adjacency="zero_out"
    )


def job(row: Row, folder: Path, observations: int, device: str, at_once: int | None) -> RunsJob:
    """The runs of a row."""
    features, labels = records(folder, row.data)
    module = lenet5(classes=2) if row.data == "fashion" else mlp(600, 100)
    training = EnsembleDPSGD(
        module,
        cross_entropy,
        runs=1,
        sampler=row.sampler,
        noise_multiplier=noise_for(row.claim),
        learning_rate=0.5 if row.data == "fashion" else 1.0,
        batch_size=BATCH,
        device=device,
    )
    together = at_once or memory.at_once(training, features, labels)
    runs = observations // 2
    canary = TargetCanary(
        adversary=row.adversary,
        direction=random_direction(training.size, rng=np.random.default_rng(1)),
        batch_size=BATCH,
    )
    game = GradientGame(
        training=replace(training, runs=together),
        features=features,
        labels=labels,
        canary=canary,
        views=("updates",),
    )
    names = [f"first {guess} " for guess in GUESSES] if row.guessed else ["updates"]
    play: Callable[..., Any] = GuessingGame(game).play if row.guessed else game.play
    return RunsJob(
        plan=Plan(
            audit="reproduction",
            parameters={"row": repr(row), "observations": observations, "at_once": together},
            units=-(-runs // together),
            seed=0,
            command=f"reproduce.py --observations {observations} --device {device}",
        ),
        subject=row.name,
        programs=(
            Program(
                play=play,
                subject=row.name,
                claim=None,
                adversary=row.adversary,
                views=tuple(View(name=n, subject=n, adversary=row.adversary) for n in names),
            ),
        ),
        runs=runs,
        block=together,
        delta=DELTA,
    )


def measured(row: Row, work: RunsJob, where: Path, engine: Engine) -> dict[str, Any]:
    """Both bounds of a row: as published, uncorrected, and valid, guesses paid for."""
    start = time.perf_counter()
    run(work, where, engine=engine)
    seconds = time.perf_counter() - start
    store = Store.open(where)
    store.look()
    units = [store.read(unit) for unit in range(work.plan.units)]
    views = work.programs[0].views
    valid, best = 0.0, 0.0
    for view in views:
        scores = joined(units, view.name)
        confidence = 1 - 0.05 / len(views)
        paid = epsilon_lower_bound(scores, delta=DELTA, confidence=confidence, rule=RankGrid())
        free = epsilon_lower_bound(scores, delta=DELTA, rule=Best())
        valid, best = max(valid, paid.epsilon), max(best, free.epsilon)
    return {
        "figure": row.name,
        "data": row.data,
        "adversary": row.adversary,
        "sampler": repr(row.sampler),
        "claim": row.claim,
        "noise": round(noise_for(row.claim), 4),
        "observations": 2 * work.runs,
        "published": row.published,
        "uncorrected": round(best, 3),
        "valid": round(valid, 3),
        "model_steps_per_second": round(2 * work.runs * STEPS / seconds),
    }


def main() -> None:
    """Prints a line a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--observations", type=float, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--only", default="", help="Rows whose description contains this.")
    parser.add_argument("--runs", type=Path, default=Path("reproduction-runs"))
    given = parser.parse_args()
    engine = Local() if given.device == "cpu" else InProcess()
    for number, row in enumerate(rows()):
        if given.only not in f"{row}":
            continue
        work = job(row, Path(given.data), int(given.observations), given.device, given.at_once)
        where = given.runs / f"{number:02d}-{int(given.observations)}"
        print(json.dumps(measured(row, work, where, engine)), flush=True)


if __name__ == "__main__":
    main()
