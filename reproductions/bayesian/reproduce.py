"""What MC dropout gives away (Shibahara et al. 2021, Figures 5, 6, 8), measured beside published.

    python reproductions/bayesian/reproduce.py train --data DATA --out FOLDER --device cuda
    python reproductions/bayesian/reproduce.py tables --out FOLDER

DATA has ``cifar10_train1.npz``, ``cifar10_train2.npz`` and ``cifar10_test.npz``; EPSILOMETER_DATA
names it too. A hundred models are trained at once, and what they say of the record is written to a
file: called again, training goes on with what is missing. ``--train``, ``--runs`` and ``--trials``
make it smaller.

One set D of all images but two; its neighbours have one record more: an image drawn at random or
the one of highest loss, as it is or moved against ten shadow models. All four are compared with the
same models of D.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from epsilometer.accounting import pld, rdp
from epsilometer.attacks.disclosure import ReleaseForm, utility
from epsilometer.attacks.learned import learned_scores
from epsilometer.canaries.data import Record, adversarial
from epsilometer.mechanisms.samplers import Poisson
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.joint_thresholds import joint_bound
from epsilometer.stats.thresholds import Best
from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.training.models import dropout_cnn

DELTA, BATCH, SIGMA, RATE, SAMPLES = 1e-5, 256, 0.5, 0.15, 1000
PAPER = {"sampling_rate": 256 / 50_000, "steps": 11_700}
WAYS = ("random", "random + noise", "high loss", "high loss + noise")
COLUMNS = {"mean": 0, "std": 1, "min": 2, "max": 3}
FIGURE_5 = {
    "mean, std": ("mean", "std"),
    "min, max": ("min", "max"),
    "all four": ("mean", "std", "min", "max"),
}
NUMBERS = (1, 2, 5, 10, 50, 100, 1000)
UNITS = (None, 1e-4, 1e-3, 1e-2, 1e-1)


def main() -> None:
    """Trains, or prints tables."""
    given = _arguments()
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    if given.what == "train":
        _train(given, out)
    else:
        print(tables(out))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("train", "tables"))
    parser.add_argument("--data", default=os.environ.get("EPSILOMETER_DATA", "."))
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--train", type=int, default=20_000, help="images")
    parser.add_argument("--runs", type=int, default=100, help="models of a trial")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--shadows", type=int, default=10)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds")
    return parser.parse_args()


def images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 as its file codes it: second differences, R − G and B − G."""
    with np.load(path) as arrays:
        coded, labels = arrays["d"], arrays["y"]
    x = coded.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    x[[0, 2]] += x[1]
    return x.transpose(1, 0, 2, 3).astype(np.float32) / 255, labels.astype(np.int64)


def _train(given: argparse.Namespace, out: Path) -> None:
    started = time.monotonic()
    folder = Path(given.data)
    parts = [images(folder / f"cifar10_train{part}.npz") for part in (1, 2)]
    x, y = (np.concatenate(side)[: given.train] for side in zip(*parts, strict=True))
    test_x, test_y = images(folder / "cifar10_test.npz")
    half = len(test_x) // 2
    records, kept = _records(given, out, x, y, test_x[:half], test_y[:half])
    x, y = x[kept], y[kept]
    settings = {name: getattr(given, name) for name in ("epochs", "train", "runs", "trials")}
    (out / "settings.json").write_text(json.dumps(settings))
    for trial in range(given.trials):
        for world in range(len(WAYS) + 1):  # the last is D itself
            path = out / f"{trial}-{world}.npz"
            if path.exists() or time.monotonic() - started > given.stop_after:
                continue
            begun = time.monotonic()
            added = records[world : world + 1]
            with_x = np.concatenate([np.stack([r.features for r in added]), x]) if added else x
            with_y = np.concatenate([[r.label for r in added], y]) if added else y
            first = trial == 0 and not added
            tried = (test_x[half:][:1000], test_y[half:][:1000]) if first else None
            rng = np.random.default_rng([trial, world])
            arrays = _answers(
                _training(given, len(with_x)), with_x, with_y, added or records, tried, rng
            )
            partly = path.with_suffix(".tmp.npz")
            np.savez_compressed(partly, **arrays)
            partly.rename(path)
            print(path.name, f"{time.monotonic() - begun:.0f} s", flush=True)


def _training(given: argparse.Namespace, records: int, runs: int | None = None) -> EnsembleDPSGD:
    return EnsembleDPSGD(
        dropout_cnn(),
        cross_entropy,
        runs=runs or given.runs,
        sampler=Poisson(rate=min(1.0, BATCH / records)),
        noise_multiplier=SIGMA,
        learning_rate=RATE,
        batch_size=BATCH,
        epochs=given.epochs,
        device=given.device,
    )


