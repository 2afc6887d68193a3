"""Train a model by clients on their own records."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.devices import as_numbers, as_tensor, use_precision
from epsilometer.networks.ensemble import check_labels, check_loss
from epsilometer.networks.many import Loss, ManyModels, per_example
from epsilometer.networks.optimizers import Optimizer
from epsilometer.sampling.samplers import Shuffle
from epsilometer.types import IntArray

Batches = list[IntArray]  # of one client: numbers of records, one array per step
_TRIED = 2  # records on which training together is compared with the module itself


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """Hold the records of some clients, one after the other.

    Attributes:
        x: Features, ``(n, …)``.
        y: Labels, ``(n, …)``.
        sizes: Number of records of each client.
    """

    x: Tensor
    y: Tensor
    sizes: IntArray

    @property
    def starts(self) -> IntArray:
        """Number of each client's first record."""
        return np.cumsum(self.sizes) - self.sizes


class Clients:
    """Hold all clients as given by the user; records are copied when a cohort is taken.

    Guarantees: apart from the user's data, only the records of one cohort are in memory.
    """

    def __init__(self, given: Sequence[tuple[ArrayLike, ArrayLike]], *, device: str) -> None:
        """Check all clients, and refuse records that cannot be trained on."""
        if len(given) == 0:
            raise InvalidArgument("Expected at least one client, got none.")
        self._given, self._device = given, device
        first = _view_client(given[0])
        least, most = [], []
        for number, client in enumerate(given):
            x, y = _view_client(client)
            _check_client(number, x, y, *first)
            least.append(y.min())
            most.append(y.max())
        self.label_range = float(min(least)), float(max(most))

    def take(self, cohort: Sequence[int] | IntArray) -> ClientRecords:
        """Return the records of some clients, in this order, where the model is."""
        chosen = [self._given[number] for number in cohort]
        features = [as_tensor(x, "cpu") for x, _ in chosen]
        labels = [as_tensor(y, "cpu") for _, y in chosen]
        sizes = np.array([len(x) for x in features], np.int64)
        # To a GPU all at once: to move them client by client would take longer than to train.
        x, y = torch.cat(features).to(self._device), torch.cat(labels).to(self._device)
        return ClientRecords(x, y, sizes)

    def take_first(self, count: int) -> ClientRecords:
        """Return at most this many records of the first clients."""
        return self.take(range(min(count, len(self._given))))  # each has one at least


def _view_client(client: tuple[ArrayLike, ArrayLike]) -> tuple[Any, Any]:
    x, y = (part if isinstance(part, Tensor) else as_numbers(part) for part in client)
    return x, y


def local_batches(
    examples: int, batch_size: int, *, epochs: int, rng: np.random.Generator
) -> Batches:
    """Return the batches of one client: a fresh order every epoch; the last may be shorter.

    Example:
        >>> [part.size for part in local_batches(5, 2, epochs=2, rng=np.random.default_rng(0))]
        [2, 2, 1, 2, 2, 1]
    """
    size = min(batch_size, examples)
    every = (Shuffle().batches(examples, size, rng=rng) for _ in range(epochs))
    return [batch for epoch in every for batch in epoch]


class ClientTrainer(Protocol):
    """Train clients from the same weights."""

    @property
    def start(self) -> Tensor:
        """The module's own trainable parameters, ``(size,)``, in its order."""
        ...

    def updates(
        self, weights: Tensor, batches: Sequence[Batches], records: ClientRecords
    ) -> Iterator[Tensor]:
        """Return the updates of clients from ``weights``, some at a time: ``(clients, size)``.

        Args:
            weights: Where all begin, ``(size,)``.
            batches: The steps of every client.
            records: The records that ``batches`` index.
        """
        ...

    def module(self, weights: Tensor) -> nn.Module:
        """Return a module with these weights."""
        ...


