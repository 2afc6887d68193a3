"""Name data and models by reference: files of records and tables, and tasks that ship with us.

A result names a reference in place of the data themselves. ``load()`` returns the data fields of a
subject, so that ``epsilometer audit audit.json`` can do it again; ``fingerprints()`` says which
files were read.
"""

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.training.canaries import Way, differing_record
from epsilometer.core.record import Record, mislabel
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import hash_file
from epsilometer.files.records import read_records
from epsilometer.files.tables import Column, Table, at_quantiles, read_table
from epsilometer.integrations.sklearn import Prepared, digits, prepared, with_preprocessing
from epsilometer.sampling.samplers import Poisson
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import nn

    from epsilometer.audits.federated.tasks import FederatedTask as Task
    from epsilometer.networks.ensemble import EnsembleDPSGD

DIGITS = "digits"
DATA_FOLDER = "EPSILOMETER_DATA"  # variable of the environment: the folder of datasets
TASK_FILES = {"mnist-writers": "mnist.npz", "shakespeare": "shakespeare_roles.json.gz"}
_NEVER = 1e6  # a clipping norm that no gradient reaches: plain SGD
_QUARTILES = 4
_FEW = 10  # different numbers of a column that are groups as they are
Fingerprints = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ModelOnRecords:
    """A model of this package, and the records of a file that it is trained on.

    Attributes:
        file: ``.csv``, ``.parquet`` or ``.npz``; or "digits", which ship with scikit-learn.
        label: The column or array of labels, where it has no usual name.
        records: How many are taken, the first; all by default.
        divide_by: Every feature is divided by this: 255 brings bytes of images into [0, 1].
        model: Which model.
        hidden: Neurons of the hidden layer of an MLP; 32 by default.

    Example:
        >>> from epsilometer.cli.sources import ModelOnRecords
        >>> loaded = ModelOnRecords("digits", records=40).load()
        >>> loaded["title"], loaded["data"][0].shape
        ('DP-SGD of mlp on digits', (40, 8, 8))
    """

    file: Path
    label: str | None = None
    records: int | None = None
    divide_by: float | None = None
    model: Literal["mlp", "lenet5", "cnn"] = "mlp"
    hidden: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", Path(self.file))
        if self.hidden is not None and self.model != "mlp":
            raise InvalidArgument(
                f"Expected no hidden with model={self.model!r}, got {self.hidden!r}: only mlp has "
                "it."
            )

    def load(self) -> dict[str, Any]:
        """Read the records and build the model: ``module``, ``data`` and ``title``."""
        with needs("torch", extra="torch"):
            import torch

            from epsilometer.networks.models import as_input, build

        features, labels = _read_records(self.file, self.label, self.divide_by)
        wanted = len(labels) if self.records is None else self.records
        if not 1 <= wanted <= len(labels):
            raise InvalidArgument(
                f"Expected records from 1 to {len(labels)}, as many as there are in "
                f"{self.file.name!r}, got {wanted}."
            )
        features, labels = as_input(self.model, features[:wanted]), labels[:wanted]
        hidden = 32 if self.hidden is None else self.hidden
        with torch.random.fork_rng(devices=[]):  # runs draw their own; the plan names these weights
            torch.manual_seed(0)
            module = build(self.model, features.shape[1:], int(labels.max()) + 1, hidden=hidden)
        return {
            "module": module,
            "data": (features, labels),
            "title": f"DP-SGD of {self.model} on {self.file.name}",
        }

    def fingerprints(self) -> Fingerprints:
        """Return the name of the file and the SHA-256 of its contents."""
        return _hash_records(self.file)