def _records(
    given: argparse.Namespace,
    out: Path,
    x: np.ndarray,
    y: np.ndarray,
    shadow_x: np.ndarray,
    shadow_y: np.ndarray,
) -> tuple[list[Record], np.ndarray]:
    """The four records, and which images are left for D; shadow models have none of them."""
    rng = np.random.default_rng(2021)
    path = out / "records.npz"
    if not path.exists():
        shadows = _training(given, len(shadow_x), given.shadows).train(shadow_x, shadow_y, rng=rng)
        losses = shadows.losses(x, y, loss=cross_entropy).mean(0)
        hardest, drawn = int(losses.argmax()), int(rng.integers(len(x)))
        modules = [shadows.models.model(run) for run in range(given.shadows)]
        plain = [Record(features=x[at], label=int(y[at])) for at in (drawn, hardest)]
        moved = [adversarial(record, modules) for record in plain]
        four = [plain[0], moved[0], plain[1], moved[1]]
        np.savez_compressed(
            path,
            features=np.stack([each.features for each in four]),
            labels=[each.label for each in four],
            left_out=[drawn, hardest],
            loss=losses[[drawn, hardest]],
        )
    with np.load(path) as known:
        records = [
            Record(features=features, label=int(label))
            for features, label in zip(known["features"], known["labels"], strict=True)
        ]
        kept = np.setdiff1d(np.arange(len(x)), known["left_out"])
    return records, kept


