"""Train many independent runs of DP-SGD with JAX: vectorised over runs, compiled per epoch.

Every run has its own keys, derived from the numbers of the run and the step. So its random numbers
do not depend on how many runs are trained, or on how memory divides them.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.core.settings import DATA
from epsilometer.errors import InvalidArgument
from epsilometer.networks.batches import draw_batches
from epsilometer.networks.optimizers import SGD, Adam
from epsilometer.networks.trainer import Batches, Canaries, NoCanaries, Precision
from epsilometer.sampling.samplers import Sampler, Shuffle
from epsilometer.types import BoolArray, FloatArray

_SHUFFLE, _SGD, _NO_CANARIES = Shuffle(), SGD(), NoCanaries()
_BLOCK = 256  # runs per call; independent of memory, so that an audit always has the same streams
_MEMORY = {"cpu": 64e6, "cuda": 16e9}  # bytes of gradients that are held at once
_WIDTHS = 8  # batches are padded to multiples of it, so that few shapes are compiled
_SEEN = 256  # records whose outputs are held at once


def cross_entropy(outputs: Any, labels: Any) -> Any:
    """Return the cross-entropy of every example, not averaged."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=-1)
    return -chosen[:, 0]


@dataclass(frozen=True, eq=False)
class JaxModel:
    """Define a model by a function, which ``em.DPSGD`` accepts instead of a PyTorch module.

    Flax, Equinox, Haiku and plain JAX all have such a function.

    Attributes:
        apply: Called as ``apply(params, features)`` on features ``(n, …)``; returns ``(n, …)``.
        params: Initial weights: any tree of arrays.
        init: Called as ``init(key)`` to draw fresh initial weights for a run; without it every run
            begins with ``params``.
        whole_numbers: Whether features are token ids, and not measurements.

    Example:
        >>> model = JaxModel(lambda params, x: x @ params["w"], {"w": np.zeros((3, 2))})
        >>> model.size
        6
    """

    apply: Callable[[Any, Any], Any]
    params: Any
    init: Callable[[Any], Any] | None = None
    whole_numbers: bool = False
    backend: ClassVar[str] = "jax"

    def __post_init__(self) -> None:
        leaves = jax.tree.leaves(self.params)
        if not callable(self.apply) or not leaves:
            raise InvalidArgument(
                "Expected a function apply(params, features) and a tree of arrays as params, got "
                f"{_validate.short(self.apply)} and {len(leaves)} arrays."
            )
        # Arrays of NumPy go to other processes, and belong to no device.
        object.__setattr__(self, "params", jax.tree.map(np.asarray, self.params))

    @property
    def size(self) -> int:
        """Number of parameters of the model."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.params))


@dataclass(frozen=True, eq=False, kw_only=True)
class JaxTrained:
    """Hold the outcome of many runs; see :class:`~epsilometer.networks.trainer.Outcome`.

    Attributes:
        weights: Final parameters, ``(runs, size)``, leaf by leaf.
        model: The model that they are parameters of.
    """

    observations: FloatArray
    others: FloatArray
    moved: FloatArray
    drawn: BoolArray
    diverged: BoolArray
    weights: NDArray[np.float32]
    model: JaxModel

    def losses(self, features: ArrayLike, labels: ArrayLike, *, loss: Any) -> FloatArray:
        """Return the loss of every final model on records, ``(runs, records)``."""
        x, y = _read_records(features, labels)
        measure = _compile_losses(self.model, loss)
        parts = [
            np.asarray(measure(self.weights, x[at : at + _SEEN], y[at : at + _SEEN]), np.float64)
            for at in range(0, len(x), _SEEN)
        ]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class JaxDPSGD:
    """Train R independent runs of DP-SGD: a :class:`~epsilometer.networks.trainer.Trainer`.

    Guarantees: what a ``Trainer`` must keep. Run i draws the same batches, initial weights and
        noise whatever ``runs`` and ``at_once`` are. Noise along a single canary is drawn in double
        precision.
    Assumes: ``apply`` is a pure function that JAX can differentiate.

    Attributes:
        model: The model.
        loss: ``loss(outputs, labels)``: one number per example.
        runs: R.
        sampler: How batches are drawn.
        noise_multiplier: σ, in clipping norms.
        clip_norm: C.
        learning_rate: Learning rate for the mean gradient.
        optimizer: ``SGD()`` or ``Adam()`` of :mod:`~epsilometer.networks.optimizers`, or a
            ``GradientTransformation`` of optax, whose updates are multiplied by the learning rate.
        batch_size: B; the expected one where it varies.
        epochs: Passes of the sampler.
        initial: ``"fresh"``: each run draws initial weights by ``model.init``, if there is one;
            ``"given"``: all begin with the model's.
        device: ``"cpu"`` or ``"cuda"``.
        at_once: Number of vectorised runs; by default derived from memory.

    Example:
        >>> model = JaxModel(lambda params, x: x @ params, np.zeros((3, 2), np.float32))
        >>> how = JaxDPSGD(model, cross_entropy, runs=5, noise_multiplier=1.0, learning_rate=0.1,
        ...                batch_size=4)
        >>> trained = how.train(np.ones((8, 3)), np.arange(8) % 2, rng=np.random.default_rng(0))
        >>> trained.weights.shape
        (5, 6)
    """

    model: JaxModel = field(metadata=DATA)
    loss: Any = field(metadata=DATA)
    runs: int = field(kw_only=True)
    sampler: Sampler = field(default=_SHUFFLE, kw_only=True)
    noise_multiplier: float = field(kw_only=True)
    clip_norm: float = field(default=1.0, kw_only=True)
    learning_rate: float = field(kw_only=True)
    optimizer: Any = field(default=_SGD, kw_only=True)
    batch_size: int = field(kw_only=True)
    epochs: int = field(default=1, kw_only=True)
    initial: str = field(default="fresh", kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    at_once: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        at_once = 1 if self.at_once is None else self.at_once
        _validate.whole(1, runs=self.runs, batch_size=self.batch_size, epochs=self.epochs)
        _validate.whole(1, at_once=at_once)
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        if math.isinf(self.noise_multiplier):
            raise InvalidArgument("Expected noise_multiplier to be finite, got inf.")
        _validate.positive(clip_norm=self.clip_norm, learning_rate=self.learning_rate)
        if self.initial not in ("fresh", "given"):
            raise InvalidArgument(f"Expected initial 'fresh' or 'given', got {self.initial!r}.")
        _make_rule(self.optimizer)
        _find_device(self.device)

    @property
    def size(self) -> int:
        """Number of parameters of one model."""
        return self.model.size

    def with_runs(self, runs: int) -> "JaxDPSGD":
        """Return the same training with another number of runs."""
        return self if runs == self.runs else replace(self, runs=runs)

    def count_at_once(self, features: ArrayLike, labels: ArrayLike) -> int:
        """Return how many runs one call trains: always as many; memory divides them inside."""
        self.check(features, labels)
        return _BLOCK

    def check(self, features: ArrayLike, labels: ArrayLike) -> None:
        """Refuse records or a model that :meth:`train` would refuse."""
        x, y = _read_records(features, labels)
        if len(x) < self.batch_size:
            raise InvalidArgument(
                f"Expected at least a batch of {self.batch_size} records, got {len(x)}. "
                "Give a smaller batch_size."
            )
        for name, values in (("features", x), ("labels", y)):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise InvalidArgument(f"Expected finite {name}, found nan or inf among them.")
        outputs = jax.eval_shape(self.model.apply, self.model.params, x[:2])
        if y.dtype.kind == "i" and len(outputs.shape) == 2:
            least, most = int(y.min()), int(y.max())
            if least < 0 or most >= outputs.shape[1]:
                raise InvalidArgument(
                    f"Expected labels from 0 to {outputs.shape[1] - 1}, as many classes as the "
                    f"model has outputs, got labels from {least} to {most}."
                )
        each = jax.eval_shape(self.loss, outputs, y[:2]).shape
        if each != (min(2, len(y)),):
            raise InvalidArgument(
                f"Expected a loss of one number per example, got shape {each} for two examples."
            )

    def train(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        rng: np.random.Generator,
        canaries: Canaries = _NO_CANARIES,
        left_out: int = 0,
    ) -> JaxTrained:
        """Train all runs; see :class:`~epsilometer.networks.trainer.Trainer`."""
        self.check(features, labels)
        x, y = _read_records(features, labels)
        words = rng.integers(2**32, size=2, dtype=np.uint32)
        drawing, exact = rng.spawn(2)
        noises = exact.spawn(self.runs)  # one stream per run, whatever their number
        epochs = draw_batches(
            self.sampler,
            len(x) + canaries.records - left_out,
            self.batch_size,
            runs=self.runs,
            epochs=self.epochs,
            rng=drawing,
            together=1,
        )
        with jax.default_device(_find_device(self.device)):
            run = _Run(self, canaries, words)
            x, y = jnp.asarray(x), jnp.asarray(y)
            for epoch in epochs:
                batches = np.where(epoch >= 0, epoch + left_out, -1) if left_out else epoch
                along = np.stack([one.standard_normal(batches.shape[1]) for one in noises])
                run.train_epoch(x, y, batches, along)
            return run.trained()


class _Step(NamedTuple):
    """Inputs of one step for every run: arrays whose first axes are run and step."""

    batch: Any
    keep: Any
    amounts: Any
    along: Any


@dataclass
class _Part:
    """Runs that are vectorised: which, and their keys, parameters and optimizer's state.

    All parts have one size, so that one program is compiled. Surplus places repeat the last run
    and are dropped at the end.
    """

    runs: NDArray[np.int32]
    own: int
    keys: Any
    theta: Any
    state: Any


class _Run:
    """Hold the state of a training in progress."""

    def __init__(self, how: JaxDPSGD, canaries: Canaries, words: NDArray[np.uint32]) -> None:
        self.how, self.canaries = how, canaries
        directions = np.asarray(canaries.directions, np.float32)
        if len(directions) and directions.shape[1] != how.size:
            raise InvalidArgument(
                f"Expected canaries over {how.size} parameters, got {directions.shape[1]}."
            )
        self.directions = directions.reshape(len(directions), how.size)
        self.advance = _compile_epoch(
            how.model,
            how.loss,
            how.optimizer,
            how.noise_multiplier * how.clip_norm,
            how.clip_norm,
            how.batch_size,
            how.learning_rate,
        )
        begin = _compile_start(how.model, how.optimizer, how.initial == "fresh")
        self.parts: list[_Part] = []
        size = self._count_together()
        for start in range(0, how.runs, size):
            runs = np.minimum(np.arange(start, start + size), how.runs - 1).astype(np.int32)
            self.parts.append(_Part(runs, min(size, how.runs - start), *begin(words, runs)))
        self.first = self._gather_weights() @ self.directions.T
        self.done = 0
        self.observations: list[FloatArray] = []
        self.others: list[FloatArray] = []
        self.drawn: list[BoolArray] = []

    def train_epoch(self, x: Any, y: Any, batches: Batches, along: FloatArray) -> None:
        """Take the steps of one epoch; ``along`` is the noise along a single canary."""
        inserted = self.canaries.insert(batches)
        self.drawn.append(inserted.drawn)
        keep = np.zeros(batches.shape, np.bool_) if inserted.keep is None else inserted.keep
        more = -batches.shape[-1] % _WIDTHS if (batches < 0).any() else 0
        wider = ((0, 0), (0, 0), (0, more))
        steps = _Step(
            batch=np.pad(_fill_places(batches, keep, len(x) - 1), wider),
            keep=np.pad(keep, wider),
            amounts=inserted.amounts.astype(np.float32) * np.float32(self.how.clip_norm),
            along=along.astype(np.float32),
        )
        seen, others = self._advance_parts(x, y, steps)
        others = others / self.how.clip_norm
        self.others.append(others)
        if len(self.directions) == 1:  # in double precision, as it was drawn
            noise = self.how.noise_multiplier * along[..., None]
            self.observations.append(others + inserted.amounts + noise)
        else:
            self.observations.append(seen / self.how.clip_norm)
        self.done += batches.shape[1]

    def _advance_parts(self, x: Any, y: Any, steps: _Step) -> tuple[FloatArray, FloatArray]:
        """Take the steps of one part after the other."""
        seen, others = [], []
        for part in self.parts:
            own = _Step(*(values[part.runs] for values in steps))
            part.theta, part.state, along, rest = self.advance(
                part.theta, part.state, part.keys, own, x, y, self.directions, self.done
            )
            seen.append(np.asarray(along, np.float64)[: part.own])
            others.append(np.asarray(rest, np.float64)[: part.own])
        return np.concatenate(seen), np.concatenate(others)

    def _count_together(self) -> int:
        """Return how many runs are vectorised: a gradient of every example is held."""
        how = self.how
        if how.at_once is not None:
            return min(how.runs, how.at_once)
        memory = _MEMORY.get(how.device.partition(":")[0], _MEMORY["cpu"])
        most = max(1, int(memory / (4 * how.size * (2 * how.batch_size + 4))))
        parts = -(-how.runs // most)
        return -(-how.runs // parts)  # parts of equal size

    def _gather_weights(self) -> NDArray[np.float32]:
        return np.concatenate([np.asarray(part.theta)[: part.own] for part in self.parts])

    def trained(self) -> JaxTrained:
        """Return the outcome of all runs."""
        weights = self._gather_weights()
        with np.errstate(invalid="ignore", over="ignore"):  # of runs that diverged
            moved = self.first - weights @ self.directions.T
        return JaxTrained(
            observations=np.stack(self.observations, 1),
            others=np.stack(self.others, 1),
            moved=moved.astype(np.float64),
            drawn=np.stack(self.drawn, 1),
            diverged=np.asarray(~np.isfinite(weights).all(1)),
            weights=weights,
            model=self.how.model,
        )


@functools.lru_cache(maxsize=16)
def _compile_start(model: JaxModel, optimizer: Any, fresh: bool) -> Callable[..., Any]:
    """Return what makes keys, first weights and optimizer's states of runs by their numbers."""
    rule, init = _make_rule(optimizer), model.init if fresh else None
    leaves = [np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(model.params)]
    given = np.concatenate(leaves)

    def begin(words: Any, run: Any) -> Any:
        key = jax.random.fold_in(jax.random.wrap_key_data(words), run)
        theta = jnp.asarray(given)
        if init is not None:
            own = jax.tree.leaves(init(jax.random.fold_in(key, 0)))
            theta = jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in own])
        return key, theta, rule.init(theta)

    return jax.jit(jax.vmap(begin, (None, 0)))  # type: ignore[no-any-return]


