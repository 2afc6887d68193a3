r"""Bound DTP from above: the most a record can change any answer, where a proof exists.

Naive Bayes. Without record t only the likelihood of its own class and the prior change. The odds
of that class against any other change by a factor :math:`e^{r(x)}`, with

.. math:: r(x) = \ln\frac{n_y}{n_y - 1} + \sum_j \ln\frac{\theta_j(x_j)}{\theta'_j(x_j)}.

If odds change by a factor, no probability changes by more than that factor, so
:math:`DTP(t) \le \max_x |r(x)|`; r is a sum over features, and so are its extreme values.

The paper's Propositions 6.4 and 6.5 bound the product before it is normalised; normalised
probabilities exceed them. Proposition 6.3 has 4/3 instead of 3/2. They are not used.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.chosen import choose_records
from epsilometer.audits.classifier.leave_one_out.families import family_of
from epsilometer.audits.classifier.leave_one_out.naive_bayes import CategoricalModel, binarise
from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp
from epsilometer.audits.classifier.sklearn_models import identify
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

COUNTED = 1.5  # training stability of a conditional frequency; the paper's Proposition 6.3 has 4/3
_SHARED = ("alpha", "force_alpha", "fit_prior", "class_prior")  # settings both models have


@dataclass(frozen=True, eq=False, kw_only=True)
class DtpBound:
    """Upper bounds of DTP, one per record.

    Attributes:
        records: Row numbers of the records.
        values: The bounds; infinite where a class vanishes with the record.
        of: Total number of records.
        proof: Why the bounds hold.
    """

    records: IntArray
    values: FloatArray
    of: int
    proof: str


def dtp_upper_bound(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    records: IntArray | str | None = None,
    seed: int = 0,
) -> DtpBound:
    """Bound DTP from above, without querying the model.

    Guarantee: no answer changes by more when the record is removed.
    Assumption: categorical or Bernoulli naive Bayes; queries have values that the model knows.

    Example:
        >>> from sklearn.naive_bayes import CategoricalNB
        >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 1]], [0, 0, 0, 1, 1]
        >>> dtp_upper_bound(CategoricalNB(), X, y).values.round(3)
        array([0.77 , 1.058, 1.058, 0.929, 0.929])
    """
    model = _fit_counts(estimator, X, y)
    chosen = choose_records(records, len(model.codes), seed=seed).records
    return DtpBound(
        records=chosen,
        values=model.bound_change(chosen),
        of=len(model.codes),
        proof="the odds of the record's class change by a product over features, whose largest "
        "and least value are products of the largest and least factors",
    )


def stable_upper_bound(found: Pdtp, *, stability: float) -> DtpBound:
    """Bound DTP of a δ-training stable algorithm by max(PDTP, ln δ) (Theorem 6.2).

    Guarantee: that of the theorem, for PDTP over all classes.
    Assumption: the algorithm is δ-training stable, which the caller has proved. A conditional
        frequency (a leaf of a tree whose structure does not depend on the data) is, with δ = 3/2.
    """
    if not 1 <= stability < np.inf:
        raise InvalidArgument(f"Expected stability δ ≥ 1 and finite, got {stability!r}.")
    return DtpBound(
        records=found.records,
        values=np.maximum(found.values, np.log(stability)),
        of=found.of,
        proof=f"training stable with δ = {stability:.4g} (Theorem 6.2)",
    )


def lipschitz_bound(parameters: Any, without: Any, *, lipschitz: float) -> FloatArray:
    """Bound DTP of models whose ln p is Lipschitz in their parameters (Theorem 6.9).

    Distances are in the maximum norm.

    Guarantee: no ln p of any class changes by more, at any query.
    Assumption: |ln p_u(y | x) − ln p_v(y | x)| ≤ lipschitz · max|u − v| for all x and y that count.

    Args:
        parameters: Parameters of the model trained on all records, shape ``(d,)``.
        without: Parameters of models trained without one record each, shape ``(records, d)``.
        lipschitz: The constant L.

    Example:
        >>> lipschitz_bound([1.0, 2.0], [[1.5, 2.0], [1.0, 1.75]], lipschitz=2.0)
        array([1. , 0.5])
    """
    _validate.positive(lipschitz=lipschitz)
    u, v = np.asarray(parameters, np.float64), np.asarray(without, np.float64)
    if u.ndim != 1 or v.ndim != 2 or v.shape[1] != u.size:
        raise InvalidArgument(
            f"Expected parameters (d,) and without (records, d), got {u.shape} and {v.shape}."
        )
    if not (np.isfinite(u).all() and np.isfinite(v).all()):
        raise InvalidArgument("Expected finite parameters, got nan or infinite ones.")
    return np.asarray(lipschitz * np.abs(v - u).max(axis=1, initial=0.0))


def _fit_counts(estimator: Any, X: Any, y: Any) -> CategoricalModel:  # noqa: N803
    """Return a model of counts; Bernoulli naive Bayes has the categories 0 and 1."""
    kind = identify(estimator)
    family = family_of(estimator)
    if family is not None and kind in {"sklearn.CategoricalNB", "sklearn.BernoulliNB"}:
        refused = family.refuses(estimator, X, y)
        if refused is not None:
            raise InvalidArgument(f"Expected {family.name} with smoothing, got {refused}.")
        if kind == "sklearn.BernoulliNB":
            with needs("sklearn", extra="sklearn"):
                from sklearn.naive_bayes import CategoricalNB
            X = binarise(X, estimator.binarize).toarray().astype(np.uint8)  # noqa: N806
            settings = {name: getattr(estimator, name) for name in _SHARED}
            estimator = CategoricalNB(min_categories=2, **settings)
        return CategoricalModel(estimator, X, y)
    name = kind.partition(".")[2]
    match name:
        case "KNeighborsClassifier" | "RadiusNeighborsClassifier":
            why = (
                ", got nearest neighbours, which are not training stable: a record can turn a "
                "prediction elsewhere from 1 to 0 and leave its own as it is. dtp_over asks about "
                "points you choose."
            )
        case "GaussianNB" | "MultinomialNB" | "ComplementNB":
            why = (
                f", got {name}: its features have no largest value, and nor has what a record "
                "changes. dtp_over asks about points you choose."
            )
        case _:
            why = (
                f" (categorical or Bernoulli naive Bayes), got {name}. stable_upper_bound takes a "
                "training stability that you have proven, lipschitz_bound a constant of Lipschitz."
            )
    raise InvalidArgument(f"Expected a classifier for which a bound is proven{why}")
