"""Register families of classifiers from which one record can be removed without a refit."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.maps import Mapped, peel_maps
from epsilometer.audits.classifier.leave_one_out.scaling import Peeled, peel_scaling
from epsilometer.audits.classifier.sklearn_models import identify, read_labels, read_matrix
from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray


class Removable(ABC):
    """A model fitted to n records, from which any one record can be removed.

    Removing the last record of a class removes the class: its column is −inf, and the others
    share its probability. A row of nan means that the model has no prediction there (0/0).

    Args:
        features: Features of the records it was fitted to.
        y: Their labels.
        priors: Priors of the classes that the estimator was given, or None.
        counted: Whether default priors are the shares of the classes; if not, they are equal.

    Attributes:
        classes: The labels, in the order of columns.
        codes: Position of each record's label among them.
        counts: Number of records per class.
        caveats: Caveats for readers of its results.
        block: Records that ``own`` removes at a time, so that working arrays stay small.
        refused: Records for which ``own`` found that rounding matters: they need refits.
    """

    caveats: tuple[str, ...] = ()
    refused: BoolArray | None = None
    block: int = 1 << 30

    def __init__(self, features: Any, y: Any, *, priors: Any = None, counted: bool = True) -> None:
        self.features = features
        self.classes, self.codes = read_labels(y)
        self.counts = np.bincount(self.codes).astype(np.float64)
        self.priors = None if priors is None else np.asarray(priors, np.float64)
        self.counted = counted and priors is None
        if self.priors is not None and self.priors.shape != self.classes.shape:
            raise InvalidArgument(
                f"Expected {self.classes.size} priors, one for each class, got {self.priors.size}."
            )

    @abstractmethod
    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records, shape ``(queries, classes)``."""

    @abstractmethod
    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class, shape ``(rows, classes)``.

        Args:
            label: Position of their class.
            records: Which records; only one if ``at`` is given.
            at: Queries, as ``read_queries`` returns them; None: each record's own features.
        """

    def own(self, records: IntArray) -> FloatArray:
        """Return ln p at each record's features without it, shape ``(records, classes)``."""
        records = np.asarray(records, np.int64)
        result = np.empty((records.size, self.classes.size))
        codes = self.codes[records]
        for label in np.unique(codes).tolist():
            places = np.flatnonzero(codes == label)
            for start in range(0, places.size, self.block):
                some = places[start : start + self.block]
                result[some] = self.remove(label, records[some], None)
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """Return ln p of the model without that record, shape ``(queries, classes)``."""
        at = self.read_queries(queries)
        return self.remove(int(self.codes[record]), np.array([record]), at)

    def count_compared(self) -> int:
        """Return about how many records ``own`` has to compare with all others."""
        return self.codes.size

    def count_without(self, label: int) -> FloatArray:
        """Return the number of records per class when one of class ``label`` is removed."""
        counts = self.counts.copy()
        counts[label] -= 1
        return counts

    def log_priors(self, counts: FloatArray) -> FloatArray:
        """Return ln of the priors up to a constant; −inf for a class without records."""
        weights = counts if self.counted else np.ones_like(counts)
        if self.priors is not None:
            weights = weights * self.priors
        with np.errstate(divide="ignore"):
            return np.log(np.where(counts > 0, weights, 0.0))

    def read_queries(self, queries: Any) -> FloatArray:
        """Return the queries as a matrix with as many columns as the training set."""
        at = read_matrix(queries, name="queries")
        check_width(at, self.features.shape[1])
        return at


def check_width(queries: Any, width: int) -> None:
    """Refuse queries with a different number of columns."""
    if queries.shape[1] != width:
        raise InvalidArgument(f"Expected queries of {width} features, got {queries.shape[1]}.")


