"""Name a network with dropout and its records: the source of a posterior audit.

It stands above the audits, because it chooses a record by the canaries of training audits.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.training.canaries import Way, differing_record
from epsilometer.core.record import Record, mislabel
from epsilometer.errors import InvalidArgument
from epsilometer.files.records import hash_records, read_named_records
from epsilometer.sampling.samplers import Poisson
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import nn

    from epsilometer.networks.ensemble import EnsembleDPSGD

_NEVER = 1e6  # a clipping norm that no gradient reaches: plain SGD


@dataclass(frozen=True)
class DropoutOnRecords:
    """A network with dropout, how it is trained, and the record that is there or not.

    Attributes:
        file: ``.csv``, ``.parquet`` or ``.npz``; or "digits", which come with the package.
        label: The column or array of labels, where it has no usual name.
        records: How many are trained on, the first; all that are not for ``test`` or ``shadow``
            by default.
        divide_by: Every feature is divided by this.
        test: Records after those, on which utility is measured.
        shadow: Records after these, on which shadow models are trained.
        model: Which network.
        dropout: Fraction of neurons that is dropped.
        hidden: Neurons of the dense layer; 512, of an MLP 64.
        filters: Filters of both convolutions.
        kernel: Side of their patches.
        padding: Around images.
        batch_size: Records per batch; the expected number where it varies.
        learning_rate: Learning rate for the mean gradient.
        epochs: Passes over the records.
        momentum: Momentum of SGD.
        noise_multiplier: Noise over clipping norm; 0 for plain SGD.
        clip_norm: 1 where there is noise, none where there is not.
        sampler: How batches are drawn; by Poisson sampling by default.
        device: "cpu" or "cuda".
        record: How the record is chosen; by shadow models, except for the random ones.
        shadows: How many shadow models.
        seed: Seed of that choice.

    Example:
        >>> from epsilometer.cli.sources import DropoutOnRecords
        >>> loaded = DropoutOnRecords("digits", records=40, model="dropout_mlp").load()
        >>> loaded["title"], loaded["data"][0].shape
        ('dropout_mlp on digits, random record', (39, 8, 8))
    """

    file: Path
    label: str | None = None
    records: int | None = None
    divide_by: float | None = None
    test: int = 0
    shadow: int = 0
    model: Literal["dropout_cnn", "dropout_mlp"] = "dropout_cnn"
    dropout: float = 0.5
    hidden: int | None = None
    filters: int = 64
    kernel: int = 5
    padding: int = 0
    batch_size: int = 32
    learning_rate: float = 0.1
    epochs: int = 1
    momentum: float = 0.0
    noise_multiplier: float = 0.0
    clip_norm: float | None = None
    sampler: Any = None
    device: str = "cpu"
    record: Literal[
        "random", "random + adversarial", "high loss", "high loss + adversarial", "mislabelled"
    ] = "random"
    shadows: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", Path(self.file))
        _validate.whole(0, test=self.test, shadow=self.shadow, seed=self.seed)
        _validate.whole(1, shadows=self.shadows)

    def load(self) -> dict[str, Any]:
        """Read, and choose the record: ``factory``, ``data``, ``record``, ``test``, ``title``."""
        features, labels = read_named_records(self.file, label=self.label, divide_by=self.divide_by)
        if self.model == "dropout_cnn" and features.ndim == 3:
            features = features[:, None]
        features = features.astype(np.float32)
        train, test, shadow = self._split(len(labels))
        training = self._make_training(features.shape[1:], int(labels.max()) + 1)
        record, others = self._choose_record(training, (features, labels), train, shadow)
        return {
            "factory": training,
            "data": (features[others], labels[others]),
            "record": record,
            "test": (features[test], labels[test]) if len(test) else None,
            "title": f"{self.model} on {self.file.name}, {self.record} record",
        }

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the file and the SHA-256 of its contents."""
        return hash_records(self.file)

    def _split(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return which records are trained on, tested on, and given to shadow models."""
        wanted = count - self.test - self.shadow if self.records is None else self.records
        if wanted < 2 or wanted + self.test + self.shadow > count:
            raise InvalidArgument(
                f"Expected records, test and shadow to fit into the {count} records of "
                f"{self.file.name!r}, got {wanted}, {self.test} and {self.shadow}."
            )
        first, second, third, *_ = np.split(
            np.arange(count), np.cumsum([wanted, self.test, self.shadow])
        )
        return first, second, third

    def _make_training(self, shape: tuple[int, ...], classes: int) -> "EnsembleDPSGD":
        with needs("torch", extra="torch"):
            import torch

            from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
            from epsilometer.networks.optimizers import SGD

        clip = self.clip_norm or (1.0 if self.noise_multiplier else _NEVER)
        with torch.random.fork_rng(devices=[]):  # runs draw their own; the plan names these weights
            torch.manual_seed(0)
            module = self._make_module(shape, classes)
        return EnsembleDPSGD(
            module,
            cross_entropy,
            runs=1,
            sampler=Poisson() if self.sampler is None else self.sampler,
            noise_multiplier=self.noise_multiplier,
            clip_norm=clip,
            learning_rate=self.learning_rate,
            optimizer=SGD(momentum=self.momentum),
            batch_size=self.batch_size,
            epochs=self.epochs,
            device=self.device,
        )

    def _make_module(self, shape: tuple[int, ...], classes: int) -> "nn.Sequential":
        from epsilometer.networks.models import dropout_cnn, dropout_mlp

        if self.model == "dropout_mlp":
            return dropout_mlp(math.prod(shape), classes, self.dropout, hidden=self.hidden or 64)
        if len(shape) != 3:
            raise InvalidArgument(
                f"Expected images (channels, height, width) for dropout_cnn, got records of shape "
                f"{shape}. Give images, or take dropout_mlp."
            )
        return dropout_cnn(
            *shape,
            classes,
            self.dropout,
            filters=self.filters,
            kernel=self.kernel,
            padding=self.padding,
            hidden=self.hidden or 512,
        )

    def _choose_record(
        self,
        training: "EnsembleDPSGD",
        every: tuple[FloatArray, IntArray],
        train: IntArray,
        shadow: IntArray,
    ) -> tuple[Record, IntArray]:
        """Return the record that is there or not, and which records are left."""
        features, labels = every
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        way: Way = "random" if self.record == "mislabelled" else self.record
        models: list[Any] = []
        if way != "random":
            if len(shadow) < training.batch_size:
                raise InvalidArgument(
                    f"Expected shadow of a batch or more with record={way!r}, got {len(shadow)}: "
                    "shadow models are trained on separate records."
                )
            many, own = replace(training, runs=self.shadows), rng.spawn(1)[0]
            shadows = many.train(features[shadow], labels[shadow], rng=own)
            models = [shadows.models.model(run) for run in range(self.shadows)]
        chosen = differing_record(features[train], labels[train], way, shadows=models, rng=rng)
        record = chosen.record
        if self.record == "mislabelled":
            record = mislabel(record, classes=int(labels.max()) + 1, rng=rng)
        return record, train[chosen.others]
