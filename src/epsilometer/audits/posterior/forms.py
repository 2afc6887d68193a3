"""Wrap models that predict by sampling: dropout, ensembles, distributions over weights.

The audit only needs a model to have ``predict(x, samples, rng)``, which returns several vectors of
probabilities for one record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import as_input, evaluating
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    import torch

_AT_ONCE = 1024  # samples per forward pass
_SUM = 1e-3  # largest error of a sum of probabilities: single precision, and a few decimals
_MOST = 20_000  # largest number of weights whose covariance is kept: 3.2 GB


class Diverged(InvalidArgument):
    """Raised where predictions are nan or infinite: the run then counts as diverged."""


class PosteriorSampler(Protocol):
    """A model that returns several sampled predictions.

    Must keep: all randomness comes from ``rng`` where possible; rows are probabilities.
    """

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Return ``samples`` vectors of probabilities for one record, ``(samples, classes)``."""
        ...


def predict_vector(sampler: PosteriorSampler, x: ArrayLike) -> FloatArray | None:
    """Return the prediction without sampling, ``(classes,)``; None if the model has none."""
    alone = getattr(sampler, "vector", None)
    return None if alone is None else np.asarray(alone(x), np.float64)


@dataclass(frozen=True, eq=False)
class McDropout:
    """Any torch module with dropout, sampled with dropout on (Gal and Ghahramani 2016).

    The mode of the module does not matter. Dropout is switched on for sampling, batch
    normalisation is not, and the module's state is restored afterwards. Dropout may be a layer,
    or a function that the forward pass calls with ``training=self.training``.

    Guarantees: every sample has its own dropout mask; the same ``rng`` gives the same samples on
        the same device.

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
        """Predict, each sample with its own dropout mask."""
        with needs("torch", extra="torch"):
            import torch
        _validate.whole(1, samples=samples)
        one = as_input(self.module, np.asarray(x)[None])
        devices = [one.device] if one.is_cuda else []
        drawn = []
        with switch_dropout_on(self.module), torch.no_grad(), torch.random.fork_rng(devices):
            torch.manual_seed(int(rng.integers(2**63)))
            before = _read_state(one)
            for start in range(0, samples, _AT_ONCE):
                some = min(_AT_ONCE, samples - start)
                # Copies, not views: a layer may overwrite its input.
                drawn.append(_softmax(self.module(one.repeat(some, *[1] * (one.ndim - 1)))))
            untouched = bool(torch.equal(before, _read_state(one)))
        found: FloatArray = np.concatenate(drawn)
        # Equal predictions alone prove nothing: masks of few units coincide, and units may be 0.
        if untouched and (found == found[0]).all():
            raise InvalidArgument(
                "Expected a module with dropout, this one draws nothing at random and its "
                "predictions are all equal. Is there a layer of nn.Dropout with 0 < p < 1, or does "
                "its forward pass switch dropout off? F.dropout needs training=self.training."
            )
        return found

    def vector(self, x: ArrayLike) -> FloatArray:
        """Predict without dropout."""
        return np.asarray(_predict_plain(self.module, x)[0])


@dataclass(frozen=True, eq=False)
class DeepEnsemble:
    """Modules trained independently; a sample is the prediction of one of them.

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
        """Predict with ``samples`` different members."""
        _validate.whole(1, samples=samples)
        if samples > len(self.modules):
            raise InvalidArgument(
                f"Expected at most {len(self.modules)} samples of as many members, got {samples}."
            )
        members = rng.permutation(len(self.modules))[:samples]
        return np.concatenate([_predict_plain(self.modules[member], x) for member in members])


