"""Families of classifiers from which one record can be taken without fitting again."""

from typing import Any, Protocol

from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out import (
    category_bayes,
    count_bayes,
    discriminant,
    leaves,
    linear,
    logistic,
    naive_bayes,
    neighbours,
)
from epsilometer.types import FloatArray, IntArray


class Removable(Protocol):
    """A model fitted to n records, from which any one can be taken.

    Where the last record of a class is taken the class is gone: its column is −inf, and the
    others share its probability. A row of nan says that the model has no prediction there (0/0).
    It may have ``caveats``: sentences that whoever reads its numbers must know.
    """

    @property
    def classes(self) -> NDArray[Any]:
        """The labels, in the order of columns."""
        ...

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records, shape ``(queries, classes)``."""
        ...

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it, shape ``(records, classes)``."""
        ...

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record, shape ``(queries, classes)``."""
        ...


class Family(Protocol):
    """Estimators of one exact type, and what the model without a record is for them."""

    @property
    def name(self) -> str:
        """What people call it, as in "Gaussian naive Bayes"."""
        ...

    def recognises(self, estimator: Any) -> bool:
        """Whether the estimator is of this family: its exact type, no subclass."""
        ...

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Why these parameters or data have to be refitted; None where they need not."""
        ...

    def fit(self, estimator: Any, X: Any, y: Any) -> Removable:  # noqa: N803
        """Fits what the estimator would fit; the estimator itself stays as it is."""
        ...


FAMILIES: tuple[Family, ...] = (
    naive_bayes.Gaussian(),
    count_bayes.Bernoulli(),
    count_bayes.Multinomial(),
    count_bayes.Complement(),
    category_bayes.Categorical(),
    neighbours.Neighbours(),
    leaves.RandomTrees(),
    leaves.FixedTree(),
    linear.Ridge(),
    logistic.Logistic(),
    discriminant.Linear(),
    discriminant.Quadratic(),
)


def family_of(estimator: Any) -> Family | None:
    """The family that recognises the estimator, or None.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> family_of(GaussianNB()).name
        'Gaussian naive Bayes'
    """
    return next((family for family in FAMILIES if family.recognises(estimator)), None)