def make_client_trainer(
    module: nn.Module,
    loss: Any,
    clients: Clients,
    *,
    optimizer: Optimizer,
    learning_rate: float,
    at_once: int,
    device: str,
) -> ClientTrainer:
    """Return a trainer of clients together if that is correct; else one after the other."""
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"Expected a torch.nn.Module, got {type(module).__name__}.")
    plain = OneByOne(module, loss, optimizer, learning_rate, device=device)
    records = clients.take_first(_TRIED)
    tried = records.x[:_TRIED]
    outputs = plain.outputs(tried)
    if not records.y.is_floating_point():
        check_labels(outputs, *map(int, clients.label_range))
    check_loss(loss, outputs, records.y[:_TRIED])
    mixes = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    if mixes:  # mixing a client's own records is harmless: the update is clipped as a whole
        return plain
    few = ManyModels(module, 2, device=device)
    same_order = torch.equal(few.parameters[0, few.used], plain.start)
    if few.general or not same_order or not few.agree(tried) or not few.one_by_one(tried):
        return plain
    return Together(module, loss, optimizer, learning_rate, at_once=at_once, device=device)


class Together:
    """Train clients in one batch dimension, ``at_once`` at a time.

    Guarantees: every client makes its own steps on its own batches and no more, whatever the others
        have: rows are sorted by how many steps they make, and those that are done rest.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Any,
        optimizer: Optimizer,
        learning_rate: float,
        *,
        at_once: int,
        device: str,
    ) -> None:
        self._models = ManyModels(module, at_once, device=device)
        self._loss: Loss = per_example(loss)
        self._optimizer, self._rate = optimizer, learning_rate
        used = self._models.used  # all of them, but for layers that are padded
        self._columns: Tensor | slice = slice(None) if bool(used.all()) else used
        self._start = self._models.parameters[0, self._columns].clone()

    @property
    def start(self) -> Tensor:
        """As of :class:`ClientTrainer`."""
        return self._start

    def updates(
        self, weights: Tensor, batches: Sequence[Batches], records: ClientRecords
    ) -> Iterator[Tensor]:
        """Train as :class:`ClientTrainer`; clients with equally many steps are trained together."""
        longest = sorted(batches, key=len, reverse=True)
        for start in range(0, len(longest), self._models.runs):
            yield self._group(weights, longest[start : start + self._models.runs], records)

    def module(self, weights: Tensor) -> nn.Module:
        """Do as of :class:`ClientTrainer`."""
        self._models.parameters[:, self._columns] = weights
        return self._models.model(0)

    def _group(self, weights: Tensor, batches: list[Batches], records: ClientRecords) -> Tensor:
        models = self._models
        models.parameters[:, self._columns] = weights
        state = self._optimizer.start(models.parameters)
        for step in range(len(batches[0])):
            wanted = [own[step] for own in batches if len(own) > step]
            rows, keep = _stack_batches(wanted, models.runs)
            picked = torch.from_numpy(rows).to(models.device)
            gradients = models.mean_gradients(
                records.x[picked],
                records.y[picked],
                loss=self._loss,
                keep=torch.from_numpy(keep).to(models.device),
            )
            busy = slice(len(wanted))
            self._optimizer.step(
                models.parameters[busy],
                gradients[busy],
                [part[busy] if part.ndim else part for part in state],
                rate=self._rate,
            )
        return models.parameters[: len(batches), self._columns] - weights


class OneByOne:
    """Train one client after the other, by the module's own forward pass and autograd.

    Buffers of a module, such as running means, are the same for every client at the start, and are
    not sent back.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Any,
        optimizer: Optimizer,
        learning_rate: float,
        *,
        device: str,
    ) -> None:
        self._module = copy.deepcopy(module).to(device).train()
        self._own = [part for part in self._module.parameters() if part.requires_grad]
        if not self._own:
            raise InvalidArgument("Expected a module with trainable parameters, got none.")
        self._loss: Loss = per_example(loss)
        self._optimizer, self._rate = optimizer, learning_rate
        self._kept = [part.clone() for part in self._module.buffers()]
        self._start = torch.cat([part.detach().flatten() for part in self._own]).float()

    @property
    def start(self) -> Tensor:
        """As of :class:`ClientTrainer`."""
        return self._start

    def outputs(self, x: Tensor) -> Tensor:
        """Return the module's outputs in evaluation mode."""
        self._module.eval()
        try:
            with torch.no_grad():
                out: Tensor = self._module(x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InvalidArgument(
                f"Expected a module that takes the clients' records, of shape "
                f"{tuple(x.shape[1:])}, it raises: {error}"
            ) from error
        finally:
            self._module.train()
        return out

    def updates(
        self, weights: Tensor, batches: Sequence[Batches], records: ClientRecords
    ) -> Iterator[Tensor]:
        """Do as of :class:`ClientTrainer`, one client at a time."""
        for own in batches:
            yield self._one(weights, own, records)[None] - weights

    def module(self, weights: Tensor) -> nn.Module:
        """Do as of :class:`ClientTrainer`."""
        self._load(weights)
        return copy.deepcopy(self._module)

    def _one(self, weights: Tensor, batches: Batches, records: ClientRecords) -> Tensor:
        flat = weights.clone()[None]
        state = self._optimizer.start(flat)
        with torch.no_grad():
            for buffer, kept in zip(self._module.buffers(), self._kept, strict=True):
                buffer.copy_(kept)
        for batch in batches:
            self._load(flat[0])
            picked = torch.from_numpy(batch).to(flat.device)
            with torch.enable_grad(), use_precision("float32"):
                out = self._module(records.x[picked])
                loss = self._loss(out, records.y[picked]).mean()
                found = torch.autograd.grad(loss, self._own, allow_unused=True)
            gradient = [
                torch.zeros_like(part) if got is None else got
                for part, got in zip(self._own, found, strict=True)
            ]
            whole = torch.cat([part.flatten() for part in gradient])[None]
            self._optimizer.step(flat, whole, state, rate=self._rate)
        return flat[0]

    def _load(self, weights: Tensor) -> None:
        start = 0
        with torch.no_grad():
            for part in self._own:
                part.copy_(weights[start : start + part.numel()].view_as(part))
                start += part.numel()


def _stack_batches(batches: list[IntArray], rows: int) -> tuple[IntArray, np.ndarray[Any, Any]]:
    """Return batches as rows of one width, and which places count.

    The others are filled with a record of the same batch, so that no other record is
    differentiated; rows without a batch have the first record of all, and are not used.
    """
    width = max(batch.size for batch in batches)
    places = np.zeros((rows, width), np.int64)
    keep = np.zeros((rows, width), np.bool_)
    for row, batch in enumerate(batches):
        places[row] = batch[0]
        places[row, : batch.size] = batch
        keep[row, : batch.size] = True
    return places, keep


def _check_client(number: int, x: Any, y: Any, first_x: Any, first_y: Any) -> None:
    if x.ndim < 1 or len(x) == 0:
        raise InvalidArgument(
            f"Expected at least one record of every client, got none of client {number}. "
            "Leave it out: it has nothing to send."
        )
    if y.shape[:1] != x.shape[:1]:
        raise InvalidArgument(
            f"Expected as many labels as records of client {number}, got {tuple(y.shape)} and "
            f"{tuple(x.shape)}."
        )
    if x.shape[1:] != first_x.shape[1:] or y.shape[1:] != first_y.shape[1:]:
        raise InvalidArgument(
            f"Expected records of shape {tuple(first_x.shape[1:])} with labels of shape "
            f"{tuple(first_y.shape[1:])}, as client 0 has, got {tuple(x.shape[1:])} and "
            f"{tuple(y.shape[1:])} of client {number}."
        )
