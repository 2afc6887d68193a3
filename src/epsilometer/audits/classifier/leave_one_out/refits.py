"""Refit any estimator without one record, record by record.

Both models of a comparison are fitted with the same random numbers, so that they differ by the
record alone. The null floor measures the effect of retraining itself: a model fitted to all records
with another seed.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from epsilometer import _validate
from epsilometer.audits.classifier.sklearn_models import (
    SEEDS,
    clone_estimator,
    clone_with_seed,
    count_rows,
    predict_logs,
    read_labels,
    seed_globals,
    take_rows,
)
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.fingerprints import fingerprint
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import gather
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument, warn
from epsilometer.types import FloatArray, IntArray

PATIENCE = 3600.0  # default limit on the seconds that refits may take
_SAID = 60.0  # expected seconds from which the duration is announced
_SHORT = 1.0  # seconds of a fit that may be timed twice
_UNITS, _MOST = 64, 50  # number of units to aim for, and largest number of records in one
_LONGEST = 160  # characters of a warning
_DRAWS = (
    "Training is random. Both fits use the same seed, but with one record fewer the draws "
    "(order of batches, bootstrap samples) may differ and are then part of the value: compare "
    "it with that of another seed alone."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut:
    """ln p at each record with it and without it, shape ``(records, classes)``.

    With queries instead, ``full`` and ``null`` are ``(queries, classes)`` and ``without`` is
    ``(records, queries, classes)``.

    Attributes:
        full: ln p under the model trained on all records.
        without: ln p under the model trained without the record.
        null: ln p under a model trained on all records with another seed: ``full`` itself if
            training is not random.
        path: How it was computed.
        caveats: Caveats for readers.
    """

    full: FloatArray
    without: FloatArray
    null: FloatArray
    path: str
    caveats: tuple[str, ...] = ()


class Fits(ABC):
    """Models trained on all records, or on all but one, that answer queries.

    Must keep: answers are pure functions of the arguments; it can be pickled.

    Attributes:
        path: How models are trained, in words.
        block: Number of records per unit of work; 0: chosen automatically.
        alone: Whether one process uses the whole device it runs on.
        caveats: Caveats to add if training turns out to be random.
    """

    path: str
    block: int = 0
    alone: bool = False
    caveats: tuple[str, ...] = ()

    @abstractmethod
    def seconds(self, records: IntArray, queries: Any) -> float:
        """Estimate how many seconds ``without`` will take for these."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything except the seed that determines the answers; arrays and objects too."""

    @abstractmethod
    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """Return ln p of a model trained on all records, ``(queries, classes)``.

        Args:
            queries: Features to query.
            seed: Replaces all its seeds; None keeps them.
        """

    @abstractmethod
    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """Return ln p of models without one record each, at its features, ``(records, classes)``.

        Args:
            records: Row numbers of the records.
            queries: Features to query instead, if any: ``(records, queries, classes)``.
        """


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
    """Refit the estimator once for each record, without it.

    Guarantee: the same arguments give the same bytes on every engine, however the work was split,
        killed or resumed. Both fits of a comparison have the same random numbers: each
        ``random_state`` that is a whole number stays, all others and the global generators
        are set from ``seed``. A class that vanishes with a record has probability 0.
    Assumption: all randomness comes from these; this is tested, and violations are reported.

    Args:
        estimator: With scikit-learn's interface; it is not fitted itself. Without ``predict_proba``
            its decision function is used, see ``decision_logs``. One that can train many models at
            once has a method ``leave_one_out``, like
            :class:`~epsilometer.audits.classifier.leave_one_out.networks.NetworkClassifier`.
        X: Features.
        y: Labels.
        records: Row numbers of the records to leave out.
        queries: Features to query instead of each record's own.
        seed: Seed of training, and of the null floor.
        engine: Executes the refits, by default in processes of this machine.
        directory: Where they are stored, so that the same call can finish them after a crash.
        patience: Seconds that they may take; longer runs are refused before they start.

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
    own = getattr(estimator, "leave_one_out", None)
    fits: Fits = own(X, y, seed=seed) if own else Refits(estimator, X, y, seed=seed)
    features = take_rows(X, records) if queries is None else queries
    block = fits.block or min(-(-records.size // _UNITS), _MOST)
    work = _Work(
        fits=fits, records=records, features=features, own=queries is None, block=block, seed=seed
    )
    if engine is None:
        engine = InProcess() if fits.alone else Local()
    _check_patience(work, engine, patience)
    plan = Plan(
        audit="leave_one_out",
        parameters={"path": fits.path, "block": block, "own": work.own},
        units=1 + -(-records.size // block),
        seed=seed,
        inputs={} if directory is None else _fingerprint_inputs(fits, records, features),
    )
    first, *others = gather(plan, work.unit, directory, engine=engine)
    return LeaveOneOut(
        full=first["full"],
        without=np.concatenate([arrays["without"] for arrays in others]),
        null=first["null"],
        path=fits.path,
        caveats=_list_caveats(fits, first, others),
    )


class Refits(Fits):
    """Refit an estimator one model at a time, with set seeds.

    Guarantee: estimators that cannot be refitted, or do not predict classes, are refused.
    """

    path = "refits"
    caveats = (_DRAWS,)

    def __init__(self, estimator: Any, X: Any, y: Any, *, seed: int) -> None:  # noqa: N803
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise InvalidArgument(
                "Expected an estimator with fit and predict_proba, got "
                f"{estimator if isinstance(estimator, type) else type(estimator).__name__}. "
                "A torch module is wrapped: NetworkClassifier(module)."
            )
        if not hasattr(estimator, "predict_proba") and not hasattr(estimator, "decision_function"):
            raise InvalidArgument(
                f"Expected predict_proba or decision_function, {type(estimator).__name__} has "
                "neither (possibly with other parameters). Where it only gives labels, wrap it in "
                "CalibratedClassifierCV."
            )
        self.estimator = clone_with_seed(estimator, seed, overwrite=False)
        self.features = X if hasattr(X, "shape") else np.asarray(X)
        self.labels, self.seed = np.asarray(y), seed
        self.classes, _ = read_labels(y)

    def seconds(self, records: IntArray, queries: Any) -> float:
        """Time one refit; time it again if short, since the first is slow."""
        took: list[float] = []
        while len(took) < 2 and sum(took) < _SHORT:
            start = time.perf_counter()
            self.without(records[:1], queries)
            took.append(time.perf_counter() - start)
        return records.size * min(took)

    def describe(self) -> dict[str, Any]:
        """Return the estimator and the records."""
        return {"estimator": self.estimator, "X": self.features, "y": self.labels}

    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """Return ln p of a model trained on all records."""
        if seed is None:
            return self._fit(clone_estimator(self.estimator), slice(None), queries, seed=self.seed)
        return self._fit(clone_with_seed(self.estimator, seed), slice(None), queries, seed=seed)

    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """Return ln p of models trained without one record each."""
        return np.stack([self._remove(int(record), queries) for record in records])

    def _remove(self, record: int, queries: Any) -> FloatArray:
        others = np.delete(np.arange(self.labels.size), record)
        at = take_rows(self.features, [record]) if queries is None else queries
        left = np.unique(self.labels[others])
        try:
            found = self._fit(clone_estimator(self.estimator), others, at, seed=self.seed)
        except Exception as error:
            if left.size == 1:  # many refuse a single class: it is then certain
                sure = np.where(self.classes == left[0], 0.0, -np.inf)
                found = np.tile(sure, (count_rows(at), 1))
            elif isinstance(error, InvalidArgument):
                raise InvalidArgument(
                    "Could not leave a record out.", withheld=f"Without record {record}: {error}"
                ) from error
            else:
                raise InvalidArgument(
                    f"Expected {type(self.estimator).__name__} to be fitted when a record is left "
                    f"out, it raised {type(error).__name__}.",
                    withheld=f"Without record {record}: {_join_lines(error)}",
                ) from error
        return found[0] if queries is None else found

    def _fit(self, model: Any, rows: Any, queries: Any, *, seed: int) -> FloatArray:
        """Fit to some rows, and predict."""
        with seed_globals(seed):
            model.fit(take_rows(self.features, rows), self.labels[rows])
            found = predict_logs(model, queries, classes=self.classes)
        if np.isnan(found).any():
            row = int(np.flatnonzero(np.isnan(found).any(axis=1))[0])
            raise InvalidArgument(
                f"Expected probabilities from {type(model).__name__}, got nan at row {row} of "
                f"{len(found)} it was asked about."
            )
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class _Work:
    """Units of work: unit 0 fits all records three times, each other leaves out a block."""

    fits: Fits
    records: IntArray
    features: Any
    own: bool
    block: int
    seed: int

    def unit(self, index: int) -> Arrays:
        """Compute one unit: a pure function of the plan."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = self._fit_all() if index == 0 else self._leave_out(index - 1)
        said = sorted({f"{each.category.__name__}: {_shorten(each.message)}" for each in heard})
        return {**found, "warnings": np.array(said, dtype=np.str_)}

    def _fit_all(self) -> dict[str, NDArray[Any]]:
        sequence = np.random.SeedSequence(self.seed, spawn_key=(1,))
        another = int(sequence.generate_state(1)[0]) % SEEDS
        return {
            "full": self.fits.whole(self.features, seed=None),
            "again": self.fits.whole(self.features, seed=None),
            "null": self.fits.whole(self.features, seed=another),
        }

    def _leave_out(self, index: int) -> dict[str, NDArray[Any]]:
        records = self.records[index * self.block : (index + 1) * self.block]
        return {"without": self.fits.without(records, None if self.own else self.features)}