class _Rule(NamedTuple):
    """Update rule of one model: ``init(theta)``, and ``update(gradient, state, theta)``."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def _make_rule(optimizer: Any) -> _Rule:
    """Return the arithmetic of an optimizer; its updates are added times the learning rate."""
    match optimizer:
        case SGD():
            return _Rule(
                lambda theta: jnp.zeros_like(theta) if optimizer.momentum else (),
                functools.partial(_update_sgd, optimizer),
            )
        case Adam():
            return _Rule(
                lambda theta: (jnp.zeros_like(theta), jnp.zeros_like(theta), jnp.zeros(())),
                functools.partial(_update_adam, optimizer),
            )
        case _ if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
            return _Rule(optimizer.init, optimizer.update)
    raise InvalidArgument(
        "Expected optimizer SGD() or Adam() of epsilometer.optimizers, or a "
        f"GradientTransformation of optax, got {_validate.short(optimizer)}."
    )


def _update_sgd(how: SGD, gradient: Any, state: Any, theta: Any) -> tuple[Any, Any]:
    gradient = gradient + how.weight_decay * theta
    if not how.momentum:
        return -gradient, state
    velocity = how.momentum * state + gradient
    return -velocity, velocity


def _update_adam(how: Adam, gradient: Any, state: Any, theta: Any) -> tuple[Any, Any]:
    (mean, square, count), (first, second) = state, how.betas
    gradient, count = gradient + how.weight_decay * theta, count + 1
    mean = first * mean + (1 - first) * gradient
    square = second * square + (1 - second) * gradient**2
    root = jnp.sqrt(square / (1 - second**count)) + how.epsilon
    return -(mean / (1 - first**count)) / root, (mean, square, count)


@functools.lru_cache(maxsize=16)
def _compile_epoch(
    model: JaxModel,
    loss: Any,
    optimizer: Any,
    scale: float,
    clip: float,
    batch_size: int,
    rate: float,
) -> Callable[..., Any]:
    """Return the compiled steps of an epoch: all runs at once, one step after the other."""
    unravel = _find_unravel(model)
    rule = _make_rule(optimizer)

    def measure_loss(params: Any, x: Any, y: Any) -> Any:
        return loss(model.apply(params, x[None]), y[None])[0]

    def sum_clipped(theta: Any, x: Any, y: Any, keep: Any) -> Any:
        """Clip by norms of single gradients, then differentiate the weighted sum of losses.

        Gradients of single examples are only squared and added up, so that the compiler need not
        keep them.
        """
        params = unravel(theta)
        each = jax.vmap(jax.grad(measure_loss), (None, 0, 0))(params, x, y)
        squares = [jnp.square(leaf).reshape(len(x), -1).sum(1) for leaf in jax.tree.leaves(each)]
        norms = jnp.sqrt(sum(squares))
        factors = jnp.where(keep, jnp.minimum(1.0, clip / jnp.maximum(norms, 1e-30)), 0.0)

        def weigh(params: Any) -> Any:
            return factors @ jax.vmap(measure_loss, (None, 0, 0))(params, x, y)

        leaves = jax.tree.leaves(jax.grad(weigh)(params))
        return jnp.concatenate([leaf.ravel() for leaf in leaves])

    def step(
        theta: Any, state: Any, key: Any, at: Any, now: _Step, x: Any, y: Any, directions: Any
    ) -> Any:
        sums = sum_clipped(theta, x[now.batch], y[now.batch], now.keep)
        sums = jnp.where(now.keep.any(), sums, 0.0)
        others = directions @ sums
        noise = scale * jax.random.normal(jax.random.fold_in(key, at + 1), sums.shape)
        if len(directions) == 1:  # its own noise, which was drawn in double precision
            noise += (scale * now.along - directions[0] @ noise) * directions[0]
        sums = sums + now.amounts @ directions + noise
        seen = directions @ sums
        moves, state = rule.update(sums / batch_size, state, theta)
        return theta + rate * moves, state, seen, others

    def epoch(
        theta: Any, state: Any, keys: Any, steps: _Step, x: Any, y: Any, directions: Any, done: Any
    ) -> Any:
        each = jax.vmap(step, (0, 0, 0, None, 0, None, None, None))

        def advance(carry: Any, now: Any) -> Any:
            (theta, state), (at, inputs) = carry, now
            theta, state, seen, others = each(theta, state, keys, at, inputs, x, y, directions)
            return (theta, state), (seen, others)

        count = steps.along.shape[1]
        by_step = _Step(*(jnp.swapaxes(values, 0, 1) for values in steps))
        (theta, state), (seen, others) = jax.lax.scan(
            advance, (theta, state), (done + jnp.arange(count), by_step)
        )
        return theta, state, jnp.swapaxes(seen, 0, 1), jnp.swapaxes(others, 0, 1)

    return jax.jit(epoch)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=16)
def _compile_losses(model: JaxModel, loss: Any) -> Callable[..., Any]:
    unravel = _find_unravel(model)

    def measure(theta: Any, x: Any, y: Any) -> Any:
        return loss(model.apply(unravel(theta), x), y)

    return jax.jit(jax.vmap(measure, (0, None, None)))  # type: ignore[no-any-return]


def _find_unravel(model: JaxModel) -> Callable[[Any], Any]:
    """Return a function from flat parameters to the model's tree."""
    leaves, tree = jax.tree.flatten(model.params)
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)]).tolist()

    def unravel(flat: Any) -> Any:
        parts = [
            flat[start:stop].reshape(leaf.shape)
            for leaf, start, stop in zip(leaves, ends, ends[1:], strict=False)
        ]
        return jax.tree.unflatten(tree, parts)

    return unravel


