"""Measure how much each record changes a classifier's predictions: PDTP and DTP.

PDTP (pointwise differential training privacy; training_privacy, Definition 4.3) of record t is the
largest |ln p(y | x_t) − ln p'(y | x_t)| over classes y, with p trained on all records and p' on all
but t. It uses the record's own features only. DTP uses all possible features: ``dtp_over`` bounds
it from below, ``dtp_exact`` computes it, ``bounds`` bounds it from above.

A probability shown with few decimals stands for the centre of its bin. Risk is then the smaller of
two changes, class by class: that of the probability as shown, and that at full precision. As shown,
a probability that barely crosses the edge of a bin may change by ln 3. At full precision, one that
goes from 10⁻¹² to 10⁻¹⁰ changes even more, but no one can see it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.leave_one_out.chosen import choose_records
from epsilometer.audits.classifier.leave_one_out.families import (
    Removable,
    family_of,
    find_scaled,
)
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE, LeaveOneOut, refit
from epsilometer.audits.classifier.leave_one_out.scaling import describe_steps
from epsilometer.audits.classifier.leave_one_out.screens import screen_records
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    count_rows,
    identify,
    read_labels,
    take_rows,
    unwrap_pipeline,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

LIMIT = 1.0  # the DTP-1 hypothesis: above it a classifier should not be published
LARGEST_DOMAIN = 1 << 20  # largest number of combinations of values
_CONFIDENCE = 0.95
DECIMALS = 2  # of the paper's bins
SHOWN: tuple[int | None, ...] = (None, 4, 3, 2, 1, -1)  # decimals to compare; −1: the class alone
LARGEST = math.log(2 * 10**DECIMALS - 1)  # ln(0.995 / 0.005), the largest change between bins
_EDGE = 1e-9  # tolerance at bin edges: 0.29 * 100 is 28.999999999999996
_SMALLEST = math.log(math.ulp(0.0))  # ln of the smallest positive double
_BLOCK = 1 << 16  # rows at a time, so that working arrays stay small

_LOWER = "a lower bound on DTP, the maximum over all queries"


@dataclass(frozen=True, eq=False, kw_only=True)
class Pdtp:
    """Leave-one-out risk of records; every array has one entry (or row) per record.

    Attributes:
        records: Row numbers of the records.
        values: PDTP; infinite where a class vanishes with the record.
        binned: The same with probabilities in bins of 0.01, as in the paper; at most ln 199.
        edge: Binned above 1 only because a probability crossed an edge of its bin.
        floor: PDTP of a refit with another seed and nothing removed, if training is random.
        of: Total number of records.
        screened: Which of them a screen chose; the others were drawn at random from the rest.
        unseen: With 95 % confidence at most this many records have a larger value than the
            largest here; 0 where all were measured, None where the caller chose them.
        path: How it was computed: "exact: Gaussian naive Bayes", "refits", ….
        caveats: Caveats for readers.
        full: ln p of the model trained on all records, shape ``(records, classes)``.
        without: ln p of the model trained without the record.
        null: ln p of the model trained on all records with another seed, used for ``floor``.
        classes: The labels, in the order of columns.
    """

    records: IntArray
    values: FloatArray
    binned: FloatArray
    edge: BoolArray
    floor: FloatArray | None
    of: int
    screened: BoolArray
    unseen: int | None
    path: str
    caveats: tuple[str, ...]
    full: FloatArray
    without: FloatArray
    null: FloatArray | None = None
    classes: NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class DtpOver(Pdtp):
    """Leave-one-out risk with the largest change over given queries: a lower bound on DTP.

    Attributes:
        query: Row number of the query where each record's change is largest.
    """

    query: IntArray


def pdtp(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    records: IntArray | str | None = None,
    ranked: FloatArray | None = None,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
    engine: Any = None,
    directory: Any = None,
    patience: float = PATIENCE,
) -> Pdtp:
    """Compute PDTP: how much a model's prediction at a record depends on the record.

    Guarantee: if ``path`` says exact, values agree with refitting up to rounding; all else is
        refitted, with the same random numbers in both fits.
    Assumption: one record per row; labels in y are those that the estimator is trained on.

    Args:
        estimator: Any classifier with scikit-learn's interface; it is not fitted itself.
        X: Features, shape ``(records, features)``.
        y: Labels.
        records: Row numbers; None for all; "sample:500" for 500 drawn without replacement;
            "screen:500" for the 250 that ``screen_records`` ranks highest and 250 drawn from the
            others.
        ranked: A screen's ranking of all records, instead of ``screen_records``.
        preprocessing: Whether a pipeline's earlier steps are fitted again without the record, or
            kept as fitted to all.
        seed: Seed of the sample, and of refits.
        engine: The engine that runs refits.
        directory: Where refits are stored, so that they can be resumed.
        patience: Seconds that refits may take; an audit that needs more is refused before it
            starts.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> result = pdtp(GaussianNB(), *load_iris(return_X_y=True))
        >>> result.path, int(result.values.argmax()), round(float(result.values.max()), 2)
        ('exact: Gaussian naive Bayes', 43, 1.85)
    """
    comparison = _Comparison(
        estimator,
        X,
        y,
        records=records,
        ranked=ranked,
        preprocessing=preprocessing,
        seed=seed,
        engine=engine,
        directory=directory,
        patience=patience,
    )
    model, chosen = comparison.model, comparison.records
    if model is None:
        fitted = comparison.refit()
        full, without, null = fitted.full, fitted.without, fitted.null
        path, caveats = fitted.path, fitted.caveats
    else:
        at = comparison.features if records is None else take_rows(comparison.features, chosen)
        full, null = model.log_proba(at), None
        full, without = comparison.leave_out(model, full)
        path, caveats = "", ()
        silent = np.isnan(full).any(axis=1)
        if silent.any():
            raise InvalidArgument(
                f"Expected probabilities from {type(comparison.estimator).__name__}, got nan at "
                f"{silent.sum()} of {silent.size} training records. More smoothing may help."
            )
    values, binned = changes(full, without)
    return Pdtp(
        floor=None if null is None else changes(full, null)[0],
        full=full,
        null=null,
        **comparison.describe(values, binned, without, path, caveats),
    )


def dtp_over(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    queries: Any,
    **options: Any,
) -> DtpOver:
    """Compute the largest change over queries that a record makes: DTP from below.

    DTP queries all possible features, PDTP the record's own. With the training set as queries, a
    well-known toolbox calls this PDTP (without its logarithm). It is then never smaller than PDTP,
    and often much larger.

    Guarantee: at most DTP; if ``path`` says exact, values agree with refitting.
    Assumption: that of ``pdtp``.

    Args:
        estimator: As for ``pdtp``.
        X: Features.
        y: Labels.
        queries: Features to query.
        options: All other options of ``pdtp``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> found = dtp_over(GaussianNB(), X, y, X, records=np.array([0, 43]))
        >>> found.values.round(2), found.query
        (array([12.73, 65.48]), array([118, 144]))
    """
    comparison = _Comparison(estimator, X, y, scaling=False, **options)
    at = comparison.transform(queries)
    if comparison.model is None:
        fitted = comparison.refit(at)
        full, path, caveats = fitted.full, fitted.path, fitted.caveats
        floor = np.full(comparison.records.size, changes(full, fitted.null)[0].max())
        worst = [_find_worst(full, without) for without in fitted.without]
    else:
        full, path, caveats, floor = comparison.model.log_proba(at), "", (), None
        worst = list(comparison.find_worst(comparison.model, full, at))
    values, binned, query = (np.array([each[i] for each in worst]) for i in range(3))
    without = np.stack([each[3] for each in worst])
    noted = f"Over {len(full):,} queries: {_LOWER}."
    return DtpOver(
        floor=floor,
        full=full[query],
        query=query,
        **comparison.describe(values, binned, without, path, (*caveats, noted)),
    )


class _Comparison:
    """Models with and without records: exact (``model``), or by refitting ``estimator``."""

    def __init__(
        self,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        *,
        records: IntArray | str | None = None,
        ranked: FloatArray | None = None,
        preprocessing: Preprocessing = "refit",
        scaling: bool = True,
        seed: int = 0,
        **refit_options: Any,
    ) -> None:
        self.classes, self.codes = read_labels(y)
        rows, self.of = count_rows(X), self.codes.size
        if rows != self.of:
            raise InvalidArgument(
                f"Expected as many rows in X as labels in y, got {rows} and {self.of}."
            )
        engine = refit_options.get("engine")
        self.chosen = choose_records(
            records,
            self.of,
            seed=seed,
            screen=lambda: (
                screen_records(estimator, X, y, seed=seed, engine=engine)
                if ranked is None
                else ranked
            ),
        )
        self.records, self.unseen = self.chosen.records, self.chosen.unseen
        inner = unwrap_pipeline(estimator, X, y, preprocessing=preprocessing, seed=seed)
        self.estimator, self.features = inner.estimator, inner.features
        self.transform, self.path, self.caveats = inner.transform, inner.path_suffix, inner.caveats
        self.refit_options = {"y": y, "seed": seed, **refit_options}
        self.model: Removable | None = None
        self.whole = estimator, X
        self.changed = np.zeros(self.of, bool)  # records that are refitted although others are not
        self.filling = np.zeros(self.of, np.int64)  # how gaps are filled without each record
        self.describe_path: Callable[[BoolArray], str] | None = None
        family = family_of(inner.estimator)
        refused = family and family.refuses(inner.estimator, inner.features, y)
        if family and refused is None:
            self.model = family.fit(inner.estimator, inner.features, y)
            self.path = f"exact: {family.name}{self.path}"
            self.caveats = (*self.caveats, *self.model.caveats)
            return
        if scaling and preprocessing == "refit":
            self._leave_preprocessing(estimator, X, y)
        if family and self.model is None:
            self.caveats = (f"{family.name} was refitted: {refused}.", *self.caveats)

    def _leave_preprocessing(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        """Leave records out of a pipeline exactly, if its steps support that."""
        found = find_scaled(estimator, X, y)
        if found is None:
            return
        family, peeled = found
        self.model = family.fit_peeled(peeled, y)
        self.whole, self.features = (estimator, X), peeled.features
        self.changed = peeled.changed | (np.bincount(self.codes)[self.codes] == 1)
        self.filling = peeled.filling
        self.describe_path = lambda again: (
            f"exact: {family.name}{describe_steps(peeled.steps, int(again.sum()))}"
        )
        self.caveats = (*self.caveats, *self.model.caveats)

    def leave_out(self, model: Removable, full: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln p of records with and without them; refit if their preprocessing changes."""
        (estimator, X), y = self.whole, self.refit_options["y"]  # noqa: N806
        without, again = np.empty_like(full), self.changed[self.records]
        filling = np.where(again, -1, self.filling[self.records])
        for way in np.unique(filling[~again]).tolist():
            some = np.flatnonzero(filling == way)
            records, own = self.records[some], model
            if way:  # without these, missing values are imputed differently
                found = find_scaled(estimator, X, y, without=int(records[0]))
                if found is None:
                    again[some] = True
                    continue
                own = found[0].fit_peeled(found[1], y)
                again[some] = found[1].changed[records]
            without[some] = own.own(records)
            if own.refused is not None:
                again[some] |= own.refused[records]
        if self.describe_path is not None:
            self.path = self.describe_path(again)
        if again.any():  # a whole pipeline once per record
            options = {**self.refit_options, "directory": None}
            fitted = refit(estimator, X, records=self.records[again], **options)
            full[again], without[again] = fitted.full, fitted.without
        return full, without

    def refit(self, queries: Any = None) -> LeaveOneOut:
        """Refit once per record, without it."""
        return refit(
            self.estimator,
            self.features,
            records=self.records,
            queries=queries,
            **self.refit_options,
        )

    def find_worst(
        self, model: Removable, full: FloatArray, at: Any
    ) -> Iterator[tuple[float, float, int, FloatArray]]:
        """Yield the largest change of each record; equal records are computed once."""
        first, same = self.records, np.arange(self.records.size)
        those = take_rows(self.features, self.records)
        if isinstance(those, np.ndarray) and those.dtype.kind in "iufb":
            table = np.column_stack([those, self.codes[self.records]])
            _, places, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
            first = self.records[places]
        worst = [_find_worst(full, model.without(int(record), at)) for record in first]
        return (worst[place] for place in same.reshape(-1))

    def describe(
        self,
        values: FloatArray,
        binned: FloatArray,
        without: FloatArray,
        path: str,
        caveats: tuple[str, ...],
    ) -> dict[str, Any]:
        """Return the fields that PDTP and DTP have in common."""
        return {
            "records": self.records,
            "values": values,
            "binned": binned,
            "edge": (binned > LIMIT) & (values <= LIMIT),
            "of": self.of,
            "screened": self.chosen.screened,
            "unseen": self.unseen,
            "path": path + self.path,
            "caveats": (
                *self.caveats,
                *caveats,
                *self._explain_infinite(values, without),
                *self._describe_sample(),
            ),
            "without": without,
            "classes": self.classes,
        }

    def _explain_infinite(self, values: FloatArray, without: FloatArray) -> Iterator[str]:
        """Yield why values are infinite."""
        infinite = np.isinf(values)
        last = infinite & (np.bincount(self.codes)[self.codes[self.records]] == 1)
        silent = infinite & np.isnan(without).any(axis=1)
        reasons = (
            (last, "the last of its class, which has probability 0 without it."),
            (silent, "without it the model has no prediction there (0/0)."),
            (
                infinite & ~last & ~silent,
                "a class has probability 0 under only one of the two models.",
            ),
        )
        for which, reason in reasons:
            count = int(np.count_nonzero(which))
            who = "1 record is" if count == 1 else f"{count:,} records are each"
            if count:
                yield f"{who} infinite: {reason}"

    def _describe_sample(self) -> Iterator[str]:
        """Yield caveats about records that were not measured."""
        size, of = self.records.size, self.of
        if self.unseen is None:
            yield f"{size:,} of {of:,} records, as requested: others may be higher."
        elif self.chosen.screened.any():
            few = int(self.chosen.screened.sum())
            yield (
                f"{few:,} of {of:,} records were chosen by a screen, {size - few:,} were drawn "
                f"from the others: with {_CONFIDENCE:.0%} confidence at most {self.unseen:,} of "
                f"all ({self.unseen / of:.2%}) are above the largest value here."
            )
        elif size < of:
            yield (
                f"{size:,} of {of:,} records were drawn: with {_CONFIDENCE:.0%} confidence at most "
                f"{self.unseen:,} of all ({self.unseen / of:.2%}) are above the largest value here."
            )