def _check_patience(work: _Work, engine: Engine, patience: float) -> None:
    """Announce how long the refits will take, and refuse those that take too long."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # units report them
        seconds = work.fits.seconds(work.records, None if work.own else work.features)
    seconds /= engine.workers
    said = (
        f"{work.records.size:,} models without a record take about {_format_duration(seconds)} "
        f"with {engine.workers} at a time"
    )
    if seconds > patience:
        raise InvalidArgument(
            f"Expected refits of {_format_duration(patience)} at most; {said}. Give "
            "records='screen:500', an engine with more workers, or more patience=."
        )
    if seconds > _SAID:
        warn(f"{said}.")


def _list_caveats(fits: Fits, first: Arrays, others: Sequence[Arrays]) -> tuple[str, ...]:
    caveats = [] if np.array_equal(first["full"], first["null"]) else list(fits.caveats)
    if not np.array_equal(first["full"], first["again"]):
        caveats.append(
            "Training twice with the same seed gave two different models: further randomness is "
            "part of every value. Compare with another seed alone."
        )
    # By kind alone: the text of a warning may contain a label or a cell.
    heard = Counter(
        kind
        for arrays in (first, *others)
        for kind in {text.partition(":")[0] for text in arrays["warnings"].tolist()}
    )
    caveats += [
        f"{kind} in {count} of {1 + len(others)} units of work."
        for kind, count in sorted(heard.items())
    ]
    return tuple(caveats)


def _fingerprint_inputs(fits: Fits, records: IntArray, features: Any) -> dict[str, str]:
    """Return hashes of the inputs: a directory is never resumed with other data."""
    parts = {**fits.describe(), "records": records, "queries": features}
    return {name: fingerprint(part) for name, part in parts.items()}


def _join_lines(said: Any) -> str:
    return " ".join(str(said).split())


def _shorten(said: Any) -> str:
    text = _join_lines(said)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.2g} ms"
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
