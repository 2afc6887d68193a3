"""Models without one record where no family knows them: fitted again, record by record.

Both models of a comparison are fitted with the same random numbers, so that they differ by the
record alone. What re-training itself does is measured beside it: a model fitted to all records
with another seed, the null floor.
"""

import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.classifier.attacks.estimators import fresh, log_probabilities
from epsilometer.audits.classifier.leave_one_out.estimators import labels
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.fingerprints import fingerprint
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import gather
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument, warn
from epsilometer.types import FloatArray, IntArray

PATIENCE = 3600.0  # seconds of refits that are begun without being asked for
_SAID = 60.0  # seconds from which on it is said how long it will take
_SHORT = 5.0  # seconds of a fit that may be tried twice
_UNITS, _MOST = 64, 50  # units to aim at, and records in one at most
_LONGEST = 160  # letters of a warning
_SEEDS = 2**31  # what every library takes
_LOCAL = Local()
_DRAWS = (
    "Training is random. Both fits have the same seed, but what is drawn for one record fewer (the "
    "order of batches, bootstrap samples) may fall otherwise and is then part of the value: "
    "compare with the floor."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut:
    """ln p at each record with it and without it, shape ``(records, classes)``.

    Where queries were asked about instead, ``full`` and ``null`` are ``(queries, classes)`` and
    ``without`` is ``(records, queries, classes)``.

    Attributes:
        full: Of the model trained on all records.
        without: Of the model trained without the record.
        null: Of a model trained on all with another seed: ``full`` itself where training is not
            random.
        path: How it was computed.
        caveats: What a reader must know.
    """

    full: FloatArray
    without: FloatArray
    null: FloatArray | None
    path: str
    caveats: tuple[str, ...] = ()


class Fits(Protocol):
    """Something that is trained on all records, or on all but one, and asked about some.

    Must keep: answers are pure functions of the arguments; it can be pickled.
    """

    @property
    def path(self) -> str:
        """How models are made, in words."""
        ...

    @property
    def block(self) -> int:
        """How many records a unit of work has; 0 for as many as seems good."""
        ...

    @property
    def alone(self) -> bool:
        """Whether one process is enough to fill the device it runs on."""
        ...

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know where training turns out to be random."""
        ...

    def seconds(self, records: IntArray, queries: Any) -> float:
        """About how long ``without`` will take for these, found out by trying."""
        ...

    def describe(self) -> dict[str, Any]:
        """What determines the answers beside the seed; arrays and objects may be among it."""
        ...

    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """ln p of a model of all records, ``(queries, classes)``.

        Args:
            queries: Features.
            seed: In place of all seeds it has itself; None to leave them.
        """
        ...

    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """ln p of models that each lack one record, at its own features, ``(records, classes)``.

        Args:
            records: Which.
            queries: Features to ask about instead, if any: ``(records, queries, classes)``.
        """
        ...


def refit(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    records: IntArray,
    *,
    queries: Any = None,
    seed: int = 0,
    engine: Engine | None = None,
    directory: Any = None,
    patience: float = PATIENCE,
) -> LeaveOneOut:
    """Fits the estimator once for each record, without it.

    Guarantees: the same arguments give the same bytes on every engine, however the work was split,
        killed or resumed. Both fits of a comparison have the same random numbers: each
        ``random_state`` that is a whole number stays, all others and the global generators
        are set from ``seed``. A class that vanishes with a record has probability 0.
    Assumes: all randomness comes from there; whether it does is tried, and said where it does not.

    Args:
        estimator: With scikit-learn's manners; it is not fitted itself. Without ``predict_proba``
            its decision function counts, as ``audits.classifier.leave_one_out.decision`` says. One
            that can train many models at once says so by ``leave_one_out``, as
            :class:`~epsilometer.audits.classifier.leave_one_out.networks.NetworkClassifier` does.
        X: Features.
        y: Labels.
        records: Which are left out, as row numbers.
        queries: Features to ask about instead of each record's own.
        seed: Of training, and of the null floor.
        engine: What executes the refits; processes of this machine by default.
        directory: Where they are kept, so that the same call can finish them after a crash.
        patience: Seconds that they may take; more is refused before it begins.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from epsilometer import InProcess
        >>> X, y = load_iris(return_X_y=True)
        >>> found = refit(DecisionTreeClassifier(), X, y, np.array([0, 106]), engine=InProcess())
        >>> np.exp(found.without).round(3)
        array([[1., 0., 0.],
               [0., 1., 0.]])
    """
    _validate.whole(0, seed=seed)
    _validate.positive(patience=patience)
    fits: Fits
    if hasattr(estimator, "leave_one_out"):
        fits = estimator.leave_one_out(X, y, seed=seed)
    else:
        fits = Refits.of(estimator, X, y, seed=seed)
    features = rows(X, records) if queries is None else queries
    block = fits.block or min(-(-records.size // _UNITS), _MOST)
    work = _Work(fits, records, features, own=queries is None, block=block, seed=seed)
    if engine is None:
        engine = InProcess() if fits.alone else _LOCAL
    _in_time(work, engine, patience)
    plan = Plan(
        audit="leave_one_out",
        parameters={"path": fits.path, "block": block, "own": work.own},
        units=1 + -(-records.size // block),
        seed=seed,
        inputs={} if directory is None else _inputs(fits, records, features),
    )
    first, *others = gather(plan, work.unit, directory, engine=engine)
    return LeaveOneOut(
        full=first["full"],
        without=np.concatenate([arrays["without"] for arrays in others]),
        null=first["null"],
        path=fits.path,
        caveats=_caveats(fits, first, others),
    )


def rows(X: Any, chosen: Any) -> Any:  # noqa: N803
    """Those rows of an array, a sparse matrix or a table with ``iloc``."""
    if hasattr(X, "iloc"):
        return X.iloc[chosen]
    return (X if hasattr(X, "shape") else np.asarray(X))[chosen]


@dataclass(frozen=True, eq=False, kw_only=True)
class Refits:
    """One fit after the other of an estimator.

    Attributes:
        estimator: What is fitted, its seeds set.
        features: Of all records.
        labels: Of all records.
        classes: All labels, in the order of columns.
        seed: Of global generators.
    """

    estimator: Any
    features: Any
    labels: NDArray[Any]
    classes: NDArray[Any]
    seed: int
    path: str = "refits"
    block: int = 0
    alone: bool = False
    caveats: tuple[str, ...] = (_DRAWS,)

    @classmethod
    def of(cls, estimator: Any, X: Any, y: Any, *, seed: int) -> "Refits":  # noqa: N803
        """Refuses what cannot be refitted, or has nothing to say of classes."""
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise InvalidArgument(
                "Expected an estimator with fit and predict_proba, got "
                f"{estimator if isinstance(estimator, type) else type(estimator).__name__}. "
                "A torch module is wrapped: NetworkClassifier(module)."
            )
        if not hasattr(estimator, "predict_proba") and not hasattr(estimator, "decision_function"):
            raise InvalidArgument(
                f"Expected predict_proba or decision_function, {type(estimator).__name__} has "
                "neither (perhaps with other parameters). Where it only gives labels, wrap it in "
                "CalibratedClassifierCV."
            )
        classes, _ = labels(y)
        ready = pinned(estimator, seed)
        features = X if hasattr(X, "shape") else np.asarray(X)
        return cls(
            estimator=ready, features=features, labels=np.asarray(y), classes=classes, seed=seed
        )

    def seconds(self, records: IntArray, queries: Any) -> float:
        """As of :class:`Fits`, by one of them; twice where it is short, since the first is slow."""
        took: list[float] = []
        while len(took) < 2 and sum(took) < _SHORT:
            start = time.perf_counter()
            self.without(records[:1], queries)
            took.append(time.perf_counter() - start)
        return records.size * min(took)

    def describe(self) -> dict[str, Any]:
        """As of :class:`Fits`."""
        return {"estimator": self.estimator, "X": self.features, "y": self.labels}

    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """As of :class:`Fits`."""
        model = _copy(self.estimator) if seed is None else fresh(self.estimator, seed)
        return self._asked(model, slice(None), queries, seed=self.seed if seed is None else seed)

    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """As of :class:`Fits`."""
        return np.stack([self._without(int(record), queries) for record in records])

    def _without(self, record: int, queries: Any) -> FloatArray:
        kept = np.delete(np.arange(self.labels.size), record)
        at = rows(self.features, [record]) if queries is None else queries
        left = np.unique(self.labels[kept])
        try:
            found = self._asked(_copy(self.estimator), kept, at, seed=self.seed)
        except Exception as error:
            if left.size == 1:  # which many refuse to learn: what is left is certain
                count = at.shape[0] if hasattr(at, "shape") else len(at)
                sure = np.where(self.classes == left[0], 0.0, -np.inf)
                found = np.tile(sure, (count, 1))
            elif isinstance(error, InvalidArgument):
                raise InvalidArgument(
                    "Could not leave a record out.", withheld=f"Without record {record}: {error}"
                ) from error
            else:
                raise InvalidArgument(
                    f"Expected {type(self.estimator).__name__} to be fitted when a record is left "
                    f"out, it raised {type(error).__name__}.",
                    withheld=f"Without record {record}: {_line(error)}",
                ) from error
        return found[0] if queries is None else found

    def _asked(self, model: Any, kept: Any, queries: Any, *, seed: int) -> FloatArray:
        """Fits to the rows kept, and asks."""
        with seeded(seed):
            model.fit(rows(self.features, kept), self.labels[kept])
            found = log_probabilities(model, queries, classes=self.classes)
        if np.isnan(found).any():
            row = int(np.flatnonzero(np.isnan(found).any(axis=1))[0])
            raise InvalidArgument(
                f"Expected probabilities from {type(model).__name__}, got nan at row {row} of "
                f"{len(found)} it was asked about."
            )
        return found


@dataclass(frozen=True, eq=False)
class _Work:
    """Unit 0 fits all records three times; each other leaves out a block of records."""

    fits: Fits
    records: IntArray
    features: Any
    own: bool = field(kw_only=True)
    block: int = field(kw_only=True)
    seed: int = field(kw_only=True)

    def unit(self, index: int) -> Arrays:
        """A pure function of the plan."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = self._models() if index == 0 else self._block(index - 1)
        said = sorted({f"{each.category.__name__}: {_short(each.message)}" for each in heard})
        return {**found, "warnings": np.array(said, dtype=np.str_)}

    def _models(self) -> dict[str, NDArray[Any]]:
        return {
            "full": self.fits.whole(self.features, seed=None),
            "again": self.fits.whole(self.features, seed=None),
            "null": self.fits.whole(self.features, seed=_another(self.seed)),
        }

    def _block(self, index: int) -> dict[str, NDArray[Any]]:
        records = self.records[index * self.block : (index + 1) * self.block]
        return {"without": self.fits.without(records, None if self.own else self.features)}


def _in_time(work: _Work, engine: Engine, patience: float) -> None:
    """Says how long it will take before it begins, and refuses what takes too long."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # units tell them
        seconds = work.fits.seconds(work.records, None if work.own else work.features)
    workers = engine.workers
    seconds /= workers
    said = (
        f"{work.records.size:,} models without a record take about {_duration(seconds)} with "
        f"{workers} at a time"
    )
    if seconds > patience:
        raise InvalidArgument(
            f"Expected refits of {_duration(patience)} at most; {said}. Give "
            "records='sample:500', an engine with more workers, or more patience=."
        )
    if seconds > _SAID:
        warn(f"{said}.")


def _caveats(fits: Fits, first: Arrays, others: Sequence[Arrays]) -> tuple[str, ...]:
    told = [] if np.array_equal(first["full"], first["null"]) else list(fits.caveats)
    if not np.array_equal(first["full"], first["again"]):
        told.append(
            "Training with the same seed twice gave two models: it has randomness of its own, "
            "which is part of every value. Compare with the floor."
        )
    # By kind alone: what a warning says may hold a label or a cell.
    heard = Counter(kind for arrays in (first, *others) for kind in _name_warnings(arrays))
    told += [
        f"{kind} in {count} of {1 + len(others)} units of work."
        for kind, count in sorted(heard.items())
    ]
    return tuple(told)


def _name_warnings(arrays: Arrays) -> set[str]:
    return {text.partition(":")[0] for text in arrays["warnings"].tolist()}


def _inputs(fits: Fits, records: IntArray, features: Any) -> dict[str, str]:
    """What is read, as hashes, so that a directory is never continued with something else."""
    parts = {**fits.describe(), "records": records, "queries": features}
    return {name: fingerprint(part) for name, part in parts.items()}


def pinned(estimator: Any, seed: int) -> Any:
    """A copy whose random states are whole numbers: those it has, or else the seed."""
    model = _copy(estimator)
    if hasattr(model, "get_params"):
        loose = [
            name
            for name, value in model.get_params().items()
            if name.rpartition("__")[2] == "random_state" and not isinstance(value, Integral)
        ]
        model.set_params(**dict.fromkeys(loose, seed % _SEEDS))
    return model


def _copy(estimator: Any) -> Any:
    """Untrained, with the same parameters."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.base import clone
    try:
        return clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"Expected an estimator that scikit-learn can clone, {type(estimator).__name__} is "
            f"none: {_line(error)}. Its constructor must keep its arguments as they are."
        ) from error


def _another(seed: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0]) % _SEEDS


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global generators set, and then as they were: some estimators know no others."""
    state, legacy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % _SEEDS)
    torch = sys.modules.get("torch")
    kept = None if torch is None else torch.random.get_rng_state()
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)
        if torch is not None:
            torch.random.set_rng_state(kept)


def _line(said: Any) -> str:
    return " ".join(str(said).split())


def _short(said: Any) -> str:
    text = _line(said)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.2g} ms"
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