def _find_worst(full: FloatArray, without: FloatArray) -> tuple[float, float, int, FloatArray]:
    """Return the largest change over queries, unbinned and binned, its query, and ln p' there."""
    values, binned = changes(full, without)
    query = int(values.argmax())
    return float(values[query]), float(binned.max()), query, without[query]


@dataclass(frozen=True, eq=False, kw_only=True)
class Changes:
    """Changes of ln p when a record leaves, one entry per record.

    Attributes:
        risk: The largest over classes of the smaller of the two.
        shown: The largest change of what is shown.
        unbinned: The largest change at full precision.
    """

    risk: FloatArray
    shown: FloatArray
    unbinned: FloatArray


def measure_changes(full: FloatArray, without: FloatArray, *, decimals: int | None) -> Changes:
    """Return the change that each record causes for an observer of ``decimals`` decimals.

    A class impossible under both models does not count. A row of nan, a model without a prediction
    (0/0), counts as infinite against one with a prediction: an observer sees the difference.

    Args:
        full: ln p of the model trained on all records, shape ``(records, classes)``.
        without: ln p of the model trained without the record.
        decimals: Number of decimals shown; None: all; −1: the likeliest class alone.

    Example:
        >>> edge = measure_changes(
        ...     np.log([[0.0099, 0.9901]]), np.log([[0.0101, 0.9899]]), decimals=2
        ... )
        >>> edge.shown.round(2), edge.risk.round(2)  # it crossed an edge, and hardly moved
        (array([1.1]), array([0.02]))
    """
    found = np.empty((3, len(full)))
    for start in range(0, len(full), _BLOCK):
        part = slice(start, start + _BLOCK)
        exact, rounded = _compare(full[part], without[part], decimals)
        smaller = np.minimum(exact, rounded)
        found[:, part] = [each.max(axis=1) for each in (smaller, rounded, exact)]
    return Changes(risk=found[0], shown=found[1], unbinned=found[2])


