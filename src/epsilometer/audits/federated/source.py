"""Name a federated task that ships with the project: the source of a federated audit."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.core.settings import parse_choice
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import hash_file

if TYPE_CHECKING:
    from epsilometer.audits.federated import tasks

_DIGITS = "digits"
_FOLDER = "EPSILOMETER_DATA"  # environment variable: the folder of datasets
_FILES = {"mnist-writers": "mnist.npz", "shakespeare": "shakespeare_roles.json.gz"}


@dataclass(frozen=True)
class FederatedTask:
    """Name a task that ships with the project: a model, and the clients that train it.

    Attributes:
        task: Handwritten digits split at random, MNIST by writer, or Shakespeare by role.
        folder: Folder of the task's file; by default that in ``EPSILOMETER_DATA``. The digits need
            none.
        seed: Seed of the split, and of the initial weights.

    Example:
        >>> from epsilometer.audits.federated.source import FederatedTask
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
        if self.task != _DIGITS and self.task not in _FILES:
            raise InvalidArgument(
                f"Expected a task of {', '.join((_DIGITS, *_FILES))}, got {self.task!r}."
            )
        _validate.whole(0, seed=self.seed)

    def load(self) -> dict[str, Any]:
        """Read the task: ``module``, ``loss``, ``clients``, ``test``, and suitable settings."""
        from epsilometer.audits.federated.rounds import FixedClip
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

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the task's file and the SHA-256 of its contents."""
        return () if self.task == _DIGITS else (hash_file(self._find_file()),)

    def _read(self) -> "tasks.FederatedTask":
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated import tasks

        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        if self.task == _DIGITS:
            return tasks.digits_by_chance(*parse_choice(_DIGITS).load().values(), rng=rng)
        make = tasks.digits_by_writer if self.task == "mnist-writers" else tasks.shakespeare_by_role
        return make(self._find_file(), rng=rng)

    def _find_file(self) -> Path:
        """Return the task's file: in the folder, or in the one that the environment names."""
        name = _FILES[self.task]
        known = os.environ.get(_FOLDER)
        if self.folder is not None and ((self.folder / name).exists() or not known):
            return self.folder / name
        if not known:
            raise InvalidArgument(
                f"Expected --data, the folder of {name}, or the variable {_FOLDER}, got neither."
            )
        return Path(known) / name
