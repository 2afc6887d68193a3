"""Table I and Figure 3 (Annamalai et al. 2025): the batched Gaussian mechanism.

    python reproductions/shuffling/batched.py --device cuda
    python reproductions/shuffling/batched.py --observations 1e6

Needs no data. Runs the mechanism and prints one line per setting: with the paper's observations
unless fewer are asked for, the best of all thresholds as it reports, the valid bound, and the
exact ε. ``epsilometer reproduce`` does not run it: errors of 10⁹ trials have a known law, which is
that of the exact trade-off curve, and are drawn from it in a second.
"""

import argparse
import json
from typing import Any, NamedTuple

import numpy as np
from reproduce import noise_for

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import published_epsilon, shuffle_curve, shuffle_epsilon
from epsilometer.core.scores import ScoreCounts
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import BatchThenShuffle, PartialShuffle, Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Published, RankGrid

DELTA = 1e-5
# False positive rates at which drawn scores are counted: steps of 1.5 % where few trials decide.
FPR = np.concatenate([np.geomspace(1e-10, 0.5, 1500), 1 - np.geomspace(0.5, 1e-10, 150)[1:]])


class Setting(NamedTuple):
    """A row of the paper: name, σ, T, E, observations, and the δ of the work it is from."""

    name: str
    sigma: float
    steps: int
    epochs: int
    observations: int
    own_delta: float | None = None


# Li et al. take δ = 1/(2N), De et al. 10⁻⁵ for CIFAR-10 and 1/N for Places-365. N is 512 T, which
# is as many as Table I says, but for Persona-Chat: 130,000, not 400,000.
TABLE_1 = (
    Setting("SST-2", 0.79, 117, 10, 10**7, 1 / 120_000),
    Setting("QNLI", 0.87, 195, 30, 10**7, 1 / 200_000),
    Setting("MNLI", 0.73, 781, 50, 10**7, 1 / 800_000),
    Setting("Persona-Chat", 0.82, 254, 30, 10**7, 1 / 260_000),
    Setting("CIFAR-10", 3.00, 11, 168, 10**7),
    Setting("Places-365", 1.00, 440, 509, 10**7, 1 / 1_800_000),
)
FIGURE_3 = tuple(
    Setting(f"T = {steps:,}, σ = {sigma}", sigma, steps, 1, 10**9)
    for steps in (100, 1000)
    for sigma in (0.5, 1.0, 1.5)
)


SAMPLERS: dict[str, Any] = {
    "shuffled": Shuffle(),
    "within 10 batches": PartialShuffle(1000),
    "not shuffled": PartialShuffle(100),
    "batch, then shuffle": BatchThenShuffle(),
}


def find_curve(setting: Setting) -> Any:
    """Return the false negative rates of the likelihood ratio at ``FPR``, exactly."""
    return shuffle_curve(
        FPR, noise_multiplier=setting.sigma, steps=setting.steps, epochs=setting.epochs
    )


