"""How much each record of a training set shows in the classifier's predictions.

PDTP (pointwise differential training privacy; training_privacy, Definition 4.3) of record t is the
largest |ln p(y | x_t) − ln p'(y | x_t)| over classes y, with p trained on all records and p' on all
but t. It looks at the record's own features only; ``dtp_over`` looks at any others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.leave_one_out import binning, families
from epsilometer.audits.classifier.leave_one_out.estimators import labels
from epsilometer.audits.classifier.leave_one_out.pipelines import Preprocessing, unwrapped
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE, refit, rows
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

LINE = 1.0  # the DTP-1 hypothesis: above it a classifier should not be published
_CONFIDENCE = 0.95
_BLOCK = 1 << 16  # rows at a time, so that working arrays stay small
_SMALLEST = math.log(math.ulp(0.0))  # ln of the smallest double above 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Pdtp:
    """Leave-one-out risk of records; every array has one entry (or row) a record.

    Attributes:
        records: Which records, as row numbers.
        values: PDTP; infinite where a class vanishes with the record.
        binned: The same with probabilities in bins of 0.01, as the paper has it; at most ln 199.
        edge: Binned above 1 only because a probability crossed an edge of its bin.
        floor: What a refit with nothing removed and another seed gives, where training is random.
        of: How many records there are in all.
        unseen: With 95 % confidence at most so many records have a larger value than the
            largest here; 0 where all were measured, None where the caller chose them.
        path: How it was computed: "exact: Gaussian naive Bayes", "refits", ….
        caveats: What a reader must know.
        full: ln p of the model trained on all records, shape ``(records, classes)``.
        without: ln p of the model trained without the record.
        null: ln p of the model trained on all with another seed, behind ``floor``.
        classes: The labels, in the order of columns.
    """

    records: IntArray
    values: FloatArray
    binned: FloatArray
    edge: BoolArray
    floor: FloatArray | None
    of: int
    unseen: int | None
    path: str
    caveats: tuple[str, ...]
    full: FloatArray
    without: FloatArray
    null: FloatArray | None = None
    classes: NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class DtpOver(Pdtp):
    """The same with the largest change over given queries: a lower bound of DTP.

    Attributes:
        query: Where each record shows most, as a row number of the queries.
    """

    query: IntArray


def pdtp(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    records: IntArray | str | None = None,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
    engine: Any = None,
    directory: Any = None,
    patience: float = PATIENCE,
) -> Pdtp:
    """PDTP of records: how much a model's prediction at a record depends on the record.

    Guarantees: what ``path`` calls exact agrees with refitting but for rounding; all else is
        refitted, with the same random numbers in both fits.
    Assumes: one record a row; labels in y are those that the estimator is trained on.

    Args:
        estimator: Any classifier with scikit-learn's interface; it is not fitted itself.
        X: Features, shape ``(records, features)``.
        y: Labels.
        records: Row numbers; None for all; "sample:500" for 500 drawn without replacement.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record, or
            held as fitted to all.
        seed: Of the sample, and of refits.
        engine: What refits run on.
        directory: Where refits are kept, so that they can be resumed.
        patience: Seconds that refits may take; more is refused before it begins.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> result = pdtp(GaussianNB(), *load_iris(return_X_y=True))
        >>> result.path, int(result.values.argmax()), round(float(result.values.max()), 2)
        ('exact: Gaussian naive Bayes', 43, 1.85)
    """
    classes, codes = labels(y)
    _same_length(X, codes)
    chosen, unseen = chosen_records(records, codes.size, seed=seed)
    way = _Way.to(estimator, X, y, preprocessing=preprocessing, seed=seed)
    null: FloatArray | None = None
    caveats = way.caveats
    if way.model is not None:
        at = way.features if records is None else rows(way.features, chosen)
        full, without = way.model.log_proba(at), way.model.own(chosen)
        path = way.path
        _has_answers(way.estimator, full)
    else:
        refits = {"seed": seed, "engine": engine, "directory": directory, "patience": patience}
        fitted = refit(way.estimator, way.features, y, chosen, **refits)
        full, without, null = fitted.full, fitted.without, fitted.null
        path, caveats = fitted.path + way.path, (*caveats, *fitted.caveats)
    values, binned = changes(full, without)
    return Pdtp(
        records=chosen,
        values=values,
        binned=binned,
        edge=(binned > LINE) & (values <= LINE),
        floor=None if null is None else changes(full, null)[0],
        of=codes.size,
        unseen=unseen,
        path=path,
        caveats=(
            *caveats,
            *_explained(values, without, codes, chosen),
            *_left(chosen, unseen, of=codes.size),
        ),
        full=full,
        without=without,
        null=null,
        classes=classes,
    )


def dtp_over(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    queries: Any,
    *,
    records: IntArray | str | None = None,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
    engine: Any = None,
    directory: Any = None,
    patience: float = PATIENCE,
) -> DtpOver:
    """The largest change over queries that a record makes: DTP from below.

    DTP asks about all features there could be, PDTP about the record's own. With the training set
    itself as queries this is what a well-known toolbox calls PDTP (without its logarithm); it
    is never smaller than PDTP, and often much larger.

    Guarantees: no more than DTP; what ``path`` calls exact agrees with refitting.
    Assumes: as ``pdtp``, whose arguments these are.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> found = dtp_over(GaussianNB(), X, y, X, records=np.array([0, 43]))
        >>> found.values.round(2), found.query
        (array([12.73, 65.48]), array([118, 144]))
    """
    classes, codes = labels(y)
    _same_length(X, codes)
    chosen, unseen = chosen_records(records, codes.size, seed=seed)
    way = _Way.to(estimator, X, y, preprocessing=preprocessing, seed=seed)
    asked = way.transform(queries)
    caveats = way.caveats
    null: FloatArray | None = None
    if way.model is not None:
        full, path = way.model.log_proba(asked), way.path
        first, same = _alike(way.features, codes, chosen)
        kinds = [_worst(full, way.model.without(int(record), asked)) for record in first]
        worst = [kinds[place] for place in same]
    else:
        refits = {"seed": seed, "engine": engine, "directory": directory, "patience": patience}
        fitted = refit(way.estimator, way.features, y, chosen, queries=asked, **refits)
        full, path, null = fitted.full, fitted.path + way.path, fitted.null
        caveats = (*caveats, *fitted.caveats)
        worst = [_worst(full, without) for without in fitted.without]
    values = np.array([each.value for each in worst])
    binned = np.array([each.binned for each in worst])
    query = np.array([each.query for each in worst], np.int64)
    without = np.stack([each.without for each in worst])
    floor = None if null is None else np.full(chosen.size, changes(full, null)[0].max())
    return DtpOver(
        records=chosen,
        values=values,
        binned=binned,
        edge=(binned > LINE) & (values <= LINE),
        floor=floor,
        of=codes.size,
        unseen=unseen,
        path=path,
        caveats=(
            *caveats,
            f"Over {len(full):,} queries: a lower bound of DTP, which has all there could be.",
            *_explained(values, without, codes, chosen),
            *_left(chosen, unseen, of=codes.size),
        ),
        full=full[query],
        without=without,
        classes=classes,
        query=query,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Way:
    """How models without a record are had: exactly (``model``), or by fitting ``estimator``."""

    model: families.Removable | None
    estimator: Any
    features: Any
    transform: Callable[[Any], Any]
    path: str
    caveats: tuple[str, ...]

    @classmethod
    def to(
        cls,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        *,
        preprocessing: Preprocessing,
        seed: int,
    ) -> "_Way":
        inner = unwrapped(estimator, X, y, preprocessing=preprocessing, seed=seed)
        family = families.family_of(inner.estimator)
        refused = None if family is None else family.refuses(inner.estimator, inner.features, y)
        model, path, caveats = None, inner.said, inner.caveats
        if family is not None and refused is None:
            model = family.fit(inner.estimator, inner.features, y)
            path = f"exact: {family.name}{inner.said}"
            caveats = (*caveats, *getattr(model, "caveats", ()))
        elif family is not None:
            caveats = (f"{family.name} was refitted: {refused}.", *caveats)
        return cls(
            model=model,
            estimator=inner.estimator,
            features=inner.features,
            transform=inner.transform,
            path=path,
            caveats=caveats,
        )


def _has_answers(estimator: Any, full: FloatArray) -> None:
    silent = np.isnan(full).any(axis=1)
    if silent.any():
        raise InvalidArgument(
            f"Expected probabilities from {type(estimator).__name__}, got nan at {silent.sum()} of "
            f"{silent.size} records it was trained on. More smoothing may help."
        )


@dataclass(frozen=True, eq=False)
class _Worst:
    value: float
    binned: float
    query: int
    without: FloatArray


def _worst(full: FloatArray, without: FloatArray) -> _Worst:
    values, binned = changes(full, without)
    query = int(values.argmax())
    return _Worst(float(values[query]), float(binned.max()), query, without[query])


def _alike(X: Any, codes: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:  # noqa: N803
    """One record of each kind, and which of them each record is like: twins have one model."""
    those = rows(X, chosen)
    if not isinstance(those, np.ndarray) or those.dtype.kind not in "iufb":
        return chosen, np.arange(chosen.size)
    table = np.column_stack([those, codes[chosen]])
    _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return chosen[first], np.asarray(same, np.int64).reshape(-1)


def changes(full: FloatArray, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The largest |ln p − ln p'| over classes, row by row: as it is, and binned.

    A class impossible to both models does not count; a probability too small for a double counts
    as the smallest one, since no more is seen of it. A row of nan, a model without a prediction
    (0/0), against one with a prediction counts as infinite: whoever asks sees the difference.

    Example:
        >>> changes(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]]))[0].round(4)
        array([0.6931])
    """
    values, binned = np.empty(len(full)), np.empty(len(full))
    for start in range(0, len(full), _BLOCK):
        part = slice(start, start + _BLOCK)
        values[part], binned[part] = _changes(full[part], without[part])
    return values, binned


