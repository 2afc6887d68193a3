"""Who answers with several predictions: MC dropout, ensembles, laws of weights, anybody's function.

Everything that follows needs no more of a model than ``predict(x, samples, rng)``: several vectors
of probabilities for one record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.attacks.loss import as_input, evaluating
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    import torch

_AT_ONCE = 1024  # samples of a forward pass
_SUM = 1e-3  # by which probabilities may miss 1: services round
_JITTER = 1e-9  # of a covariance, so that it has a root


class PosteriorSampler(Protocol):
    """A model that answers with several predictions.

    Must keep: all randomness comes from ``rng``, where it can; rows are probabilities.
    """

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """``samples`` vectors of probabilities for one record, ``(samples, classes)``."""
        ...


def vector(sampler: PosteriorSampler, x: ArrayLike) -> FloatArray | None:
    """What the model says of a record without sampling, ``(classes,)``; None where it cannot."""
    alone = getattr(sampler, "vector", None)
    return None if alone is None else np.asarray(alone(x), np.float64)


@dataclass(frozen=True, eq=False)
class McDropout:
    """Any torch module that has dropout, sampled with dropout on (Gal and Ghahramani 2016).

    Whether the module is in training or evaluation mode does not matter: dropout is switched on
    while it is sampled, normalisation is not, and everything is then as it was.

    Attributes:
        module: Returns logits of shape ``(n, classes)``.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)).eval()
        >>> McDropout(model).predict(np.ones(4), 7, np.random.default_rng(0)).shape
        (7, 3)
    """

    module: Any

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Each sample with its own units dropped."""
        with needs("torch", extra="torch"):
            import torch
        _validate.whole(1, samples=samples)
        one = as_input(self.module, np.asarray(x)[None])
        devices = [one.device] if one.is_cuda else []
        drawn = []
        with dropping(self.module), torch.no_grad(), torch.random.fork_rng(devices):
            torch.manual_seed(int(rng.integers(2**63)))
            for start in range(0, samples, _AT_ONCE):
                some = min(_AT_ONCE, samples - start)
                drawn.append(_softmax(self.module(one.expand(some, *one.shape[1:]))))
        found: FloatArray = np.concatenate(drawn)
        if samples > 1 and (found == found[0]).all():
            raise InvalidArgument(
                "Expected predictions that differ with dropout on, all are equal. The module has "
                "no dropout that is at work: is there a layer of nn.Dropout with p > 0, or does "
                "its forward pass switch dropout off?"
            )
        return found

    def vector(self, x: ArrayLike) -> FloatArray:
        """Without dropout."""
        with needs("torch", extra="torch"):
            import torch
        with evaluating(self.module), torch.no_grad():
            return np.asarray(_softmax(self.module(as_input(self.module, np.asarray(x)[None])))[0])


@dataclass(frozen=True, eq=False)
class DeepEnsemble:
    """Modules trained apart; a sample is the prediction of one of them.

    Attributes:
        modules: Each returns logits of shape ``(n, classes)``.
    """

    modules: Sequence[Any]

    def __post_init__(self) -> None:
        if len(self.modules) < 2:
            raise InvalidArgument(
                f"Expected at least two modules of an ensemble, got {len(self.modules)}."
            )

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Of ``samples`` members, none twice."""
        with needs("torch", extra="torch"):
            import torch
        _validate.whole(1, samples=samples)
        if samples > len(self.modules):
            raise InvalidArgument(
                f"Expected at most {len(self.modules)} samples of as many members, got {samples}."
            )
        drawn = []
        for member in rng.permutation(len(self.modules))[:samples]:
            module = self.modules[member]
            with evaluating(module), torch.no_grad():
                drawn.append(_softmax(module(as_input(module, np.asarray(x)[None]))))
        return np.concatenate(drawn)


@dataclass(frozen=True, eq=False)
class GaussianWeights:
    """A torch module whose weights have a normal law: variational, or of Laplace.

    Attributes:
        module: Its weights are the mean; returns logits of shape ``(n, classes)``.
        spread: Standard deviations of parameters by name, each a number or of the parameter's
            shape; or, of all parameters named in ``joint`` together, in that order, a factor L
            of their covariance L Lᵀ.
        joint: Names whose covariance ``spread`` is, where it is a matrix.
    """

    module: Any
    spread: Mapping[str, Any] | FloatArray
    joint: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = dict(self.module.named_parameters())
        named = self.joint or tuple(self.spread if isinstance(self.spread, Mapping) else ())
        missing = [name for name in named if name not in known]
        if missing or not named:
            raise InvalidArgument(
                f"Expected names of parameters of the module, got {missing or named!r}; it has "
                f"{', '.join(known)}."
            )

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Each sample with weights of its own."""
        with needs("torch", extra="torch"):
            import torch
        _validate.whole(1, samples=samples)
        one = as_input(self.module, np.asarray(x)[None])
        drawn = []
        with evaluating(self.module), torch.no_grad():
            for _ in range(samples):
                out = torch.func.functional_call(self.module, self._drawn(rng), (one,))
                drawn.append(_softmax(out))
        return np.concatenate(drawn)

    def vector(self, x: ArrayLike) -> FloatArray:
        """With the mean of weights."""
        return McDropout(self.module).vector(x)

    def _drawn(self, rng: np.random.Generator) -> dict[str, Any]:
        import torch

        known = dict(self.module.named_parameters())
        if isinstance(self.spread, Mapping):
            return {
                name: known[name]
                + torch.as_tensor(
                    np.asarray(std) * rng.standard_normal(known[name].shape),
                    dtype=known[name].dtype,
                    device=known[name].device,
                )
                for name, std in self.spread.items()
            }
        moved = np.asarray(self.spread) @ rng.standard_normal(np.shape(self.spread)[1])
        found, start = {}, 0
        for name in self.joint:
            weights = known[name]
            part = moved[start : start + weights.numel()].reshape(tuple(weights.shape))
            start += weights.numel()
            found[name] = weights + torch.as_tensor(
                part, dtype=weights.dtype, device=weights.device
            )
        return found


