"""Train one pool of shadow models for all attacks, and query each about every record.

Models come in pairs. The first of a pair is trained on records chosen by fair coin tosses (or on a
random half), the second on all others. So every record is in exactly half of an even number of
models, however many are added later, and attacks that need pairs find them.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.normals import count_models
from epsilometer.audits.classifier.sklearn_models import (
    FitEstimator,
    check_choice,
    count_rows,
    read_labels,
    take_rows,
)
from epsilometer.core.printing import name_error
from epsilometer.engine.engines import Engine, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import UnitFailed, gather
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import is_module
from epsilometer.types import BoolArray, FloatArray, IntArray

Fit: TypeAlias = Callable[[Any, IntArray, int], Callable[[Any], ArrayLike]]
Keep: TypeAlias = Literal["all", "own"]
Draw: TypeAlias = Literal["coins", "halves"]
_EVERY = slice(None)
FLOOR = math.log(1e-45)  # smaller ln p count as this, so that −inf stays comparable
_SUM = 1e-2  # largest error of a sum of probabilities: stored ones are often rounded


@dataclass(frozen=True, eq=False, kw_only=True)
class ShadowPool:
    """Predictions of shadow models for n records, and which of these each was trained on.

    Attributes:
        log_proba: ln p, float32, shape ``(models, n, classes)``; −inf where p is 0. With
            ``kept="own"``: of the record's label, and of all others together, shape
            ``(models, n, 2)``.
        member: Whether each model was trained on each record, shape ``(models, n)``.
        labels: Position of each record's label in ``classes``, shape ``(n,)``.
        classes: The labels themselves.
        train_accuracy: Accuracy of each model on the records it was trained on, shape
            ``(models,)``.
        test_accuracy: Accuracy of each model on the other records.
        kept: Whether all classes were kept, or only the record's own label and the rest.
        coins: Whether every record was included by an independent fair coin toss, so that a model
            of the pool can be audited as one run.
    """

    log_proba: NDArray[np.float32]
    member: BoolArray
    labels: IntArray
    classes: NDArray[Any]
    train_accuracy: FloatArray
    test_accuracy: FloatArray
    kept: Keep = "all"
    coins: bool = False

    def __post_init__(self) -> None:
        models, n = self.member.shape
        columns = self.classes.size if self.kept == "all" else 2
        if self.log_proba.shape != (models, n, columns) or self.labels.shape != (n,):
            raise InvalidArgument(
                f"Expected ln p of shape {(models, n, columns)} and {n} labels, got "
                f"{self.log_proba.shape} and {self.labels.shape}."
            )

    @classmethod
    def from_arrays(
        cls, log_proba: ArrayLike, member: ArrayLike, labels: ArrayLike
    ) -> "ShadowPool":
        """Create a pool from existing predictions.

        Args:
            log_proba: ln p, shape ``(models, n, classes)``; columns in the order of sorted labels.
            member: Whether each model was trained on each record, shape ``(models, n)``.
            labels: Labels of the records, shape ``(n,)``.

        Example:
            >>> p = np.full((4, 3, 2), 0.5)
            >>> member = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]
            >>> pool = ShadowPool.from_arrays(np.log(p), member, ["a", "b", "b"])
            >>> pool.models, pool.records, pool.member.sum(axis=0)
            (4, 3, array([2, 2, 2]))
        """
        classes, places = read_labels(labels)
        was_in = _read_members(member)
        found = np.asarray(log_proba, np.float32)
        if found.shape != (*was_in.shape, classes.size) or places.size != was_in.shape[1]:
            raise InvalidArgument(
                f"Expected ln p of shape (models, records, classes) = "
                f"{(was_in.shape[0], places.size, classes.size)}, got {found.shape}, and member "
                f"of shape {was_in.shape}."
            )
        for each in found:
            _check_logs(each)
        right = found.argmax(axis=2) == places
        train, test = np.array([*map(_measure_accuracy, right, was_in)]).T
        return cls(
            log_proba=found,
            member=was_in,
            labels=places,
            classes=classes,
            train_accuracy=train,
            test_accuracy=test,
        )

    @property
    def models(self) -> int:
        """Number of models."""
        return len(self.member)

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.labels)

    @property
    def columns(self) -> IntArray:
        """Column of each record's own label in ``log_proba``, shape ``(n,)``."""
        return self.labels if self.kept == "all" else np.zeros_like(self.labels)

    @cached_property
    def own(self) -> FloatArray:
        """ln p of each record's own label, at least ``FLOOR``, shape ``(models, n)``."""
        return self.own_of(slice(None))

    def own_of(self, block: slice) -> FloatArray:
        """Return ``own`` for a block of records."""
        columns = self.columns[None, block, None]
        found = np.take_along_axis(self.log_proba[:, block], columns, axis=2)[:, :, 0]
        return np.maximum(found, np.float32(FLOOR))

    def margins(self, block: slice = _EVERY) -> FloatArray:
        """Return ln p/(1−p) of each record's own label, ``(models, n)``; see ``margins_of``.

        Args:
            block: Records to compute; taking some at a time saves memory.
        """
        found = np.empty(self.member[:, block].shape)
        for model, into in enumerate(found):  # each fits into the cache
            into[:] = self.margins_of(self._pairs(model, block))
        return found

    def _pairs(self, model: int, block: slice = _EVERY) -> FloatArray:
        """Return ln p of each record's own label and of all others together, ``(n, 2)``."""
        found = self.log_proba[model, block]
        return found if self.kept == "own" else own_and_rest(found, self.labels[block])

    def margins_of(self, pairs: FloatArray) -> FloatArray:
        """Return ln p/(1−p) where p and 1−p are given as ``own_and_rest`` does, shape ``(…, 2)``.

        A class without votes of trees or neighbours is not impossible: 0 counts as half of the
        smallest positive probability of the shadows, and as 1e-45 at least. With a fixed tiny
        number instead, a few zeros would outweigh all votes.
        """
        given = np.asarray(pairs, np.float32)  # the precision of shadows
        low, empty = np.maximum(given, np.float32(FLOOR)), np.isneginf(given)
        if empty.any():
            low[empty] = self._zero
        return np.asarray(low[..., 0] - low[..., 1], np.float64)

    @cached_property
    def _zero(self) -> float:
        every = map(self._pairs, range(self.models))
        possible = min(np.min(each, where=np.isfinite(each), initial=0.0) for each in every)
        return max(float(possible) - math.log(2), FLOOR)

    def without(self, model: int) -> "ShadowPool":
        """Return the pool of an adversary who attacks one of its models.

        The other model of its pair is left out too: it was trained on all other records, so it
        reveals the target's members.
        """
        if not 0 <= model < self.models:
            raise InvalidArgument(
                f"Expected one of the models 0 to {self.models - 1} of the pool, got {model}."
            )
        twins = (self.member != self.member[model]).all(axis=1)
        twins[model] = True
        if twins.all():
            raise InvalidArgument(
                "Expected shadows besides the target, got none. Train more models."
            )
        return replace(
            self,
            log_proba=self.log_proba[~twins],
            member=self.member[~twins],
            train_accuracy=self.train_accuracy[~twins],
            test_accuracy=self.test_accuracy[~twins],
        )

    def against(self, target: "int | ArrayLike") -> "tuple[ShadowPool, FloatArray]":
        """Return shadows to attack a target with, and its predictions, shape ``(n, columns)``.

        Args:
            target: One of the pool's models, or ln p of the target, shape ``(n, classes)``.
        """
        if isinstance(target, (int, np.integer)):
            return self.without(int(target)), self.log_proba[int(target)]
        found = np.asarray(target, np.float64)
        if found.shape != (self.records, self.classes.size):
            raise InvalidArgument(
                f"Expected ln p of the target, of shape {(self.records, self.classes.size)}, "
                f"or the number of a model of the pool, got shape {found.shape}."
            )
        _check_logs(found)
        return self, found if self.kept == "all" else own_and_rest(found, self.labels)