def _compare(
    full: FloatArray, without: FloatArray, decimals: int | None
) -> tuple[FloatArray, FloatArray]:
    # Underflow is not infinitely small; a class impossible under one model alone is
    exact = np.abs(np.maximum(full, _SMALLEST) - np.maximum(without, _SMALLEST))
    exact[(full == -np.inf) != (without == -np.inf)] = np.inf
    rounded = exact
    if decimals == -1:  # the likeliest class alone: it changes, or nothing does
        rounded = np.where(find_flips(full, without), np.inf, 0.0)[:, None] * np.ones(full.shape[1])
    elif decimals is not None:
        rounded = np.abs(np.log(show(full, decimals) / show(without, decimals)))
    if np.isnan(exact).any():
        silent, silent_too = np.isnan(full).any(axis=1), np.isnan(without).any(axis=1)
        for moved in (exact, rounded):
            moved[silent != silent_too] = np.inf
            moved[silent & silent_too] = 0.0
    return exact, rounded


def bin_centres(probability: Any, decimals: int = DECIMALS) -> FloatArray:
    """Return the centres of the bins [k/10^d, (k+1)/10^d) of probabilities; the last has 1 too.

    Example:
        >>> bin_centres([0.0, 0.29, 0.2899, 1.0])
        array([0.005, 0.295, 0.285, 0.995])
    """
    bins = 10.0**decimals
    scaled = np.asarray(probability, np.float64) * bins
    return np.asarray((np.clip(np.floor(scaled + _EDGE), 0, bins - 1) + 0.5) / bins)


