"""How much each record of a training set shows in the classifier's predictions.

PDTP (pointwise differential training privacy; training_privacy, Definition 4.3) of record t is the
largest |ln p(y | x_t) − ln p'(y | x_t)| over classes y, with p trained on all records and p' on all
but t. It looks at the record's own features only; ``dtp_over`` looks at any others.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.leave_one_out import binning, families
from epsilometer.leave_one_out.estimators import labels
from epsilometer.types import BoolArray, FloatArray, IntArray

LINE = 1.0  # the DTP-1 hypothesis: above it a classifier should not be published
_CONFIDENCE = 0.95
_BLOCK = 1 << 16  # rows at a time, so that working arrays stay small
_SMALLEST = math.log(math.ulp(0.0))  # ln of the smallest double above 0

Preprocessing = Literal["refit", "fixed"]


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
) -> Pdtp:
    """PDTP of records: how much a model's prediction at a record depends on the record.

    Guarantees: what ``path`` calls exact agrees with refitting but for rounding; all else is
        refitted, with the same random numbers in both fits.
    Assumes: labels in y are those the estimator is trained on, one record a row.

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

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> result = pdtp(GaussianNB(), *load_iris(return_X_y=True))
        >>> result.path, int(result.values.argmax()), round(float(result.values.max()), 2)
        ('exact: Gaussian naive Bayes', 43, 1.85)
    """
    classes, codes = labels(y)
    _same_length(X, codes)
    chosen, unseen = _chosen(records, codes.size, seed=seed)
    family = families.family_of(estimator)
    refused = None if family is None else family.refuses(estimator, X, y)
    caveats: tuple[str, ...] = ()
    null: FloatArray | None = None
    if family is not None and refused is None:
        model = family.fit(estimator, X, y)
        at = X if records is None else _rows(X, chosen)
        full, without = model.log_proba(at), model.own(chosen)
        path = f"exact: {family.name}"
    else:
        from epsilometer.leave_one_out.refits import refit

        fitted = refit(
            estimator,
            X,
            y,
            chosen,
            preprocessing=preprocessing,
            seed=seed,
            engine=engine,
            directory=directory,
        )
        full, without, null = fitted.full, fitted.without, fitted.null
        path, caveats = fitted.path, fitted.caveats
        if family is not None:
            caveats = (f"{family.name} was refitted: {refused}.", *caveats)
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
        caveats=(*caveats, *_explained(without, codes[chosen], values, unseen, of=codes.size)),
        full=full,
        without=without,
        classes=classes,
    )


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


def _chosen(records: IntArray | str | None, of: int, *, seed: int) -> tuple[IntArray, int | None]:
    if records is None:
        return np.arange(of), 0
    if isinstance(records, str):
        size = _sample_size(records)
        if size >= of:
            return np.arange(of), 0
        rows = np.random.default_rng(seed).choice(of, size, replace=False)
        return np.sort(rows).astype(np.int64), larger_at_most(size, of)
    rows = np.asarray(records)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.size == 0:
        raise InvalidArgument(
            "Expected row numbers, None or 'sample:500' for records, got "
            f"an array of {rows.dtype} with shape {rows.shape}."
        )
    if rows.min() < 0 or rows.max() >= of:
        raise InvalidArgument(f"Expected records in [0, {of}), got {rows.min()} to {rows.max()}.")
    return rows.astype(np.int64), None


def _sample_size(text: str) -> int:
    word, _, number = text.partition(":")
    if word != "sample" or not number.isdecimal() or int(number) == 0:
        raise InvalidArgument(
            f"Expected row numbers, None or 'sample:500' for records, got {text!r}."
        )
    return int(number)


def _same_length(X: Any, codes: IntArray) -> None:  # noqa: N803
    rows = X.shape[0] if hasattr(X, "shape") else len(X)
    if rows != codes.size:
        raise InvalidArgument(
            f"Expected as many rows in X as labels in y, got {rows} and {codes.size}."
        )


def _rows(X: Any, chosen: IntArray) -> Any:  # noqa: N803
    """Those rows of an array, a sparse matrix or a data frame."""
    if hasattr(X, "iloc"):
        return X.iloc[chosen]
    return (X if hasattr(X, "shape") else np.asarray(X))[chosen]


def _explained(
    without: FloatArray, codes: IntArray, values: FloatArray, unseen: int | None, *, of: int
) -> tuple[str, ...]:
    """Why values are infinite, and what a sample leaves open."""
    told = []
    gone = without[np.arange(codes.size), codes] == -np.inf
    silent = np.isnan(without).any(axis=1)
    if (gone & np.isinf(values)).any():
        told.append(
            f"{_counted(gone & np.isinf(values))} infinite because without it the model gives its "
            "label no probability: it is the last of its class, or the only one with its value."
        )
    if silent.any():
        told.append(
            f"{_counted(silent)} infinite because without it the model has no prediction at its "
            "features (0/0)."
        )
    if unseen is None:
        told.append(
            f"{codes.size:,} of {of:,} records were chosen by the caller: others may be higher."
        )
    elif unseen:
        told.append(
            f"{codes.size:,} of {of:,} records were drawn: with {_CONFIDENCE:.0%} confidence at "
            f"most {unseen:,} records ({unseen / of:.2%}) are above the largest value here."
        )
    return tuple(told)


def _counted(which: BoolArray | np.bool_) -> str:
    count = int(np.count_nonzero(which))
    return "1 record is" if count == 1 else f"{count:,} records are each"