def show_logs(log_proba: ArrayLike, decimals: int | None) -> FloatArray:
    """Return the log of probabilities as shown, scaled to sum to 1.

    Args:
        log_proba: ln p, shape ``(…, classes)``.
        decimals: Number of decimals shown; None: not rounded; −1: the likeliest class alone.

    Example:
        >>> np.exp(show_logs(np.log([[0.337, 0.663]]), 1)).round(2)
        array([[0.3, 0.7]])
        >>> np.exp(show_logs(np.log([[0.337, 0.663]]), -1))
        array([[0., 1.]])
    """
    given = np.asarray(log_proba)
    if decimals is None:
        return given
    if decimals == -1:
        likeliest = np.nan_to_num(given, nan=-np.inf, neginf=-np.inf).argmax(axis=-1)
        shown = (np.arange(given.shape[-1]) == likeliest[..., None]).astype(np.float64)
    else:
        shown = np.round(np.exp(given.astype(np.float64)), decimals)
        shown[~(shown.sum(axis=-1) > 0)] = 1.0  # all 0: none is likelier than another
    with np.errstate(divide="ignore"):
        logs = np.log(shown / shown.sum(axis=-1, keepdims=True))
    return np.asarray(logs, given.dtype)


def hide_digits(pool: ShadowPool, decimals: int | None) -> ShadowPool:
    """Return the pool of an adversary who sees this many decimals; see ``show_logs``."""
    if decimals is None:
        return pool
    return replace(pool, log_proba=np.stack([show_logs(p, decimals) for p in pool.log_proba]))


