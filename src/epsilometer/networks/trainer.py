"""Define what an audit requires of a backend that trains many private models at once.

:class:`Trainer` is the interface between audits of DP-SGD and a framework. There are two backends:
PyTorch (:class:`~epsilometer.networks.ensemble.EnsembleDPSGD`) and JAX
(:class:`~epsilometer.networks.jax_trainer.JaxDPSGD`). Each must pass
``tests/networks/test_trainer_contract.py``. Batches, canaries and results are exchanged as NumPy
arrays.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer._extras import needs
from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import is_module
from epsilometer.sampling.samplers import Sampler
from epsilometer.types import BoolArray, FloatArray

Batches: TypeAlias = NDArray[np.signedinteger[Any]]  # numbers of records; −1 is not a record
Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]  # of what products multiply


class Inserted(NamedTuple):
    """Hold the effect of canaries on batches.

    Attributes:
        keep: Which of the records keep their own gradients, ``(…, batch)``; None if none does.
        amounts: Multiple of each canary that is added, ``(…, canaries)``, in clipping norms.
        drawn: Whether the batch has the canary's record, there or not, ``(…, canaries)``.
    """

    keep: BoolArray | None
    amounts: FloatArray
    drawn: BoolArray


class Canaries(Protocol):
    """Define gradients that are inserted into training.

    Must keep: ``directions`` are unit vectors, one per row, over the parameters of one model.
    """

    @property
    def directions(self) -> FloatArray:
        """Shape ``(canaries, size)``."""
        ...

    @property
    def records(self) -> int:
        """Number of records that they append to the training set."""
        ...

    def insert(self, batches: Batches) -> Inserted:
        """Say what happens in batches of record numbers, ``(runs, …, batch)``; −1 is no record."""
        ...


@dataclass(frozen=True)
class NoCanaries:
    """Insert nothing; optionally set the gradient of record 0 to 0.

    Attributes:
        zeroed: Whether the gradient of record 0 is set to 0: zero-out adjacency for a record with
            its own gradient.
    """

    zeroed: bool = False

    @property
    def directions(self) -> FloatArray:
        """None."""
        return np.zeros((0, 0))

    @property
    def records(self) -> int:
        """None."""
        return 0

    def insert(self, batches: Batches) -> Inserted:
        """Insert nothing; see :class:`Canaries`."""
        none = np.zeros((*batches.shape[:-1], 0))
        return Inserted(batches >= int(self.zeroed), none, none.astype(np.bool_))


class Outcome(Protocol):
    """Hold the outcome of many runs.

    Attributes:
        observations: Noisy sums along the canaries in clipping norms, not divided by the batch
            size, ``(runs, epochs, steps, canaries)``; nan from where a run diverged.
        others: Contribution of the records' own gradients to them, of the same shape. An adversary
            who knows the records and the batches subtracts it.
        moved: How far each run went along the canaries against its gradients, −⟨θ_T − θ_0, ĝ⟩,
            ``(runs, canaries)``.
        drawn: Whether the canaries' records were in the batches, of the shape of observations.
        diverged: Runs whose parameters are no longer finite, ``(runs,)``.
    """

    @property
    def observations(self) -> FloatArray:
        """Noisy sums along the canaries."""
        ...

    @property
    def others(self) -> FloatArray:
        """Contribution of the records' own gradients to the observations."""
        ...

    @property
    def moved(self) -> FloatArray:
        """How far each run went along the canaries."""
        ...

    @property
    def drawn(self) -> BoolArray:
        """Whether the canaries' records were in the batches."""
        ...

    @property
    def diverged(self) -> BoolArray:
        """Runs whose parameters are no longer finite."""
        ...

    def losses(self, features: ArrayLike, labels: ArrayLike, *, loss: Any) -> FloatArray:
        """Return the loss of every run's final model on the same records, ``(runs, records)``."""
        ...


class Trainer(Protocol):
    """Train independent runs of DP-SGD, each with its own initial weights, batches and noise.

    Must keep: every step of every run clips each example's gradient to the clipping norm, adds
    canaries, sums, adds Gaussian noise of ``noise_multiplier`` clipping norms to each coordinate,
    and divides by ``batch_size``.
    """

    @property
    def sampler(self) -> Sampler:
        """Sampler that draws batches."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """Noise over clipping norm."""
        ...

    @property
    def batch_size(self) -> int:
        """Number by which sums are divided."""
        ...

    @property
    def epochs(self) -> int:
        """Passes over the records."""
        ...

    @property
    def runs(self) -> int:
        """Runs that are trained at once."""
        ...

    @property
    def loss(self) -> Any:
        """One number per example."""
        ...

    @property
    def size(self) -> int:
        """Trainable parameters of one model."""
        ...

    def with_runs(self, runs: int) -> "Trainer":
        """Return the same training with another number of runs."""
        ...

    def count_at_once(self, features: ArrayLike, labels: ArrayLike) -> int:
        """Return how many runs to train at once: as many as fit and are quickest."""
        ...

    def check(self, features: ArrayLike, labels: ArrayLike) -> Any:
        """Refuse records or a model that :meth:`train` would refuse."""
        ...

    def train(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        rng: np.random.Generator,
        canaries: Canaries = ...,
        left_out: int = 0,
    ) -> Outcome:
        """Train all runs; same ``rng``, same result on the same device.

        Args:
            features: Records, ``(n, …)``.
            labels: Their classes 0, 1, … or values, ``(n, …)``.
            rng: Where all randomness comes from.
            canaries: Gradients that take part.
            left_out: Number of first records to leave out: 1 for training without record 0 under
                add/remove adjacency.
        """
        ...


class Backend(Protocol):
    """Define a framework that makes trainers of its own type of model."""

    def make_trainer(self, module: Any, loss: Any, **settings: Any) -> Trainer:
        """Return a trainer; ``loss=None`` is cross-entropy, ``optimizer=None`` plain SGD."""
        ...

    def list_weights(self, module: Any) -> tuple[str, list[Any]]:
        """Return a text of the architecture and all weights, which identify a model."""
        ...

    def takes_whole_numbers(self, module: Any) -> bool:
        """Tell whether features are token ids, and not measurements."""
        ...


# By the name of the package that has to be installed, which is also the name of the extra.
BACKENDS: Registry[Backend] = Registry(
    "backends",
    {
        "torch": "epsilometer.networks.ensemble:TORCH",
        "jax": "epsilometer.networks.jax_trainer:JAX",
    },
)


def name_backend(module: Any) -> str:
    """Return the name of the backend that trains a model.

    A model names it in its attribute ``backend``; modules of PyTorch have none.
    """
    name = "torch" if is_module(module) else getattr(module, "backend", "")
    if name not in BACKENDS:
        raise InvalidArgument(
            f"Expected module to be a torch.nn.Module or a JaxModel, got {type(module).__name__}."
        )
    return str(name)


def find_backend(module: Any) -> Backend:
    """Return the backend that trains a model, or raise an error that names the missing extra."""
    name = name_backend(module)
    with needs(name, extra=name):
        return BACKENDS[name]
