"""Figures 4 and 5 (Annamalai et al. 2025): trade-off curves of DP-SGD with shuffled batches.

    python reproductions/shuffling/tradeoff.py --observations 10000
    python reproductions/shuffling/tradeoff.py --data DATA --observations 1000 --device cuda

Without --data the law of the partially informed adversary's observations is sampled, which needs no
model: means of 2, or 1, in the target's batch and 0 in the others. With it, the CNN is trained on
airplanes and automobiles of CIFAR-10, in a run directory that is gone on with. Prints at which
false positive rates the curve, raw and as 95 % Clopper–Pearson limits of each threshold, lies below
what Poisson sampling and (1, δ)-DP allow; by the law, in how many of 20 sets.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from reproduce import DELTA, collect_scores, job, noise_for, rows

from epsilometer.accounting.pld import poisson_curve
from epsilometer.core.scores import Scores
from epsilometer.engine.engines import InProcess
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import Shuffle
from epsilometer.stats import binomial
from epsilometer.stats.tradeoff import dp_curve, tradeoff_curve
from epsilometer.types import BoolArray, FloatArray

CLAIM, STEPS = 1.0, 100


def by_law(observations: int, rng: np.random.Generator) -> Scores:
    """As many samples, half of them with the target."""
    noise = noise_for(CLAIM, STEPS)
    game = BatchedGaussian(sampler=Shuffle(), noise_multiplier=noise, steps=STEPS, epochs=1)
    return game.play(observations // 2, rng)


def by_training(data: Path | None, observations: int, device: str, work: Path) -> Scores:
    """As many trainings of the CNN; of an MLP on digits where there are no data."""
    row = next(row for row in rows() if row.name == "Fig. 4, 5")
    task = job(row, data, observations, device)
    return collect_scores(task, work / f"cnn-{observations}", InProcess())[0]


def below(scores: Scores) -> dict[str, FloatArray]:
    """At which FPR up to a half each curve lies below what each claim allows."""
    curve = tradeoff_curve(scores)
    upper = binomial.clopper_pearson_upper
    limits = {
        "raw": (curve.fpr, curve.fnr),
        "95 % limits": (
            upper(curve.false_positives, curve.n_out, alpha=0.025),
            upper(curve.false_negatives, curve.n_in, alpha=0.025),
        ),
    }
    found = {}
    for name, (fpr, fnr) in limits.items():
        allowed = {
            "Poisson sampling": poisson_curve(
                fpr,
                noise_multiplier=noise_for(CLAIM, STEPS),
                sampling_rate=1 / STEPS,
                steps=STEPS,
                adjacency="zero_out",
            ),
            "(1, δ)-DP": dp_curve(fpr, epsilon=CLAIM, delta=DELTA),
        }
        for claim, least in allowed.items():
            found[f"{name} below {claim}"] = fpr[(fnr < least) & (fpr <= 0.5)]
    return found


def law(*, observations: list[int], sets: int, **_: object) -> dict[str, str]:
    """By number of observations, of as many sets of them by the law."""
    found = {}
    for count in observations:
        streams = np.random.default_rng(count).spawn(sets)
        every = [below(by_law(count, rng)) for rng in streams]
        for name in every[0]:
            highest = np.array([each[name].max(initial=0) for each in every])
            broken = highest > 0
            found[f"{count:,} observations: {name}: share of sets"] = _over(broken)
            found[f"{count:,} observations: {name}: largest FPR"] = _over(highest)
    return found


def _over(values: FloatArray | BoolArray) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"


def trained(*, observations: int, data: Path | None, device: str, work: Path) -> dict[str, str]:
    """The same of real training."""
    scores = by_training(data, observations, device, work)
    return {
        f"{name}: largest FPR": f"{at.max(initial=0):.3f}" for name, at in below(scores).items()
    }


def main() -> None:
    """Prints a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("EPSILOMETER_DATA"))
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("reproduction-runs"))
    asked = parser.parse_args()
    known: Any = {"data": asked.data, "device": asked.device, "work": asked.runs}
    found = (
        trained(observations=asked.observations, **known)
        if asked.data
        else law(observations=[asked.observations], sets=20)
    )
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main()