def _changes(full: FloatArray, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    with np.errstate(invalid="ignore"):  # −inf − −inf
        moved = np.abs(_seen(full) - _seen(without))
    moved[(full == -np.inf) & (without == -np.inf)] = 0.0
    values = moved.max(axis=1)
    centres = binning.centres(np.exp(full)), binning.centres(np.exp(without))
    binned = np.abs(np.log(centres[0] / centres[1])).max(axis=1)
    silent, silent_too = np.isnan(full).any(axis=1), np.isnan(without).any(axis=1)
    values[silent != silent_too], binned[silent != silent_too] = np.inf, binning.LARGEST
    values[silent & silent_too] = binned[silent & silent_too] = 0.0
    return values, binned


def _seen(log_proba: FloatArray) -> FloatArray:
    return np.where(log_proba == -np.inf, log_proba, np.maximum(log_proba, _SMALLEST))


def larger_at_most(sampled: int, of: int, *, confidence: float = _CONFIDENCE) -> int:
    r"""How many of all records may have a larger value than the largest of a sample.

    A sample of s of n records without replacement misses the k largest with probability
    :math:`\binom{n-k}{s} / \binom{n}{s}`; the answer is the largest k for which that is still
    above 1 − confidence.

    Guarantees: with probability ``confidence`` at most so many have a larger value, whatever
        the values are.
    Assumes: the sample was drawn evenly, without looking at values.

    Example:
        >>> larger_at_most(500, 1_000_000)
        5972
        >>> larger_at_most(1_000, 1_000)
        0
    """
    _validate.whole(1, sampled=sampled)
    _validate.whole(sampled, of=of)
    _validate.open_unit(confidence=confidence)
    left = of - np.arange(sampled)  # records still there at each draw

    def missed(largest: int) -> float:
        return float(np.exp(np.log1p(-largest / left).sum())) if largest <= of - sampled else 0.0

    low, high = 0, of - sampled + 1  # missed at low, not at high
    while high - low > 1:
        middle = (low + high) // 2
        if missed(middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def chosen_records(
    records: IntArray | str | None, of: int, *, seed: int
) -> tuple[IntArray, int | None]:
    """Row numbers, and how many may be above their largest value (None: nobody knows)."""
    if records is None:
        return np.arange(of), 0
    if isinstance(records, str):
        size = _sample_size(records)
        if size >= of:
            return np.arange(of), 0
        wanted = np.random.default_rng(seed).choice(of, size, replace=False)
        return np.sort(wanted).astype(np.int64), larger_at_most(size, of)
    wanted = np.asarray(records)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or wanted.size == 0:
        raise InvalidArgument(
            "Expected row numbers, None or 'sample:500' for records, got "
            f"an array of {wanted.dtype} with shape {wanted.shape}."
        )
    if wanted.min() < 0 or wanted.max() >= of:
        raise InvalidArgument(
            f"Expected records in [0, {of}), got {wanted.min()} to {wanted.max()}."
        )
    return wanted.astype(np.int64), None


def _sample_size(text: str) -> int:
    word, _, number = text.partition(":")
    if word != "sample" or not number.isdecimal() or int(number) == 0:
        raise InvalidArgument(
            f"Expected row numbers, None or 'sample:500' for records, got {text!r}."
        )
    return int(number)


def _same_length(X: Any, codes: IntArray) -> None:  # noqa: N803
    count = X.shape[0] if hasattr(X, "shape") else len(X)
    if count != codes.size:
        raise InvalidArgument(
            f"Expected as many rows in X as labels in y, got {count} and {codes.size}."
        )


def _explained(
    values: FloatArray, without: FloatArray, codes: IntArray, chosen: IntArray
) -> tuple[str, ...]:
    """Why values are infinite."""
    infinite = np.isinf(values)
    last = infinite & (np.bincount(codes)[codes[chosen]] == 1)
    silent = infinite & np.isnan(without).any(axis=1)
    others = infinite & ~last & ~silent
    told = []
    if last.any():
        told.append(
            f"{_counted(last)} infinite: the last of its class, which without it has probability 0."
        )
    if silent.any():
        told.append(
            f"{_counted(silent)} infinite: without it the model has no prediction there (0/0)."
        )
    if others.any():
        told.append(
            f"{_counted(others)} infinite: one of the two models holds a class to be impossible "
            "that the other does not."
        )
    return tuple(told)


def _left(chosen: IntArray, unseen: int | None, *, of: int) -> tuple[str, ...]:
    """What a choice of records leaves open."""
    if unseen is None:
        return (f"{chosen.size:,} of {of:,} records, as asked for: others may be higher.",)
    if chosen.size == of:
        return ()
    return (
        f"{chosen.size:,} of {of:,} records were drawn: with {_CONFIDENCE:.0%} confidence at most "
        f"{unseen:,} of all ({unseen / of:.2%}) are above the largest value here.",
    )


def _counted(which: BoolArray | np.bool_) -> str:
    count = int(np.count_nonzero(which))
    return "1 record is" if count == 1 else f"{count:,} records are each"