@dataclass(frozen=True)
class DropoutOnRecords:
    """A network with dropout, how it is trained, and the record that is there or not.

    Attributes:
        file: ``.csv``, ``.parquet`` or ``.npz``; or "digits", which ship with scikit-learn.
        label: The column or array of labels, where it has no usual name.
        records: How many are trained on, the first; all that are not for ``test`` or ``shadow``
            by default.
        divide_by: Every feature is divided by this.
        test: Records after those, on which utility is measured.
        shadow: Records after these, on which shadow models are trained.
        model: Which network.
        dropout: Fraction of neurons that is dropped.
        hidden: Neurons of the dense layer; 512, of an MLP 64.
        filters: Of both convolutions.
        kernel: Side of their patches.
        padding: Around images.
        batch_size: Records per batch; the expected number where it varies.
        learning_rate: Of the mean gradient.
        epochs: Passes over the records.
        momentum: Of SGD.
        noise_multiplier: Noise over clipping norm; 0 for plain SGD.
        clip_norm: 1 where there is noise, none where there is not.
        sampler: How batches are drawn; by Poisson sampling by default.
        device: "cpu" or "cuda".
        record: How the record is chosen; by shadow models, except for the random ones.
        shadows: How many shadow models.
        seed: Of that choice.

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
        features, labels = _read_records(self.file, self.label, self.divide_by)
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

    def fingerprints(self) -> Fingerprints:
        """Return the name of the file and the SHA-256 of its contents."""
        return _hash_records(self.file)

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
        """Return the record that is there or not, and which records are left beside it."""
        features, labels = every
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        way: Way = "random" if self.record == "mislabelled" else self.record
        models: list[Any] = []
        if way != "random":
            if len(shadow) < training.batch_size:
                raise InvalidArgument(
                    f"Expected shadow of a batch or more with record={way!r}, got {len(shadow)}: "
                    "shadow models are trained on records of their own."
                )
            many, own = replace(training, runs=self.shadows), rng.spawn(1)[0]
            shadows = many.train(features[shadow], labels[shadow], rng=own)
            models = [shadows.models.model(run) for run in range(self.shadows)]
        chosen = differing_record(features[train], labels[train], way, shadows=models, rng=rng)
        record = chosen.record
        if self.record == "mislabelled":
            record = mislabel(record, classes=int(labels.max()) + 1, rng=rng)
        return record, train[chosen.others]


@dataclass(frozen=True)
class TableModel:
    """A classifier, and the table of people that it is trained on.

    Attributes:
        file: ``.csv``, ``.csv.gz`` or ``.parquet``, with a line of names; cells may be empty.
        label: The column that is predicted.
        model: One of ``epsilometer.integrations.sklearn.MODELS``; or a function without arguments
            that returns an estimator.
        drop: Columns that are left out.
        group: Columns whose groups are compared.
        seed: Of models that are random.

    Example:
        >>> import tempfile, pathlib
        >>> from epsilometer.cli.sources import TableModel
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "people.csv"
        ...     _ = file.write_text("age,income\\n31,low\\n58,high\\n40,low\\n")
        ...     TableModel(file, "income").load()["title"]
        'naive-bayes on people.csv'
    """

    file: Path
    label: str
    model: str | Callable[[], Any] = "naive-bayes"
    drop: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", Path(self.file))
        _validate.whole(0, seed=self.seed)

    def load(self) -> dict[str, Any]:
        """Read the table: ``estimator``, ``X``, ``y``, and what their columns are."""
        table = read_table(self.file)
        y = _read_labels(table.column(self.label))
        ready = self._prepare(table.without(self.label, *self.drop))
        groups = {name: _find_groups(table.column(name)) for name in self.group}
        name = self.model if isinstance(self.model, str) else _name_function(self.model)
        return {
            "estimator": ready.estimator,
            "X": ready.X,
            "y": y,
            "groups": groups or None,
            "feature_names": ready.names,
            "categorical": ready.categorical,
            "caveats": ready.caveats,
            "title": f"{name} on {self.file.name}",
        }

    def fingerprints(self) -> Fingerprints:
        """Return the name of the file and the SHA-256 of its contents."""
        return (hash_file(self.file),)

    def _prepare(self, features: Table) -> Prepared:
        if isinstance(self.model, str):
            return prepared(self.model, features, seed=self.seed)
        try:
            made = self.model()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a model that can be called without arguments, got "
                f"{_name_function(self.model)}: {error}."
            ) from error
        return with_preprocessing(made, features)


@dataclass(frozen=True)
class FederatedTask:
    """A model, and the clients that train it together: a task that ships with the project.

    Attributes:
        task: Handwritten digits split at random, MNIST by writer, or Shakespeare by role.
        folder: Where the task's file lies; by default the folder that ``EPSILOMETER_DATA`` names.
            The digits need none.
        seed: Of the split, and of the first weights.

    Example:
        >>> from epsilometer.cli.sources import FederatedTask
        >>> loaded = FederatedTask("digits").load()
        >>> loaded["title"], len(loaded["clients"])
        ('DP-FedAvg on digits', 100)
    """

    task: Literal["digits", "mnist-writers", "shakespeare"] = "digits"
    folder: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(self.folder))
        if self.task != DIGITS and self.task not in TASK_FILES:
            raise InvalidArgument(
                f"Expected a task of {', '.join((DIGITS, *TASK_FILES))}, got {self.task!r}."
            )
        _validate.whole(0, seed=self.seed)

    def load(self) -> dict[str, Any]:
        """Read the task: ``module``, ``loss``, ``clients``, ``test``, and settings that suit it."""
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.clipping import FixedClip
            from epsilometer.networks.optimizers import SGD

        task = self._read()
        return {
            "module": task.module,
            "loss": task.loss,
            "clients": task.clients,
            "test": task.test,
            "cohort": task.cohort,
            "clip": FixedClip(task.clip),
            "learning_rate": task.learning_rate,
            "batch_size": task.batch_size,
            "server_rate": task.server_rate,
            "server_optimizer": SGD(momentum=task.momentum),
            "title": f"DP-FedAvg on {task.name}",
        }

    def fingerprints(self) -> Fingerprints:
        """Return the name of the task's file and the SHA-256 of its contents."""
        return () if self.task == DIGITS else (hash_file(self._find_file()),)

    def _read(self) -> "Task":
        from epsilometer.audits.federated import tasks

        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        if self.task == DIGITS:
            return tasks.digits_by_chance(*digits(), rng=rng)
        make = tasks.digits_by_writer if self.task == "mnist-writers" else tasks.shakespeare_by_role
        return make(self._find_file(), rng=rng)

    def _find_file(self) -> Path:
        """Return the task's file: in the folder, or else where the environment says."""
        name = TASK_FILES[self.task]
        known = os.environ.get(DATA_FOLDER)
        if self.folder is not None and ((self.folder / name).exists() or not known):
            return self.folder / name
        if not known:
            raise InvalidArgument(
                f"Expected --data, the folder of {name}, or {DATA_FOLDER} in the environment, got "
                "neither."
            )
        return Path(known) / name


