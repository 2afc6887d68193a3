"""Tell classifiers, regressors, clusterers and detectors apart, and refuse what is not judged."""

from typing import Any

from epsilometer.errors import InvalidArgument

_REFUSED = {
    "clusterer": (
        "groups records and predicts nothing that could be compared with the truth. What a group "
        "shows of its members is measured on a classifier: take the groups as labels"
    ),
    "outlier_detector": (
        "scores how unusual a record is, and has no labels to be right about. Its score is a "
        "number: audit a Regressor that learns it"
    ),
    "density_estimator": (
        "gives densities, and has no labels to be right about. Audit what is predicted from them"
    ),
    "transformer": "changes records and predicts nothing. Audit the pipeline that it is part of",
}
_OTHER = {
    "classifier": "predicts classes: audit it as em.Classifier, epsilometer classifier",
    "regressor": "predicts numbers: audit it as em.Regressor, epsilometer regressor",
}


def find_kind(estimator: Any) -> str | None:
    """Return the kind of an estimator according to scikit-learn; None if it is unknown.

    Example:
        >>> from sklearn.cluster import KMeans
        >>> find_kind(KMeans())
        'clusterer'
    """
    tags = getattr(estimator, "__sklearn_tags__", None)
    try:
        kind = tags().estimator_type if tags is not None else None
    except Exception:  # raised by estimators that were written for other versions
        kind = None
    if kind is None:
        kind = getattr(estimator, "_estimator_type", None)
    if kind is None and not hasattr(estimator, "predict") and hasattr(estimator, "transform"):
        kind = "transformer"
    return None if kind is None else str(kind)


def check_kind(estimator: Any, expected: str) -> None:
    """Refuse an estimator that is known to be of another kind than the audit's.

    Raises:
        InvalidArgument: The kinds differ; the message says what to do instead.
    """
    kind = find_kind(estimator)
    if kind is None or kind == expected:
        return
    why = {**_REFUSED, **_OTHER}.get(kind)
    if why is not None:
        raise InvalidArgument(f"Expected a {expected}, got {type(estimator).__name__}: it {why}.")