def show(log_proba: FloatArray, decimals: int | None) -> FloatArray:
    """Return probabilities as shown: the centres of bins, or unchanged where None."""
    if decimals is None:
        return np.exp(log_proba)
    _validate.whole(1, decimals=decimals)
    return bin_centres(np.exp(log_proba), decimals)


def find_flips(full: FloatArray, without: FloatArray) -> BoolArray:
    """Return the records whose predicted class changes when they are left out."""
    return np.asarray(predict_class(full) != predict_class(without))


def predict_class(log_proba: FloatArray) -> IntArray:
    """Return the likeliest class, the first of ties; the first if there is no prediction."""
    likeliest: IntArray = np.argmax(np.nan_to_num(log_proba, nan=-np.inf, neginf=-np.inf), axis=1)
    return likeliest


def changes(full: FloatArray, without: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest |ln p − ln p'| over classes, row by row: unbinned, and binned.

    Example:
        >>> changes(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]]))[0].round(4)
        array([0.6931])
    """
    found = measure_changes(full, without, decimals=DECIMALS)
    return found.unbinned, np.minimum(found.shown, LARGEST)


def dtp_exact(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    domain: Sequence[Sequence[Any]] | None = None,
    records: IntArray | str | None = None,
    **options: Any,
) -> DtpOver:
    """Compute DTP by querying every combination of values (training_privacy, Definition 4.1).

    Guarantee: the maximum over the whole domain and all classes; ``query`` counts through the
        domain with the last column fastest.
    Assumption: no one can query values outside the domain.

    Args:
        estimator: As for ``pdtp``.
        X: Features.
        y: Labels.
        domain: Values of each column; by default, for categorical and Bernoulli naive Bayes, those
            known to the model.
        records: As for ``pdtp``.
        options: As for ``dtp_over``.

    Example:
        >>> from sklearn.naive_bayes import CategoricalNB
        >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 1]], [0, 0, 0, 1, 1]
        >>> found = dtp_exact(CategoricalNB(), X, y)
        >>> found.values.round(3)
        array([0.656, 0.561, 0.561, 0.552, 0.552])
        >>> enumerate_domain([[0, 1], [0, 1]], 2)[found.query[0]]  # where the first shows most
        array([0, 0])
    """
    columns = np.shape(X)[1]
    grid = enumerate_domain(_known_domain(estimator, X) if domain is None else domain, columns)
    found = dtp_over(estimator, X, y, grid, records=records, **options)
    caveats = tuple(text for text in found.caveats if _LOWER not in text)
    return dataclasses.replace(found, caveats=caveats)


def enumerate_domain(domain: Sequence[Sequence[Any]], columns: int) -> NDArray[Any]:
    """Return all combinations, one per row, the last column fastest."""
    if len(domain) != columns:
        raise InvalidArgument(f"Expected values of {columns} columns, got {len(domain)}.")
    size = math.prod(len(values) for values in domain)
    if not 0 < size <= LARGEST_DOMAIN:
        raise InvalidArgument(
            f"Expected 1 to {LARGEST_DOMAIN:,} combinations of values, got {size:,}. "
            "dtp_over asks about some of them, dtp_upper_bound needs none."
        )
    axes = np.meshgrid(*(np.asarray(values) for values in domain), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def _known_domain(estimator: Any, X: Any) -> list[Sequence[Any]]:  # noqa: N803
    columns = np.shape(X)[1]
    if identify(estimator) == "sklearn.CategoricalNB":
        known = np.asarray(X).max(axis=0).astype(np.int64) + 1
        least = 0 if estimator.min_categories is None else estimator.min_categories
        return [range(values) for values in np.maximum(known, least)]
    if identify(estimator) == "sklearn.BernoulliNB":
        edge = estimator.binarize
        return [(0, 1) if edge is None else (edge, edge + 1)] * columns
    raise InvalidArgument(
        f"Expected domain=[values of each column] for {type(estimator).__name__}, got none. "
        "Where values are not few, dtp_over asks about those you choose."
    )
