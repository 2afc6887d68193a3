"""Load federated tasks that ship with the project: a model, and data split among people."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.readers import open_columns, wrap_decoder_errors
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import lenet5, mlp
from epsilometer.types import FloatArray, IntArray

Client = tuple[NDArray[Any], NDArray[Any]]
_LENGTH = 40  # characters of a window
_MOST = 64  # windows per role, so that the largest role does not dominate a round's time
_TESTED = 2000  # records the final model is tested on
_LARGEST = 256 << 20  # bytes of all roles' lines
_FEWER = "Give fewer of them."


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedTask:
    """Hold a model, its clients' records, and suitable settings.

    Attributes:
        name: Name of the task.
        module: The model, with its initial weights.
        loss: Loss of outputs and labels.
        clients: (features, labels) of each.
        test: Records that belong to no client.
        cohort: Suitable number of clients per round.
        learning_rate: Learning rate of clients.
        batch_size: Batch size of the clients.
        clip: Norm to which updates are clipped.
        server_rate: Learning rate of the server.
        momentum: Momentum of the server.
    """

    name: str
    module: nn.Module
    loss: Any
    clients: list[Client] = field(repr=False)
    test: Client = field(repr=False)
    cohort: int
    learning_rate: float
    batch_size: int
    clip: float
    server_rate: float = 1.0
    momentum: float = 0.0


def digits_by_chance(
    features: FloatArray, labels: IntArray, *, clients: int = 100, rng: np.random.Generator
) -> FederatedTask:
    """Return handwritten digits, split at random among clients of unequal size.

    Args:
        features: Pixels from 0 to 16, ``(n, 64)``.
        labels: Their classes.
        clients: Number of clients, who share nine tenths of the images; the rest is for testing.
        rng: Source of the split and of the model's initial weights.
    """
    order = rng.permutation(len(labels))
    _validate.whole(1, clients=clients)
    kept = len(labels) * 9 // 10
    if clients > kept:
        raise InvalidArgument(f"Expected at most {kept} clients, one per record, got {clients}.")
    pixels = (np.asarray(features, np.float32) / 16.0)[order]
    known = np.asarray(labels, np.int64)[order]
    cuts = np.sort(rng.choice(np.arange(1, kept), clients - 1, replace=False))
    return FederatedTask(
        name="digits",
        module=_build_seeded(lambda: mlp(pixels.shape[1], 10, 256), rng),
        loss=cross_entropy,
        clients=list(zip(np.split(pixels[:kept], cuts), np.split(known[:kept], cuts), strict=True)),
        test=(pixels[kept:], known[kept:]),
        cohort=min(20, clients),
        learning_rate=0.3,
        batch_size=10,
        clip=1.0,
    )


def digits_by_writer(file: Path | str, *, rng: np.random.Generator) -> FederatedTask:
    """Return MNIST with one client per writer, and LeNet-5.

    Args:
        file: ``mnist.npz`` with ``x_train``, ``y_train``, ``writer_train``, ``x_test``, ``y_test``;
            or a part of it with ``x``, ``y`` and ``writer``; a tenth of that is for testing.
        rng: The model's first weights.
    """
    images, labels, writers, test = _read_writers(Path(file))
    clients = [(images[writers == one], labels[writers == one]) for one in np.unique(writers)]
    return FederatedTask(
        name="mnist-writers",
        module=_build_seeded(lambda: lenet5(1, 28, 28, 10), rng),
        loss=cross_entropy,
        clients=clients,
        test=test,
        cohort=min(34, len(clients)),
        learning_rate=0.1,
        batch_size=16,
        clip=1.0,
        server_rate=1.0,
        momentum=0.9,
    )


class NextCharacter(nn.Module):
    """Predict every character of a text from those before it, with a small LSTM."""

    def __init__(self, characters: int, hidden: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 8)
        self.lstm = nn.LSTM(8, hidden, batch_first=True)
        self.out = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs for every place, ``(n, length, characters)``."""
        out: Tensor = self.out(self.lstm(self.embed(x))[0])
        return out