def import_function(text: str) -> Callable[..., Any]:
    """Import a function that a user named as ``module:name``, also from the current folder."""
    module, _, name = text.partition(":")
    look_here()
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected module:factory that can be imported, got {text!r}: {error}."
        ) from error
    if not callable(found):
        raise InvalidArgument(f"Expected a function as module:factory, got {text!r}.")
    function: Callable[..., Any] = found
    return function


def look_here() -> None:
    """Let modules be imported from the current folder, as ``python -m`` does."""
    here = os.getcwd()
    if here not in sys.path:  # workers are told of it too
        sys.path.insert(0, here)


def _read_records(
    file: Path, label: str | None, divide_by: float | None
) -> tuple[FloatArray, IntArray]:
    """Return all records of a file, also those that are not trained on."""
    if divide_by is not None:
        _validate.positive(divide_by=divide_by)
    if file != Path(DIGITS):
        features, labels = read_records(file, label=label)
        if divide_by is not None:
            features = features / features.dtype.type(divide_by)
        return features, labels
    if label is not None or divide_by is not None:
        raise InvalidArgument(
            f"Expected no label and no divide_by with the digits, got {label!r} and "
            f"{divide_by!r}: they are known, and scaled to [0, 1]."
        )
    pixels, labels = digits()
    return pixels.reshape(-1, 8, 8) / 16.0, labels


def _hash_records(file: Path) -> Fingerprints:
    return () if file == Path(DIGITS) else (hash_file(file),)


def _read_labels(column: Column) -> NDArray[Any]:
    if column.words is not None:
        if "" in column.words:
            blanks = int(np.sum(column.values == column.words.index("")))
            raise InvalidArgument(
                f"Expected a label in every row, {blanks:,} have none in {column.name!r}. Leave "
                "those records out."
            )
        return _take_words(column)
    if np.isnan(column.values).any():
        raise InvalidArgument(
            f"Expected a label in every row, {int(np.isnan(column.values).sum()):,} have none in "
            f"{column.name!r}. Leave those records out."
        )
    return np.array([f"{value:g}" for value in column.values.tolist()])


def _find_groups(column: Column) -> NDArray[Any]:
    """Return the group of each record: its word, its number, or the quarter of its number."""
    if column.words is None and np.unique(column.values).size <= _FEW:
        return np.array([f"{value:g}" for value in column.values.tolist()])
    return _take_words(at_quantiles(column, _QUARTILES))


def _take_words(column: Column) -> NDArray[Any]:
    found: NDArray[Any] = np.array(column.words)[column.values]
    return found


def _name_function(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