def laplace_last_layer(
    module: Any, features: ArrayLike, *, precision: float = 1.0
) -> GaussianWeights:
    """Laplace's law of the last linear layer: normal, by the curvature of the loss at its weights.

    The rest of the module stays as it is; the curvature is Gauss and Newton's, of cross-entropy
    over the records that were trained on, plus a prior of ``precision``.

    Args:
        module: Its last layer is ``nn.Linear`` and gives the logits.
        features: Of the records that were trained on, ``(n, …)``.
        precision: Of the prior of every weight.
    """
    with needs("torch", extra="torch"):
        import torch
    _validate.positive(precision=precision)
    last_name, last = list(module.named_modules())[-1]
    if type(last) is not torch.nn.Linear:
        raise InvalidArgument(
            f"Expected a module whose last layer is nn.Linear, got {type(last).__name__}."
        )
    seen: list[Any] = []
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        with evaluating(module), torch.no_grad():
            p = _softmax(module(as_input(module, np.asarray(features))))
    finally:
        hook.remove()
    inputs = seen[-1].double().cpu().numpy()
    if last.bias is not None:
        inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
    classes, width = p.shape[1], inputs.shape[1]
    curvature = np.zeros((classes, width, classes, width))
    for i in range(classes):
        for j in range(i, classes):
            weight = p[:, i] * ((i == j) - p[:, j])
            curvature[i, :, j] = curvature[j, :, i] = (inputs * weight[:, None]).T @ inputs
    matrix = curvature.reshape(classes * width, -1)
    matrix[np.diag_indices_from(matrix)] += precision
    # Columns of weights come first, then biases: as the module names them.
    order = np.arange(classes * width).reshape(classes, width)
    columns = last.in_features
    places = np.concatenate([order[:, :columns].ravel(), order[:, columns:].ravel()])
    covariance = np.linalg.inv(matrix)[np.ix_(places, places)]
    covariance[np.diag_indices_from(covariance)] += _JITTER
    names = ("weight",) if last.bias is None else ("weight", "bias")
    prefix = f"{last_name}." if last_name else ""
    return GaussianWeights(
        module, np.linalg.cholesky(covariance), tuple(prefix + name for name in names)
    )


@dataclass(frozen=True, eq=False)
class FromCallable:
    """Anybody's function ``f(x, samples, rng)``, checked.

    Attributes:
        function: Returns probabilities, ``(samples, classes)``.
        classes: How many classes, where that is known.
    """

    function: Callable[[Any, int, np.random.Generator], ArrayLike]
    classes: int | None = None

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """What the function returns."""
        _validate.whole(1, samples=samples)
        return probabilities(self.function(x, samples, rng), samples, self.classes)


def probabilities(given: ArrayLike, samples: int, classes: int | None = None) -> FloatArray:
    """Probabilities of shape ``(samples, classes)``, or an error that says what is wrong."""
    known = np.asarray(given, np.float64)
    wide = "classes" if classes is None else str(classes)
    if known.ndim != 2 or len(known) != samples or (classes and known.shape[1] != classes):
        raise InvalidArgument(
            f"Expected probabilities of shape ({samples}, {wide}), got {known.shape}."
        )
    if not np.isfinite(known).all():
        raise InvalidArgument("Expected probabilities, got nan or infinity among them.")
    off = float(np.abs(known.sum(1) - 1).max())
    if known.min() < 0 or off > _SUM:
        raise InvalidArgument(
            f"Expected probabilities that add up to 1, got sums that miss it by {off:.3g} and "
            f"values from {known.min():.3g}. Are these logits? Give their softmax."
        )
    return known


@contextmanager
def dropping(module: "torch.nn.Module") -> Iterator[None]:
    """The module in training mode but for what keeps statistics of batches; then as it was."""
    before = [(part, part.training) for part in module.modules()]
    module.train()
    for part in module.modules():
        if hasattr(part, "running_mean"):
            part.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _softmax(logits: Any) -> FloatArray:
    if logits.ndim != 2:
        raise InvalidArgument(
            f"Expected the module to return logits of shape (n, classes), got "
            f"{tuple(logits.shape)}."
        )
    found = np.asarray(logits.double().softmax(1).cpu().numpy())
    if not np.isfinite(found).all():
        raise InvalidArgument(
            "Expected finite logits of the module, got nan or infinity. Did training diverge?"
        )
    return found