def at_every_place(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return cross-entropy of sequences, one number per example: the mean over its places."""
    each = nn.functional.cross_entropy(outputs.transpose(1, 2), labels, reduction="none")
    return each.mean(1)


def shakespeare_by_role(file: Path | str, *, rng: np.random.Generator) -> FederatedTask:
    """Return Shakespeare's roles as clients, with an LSTM for the next character.

    A role's lines are cut into windows of 40 characters; the last overlaps the one before it, so
    that nothing is lost. A role has at most 64 windows, and every tenth is for testing. Roles with
    less text than one window are left out.

    Args:
        file: JSON, role to list of lines; gzipped.
        rng: The model's first weights.
    """
    spoken = _read_roles(Path(file))
    known = sorted(set("".join(spoken)))
    number = {character: place for place, character in enumerate(known)}
    clients, tests = [], []
    for text in spoken:
        windows = _cut_windows(np.array([number[character] for character in text], np.int64))[
            :_MOST
        ]
        tested = np.arange(len(windows)) % 10 == 9
        clients.append((windows[~tested, :-1], windows[~tested, 1:]))
        tests.append(windows[tested])
    test = np.concatenate(tests)[:_TESTED]
    return FederatedTask(
        name="shakespeare",
        module=_build_seeded(lambda: NextCharacter(len(known)), rng),
        loss=at_every_place,
        clients=clients,
        test=(test[:, :-1], test[:, 1:]),
        cohort=min(20, len(clients)),
        learning_rate=1.0,
        batch_size=8,
        clip=1.0,
        momentum=0.9,
    )


def _build_seeded(build: Any, rng: np.random.Generator) -> nn.Module:
    """Build a module with initial weights drawn from ``rng``; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        module: nn.Module = build()
    return module


def _read_writers(file: Path) -> tuple[FloatArray, IntArray, IntArray, Client]:
    with open_columns(file, advice=_FEWER) as content:
        held = {column.name: column.values for column in content.read()}
    if {"x_train", "y_train", "writer_train", "x_test", "y_test"} <= set(held):
        images, labels, writers = (held[f"{part}_train"] for part in ("x", "y", "writer"))
        test_images, test_labels = held["x_test"], held["y_test"]
        _check_arrays(file, images, labels, writers)
        _check_arrays(file, test_images, test_labels, test_labels)
    elif {"x", "y", "writer"} <= set(held):
        images, labels, writers = held["x"], held["y"], held["writer"]
        _check_arrays(file, images, labels, writers)
        tested = np.arange(len(labels)) % 10 == 9
        test_images, test_labels = images[tested], labels[tested]
        images, labels, writers = images[~tested], labels[~tested], writers[~tested]
    else:
        raise UnreadableFile(
            f"Expected images, labels and writers (x_train, y_train, writer_train, x_test, y_test) "
            f"in {str(file)!r}, found {_validate.listed(sorted(held))}."
        )
    test = _scale_pixels(test_images[:_TESTED]), test_labels[:_TESTED].astype(np.int64)
    return _scale_pixels(images), labels.astype(np.int64), writers, test


def _check_arrays(file: Path, images: Any, labels: Any, writers: Any) -> None:
    """Refuse images of another size, labels that are not digits, and arrays of unequal length."""
    whole = labels.ndim == 1 and labels.size and images.shape == (labels.size, 28, 28)
    numbers = images.dtype.kind in "biuf" and labels.dtype.kind in "biu"
    if not whole or not numbers or writers.shape != labels.shape:
        raise UnreadableFile(
            f"Expected images (n, 28, 28), labels (n,) and writers (n,) as numbers in "
            f"{str(file)!r}, got {images.dtype} {images.shape}, {labels.dtype} {labels.shape} and "
            f"{writers.dtype} {writers.shape}."
        )
    if labels.min() < 0 or labels.max() > 9 or not np.isfinite(images).all():
        raise UnreadableFile(
            f"Expected labels from 0 to 9 and finite pixels in {str(file)!r}, got labels from "
            f"{labels.min()} to {labels.max()}."
        )


def _scale_pixels(images: NDArray[Any]) -> NDArray[np.float32]:
    return (images.astype(np.float32) / np.float32(255))[:, np.newaxis]


def _read_roles(file: Path) -> list[str]:
    """Return the text of each role that fills at least one window."""
    with wrap_decoder_errors(file, _FEWER):
        check_plain(file)
        with gzip.open(file, "rb") as opened:
            text = opened.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise UnreadableFile(
                f"Expected at most {_LARGEST >> 20} MiB of text in {str(file)!r}, got more. "
                f"{_FEWER}"
            )
        roles = json.loads(text)
        if not isinstance(roles, dict) or not all(_is_lines(said) for said in roles.values()):
            raise UnreadableFile(
                f"Expected roles and their lines as JSON, gzipped, in {str(file)!r}, got others."
            )
        every = ["\n".join(lines) for lines in roles.values()]
    enough = [text for text in every if len(text) > _LENGTH]
    if not enough:
        raise UnreadableFile(
            f"Expected a role with {_LENGTH} characters in {str(file)!r}, found none."
        )
    return enough


def _is_lines(said: Any) -> bool:
    return isinstance(said, list) and all(isinstance(line, str) for line in said)


def _cut_windows(text: IntArray) -> IntArray:
    """Return windows of a text with the character after each, ``(n, length + 1)``."""
    last = text.size - _LENGTH - 1
    starts = np.unique(np.append(np.arange(0, last, _LENGTH), last))
    return text[starts[:, None] + np.arange(_LENGTH + 1)]
