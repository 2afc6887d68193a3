"""Tables of the one-shot papers on real training: all iterates and the final model, by noise.

    python reproductions/one_shot/federated.py fashion --data FOLDER --seeds 5
    python reproductions/one_shot/federated.py mnist-writers --data FOLDER --seeds 5
    python reproductions/one_shot/federated.py shakespeare --data FOLDER --seeds 5
    python reproductions/one_shot/federated.py mnist-writers --data FOLDER --repetitions 1,2,4,8
    python reproductions/one_shot/federated.py digits

FOLDER has fashion_mnist.npz, mnist.npz and shakespeare_roles.json.gz; digits are scikit-learn's. A
row is one training with canaries and one without, printed as it ends and kept as a line of JSON in
--out, where the same call finds it again. At the end there is a table: mean ± standard deviation
over seeds. Needs torch.
"""

import argparse
import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.special
import torch

from epsilometer import audit
from epsilometer._extras import needs
from epsilometer.audits.federated.cosine_audit import Cosines
from epsilometer.audits.federated.directions import HadamardCanaries
from epsilometer.audits.federated.rounds import AdaptiveClip, FixedClip
from epsilometer.audits.federated.server import measure_accuracy
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.audits.federated.tasks import (
    digits_by_chance,
    digits_by_writer,
    shakespeare_by_role,
)
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import mlp
from epsilometer.networks.optimizers import SGD

NOISE = {
    "fashion": "0.2",
    "mnist-writers": "0,0.1,0.2,0.3,0.4",
    "shakespeare": "0,0.1,0.2,0.4",
    "digits": "0,0.1,0.2",
}
Tell: TypeAlias = Callable[[dict[str, Any]], None]
COLUMNS = {  # of a row, and of the table
    "accounting": "accounting ε",
    "steps_est": "steps: ε_est",
    "steps_max": "steps: law of a maximum",
    "steps_valid": "steps: valid bound",
    "steps_lo": "steps: ε_lo, not valid",
    "updates_est": "updates: ε_est",
    "updates_max": "updates: law of a maximum",
    "updates_valid": "updates: valid bound",
    "final_est": "final: ε_est",
    "final_tied": "final, tied",
    "final_valid": "final: valid bound",
    "final_lo": "final: ε_lo, not valid",
    "final_mean": "final: mean cosine · √d",
    "final_spread": "final: its spread",
    "anderson": "Anderson–Darling",
    "accuracy": "accuracy, %",
    "without": "without canaries, %",
}


@dataclass(frozen=True)
class Setting:
    """What is trained, and how it is looked at."""

    training: FederatedTraining
    test: Any
    delta: float
    repetitions: int | None


class Steps:
    """The highest cosine of every canary with how far the server went, over all rounds."""

    def __init__(self, canaries: HadamardCanaries) -> None:
        self._canaries = canaries
        self._last: torch.Tensor | None = None
        self.highest = np.full(canaries.count, -np.inf)

    def __call__(self, number: int, clip: float, weights: torch.Tensor) -> None:
        """Looks at the weights before a round."""
        if self._last is not None:
            found = self._canaries.cosines(weights - self._last)
            np.maximum(self.highest, found, out=self.highest)
        self._last = weights.clone()


def main() -> None:
    """Trains and prints."""
    asked = options()
    print("\n" + table(trained(asked, tell=lambda row: print(json.dumps(row), flush=True))))