def draw_counts(fnr: Any, observations: int, rng: np.random.Generator) -> ScoreCounts:
    """Draw how many of so many trials, half with the record, fall between thresholds.

    Trials are independent, so counts are multinomial; their chances are steps of the exact curve.
    No trial is run: 10⁹ of them with 1,000 batches each would be 10¹² normal numbers.
    """
    present = -np.diff(np.concatenate([[1.0], np.minimum.accumulate(np.clip(fnr, 0, 1)), [0.0]]))
    absent = np.diff(np.concatenate([[0.0], FPR, [1.0]]))
    drawn = [rng.multinomial(observations // 2, side[::-1]) for side in (present, absent)]
    return ScoreCounts(np.arange(FPR.size, dtype=np.float64), *drawn)


def found(setting: Setting, observations: int, device: str, seed: int = 0) -> dict[str, float]:
    """Both bounds of so many trials that are run."""
    game = BatchedGaussian(
        sampler=Shuffle(),
        noise_multiplier=setting.sigma,
        steps=setting.steps,
        epochs=setting.epochs,
        device=device,
    )
    rng = np.random.default_rng(seed)
    scores: Any = (
        game.count(observations // 2, rng, thresholds=np.linspace(-6, 14, 2001))
        if observations > 10**8
        else game.play(observations // 2, rng)
    )
    return {"uncorrected": _bound(scores, Published()), "valid": _bound(scores, RankGrid())}


def _bound(scores: Any, rule: Published | RankGrid) -> float:
    return epsilon_lower_bound(scores, delta=DELTA, rule=rule).epsilon


def computed(setting: Setting) -> dict[str, float]:
    """The exact ε, that of Poisson sampling, and for one epoch the published lower bound."""
    known: Any = {"noise_multiplier": setting.sigma, "steps": setting.steps, "delta": DELTA}
    values = {
        "exact": shuffle_epsilon(epochs=setting.epochs, **known).epsilon,
        "Poisson": poisson(setting, DELTA),
    }
    if setting.epochs == 1:
        values["Chua et al."] = published_epsilon(**known)
    return values


def poisson(setting: Setting, delta: float, rounding: float = 0.0) -> float:
    """ε of Poisson sampling, with a noise multiplier that was rounded by so much."""
    return poisson_epsilon(
        noise_multiplier=setting.sigma + rounding,
        sampling_rate=1 / setting.steps,
        steps=setting.steps * setting.epochs,
        delta=delta,
        adjacency="zero_out",
    )


def table_1(**how: Any) -> dict[str, str]:
    """As ``_measured``; ε of Poisson sampling over all noises that are printed alike."""
    rows = _measured(TABLE_1, **how)
    for setting in TABLE_1:
        deltas = {"": DELTA, " at its own δ": setting.own_delta}
        for words, delta in deltas.items():
            if delta is not None:
                high, value, low = (poisson(setting, delta, by) for by in (-0.005, 0, 0.005))
                name = f"{setting.name}: Poisson ε{words}"
                rows[name] = f"{value:.3f} ({low:.3f} to {high:.3f})"
    return rows


def figure_3(**how: Any) -> dict[str, str]:
    """As ``_measured``; Opacus's PRV accountant adds the 0.01 by which it may err."""
    rows = _measured(FIGURE_3, **how)
    for setting in FIGURE_3:
        added = float(rows[f"{setting.name}: Poisson ε"]) + 0.01
        rows[f"{setting.name}: Poisson ε + 0.01"] = f"{added:.3f}"
    return rows


def _measured(settings: tuple[Setting, ...], *, runs: int, **_: object) -> dict[str, str]:
    """ε_emp by setting, over runs; then what the first proves, and what is exact."""
    rows: dict[str, str] = {}
    for place, setting in enumerate(settings):
        fnr = find_curve(setting)
        drawn = [
            draw_counts(fnr, setting.observations, rng)
            for rng in np.random.default_rng([0, place]).spawn(runs)
        ]
        rows[f"{setting.name}: ε_emp"] = _over([_bound(each, Published()) for each in drawn])
        rows[f"{setting.name}: proved ε ≥"] = f"{_bound(drawn[0], RankGrid()):.2f}"
        for name, value in computed(setting).items():
            rows[f"{setting.name}: {name} ε"] = f"{value:.3f}"
    return rows


def _over(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def by_claim(
    *,
    claims: list[float],
    samplers: list[str],
    observations: float,
    runs: int,
    steps: int = 100,
    **_: object,
) -> dict[str, str]:
    """Figures 6, 7, 9 and 10 by the law of what is seen: mean ± standard deviation of runs.

    It is that of the worst case; with batches of ones and minus ones where these are shuffled
    whole. Who guesses within how many batches the target is has guessed right.
    """
    rows = {}
    for claim in claims:
        for name in samplers:
            game = BatchedGaussian(
                sampler=SAMPLERS[name],
                noise_multiplier=noise_for(claim, steps),
                steps=steps,
                epochs=1,
                batch_size=100,
            )
            plays = int(observations) // 2
            streams = np.random.default_rng([steps, int(10 * claim)]).spawn(runs)
            values = [_bound(game.play(plays, rng), Published()) for rng in streams]
            batches = "" if steps == 100 else f", {steps} batches"
            rows[f"by the law, {name}, claim {claim:g}{batches}"] = _over(values)
    return rows


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--observations", type=float, default=0, help="0: the paper's.")
    parser.add_argument("--only", default="", help="Settings whose name contains this.")
    parser.add_argument("--claims", type=float, nargs="+", help="By the law of what is seen.")
    parser.add_argument("--steps", type=int, default=100, help="Batches, of --claims.")
    asked = parser.parse_args()
    if asked.claims:
        many = int(asked.observations) or 10**6
        shuffled = {"samplers": ["shuffled"], "runs": 20, "steps": asked.steps}
        print(by_claim(claims=asked.claims, observations=many, **shuffled))
        return
    for setting in (*TABLE_1, *FIGURE_3):
        if asked.only not in setting.name:
            continue
        plays = int(asked.observations) or setting.observations
        line = setting._asdict() | {"observations": plays}
        line |= found(setting, plays, asked.device) | computed(setting)
        rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
        print(json.dumps(rounded, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