def _answers(
    training: EnsembleDPSGD,
    x: np.ndarray,
    y: np.ndarray,
    records: list[Record],
    tried: tuple[np.ndarray, np.ndarray] | None,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Of every record the probability of its class: without dropout, and in each sample.

    With images to try, also what some models say of them. The models themselves are let go.
    """
    trained = training.train(x, y, rng=rng)
    asked = np.stack([record.features for record in records])
    labels = np.array([record.label for record in records])
    at = np.arange(len(records))
    samples = trained.samples(asked, SAMPLES, rng=rng)[:, at, :, labels]  # (records, runs, T)
    found = {
        "vector": trained.probabilities(asked)[:, at, labels].astype(np.float32),
        "samples": np.moveaxis(samples, 0, 1).astype(np.float32),
        "diverged": trained.diverged,
    }
    if tried is not None:
        drawn = trained.samples(tried[0][:200], 50, rng=rng)
        found |= {
            "test_vector": trained.probabilities(tried[0])[:20].astype(np.float16),
            "test_samples": drawn[:20].astype(np.float16),
            "test_labels": tried[1],
        }
    return found


def tables(out: Path) -> str:
    """Figures 5, 6 and 8 of what is there."""
    settings = json.loads((out / "settings.json").read_text())
    trials = [t for t in range(settings["trials"]) if (out / f"{t}-{len(WAYS)}.npz").exists()]
    lines = [f"{json.dumps(settings)}; {len(trials)} trials", ""]
    lines += _theory(settings) + _figure_5(out, trials) + _by_record_and_by_chance(out, trials)
    lines += _figure_6(out, trials) + _figure_8(out, trials)
    return "\n".join(lines)


def _theory(settings: dict[str, int]) -> list[str]:
    """Theoretical ε of the paper's setting and of this one."""
    records = settings["train"] - 1  # two are taken out, one is added
    here = {"sampling_rate": BATCH / records, "steps": settings["epochs"] * (records // BATCH)}
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

    def more(every: list[dict[str, tuple[Any, Any]]]) -> list[float]:
        both = ((_statistics(each, ("mean", "std")), each["vector"]) for each in every)
        return [_raw(*two) - _raw(*(v[:, None] for v in one)) for two, one in both]

    ways = range(len(WAYS))
    record = np.array([more(_sides(out, way, trials)) for way in ways]).mean(0)  # of each trial
    chance = np.array(more(_nothing_added(out, trials))).reshape(len(trials), -1).mean(1)
    found = scipy.stats.ttest_ind(record, chance, equal_var=True)
    low, high = found.confidence_interval(0.95)
    return [
        f"ε̂ of mean, std less ε̂ deterministic: {record.mean():.2f} with a record, "
        f"{chance.mean():.2f} with none; apart {record.mean() - chance.mean():.2f} "
        f"(95 %: {low:.2f} to {high:.2f}, t over trials).",
        "",
    ]


def _sides(out: Path, way: int, trials: list[int]) -> list[dict[str, tuple[Any, Any]]]:
    """Of each trial, inside and outside: ``vector`` (runs,) and ``samples`` (runs, T)."""
    found = []
    for trial in trials:
        path = out / f"{trial}-{way}.npz"
        if not path.exists():
            continue
        with np.load(path) as inside, np.load(out / f"{trial}-{len(WAYS)}.npz") as outside:
            found.append(
                {
                    name: (inside[name][:, 0], outside[name][:, way])
                    for name in ("vector", "samples")
                }
            )
    return found


def _nothing_added(out: Path, trials: list[int]) -> list[dict[str, tuple[Any, Any]]]:
    """D against D, of two trials, at each of the four records: what chance alone looks like."""
    found = []
    for one, other in zip(trials, trials[1:] + trials[:1], strict=True):
        if one == other:
            continue
        with (
            np.load(out / f"{one}-{len(WAYS)}.npz") as inside,
            np.load(out / f"{other}-{len(WAYS)}.npz") as outside,
        ):
            for way in range(len(WAYS)):
                names = ("vector", "samples")
                found.append(
                    {name: (inside[name][:, way], outside[name][:, way]) for name in names}
                )
    return found


def _statistics(sides: dict[str, tuple[Any, Any]], names: tuple[str, ...], **how: Any) -> list[Any]:
    """Columns of statistics of either side; of a published mean and spread where rounded."""
    found = []
    for samples in sides["samples"]:
        some = samples[:, : how.get("number", SAMPLES)].astype(np.float64)
        unit = how.get("unit")
        four = np.stack([some.mean(1), -some.std(1), some.min(1), some.max(1)], axis=1)
        if unit is not None:
            four = np.round(four / unit) * unit
        found.append(four[:, [COLUMNS[name] for name in names]])
    return found


def _raw(inside: Any, outside: Any) -> float:
    """The paper's ε̂: the better of its two types of decision, rates floored at one run."""
    return max(
        joint_bound(inside, outside, joining=joining, delta=DELTA, rule=Best()).epsilon
        for joining in ("all", "any")
    )


def _over(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def _figure_5(out: Path, trials: list[int]) -> list[str]:
    lines = [
        "Figure 5: ε̂ of the paper, mean ± standard deviation of trials; then what all runs of all",
        "trials together prove at 95 %: by hold-out, and by the learned attack.",
        "",
        "| record | deterministic | " + " | ".join(FIGURE_5) + " | proved: deterministic | "
        "mean, std | all four | learned, mean + std | learned, all samples |",
        "|" + "---|" * 10,
    ]
    for way, name in enumerate(WAYS):
        every = _sides(out, way, trials)
        if every:
            lines.append(f"| {name} | " + " | ".join(_estimated(every) + _proved_of(every)) + " |")
    nothing = _estimated(_nothing_added(out, trials)) if len(trials) > 1 else []
    lines.append("| **nothing: D against D** | " + " | ".join(nothing) + " | | | | | |")
    return [*lines, ""]


def _estimated(every: list[dict[str, tuple[Any, Any]]]) -> list[str]:
    """ε̂ by the paper, of each trial."""
    cells = [_over([_raw(*(v[:, None] for v in each["vector"])) for each in every])]
    for names in FIGURE_5.values():
        cells.append(_over([_raw(*_statistics(each, names)) for each in every]))
    return cells


def _proved_of(every: list[dict[str, tuple[Any, Any]]]) -> list[str]:
    """Valid bounds of all trials' runs together."""
    pooled = {
        key: tuple(np.concatenate([each[key][side] for each in every]) for side in (0, 1))
        for key in ("vector", "samples")
    }
    cells = [f"{_proved(*(v[:, None] for v in pooled['vector'])):.2f}"]
    for names in (FIGURE_5["mean, std"], FIGURE_5["all four"]):
        cells.append(f"{_proved(*_statistics(pooled, names)):.2f}")
    for names in (FIGURE_5["mean, std"], FIGURE_5["all four"]):
        scores = learned_scores(*_statistics(pooled, names), rng=np.random.default_rng(0))
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
        every = _sides(out, way, trials)
        for label, names in {"mean": ("mean",), "std": ("std",), **FIGURE_5}.items():
            cells = []
            for number in NUMBERS if every else ():
                values = [_raw(*_statistics(each, names, number=number)) for each in every]
                cells.append(f"{np.mean(values):.2f}")
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
    with np.load(out / f"0-{len(WAYS)}.npz") as known:
        drawn, labels = known["test_samples"].astype(np.float64), known["test_labels"]
        vectors = known["test_vector"].astype(np.float64)
    labels_of_drawn = labels[: drawn.shape[1]]
    for unit in UNITS:
        cells = []
        every = [_sides(out, way, trials) for way in range(len(WAYS))]
        for sides in [*every, _nothing_added(out, trials)]:
            values = [_raw(*_statistics(each, ("mean", "std"), unit=unit)) for each in sides]
            cells.append(_over(values) if values else "")
        form = ReleaseForm("mean", unit)
        useful = [utility(form.central(samples), labels_of_drawn, unit=unit) for samples in drawn]
        accuracy = 100 * np.mean([each.accuracy for each in useful])
        ties = 100 * np.mean([each.ties for each in useful])
        lines.append(
            f"| {unit or 'none'} | " + " | ".join(cells) + f" | {accuracy:.1f} | {ties:.2f} |"
        )
    plain = 100 * np.mean(vectors.argmax(-1) == labels)
    by_number = {
        number: 100 * np.mean(drawn[:, :, :number].mean(2).argmax(-1) == labels_of_drawn)
        for number in (1, 2, 5, 10, 50)
    }
    said = ", ".join(f"{share:.1f} ({number})" for number, share in by_number.items())
    return [
        *lines,
        "",
        f"Accuracy in %: {plain:.1f} without dropout; with means of {said} samples.",
    ]


if __name__ == "__main__":
    main()