@dataclass(frozen=True, eq=False)
class GaussianWeights:
    """A torch module with normally distributed weights: variational, or a Laplace approximation.

    Attributes:
        module: Its weights are the mean; returns logits of shape ``(n, classes)``.
        spread: Standard deviations of parameters by name, each a number or of the parameter's
            shape; or a factor L of the joint covariance L Lᵀ of all parameters in ``joint``.
        joint: Names of parameters, in the order of L's rows, if ``spread`` is a matrix.
    """

    module: Any
    spread: Mapping[str, Any] | FloatArray
    joint: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = dict(self.module.named_parameters())
        alone = isinstance(self.spread, Mapping)
        named = tuple(self.spread) if alone else self.joint
        missing = [name for name in named if name not in known]
        if missing or not named or (alone and self.joint):
            raise InvalidArgument(
                "Expected spreads by name, or a matrix and the names in joint, of parameters of "
                f"the module; got {missing or self.joint or named!r}, it has {', '.join(known)}."
            )
        if isinstance(self.spread, Mapping):
            for name, std in self.spread.items():
                _check_spread(name, std, tuple(known[name].shape))
        else:
            weights = sum(known[name].numel() for name in named)
            factor = np.asarray(self.spread, np.float64)
            if factor.ndim != 2 or len(factor) != weights or not np.isfinite(factor).all():
                raise InvalidArgument(
                    f"Expected a finite factor of the covariance of {weights} weights, shape "
                    f"({weights}, any), got shape {factor.shape}."
                )

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Predict, drawing new weights for each sample."""
        with needs("torch", extra="torch"):
            import torch
        _validate.whole(1, samples=samples)
        one = as_input(self.module, np.asarray(x)[None])
        drawn = []
        with evaluating(self.module), torch.no_grad():
            for _ in range(samples):
                out = torch.func.functional_call(self.module, self._draw(rng), (one,))
                drawn.append(_softmax(out))
        return np.concatenate(drawn)

    def vector(self, x: ArrayLike) -> FloatArray:
        """Predict with the mean weights."""
        return np.asarray(_predict_plain(self.module, x)[0])

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        import torch

        known = dict(self.module.named_parameters())
        if isinstance(self.spread, Mapping):
            moves = {
                name: np.asarray(std) * rng.standard_normal(known[name].shape)
                for name, std in self.spread.items()
            }
        else:  # a normal vector times a factor of the covariance has that covariance
            moved = np.asarray(self.spread) @ rng.standard_normal(np.shape(self.spread)[1])
            ends = np.cumsum([known[name].numel() for name in self.joint])
            moves = dict(zip(self.joint, np.split(moved, ends[:-1]), strict=True))
        return {
            name: known[name] + torch.as_tensor(move).to(known[name]).view_as(known[name])
            for name, move in moves.items()
        }


def laplace_last_layer(
    module: Any, features: ArrayLike, *, precision: float = 1.0
) -> GaussianWeights:
    """Fit a Laplace approximation to the last linear layer, from the loss's curvature.

    All other weights stay fixed. The curvature is the Hessian of the sum of cross-entropy over the
    training records, plus a prior of ``precision``.

    Args:
        module: Its last layer is ``nn.Linear`` and gives the logits.
        features: Features of the training records, ``(n, …)``.
        precision: Precision of the prior of every weight.
    """
    with needs("torch", extra="torch"):
        import torch
    _validate.positive(precision=precision)
    last_name, last = list(module.named_modules())[-1]
    if type(last) is not torch.nn.Linear:
        raise InvalidArgument(
            f"Expected a module whose last layer is nn.Linear, got {type(last).__name__}."
        )
    weights = sum(parameter.numel() for parameter in last.parameters())
    if weights > _MOST:
        raise InvalidArgument(
            f"Expected at most {_MOST} weights of a last layer, whose covariance is kept, got "
            f"{weights}. Give GaussianWeights a spread of each weight."
        )
    seen: list[Any] = []
    hook = last.register_forward_hook(lambda _, given, gave: seen.extend([given[0], gave]))
    try:
        with evaluating(module), torch.no_grad():
            logits = module(as_input(module, np.asarray(features)))
    finally:
        hook.remove()
    if len(seen) != 2 or not torch.equal(seen[1], logits):
        raise InvalidArgument(
            f"Expected the layer {last_name or 'itself'!r}, the last that the module has, to give "
            "its logits, it does not."
        )
    p = _softmax(logits)
    inputs = seen[0].double().cpu().numpy()
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
    # Weights come first, then biases, in the order of the module's parameters.
    order = np.arange(classes * width).reshape(classes, width)
    columns = last.in_features
    places = np.concatenate([order[:, :columns].ravel(), order[:, columns:].ravel()])
    # The inverse of M = R Rᵀ is L Lᵀ with L = R⁻ᵀ.
    root = np.linalg.cholesky(matrix[np.ix_(places, places)])
    factor = scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True).T
    names = ("weight",) if last.bias is None else ("weight", "bias")
    prefix = f"{last_name}." if last_name else ""
    return GaussianWeights(module, factor, tuple(prefix + name for name in names))


@dataclass(frozen=True, eq=False)
class FromCallable:
    """Any function ``f(x, samples, rng)``, with its results checked.

    Attributes:
        function: Returns probabilities, ``(samples, classes)``.
        classes: Number of classes, if known.
        unit: Unit to which its probabilities are rounded, if they are.
    """

    function: Callable[[Any, int, np.random.Generator], ArrayLike]
    classes: int | None = None
    unit: float | None = None

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Return the checked result of the function."""
        _validate.whole(1, samples=samples)
        given = self.function(x, samples, rng)
        return check_probabilities(given, samples, self.classes, unit=self.unit)