def trained(asked: argparse.Namespace, tell: Tell = lambda row: None) -> list[dict[str, Any]]:
    """All rows that were asked for: those that are kept, and the others when they are trained.

    Args:
        asked: As ``options`` has it.
        tell: Called with each row that is new.
    """
    jobs = [
        (asked, noise, repetitions, seed)
        for noise in _numbers(asked.noise or NOISE[asked.task])
        for repetitions in map(int, _numbers(asked.repetitions))
        for seed in range(asked.seeds)
    ]
    known = {_key(row): row for row in _kept(asked)}
    left = [job for job in jobs if _key(_name(*job)) not in known]
    for row in _worked(left, asked.jobs):
        tell(row)
        known[_key(row)] = row
        if asked.out is not None:
            asked.out.mkdir(parents=True, exist_ok=True)
            with (asked.out / f"{asked.task}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    return [known[_key(_name(*job))] for job in jobs]


def table(rows: list[dict[str, Any]]) -> str:
    """One line a noise level and number of repetitions: mean ± standard deviation over seeds."""
    heads = ["noise", "repetitions", "seeds", *COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (noise, times), of in by_setting(rows).items():
        cells = [cell([row[name] for row in of if name in row]) for name in COLUMNS]
        lines.append(f"| {noise:g} | {times} | {len(of)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_setting(rows: list[dict[str, Any]]) -> dict[tuple[float, int], list[dict[str, Any]]]:
    """Rows by noise and repetitions, seeds together."""
    found: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=_key):
        found.setdefault((row["noise"], row.get("repetitions", 1)), []).append(row)
    return found


def options(*given: str) -> argparse.Namespace:
    """What is asked for, of words as on the command line; the program's own by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tuple(NOISE))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--noise", default="")
    parser.add_argument("--repetitions", default="1", help="Rounds of a canary; not of fashion.")
    parser.add_argument("--hidden", type=int, default=128, help="Of the net for fashion.")
    parser.add_argument("--momentum", type=float, default=0.9, help="Of the server.")
    parser.add_argument("--adaptive", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="Rows at once, a process each.")
    parser.add_argument("--out", type=Path, help="Where rows are kept, and found again.")
    return parser.parse_args(given or None)


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _name(asked: argparse.Namespace, noise: float, times: int, seed: int) -> dict[str, Any]:
    """What a row is a row of."""
    return {
        "task": asked.task,
        "noise": noise,
        "seed": seed,
        "canaries": asked.canaries,
        "rounds": asked.rounds,
        "hidden": asked.hidden,
        "momentum": asked.momentum,
        "adaptive": asked.adaptive,
        "repetitions": times,
    }


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("task", "noise", "seed", "canaries", "rounds", "hidden", "momentum", "adaptive")
    return (*(row[name] for name in names), row.get("repetitions", 1))


def _kept(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    file = None if asked.out is None else asked.out / f"{asked.task}.jsonl"
    if file is not None and file.exists():
        for line in file.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # killed in the middle of a line
                yield json.loads(line)


def _worked(jobs: list[Any], at_once: int) -> Iterator[dict[str, Any]]:
    if at_once == 1:
        yield from (_row(*job) for job in jobs)
        return
    spawned = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(at_once, mp_context=spawned) as pool:
        for ended in as_completed([pool.submit(_row, *job) for job in jobs]):
            yield ended.result()


def _row(asked: argparse.Namespace, noise: float, times: int, seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    torch.set_num_threads(1)
    make = fashion if asked.task == "fashion" else _people
    setting = make(asked, noise, seed)
    if setting.repetitions is not None:
        setting = replace(setting, repetitions=times)
    training, k = setting.training, asked.canaries
    canaries = HadamardCanaries(count=2 * k, dimension=training.size, key=seed)
    steps = Steps(canaries)
    run = training.train(
        canaries=canaries,
        planted=k,
        repetitions=setting.repetitions,
        rng=np.random.default_rng(seed),
        visit=steps,
    )
    parts = [part for part in run.module.parameters() if part.requires_grad]
    steps(training.rounds, 0.0, torch.cat([part.detach().flatten() for part in parts]))
    # What canaries cost: the same training and the same divisor, without them.
    divisor = training.cohort + k * (setting.repetitions or 0) / training.rounds
    plain = replace(training, divisor=divisor).train(rng=np.random.default_rng(seed))
    accounted, _ = training.epsilon(setting.delta, canaries=k, repetitions=setting.repetitions)
    knobs: Any = {"dimension": training.size, "delta": setting.delta}
    return {
        **_name(asked, noise, times, seed),
        "accounting": accounted,
        **_seen("steps", steps.highest[:k], steps.highest[k:], **knobs),
        **_seen("updates", run.observed, run.unobserved, **knobs),
        **_seen("final", run.moved, None, **knobs),
        "final_mean": float(np.sqrt(training.size) * run.moved.mean()),
        "final_spread": float(np.sqrt(training.size) * run.moved.std()),
        "anderson": anderson(run.moved),
        "accuracy": 100 * measure_accuracy(run.module, setting.test),
        "without": 100 * measure_accuracy(plain.module, setting.test),
        "dimension": training.size,
        "seconds": round(time.perf_counter() - start, 1),
    }


def anderson(values: Any) -> float:
    """Anderson and Darling's statistic against the normal law with these moments."""
    z = np.sort((values - values.mean()) / values.std(ddof=1))
    places = 2 * np.arange(1, z.size + 1) - 1
    below, above = scipy.special.log_ndtr(z), scipy.special.log_ndtr(-z)
    return float(-z.size - (places * (below + above[::-1])).mean())


def _seen(name: str, observed: Any, unobserved: Any, **knobs: Any) -> dict[str, Any]:
    """What one adversary finds; moments in units of 1/√d."""
    # An audit of its own for each adversary: the papers' numbers are at 95 % each, and several
    # views of one audit would share its confidence.
    subject = Cosines(observed, dimension=knobs["dimension"], unobserved=unobserved)
    (view,) = audit(subject, delta=knobs["delta"]).views
    units = np.sqrt(knobs["dimension"])
    moments = [
        round(float(units * value), 4)
        for sample in (observed, unobserved)
        if sample is not None
        for value in (sample.mean(), sample.std())
    ]
    first, second = (estimate.epsilon for estimate in view.estimates)
    paper, other = (first, second) if unobserved is None else (second, first)
    return {
        f"{name}_est": paper,
        f"{name}_{'tied' if unobserved is None else 'max'}": other,
        f"{name}_valid": view.bound.epsilon,
        f"{name}_lo": next(bound.epsilon for bound in view.also if not bound.valid),
        f"{name}_moments": moments,
    }


def fashion(asked: argparse.Namespace, noise: float, seed: int) -> Setting:
    """Two layers, clip 1, batches of 128, one epoch; one example per client, and canaries."""
    held = np.load(asked.data / "fashion_mnist.npz")
    x = held["x_train"].reshape(-1, 784).astype(np.float32) / 255
    y = held["y_train"].astype(np.int64)
    test = held["x_test"].reshape(-1, 784).astype(np.float32) / 255, held["y_test"].astype(np.int64)
    torch.manual_seed(seed)
    training = FederatedTraining(
        mlp(784, 10, asked.hidden),
        cross_entropy,
        clients=[(x[i : i + 1], y[i : i + 1]) for i in range(len(y))],
        rounds=asked.rounds or -(-(len(y) + asked.canaries) // 128),
        cohort=128,
        noise_multiplier=noise,
        learning_rate=1.0,
        batch_size=1,
        server_rate=0.5 * (1 - asked.momentum),
        server_optimizer=SGD(momentum=asked.momentum),
        at_once=32 if asked.device == "cpu" else 128,
        device=asked.device,
    )
    return Setting(training, test, 1 / 60_000, None)


def _people(asked: argparse.Namespace, noise: float, seed: int) -> Setting:
    """Each person a client, each canary in one round."""
    rng = np.random.default_rng(seed)
    if asked.task == "digits":
        with needs("sklearn", extra="sklearn"):
            from sklearn.datasets import load_digits
        task = digits_by_chance(*load_digits(return_X_y=True), rng=rng)
    elif asked.task == "mnist-writers":
        task = digits_by_writer(asked.data / "mnist.npz", rng=rng)
    else:
        task = shakespeare_by_role(asked.data / "shakespeare_roles.json.gz", rng=rng)
    clip = AdaptiveClip(initial=task.clip, count_noise=task.cohort / 10)
    training = FederatedTraining(
        task.module,
        task.loss,
        clients=task.clients,
        rounds=asked.rounds or 100,
        cohort=task.cohort,
        noise_multiplier=noise,
        clip=clip if asked.adaptive else FixedClip(task.clip),
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
        server_rate=task.server_rate,
        server_optimizer=SGD(momentum=asked.momentum),
        at_once=task.cohort,
        device=asked.device,
    )
    return Setting(training, task.test, len(task.clients) ** -1.1, 1)


def cell(values: list[float]) -> str:
    """Mean ± standard deviation."""
    if not values:
        return ""
    mean = float(np.mean(values))
    if not np.isfinite(mean):
        return "∞"
    digits = 0 if mean >= 1000 else 1 if mean >= 10 else 2
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 and np.ptp(values) else ""
    return f"{mean:.{digits}f}{spread}"


if __name__ == "__main__":
    main()
