"""Train neural networks without one record each: all at once, on the same batches.

All models of a comparison start with the same weights and see the same records in the same order;
the removed record is simply missing from its batch. Another initialisation gives the null floor.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.refits import Fits
from epsilometer.audits.classifier.sklearn_models import check_choice, read_labels
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import nn

    from epsilometer.networks.optimizers import Optimizer

Start: TypeAlias = Literal["fresh", "given"]
_CACHED, _LEAST, _MOST = 20e6, 8, 128  # bytes of models that run fastest on a core, and how many
_ON_CARD, _MOST_ON_CARD = 4e9, 4096
_ASKED = 256  # queries per forward pass of all models


@dataclass(eq=False)
class NetworkClassifier:
    """A torch module as a classifier with scikit-learn's interface, trained by an ordinary loop.

    ``pdtp`` trains all its leave-one-out models at once.

    Guarantee: the same ``random_state`` gives the same model on the same device; the module itself
        is never trained. Batches are reshuffled in each epoch; the last may be smaller.
    Assumption: the module processes the records of a batch independently (no batch normalisation).
        It has one logit per class, in the order of sorted labels.

    Attributes:
        module: The architecture.
        epochs: Passes over the records.
        batch_size: Records per step.
        learning_rate: Learning rate for the mean gradient.
        optimizer: ``"adam"``, ``"sgd"``, or one of :mod:`~epsilometer.networks.optimizers` with its
            own parameters.
        loss: ``loss(outputs, classes)``, one number per record; cross-entropy by default.
        initial: ``"fresh"``: initial weights are drawn from ``random_state`` by each layer's
            ``reset_parameters``; ``"given"``: they are those of the module.
        random_state: Random state of initial weights, batches and dropout; None counts as 0.
        device: ``"cpu"`` or ``"cuda"``.
        at_once: Leave-one-out models to train at once; None: chosen for speed.

    Example:
        >>> from torch import nn
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> model = NetworkClassifier(module, epochs=30, learning_rate=0.01).fit(X, y)
        >>> bool((model.predict(X) == y).mean() > 0.9)
        True
    """

    module: "nn.Module"
    _: KW_ONLY
    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    optimizer: Any = "adam"
    loss: Any = None
    initial: Start = "fresh"
    random_state: int | None = None
    device: str = "cpu"
    at_once: int | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return its parameters by name, as ``sklearn.base.clone`` expects them."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def set_params(self, **changed: Any) -> "NetworkClassifier":
        """Set its parameters."""
        unknown = sorted(set(changed) - {part.name for part in fields(self)})
        if unknown:
            raise InvalidArgument(f"Expected parameters of NetworkClassifier, got {unknown}.")
        for name, value in changed.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return tags that mark it as a classifier, for scikit-learn's checks."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    def fit(self, X: Any, y: Any) -> "NetworkClassifier":  # noqa: N803 - as in scikit-learn
        """Train a copy of the module."""
        self.classes_, _ = read_labels(y)
        self.network_ = Networks.prepare(self, X, y, seed=0)
        self._model = self.network_.train(np.array([-1]))
        return self

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return probabilities, ``(records, classes)``."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return the logarithms of probabilities, in double precision."""
        if not hasattr(self, "network_"):
            raise InvalidArgument("Expected a classifier that was fitted. Call fit first.")
        return self.network_.ask(self._model, X)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the likeliest label of each record."""
        likeliest = self.predict_log_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def leave_one_out(self, X: Any, y: Any, *, seed: int) -> "Networks":  # noqa: N803
        """Return its leave-one-out models, for ``refit``."""
        return Networks.prepare(self, X, y, seed=seed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Networks(Fits):
    """Networks trained on all records, or on all but one.

    Attributes:
        how: Module and training.
        features: Features of all records, as float32.
        places: Positions of their labels among the classes.
        classes: Number of classes.
        seed: Seed of initial weights, batches and dropout.
        block: Models trained at once.
        alone: Whether one process uses the whole device.
        caveats: Caveats for readers.
    """

    how: NetworkClassifier
    features: NDArray[Any]
    places: IntArray
    classes: int
    seed: int
    block: int
    alone: bool
    caveats: tuple[str, ...]
    path: str = "many models at once"

    @classmethod
    def prepare(cls, how: NetworkClassifier, X: Any, y: Any, *, seed: int) -> "Networks":  # noqa: N803
        """Check that the networks can be trained, and return them."""
        with needs("torch", extra="torch"):
            import torch
        if not isinstance(how.module, torch.nn.Module):
            raise InvalidArgument(f"Expected a torch.nn.Module, got {type(how.module).__name__}.")
        if how.device != "cpu" and not torch.cuda.is_available():
            raise InvalidArgument(
                f"Expected a CUDA device for {how.device!r}, torch sees none here."
            )
        check_choice(Start, initial=how.initial)
        _validate.whole(1, epochs=how.epochs, batch_size=how.batch_size)
        _validate.positive(learning_rate=how.learning_rate)
        if how.at_once is not None:
            _validate.whole(1, at_once=how.at_once)
        if how.random_state is not None:
            _validate.whole(0, random_state=how.random_state)
            seed = int(how.random_state)
        classes, places = read_labels(y)
        # An embedding takes indices of words
        words = any(type(part).__name__ == "Embedding" for part in how.module.modules())
        features = _read_array(X, whole=words)
        given = "All models start from the module's weights: a seed changes only the batches."
        return cls(
            how=how,
            features=features,
            places=places,
            classes=classes.size,
            seed=seed,
            block=how.at_once or _choose_block(how, features),
            alone=how.device != "cpu",
            caveats=() if how.initial == "fresh" else (given,),
        )

    def describe(self) -> dict[str, Any]:
        """Return the module with its initial weights, its training and the records.

        Redrawn weights are the same in another process; those of the module may not be.
        """
        names = ("epochs", "batch_size", "learning_rate", "optimizer", "loss")
        described = {name: getattr(self.how, name) for name in names}
        described |= {
            "module": self._initialise(self.seed),
            "device": self.how.device.partition(":")[0],
        }
        return {"network": described, "X": self.features, "y": self.places}

    def seconds(self, records: IntArray, queries: Any) -> float:
        """Time one epoch of a block, and two, to separate one-time work from work per epoch."""
        one, two = (replace(self, how=replace(self.how, epochs=epochs)) for epochs in (1, 2))
        one.without(records[:1], queries)  # imports and the like
        took = []
        for trial in (one, two):
            start = time.perf_counter()
            trial.without(records[: self.block], queries)
            took.append(time.perf_counter() - start)
        once, twice = took
        each = max(twice - once, once / 10)  # seconds per epoch
        return -(-records.size // self.block) * (once + (self.how.epochs - 1) * each)

    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """Return ln p of a network trained on all records."""
        return self.ask(self.train(np.array([-1]), seed=seed), queries)

    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """Return ln p of networks trained without one record each, all at once."""
        models = self.train(records)
        if queries is None:
            return self._predict(models, self.features[records][:, None])[:, 0]
        return np.concatenate(
            [
                self._predict(models, np.broadcast_to(part, (records.size, *part.shape)))
                for part in self._split(queries)
            ],
            axis=1,
        )

    def ask(self, model: Any, queries: Any) -> FloatArray:
        """Return ln p of one network, ``(queries, classes)``."""
        return np.concatenate(
            [self._predict(model, part[None])[0] for part in self._split(queries)]
        )

    def train(self, left_out: IntArray, *, seed: int | None = None) -> Any:
        """Train one network without each record; −1 leaves none out."""
        from epsilometer.networks.devices import as_tensor, explain_full, one_thread, own_randomness
        from epsilometer.networks.ensemble import cross_entropy
        from epsilometer.networks.local import local_batches
        from epsilometer.networks.same_batches import many_models, train_without

        how, seed = self.how, self.seed if seed is None else seed
        _, order, dropped = np.random.default_rng(seed).spawn(3)
        with explain_full(how.device), one_thread(how.device):
            x, y = as_tensor(self.features, how.device), as_tensor(self.places, how.device)
            module = self._initialise(seed)
            models = many_models(module, left_out.size, loss=how.loss or cross_entropy, x=x, y=y)
            with own_randomness(how.device, dropped):
                train_without(
                    models,
                    x,
                    y,
                    local_batches(len(x), how.batch_size, epochs=how.epochs, rng=order),
                    left_out=left_out,
                    optimizer=_find_optimizer(how.optimizer),
                    rate=how.learning_rate,
                )
        return models

    def _initialise(self, seed: int) -> "nn.Module":
        """Return the module with its initial weights."""
        import torch

        from epsilometer.networks.devices import own_randomness
        from epsilometer.networks.many import ManyModels

        how = self.how
        if how.initial == "given":
            return how.module
        first, *_ = np.random.default_rng(seed).spawn(3)
        generator = torch.Generator(how.device).manual_seed(int(first.integers(2**62)))
        with own_randomness(how.device, first):
            one = ManyModels(how.module, 1, device=how.device)
            one.reset("fresh", generator)
        return one.model(0)

    def _split(self, queries: Any) -> Iterator[NDArray[Any]]:
        """Yield batches of queries for a forward pass of all models."""
        at = _read_array(queries, whole=self.features.dtype.kind != "f")
        return (at[start : start + _ASKED] for start in range(0, len(at), _ASKED))

    def _predict(self, models: Any, x: NDArray[Any]) -> FloatArray:
        """Return ln p of every model at its queries, ``(models, records, …)``."""
        from epsilometer.networks.devices import as_tensor, one_thread

        with one_thread(self.how.device):
            outputs = models.outputs(as_tensor(x, self.how.device))
            # Outputs beyond the classes of y were never right: they are ignored.
            found = outputs[..., : self.classes].double().log_softmax(-1).cpu().numpy()
        if np.isnan(found).any():
            raise InvalidArgument(
                "Expected a network that converges, its outputs are nan. "
                f"Give a smaller learning_rate than {self.how.learning_rate:g}."
            )
        return np.asarray(found)


def _find_optimizer(given: Any) -> "Optimizer":
    from epsilometer.networks.optimizers import SGD, Adam

    if isinstance(given, str):
        known: dict[str, Optimizer] = {"adam": Adam(), "sgd": SGD()}
        if given not in known:
            raise InvalidArgument(f"Expected optimizer 'adam' or 'sgd', got {given!r}.")
        return known[given]
    if not hasattr(given, "step") or not hasattr(given, "start"):
        raise InvalidArgument(
            "Expected optimizer 'adam', 'sgd', or one of epsilometer.networks.optimizers, got "
            f"{type(given).__name__}."
        )
    return cast("Optimizer", given)


def _choose_block(how: NetworkClassifier, features: NDArray[Any]) -> int:
    """Return how many models to train at once: from shapes alone, since it is in the plan."""
    size = sum(part.numel() for part in how.module.parameters())
    each = 4 * (
        5 * size + how.batch_size * (features[0].size + 3 * _count_outputs(how.module, features))
    )
    if how.device == "cpu":
        return int(np.clip(_CACHED / each, _LEAST, _MOST))
    return int(np.clip(_ON_CARD / each, 1, _MOST_ON_CARD))


def _count_outputs(module: "nn.Module", features: NDArray[Any]) -> int:
    """Return how many numbers all layers output for one record, patches of convolutions too."""
    import torch
    from torch import nn

    sizes = []

    def count(layer: nn.Module, _: Any, gave: Any) -> None:
        if isinstance(gave, torch.Tensor):
            patch = np.prod(layer.kernel_size) if isinstance(layer, nn.Conv2d) else 1
            sizes.append(int(gave.numel() * patch))

    layers = [layer for layer in module.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(count) for layer in layers]
    # Dropout may draw; errors are reported by training itself.
    with torch.no_grad(), torch.random.fork_rng([]), suppress(Exception):
        module(torch.from_numpy(features[:1]).to(next(module.parameters()).device))
    for handle in handles:
        handle.remove()
    return sum(sizes)


def _read_array(X: Any, *, whole: bool) -> NDArray[Any]:  # noqa: N803
    """Return features as torch takes them: single precision, or whole numbers for words."""
    found = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    if found.ndim < 2 or found.dtype.kind not in "fiub":
        raise InvalidArgument(
            f"Expected features (records, …) that are numbers, got shape {found.shape} of "
            f"{found.dtype}. Encode texts before."
        )
    with np.errstate(over="ignore"):  # values that are too large become inf, refused below
        found = found.astype(np.int64 if whole else np.float32)
    if not np.isfinite(found).all():
        raise InvalidArgument("Expected finite features, found nan or inf among them.")
    return found