def shadow_pool(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    *,
    models: int = 20,
    draw: Draw = "coins",
    keep: Keep = "all",
    asked: IntArray | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    directory: Path | str | None = None,
    listen: Sequence[Listener] = (),
) -> ShadowPool:
    """Train shadow models, each on about half of the records, and query them about all.

    Guarantee: every record is in exactly half of an even number of models. The same arguments give
        the same pool, byte for byte, on every engine, even after crashes. With the same directory,
        a call for more models keeps the existing ones.
    Assumption: all randomness of training comes from its seed.

    Args:
        estimator: Anything with scikit-learn's interface, or a function ``fit(X, y, seed)`` that
            trains and returns a function from features to ln p, shape ``(records, classes)``. Its
            labels are positions among the sorted classes.
        X: Features: an array, a sparse matrix, or a table with ``iloc``.
        y: Labels.
        models: Number of models.
        draw: ``"coins"`` includes each record by a fair coin toss, as bounds from one run need;
            ``"halves"`` takes halves of equal size, as in the paper.
        keep: ``"own"`` keeps two numbers per record instead of one per class: ln p of its own label
            and of all others together, which is all that LiRA, RMIA and loss thresholds need.
        asked: Rows of the records that models are queried about, and that the pool holds; None:
            all. Models are trained on halves of all records in any case.
        seed: Seed from which records and the seeds of training are drawn.
        engine: Executes training, by default in processes of this machine; a model is a unit.
        directory: Where the pool is stored, so that the same call can finish or extend it.
        listen: Callbacks that receive events.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from epsilometer import InProcess
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(60, 2)), np.repeat([0, 1], 30)
        >>> pool = shadow_pool(GaussianNB(), X, y, models=4, engine=InProcess())
        >>> pool.log_proba.shape, set(pool.member.sum(axis=0).tolist())
        ((4, 60, 2), {2})
    """
    _validate.whole(2, models=models)
    check_choice(Draw, draw=draw)
    check_choice(Keep, keep=keep)
    classes, places = read_labels(y)
    n = count_rows(X)
    if n != places.size:
        raise InvalidArgument(f"Expected a label for each of {n} records, got {places.size}.")
    if classes.size > n // 2:
        raise InvalidArgument(
            f"Expected no more classes than a shadow has records, got {classes.size} classes and "
            f"shadows of {n // 2}. If y is a number, audit it as em.Regressor, "
            "epsilometer regressor."
        )
    if not hasattr(estimator, "fit") and (is_module(estimator) or not callable(estimator)):
        raise InvalidArgument(
            "Expected an estimator with fit, or a function fit(X, y, seed), got "
            f"{type(estimator).__name__}. A torch module is trained by NetworkClassifier(module)."
        )
    training = Training(
        fit=FitEstimator(estimator, classes) if hasattr(estimator, "fit") else estimator,
        features=X if hasattr(X, "shape") else np.asarray(X),
        labels=places,
        classes=classes.size,
        draw=draw,
        keep=keep,
        asked=asked,
        seed=seed,
        records=n,
    )
    at = slice(None) if asked is None else asked
    found = train_halves(training, models, directory, engine=engine, listen=listen)
    accuracy = np.stack([arrays["accuracy"] for arrays in found])
    return ShadowPool(
        log_proba=np.stack([arrays["log_proba"] for arrays in found]),
        member=np.stack([training.members(model)[at] for model in range(models)]),
        labels=places[at],
        classes=classes,
        train_accuracy=accuracy[:, 0],
        test_accuracy=accuracy[:, 1],
        kept=keep,
        coins=draw == "coins",
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Halves(ABC):
    """Models trained on about half of the records each, as a pure function of their index.

    Attributes:
        records: Number of records.
        seed: Seed of all models.
        draw: How the records of a model are drawn.
        first: Number of the model that is unit 0.
    """

    records: int
    seed: int
    draw: Draw = "coins"
    first: int = 0

    def members(self, model: int) -> BoolArray:
        """Return the members of a model; the two of a pair split the records between them."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0, model // 2)))
        n = self.records
        coins = rng.random(n) < 0.5 if self.draw == "coins" else rng.permutation(n) < n // 2
        return coins if model % 2 == 0 else ~coins

    def unit(self, index: int) -> Arrays:
        """Train one model."""
        model = self.first + index
        sequence = np.random.SeedSequence(self.seed, spawn_key=(1, model))
        return self.train(self.members(model), int(sequence.generate_state(1)[0]))

    @abstractmethod
    def train(self, member: BoolArray, seed: int) -> Arrays:
        """Train on members; return the model's predictions for all records."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything else that determines models, for the plan."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the records, and of how models are trained."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Training(Halves):
    """Training of shadow models of a classifier.

    Attributes:
        fit: ``fit(X, y, seed)`` trains, and returns a function that predicts ln p.
        features: Features of all records.
        labels: Positions of their labels among the classes.
        classes: Number of classes.
        keep: Which predictions are kept.
        asked: Rows that models are queried about; None: all.
    """

    fit: Fit
    features: Any
    labels: IntArray
    classes: int
    keep: Keep
    asked: IntArray | None = None

    def describe(self) -> dict[str, Any]:
        """Return how models are trained, and which predictions are kept."""
        return {"fit": name_of(self.fit), "keep": self.keep}

    def fingerprint(self) -> str:
        """Return a hash of the records, and of how models are trained."""
        features = self.features
        if hasattr(features, "iloc"):  # a table: by its columns alone
            features = {str(name): np.asarray(features[name]) for name in features.columns}
        asked = () if self.asked is None else (self.asked,)
        return fingerprint([self.fit, features, self.labels, *asked])

    def train(self, member: BoolArray, seed: int) -> Arrays:
        """Train one model, and query it about the records."""
        rows = np.flatnonzero(member)
        predict = self.fit(take_rows(self.features, rows), self.labels[rows], seed)
        features, labels = self.features, self.labels
        if self.asked is not None:
            features, labels = take_rows(features, self.asked), labels[self.asked]
            member = member[self.asked]
        log_proba = np.asarray(predict(features), np.float64)
        if log_proba.shape != (labels.size, self.classes):
            raise InvalidArgument(
                f"Expected predictions of shape {(labels.size, self.classes)}, got "
                f"{log_proba.shape}. A class that a shadow never saw has ln p = -inf."
            )
        _check_logs(log_proba)
        accuracy = np.array(_measure_accuracy(log_proba.argmax(axis=1) == labels, member))
        kept = log_proba if self.keep == "all" else own_and_rest(log_proba, labels)
        return {"log_proba": kept.astype(np.float32), "accuracy": accuracy}


def own_and_rest(log_proba: ArrayLike, columns: IntArray) -> FloatArray:
    """Return ln p of one column per row, and ln of the sum of the others, shape ``(n, 2)``.

    ln(1 − p) is not used: it loses its digits where p is near 1. Single precision stays single.

    Example:
        >>> np.exp(own_and_rest(np.log([[0.1, 0.85, 0.05]]), np.array([1]))).round(2)
        array([[0.85, 0.15]])
    """
    given = np.asarray(log_proba)
    kind = np.float32 if given.dtype == np.float32 else np.float64
    found: FloatArray = np.array(given.T, kind, order="C")  # sums over long rows are fast
    at = np.arange(len(given))
    own = found[columns, at]
    if len(found) == 2:
        return np.stack([own, found[1 - columns, at]], axis=1)
    found[columns, at] = -np.inf
    top = np.maximum(found.max(axis=0), np.finfo(kind).min)
    found -= top
    with np.errstate(divide="ignore"):
        rest = top + np.log(np.exp(found, out=found).sum(axis=0))
    return np.stack([own, rest], axis=1)


def mean_by_side(pool: ShadowPool, values: FloatArray, *, inside: bool) -> FloatArray:
    """Return the mean of ``values`` over models with each record, or without it, in doubles.

    Args:
        pool: The pool, for its members.
        values: One number per model and record, shape ``(models, n)``.
        inside: Whether to average models with the record, or those without it.
    """
    where = pool.member if inside else ~pool.member
    counts = count_side(pool, inside=inside)
    return np.asarray(np.sum(values, axis=0, where=where, dtype=np.float64) / counts)


def count_side(pool: ShadowPool, *, inside: bool) -> IntArray:
    """Count models with each record, or without it; refuse a pool where a record has none."""
    counts = count_models(pool.member, inside=inside)
    if not counts.all():
        raise InvalidArgument(
            f"Expected every record {'in' if inside else 'absent from'} some shadow, "
            f"{int((counts == 0).sum())} of {counts.size} are not. Train an even number of models."
        )
    return counts


def train_halves(
    training: Halves,
    models: int,
    directory: Path | str | None = None,
    *,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
) -> list[Arrays]:
    """Train this many models, except those already in the directory; return all their results."""
    home = None if directory is None else Path(directory)
    return [
        arrays
        for block in _list_blocks(home, models)
        for arrays in _train_block(training, *block, home, engine=engine or Local(), listen=listen)
    ][:models]


def _train_block(
    training: Halves,
    first: int,
    last: int,
    directory: Path | None,
    *,
    engine: Engine,
    listen: Sequence[Listener],
) -> list[Arrays]:
    """Train models ``first`` to ``last``, as a separate run."""
    block = replace(training, first=first)
    plan = Plan(
        audit="shadow_pool",
        parameters={**training.describe(), "draw": training.draw, "first": first},
        units=last - first,
        seed=training.seed,
        inputs={} if directory is None else {"training": training.fingerprint()},
    )
    home = None if directory is None else directory / f"models-{first:05d}-{last - 1:05d}"
    try:
        return gather(plan, block.unit, home, engine=engine, listen=listen)
    except UnitFailed as error:
        raise InvalidArgument(
            f"Expected every shadow to be trained, model {first + error.unit} was not: "
            f"{name_error(error.traceback)}. "
            "A shadow sees half of the records: categories that only the others have must not be "
            "an error (OneHotEncoder(handle_unknown='ignore')), and rare classes may be absent.",
            withheld=str(error),
        ) from error


def _list_blocks(directory: Path | None, models: int) -> list[tuple[int, int]]:
    """Return ranges of existing models, in order, and of those missing after them."""
    there = []
    if directory is not None and directory.is_dir():
        found = (re.fullmatch(r"models-(\d+)-(\d+)", path.name) for path in directory.iterdir())
        there = sorted((int(match[1]), int(match[2]) + 1) for match in found if match)
    wanted, end = [], 0
    for first, last in there:
        if first == end and end < models:
            wanted.append((first, last))
            end = last
    return wanted if end >= models else [*wanted, (end, models)]


def _read_members(member: ArrayLike) -> BoolArray:
    found = np.asarray(member)
    if found.ndim != 2 or found.dtype.kind not in "biu" or not np.isin(found, (0, 1)).all():
        raise InvalidArgument(
            f"Expected member to be truth values of shape (models, records), got {found.dtype} "
            f"of shape {found.shape}."
        )
    return found.astype(bool)


def _measure_accuracy(right: BoolArray, member: BoolArray) -> tuple[float, float]:
    """Return the accuracy on members and on others; nan where there are none."""
    return tuple(  # type: ignore[return-value]
        float(right[side].mean()) if side.any() else math.nan for side in (member, ~member)
    )


def _check_logs(found: FloatArray) -> None:
    """Refuse values that are not log-probabilities of mutually exclusive classes."""
    if np.isnan(found).any() or (found > 1e-6).any():
        raise InvalidArgument(
            f"Expected ln p, at most 0 and never nan, got {np.isnan(found).sum()} nan and up to "
            f"{np.nanmax(found, initial=-np.inf):.3g}. Of probabilities take the logarithm."
        )
    total = np.exp(found.astype(np.float64)).sum(axis=1)
    if np.abs(total - 1).max() > _SUM:
        raise InvalidArgument(
            f"Expected the probabilities of a record to sum to 1, got {total.min():.3g} to "
            f"{total.max():.3g}. Of logits take the log-softmax."
        )