def check_probabilities(
    given: ArrayLike, samples: int, classes: int | None = None, *, unit: float | None = None
) -> FloatArray:
    """Return probabilities of shape ``(samples, classes)``, or raise an error.

    Rows must sum to 1, up to the error of rounding each probability to ``unit``.
    """
    try:
        known = np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            "Expected probabilities as rows of numbers, as many in each, got others."
        ) from error
    wide = "classes" if classes is None else str(classes)
    if known.ndim != 2 or len(known) != samples or (classes and known.shape[1] != classes):
        raise InvalidArgument(
            f"Expected probabilities of shape ({samples}, {wide}), got {known.shape}."
        )
    if not np.isfinite(known).all():
        raise Diverged("Expected probabilities, got nan or infinity among them.")
    with np.errstate(over="ignore"):  # the sum is then infinite, and refused below
        off = float(np.abs(known.sum(1) - 1).max(initial=0))
    least = float(known.min(initial=0))
    if least < 0 or off > _SUM + known.shape[1] * (unit or 0) / 2:
        raise InvalidArgument(
            f"Expected probabilities that add up to 1, got sums that miss it by {off:.3g} and "
            f"values from {least:.3g}. Are these logits? Give their softmax. Are they rounded? "
            "Say to which unit."
        )
    return known


@contextmanager
def switch_dropout_on(module: "torch.nn.Module") -> Iterator[None]:
    """Set training mode, except in batch normalisation; restore the module's state afterwards."""
    before = [(part, part.training) for part in module.modules()]
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    for part in module.modules():
        if hasattr(part, "running_mean"):
            part.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
        for buffer, value in kept:  # spectral norms update theirs in training mode
            buffer.copy_(value)


def _read_state(tensor: Any) -> Any:
    """Return the state of the generator that dropout uses for such a tensor."""
    import torch

    return torch.cuda.get_rng_state(tensor.device) if tensor.is_cuda else torch.get_rng_state()


def _check_spread(name: str, std: Any, shape: tuple[int, ...]) -> None:
    known = np.asarray(std, np.float64)
    if known.shape not in ((), shape) or not (np.isfinite(known).all() and (known >= 0).all()):
        raise InvalidArgument(
            f"Expected standard deviations of {name}, finite and not negative, as a number or of "
            f"shape {shape}, got shape {known.shape}."
        )


def _predict_plain(module: Any, x: ArrayLike) -> FloatArray:
    """Return a module's prediction for one record without dropout, ``(1, classes)``."""
    with needs("torch", extra="torch"):
        import torch
    with evaluating(module), torch.no_grad():
        return _softmax(module(as_input(module, np.asarray(x)[None])))


def _softmax(logits: Any) -> FloatArray:
    if logits.ndim != 2:
        raise InvalidArgument(
            f"Expected the module to return logits of shape (n, classes), got "
            f"{tuple(logits.shape)}."
        )
    found = np.asarray(logits.double().softmax(1).cpu().numpy())
    if not np.isfinite(found).all():
        raise Diverged(
            "Expected finite logits of the module, got nan or infinity. Did training diverge?"
        )
    return found
