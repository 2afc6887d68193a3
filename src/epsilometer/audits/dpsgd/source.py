"""Name a model and the records that it is trained on: the source of a DP-SGD audit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.files.records import hash_records, read_named_records


@dataclass(frozen=True)
class ModelOnRecords:
    """Name a model of this package, and the file of records that it is trained on.

    Attributes:
        file: ``.csv``, ``.parquet`` or ``.npz``; or "digits", which come with the package.
        label: Name of the column or array of labels, if it is not a usual one.
        records: Use only this many of the first records; all by default.
        divide_by: Number that divides every feature: 255 scales bytes of images to [0, 1].
        model: Name of the model.
        hidden: Neurons of the hidden layer of an MLP; 32 by default.

    Example:
        >>> from epsilometer.audits.dpsgd.source import ModelOnRecords
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
                f"Expected no hidden with model={self.model!r}, got {self.hidden!r}."
            )

    def load(self) -> dict[str, Any]:
        """Read the records and build the model: ``module``, ``data`` and ``title``."""
        with needs("torch", extra="torch"):
            import torch

            from epsilometer.networks.models import as_input, build

        features, labels = read_named_records(self.file, label=self.label, divide_by=self.divide_by)
        wanted = len(labels) if self.records is None else self.records
        if not 1 <= wanted <= len(labels):
            raise InvalidArgument(
                f"Expected records from 1 to {len(labels)}, as many as there are in "
                f"{self.file.name!r}, got {wanted}."
            )
        features, labels = as_input(self.model, features[:wanted]), labels[:wanted]
        hidden = 32 if self.hidden is None else self.hidden
        with torch.random.fork_rng(devices=[]):  # runs draw their own; the plan stores these
            torch.manual_seed(0)
            module = build(self.model, features.shape[1:], int(labels.max()) + 1, hidden=hidden)
        return {
            "module": module,
            "data": (features, labels),
            "title": f"DP-SGD of {self.model} on {self.file.name}",
        }

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the file and the SHA-256 of its contents."""
        return hash_records(self.file)