def _fill_places(batches: Batches, keep: BoolArray, spare: int) -> NDArray[np.int32]:
    """Return records to compute with where some do not count.

    They are replaced by a record of the batch that counts, so that no record outside the batch is
    differentiated: an overflowing gradient is not 0 even times 0.
    """
    first = keep.argmax(-1)[..., None]
    counts = np.take_along_axis(keep, first, -1)
    instead = np.where(counts, np.take_along_axis(batches, first, -1), spare)
    return np.where(keep, batches, instead).astype(np.int32)


def _read_records(features: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = []
    for values in (features, labels):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise InvalidArgument(f"Expected numbers, got an array of {array.dtype}.")
        with np.errstate(over="ignore"):  # what is too large becomes inf, and is found as such
            arrays.append(array.astype(np.float32 if array.dtype.kind == "f" else np.int32))
    x, y = arrays
    if x.ndim < 2 or y.shape[:1] != x.shape[:1]:
        raise InvalidArgument(
            f"Expected features (n, …) and labels (n,), got {x.shape} and {y.shape}."
        )
    return x, y


def _find_device(name: str) -> Any:
    kind, _, number = name.partition(":")
    try:
        return jax.devices(kind)[int(number or 0)]
    except (RuntimeError, IndexError) as error:
        raise InvalidArgument(f"Expected a device that JAX sees, got {name!r}.") from error


class _JaxBackend:
    """Implement :class:`~epsilometer.networks.trainer.Backend` for JAX."""

    def make_trainer(
        self, module: JaxModel, loss: Any, *, precision: Precision = "float32", **settings: Any
    ) -> JaxDPSGD:
        """Return a trainer."""
        if precision != "float32":
            raise InvalidArgument(
                f"Expected precision='float32' for a JaxModel, got {precision!r}. Other precisions "
                "need a torch.nn.Module."
            )
        if settings.get("optimizer") is None:
            settings["optimizer"] = _SGD
        return JaxDPSGD(module, cross_entropy if loss is None else loss, **settings)

    def list_weights(self, module: JaxModel) -> tuple[str, list[Any]]:
        """Return a text of the tree of weights, and the weights."""
        leaves, tree = jax.tree.flatten(module.params)
        return str(tree), [np.asarray(leaf) for leaf in leaves]

    def takes_whole_numbers(self, module: JaxModel) -> bool:
        """Return the model's ``whole_numbers``."""
        return module.whole_numbers


JAX = _JaxBackend()
