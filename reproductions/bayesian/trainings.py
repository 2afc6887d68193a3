"""Models with a record and without it, and what they say of it: trained once, kept in files.

One set D, of all images but two; its neighbours have one record more: an image drawn at random or
the one of highest loss, as it is or moved against shadow models. All four are compared with the
same models of D. ``FOLDER/TRIAL-SET.npz`` has what the models of a trial say: sets 0 to 3 have one
record more, in the order of ``WAYS``, and the last is D itself.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cifar import Images, images

from epsilometer._extras import needs
from epsilometer.audits.training.canaries import adversarial
from epsilometer.core.record import Record
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.models import dropout_cnn
from epsilometer.sampling.samplers import Poisson

BATCH, SIGMA, RATE, SAMPLES = 256, 0.5, 0.15, 1000
PAPER = {"sampling_rate": 256 / 50_000, "steps": 11_700}
WAYS = ("random", "random + noise", "high loss", "high loss + noise")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is trained.

    Attributes:
        epochs: Of a model.
        train: Images of CIFAR-10, two of which D lacks.
        runs: Models of each set in a trial.
        trials: How often all is trained.
        ways: Of how many of ``WAYS``, from the first.
    """

    epochs: int
    train: int
    runs: int
    trials: int
    ways: int = len(WAYS)


def trials_in(folder: Path) -> tuple[Settings, list[int]]:
    """Settings of a training, and those of its trials that have models of D."""
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    return settings, [t for t in range(settings.trials) if kept_at(folder, t).exists()]


def kept_at(folder: Path, trial: int, number: int = len(WAYS)) -> Path:
    """The file of a set in a trial; of D, if none is named."""
    return folder / f"{trial}-{number}.npz"


def train(
    out: Path,
    settings: Settings,
    *,
    data: Path,
    device: str,
    shadows: int = 10,
    stop_after: float = float("inf"),
) -> None:
    """Trains what is missing in ``out`` on CIFAR-10; begins no model after so many seconds."""
    parts = [images(data / f"cifar10_train{part}.npz") for part in (1, 2)]
    x, y = (np.concatenate(side)[: settings.train] for side in zip(*parts, strict=True))
    test_x, test_y = images(data / "cifar10_test.npz")
    half = len(test_x) // 2

    def training(records: int, runs: int) -> EnsembleDPSGD:
        return EnsembleDPSGD(
            dropout_cnn(),
            cross_entropy,
            runs=runs,
            sampler=Poisson(rate=min(1.0, BATCH / records)),
            noise_multiplier=SIGMA,
            learning_rate=RATE,
            batch_size=BATCH,
            epochs=settings.epochs,
            device=device,
        )

    path = out / "records.npz"
    if not path.exists():
        rng = np.random.default_rng(2021)
        models = training(half, shadows).train(test_x[:half], test_y[:half], rng=rng)
        losses = models.losses(x, y, loss=cross_entropy).mean(0)
        left_out = [int(rng.integers(len(x))), int(losses.argmax())]
        four = _four_records((x, y), left_out, [models.models.model(run) for run in range(shadows)])
        np.savez_compressed(
            path,
            features=np.stack([each.features for each in four]),
            labels=[each.label for each in four],
            left_out=left_out,
            loss=losses[left_out],
        )
    with np.load(path) as known:
        records = [
            Record(features=features, label=int(label))
            for features, label in zip(known["features"], known["labels"], strict=True)
        ]
        kept = np.setdiff1d(np.arange(len(x)), known["left_out"])
    (out / "settings.json").write_text(json.dumps(asdict(settings)))
    _train_sets(
        out,
        (x[kept], y[kept]),
        records,
        (test_x[half:][:1000], test_y[half:][:1000]),
        ways=settings.ways,
        trials=settings.trials,
        training=lambda records: training(records, settings.runs),
        stop_after=stop_after,
    )


def train_stand_ins(
    out: Path, *, runs: int, trials: int, epochs: int, device: str, ways: int = len(WAYS)
) -> None:
    """As ``train``, of 298 digits and a small network with dropout."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    digits, labels = load_digits(return_X_y=True)
    digits = digits.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    x, y, rest, other = digits[:300], labels[:300], digits[300:600], labels[300:600]

    def training(models: int) -> EnsembleDPSGD:
        return EnsembleDPSGD(
            dropout_cnn(1, 8, 8, dropout=0.2, filters=4, kernel=3, padding=1, hidden=16),
            cross_entropy,
            runs=models,
            sampler=Poisson(rate=0.1),
            noise_multiplier=SIGMA,
            learning_rate=0.3,
            batch_size=30,
            epochs=epochs,
            device=device,
        )

    rng = np.random.default_rng(2021)
    shadows = training(5).train(rest, other, rng=rng)
    hardest = int(shadows.losses(x, y, loss=cross_entropy).mean(0).argmax())
    drawn = int(rng.choice(np.setdiff1d(np.arange(300), [hardest])))
    records = _four_records((x, y), [drawn, hardest], [shadows.models.model(r) for r in range(5)])
    kept = np.setdiff1d(np.arange(300), [drawn, hardest])
    _train_sets(
        out,
        (x[kept], y[kept]),
        records,
        (rest, other),
        ways=ways,
        trials=trials,
        training=lambda _: training(runs),
    )


def _four_records(known: Images, left_out: list[int], shadows: list[Any]) -> list[Record]:
    """Two images, each as it is and moved against shadow models, which have none of them."""
    plain = [Record(features=known[0][at], label=int(known[1][at])) for at in left_out]
    return [each for record in plain for each in (record, adversarial(record, shadows))]


def _train_sets(
    out: Path,
    without: Images,
    records: list[Record],
    tried: Images,
    *,
    ways: int,
    trials: int,
    training: Callable[[int], EnsembleDPSGD],
    stop_after: float = float("inf"),
) -> None:
    """Trains every set of every trial that is not there yet; ``training`` is of so many images.

    What models say of images to try is kept of the first models of D.
    """
    started = time.monotonic()
    for trial in range(trials):
        for number in (*range(ways), len(WAYS)):
            path = kept_at(out, trial, number)
            if path.exists() or time.monotonic() - started > stop_after:
                continue
            begun = time.monotonic()
            added = records[number : number + 1]
            x = np.concatenate([*(record.features[None] for record in added), without[0]])
            y = np.concatenate([[record.label for record in added], without[1]]).astype(np.int64)
            first = trial == 0 and not added
            arrays = _answers(
                training(len(x)),
                (x, y),
                added or records,
                tried if first else None,
                np.random.default_rng([trial, number]),
            )
            partly = path.with_suffix(".tmp.npz")
            np.savez_compressed(partly, **arrays)
            partly.rename(path)
            print(path.name, f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _answers(
    training: EnsembleDPSGD,
    known: Images,
    records: list[Record],
    tried: Images | None,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Of every record the probability of its class: without dropout, and in each sample.

    With images to try, also what some models say of them. The models themselves are let go.
    """
    trained = training.train(*known, rng=rng)
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