def _refuse_nothing(estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
    return None


@dataclass(frozen=True)
class Family:
    """Estimators of one exact class, and their model without a record.

    Attributes:
        name: Usual name, such as "Gaussian naive Bayes".
        fit: ``fit(estimator, X, y)`` fits what the estimator would fit, without changing the
            estimator itself.
        refuses: ``refuses(estimator, X, y)`` returns why these parameters or data need refits, or
            None if they do not.
        compares_all: Whether leaving one record out may need all others
            (``Removable.count_compared``).
        searches: Whether every answer searches all records, so that querying all of them takes
            quadratic time.
        fit_scaled: ``fit_scaled(estimator, peeled, y)`` fits it behind preprocessing that changes
            with each record (``scaling.peel_scaling``); None: only preprocessing that does not
            change, such as encoders, is supported.
        refuses_scaled: ``refuses_scaled(estimator, peeled)`` tells whether it needs refits there.
        fit_mapped: ``fit_mapped(estimator, mapped, y)`` fits it behind preprocessing that is a
            linear map of fixed columns (``maps.peel_maps``).
        by_column: Whether it looks at columns one by one, so that rotations matter.
        refuses_mapped: ``refuses_mapped(estimator, X, y)`` returns why that needs refits, for the
            features with all records; by default, ``refuses``.
    """

    name: str
    fit: Callable[[Any, Any, Any], Removable]
    refuses: Callable[[Any, Any, Any], str | None] = _refuse_nothing
    compares_all: bool = False
    searches: bool = False
    fit_scaled: Callable[[Any, Any, Any], Removable] | None = None
    refuses_scaled: Callable[[Any, Any], bool] = lambda estimator, peeled: False
    fit_mapped: Callable[[Any, Any, Any], Removable] | None = None
    by_column: bool = False
    refuses_mapped: Callable[[Any, Any, Any], str | None] | None = None

    def fit_peeled(self, peeled: Peeled | Mapped, y: Any) -> Removable:
        """Fit the estimator at the end of a pipeline behind its preprocessing."""
        if isinstance(peeled, Mapped):
            if self.fit_mapped is None:
                raise InvalidArgument(f"Expected a family with fit_mapped, got {self.name}.")
            return self.fit_mapped(peeled.last, peeled, y)
        if self.fit_scaled is None:
            return self.fit(peeled.last, peeled.features, y)
        return self.fit_scaled(peeled.last, peeled, y)


_HERE = __name__.rpartition(".")[0]
FAMILIES: Registry[Family] = Registry(
    "families",
    {
        "sklearn.GaussianNB": f"{_HERE}.naive_bayes:GAUSSIAN",
        "sklearn.BernoulliNB": f"{_HERE}.naive_bayes:BERNOULLI",
        "sklearn.MultinomialNB": f"{_HERE}.naive_bayes:MULTINOMIAL",
        "sklearn.ComplementNB": f"{_HERE}.naive_bayes:COMPLEMENT",
        "sklearn.CategoricalNB": f"{_HERE}.naive_bayes:CATEGORICAL",
        "sklearn.KNeighborsClassifier": f"{_HERE}.nearest_neighbours:NEIGHBOURS",
        "epsilometer.RandomDecisionTrees": f"{_HERE}.trees:RANDOM_TREES",
        "epsilometer.FixedStructure": f"{_HERE}.trees:FIXED_TREE",
        "sklearn.RidgeClassifier": f"{_HERE}.linear:RIDGE",
        "sklearn.LinearRegression": f"{_HERE}.linear:RIDGE",
        "sklearn.LogisticRegression": f"{_HERE}.logistic:LOGISTIC",
        "sklearn.LinearDiscriminantAnalysis": f"{_HERE}.discriminant:LINEAR",
        "sklearn.QuadraticDiscriminantAnalysis": f"{_HERE}.discriminant:QUADRATIC",
    },
)


def family_of(estimator: Any) -> Family | None:
    """Return the family of an estimator's exact class, or None.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> family_of(GaussianNB()).name
        'Gaussian naive Bayes'
    """
    return FAMILIES.get(identify(estimator))


def find_scaled(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    *,
    without: int | None = None,
) -> tuple[Family, Peeled | Mapped] | None:
    """Return the family at a pipeline's end, if its preprocessing can leave records out exactly.

    If a record is named, missing values are imputed as they are without it.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> pipeline = make_pipeline(StandardScaler(), GaussianNB())
        >>> X, y = np.arange(12.0).reshape(6, 2) ** 2, [0, 1, 0, 1, 0, 1]
        >>> find_scaled(pipeline, X, y)[0].name
        'Gaussian naive Bayes'
    """
    piped = identify(estimator) == "sklearn.Pipeline"
    family = family_of(estimator.steps[-1][1] if piped else estimator)
    if family is None:
        return None
    peeled = peel_scaling(estimator, X, without=without)
    if peeled is not None and _removes_scaled(family, peeled, y):
        return family, peeled
    if family.fit_mapped is None:
        return None
    mapped = peel_maps(estimator, X, turns=not family.by_column, without=without)
    refuses = family.refuses_mapped or family.refuses
    if mapped is None or refuses(mapped.last, mapped.map.compute(None), y) is not None:
        return None
    return family, mapped


def _removes_scaled(family: Family, peeled: Peeled, y: Any) -> bool:
    """Tell whether a family removes records behind this scaling."""
    if family.refuses_scaled(peeled.last, peeled):
        return False
    if family.fit_scaled is None and (peeled.scalers or peeled.rotated):
        return False
    return family.refuses(peeled.last, peeled.scaled, y) is None


def class_weights(setting: Any, classes: NDArray[Any], counts: FloatArray) -> FloatArray:
    """Return the weights of scikit-learn's ``class_weight``; 0 for a class without records.

    Example:
        >>> class_weights("balanced", np.array(["no", "yes"]), np.array([3.0, 1.0]))
        array([0.66666667, 2.        ])
        >>> class_weights({"yes": 5}, np.array(["no", "yes"]), np.array([3.0, 1.0]))
        array([1., 5.])
    """
    present = counts > 0
    if setting is None:
        weights = np.ones_like(counts)
    elif isinstance(setting, str):  # "balanced"
        weights = counts.sum() / (present.sum() * np.where(present, counts, 1.0))
    else:
        weights = np.array([setting.get(label, 1.0) for label in classes.tolist()], np.float64)
    return np.where(present, weights, 0.0)


def refuse_weights(estimator: Any) -> str | None:
    """Return a reason if ``class_weight`` is not supported by ``class_weights``; else None."""
    setting = getattr(estimator, "class_weight", None)
    known = setting is None or isinstance(setting, dict) or setting == "balanced"
    return None if known else "a class_weight that is not known here"
