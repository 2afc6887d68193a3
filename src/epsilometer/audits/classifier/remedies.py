"""List remedies for a classifier that must not be published, to be tried and measured.

A remedy is a subject like the audited one with one thing changed. Whether it helps is not decided
here: that is measured by the same attacks, with as many shadows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from epsilometer.audits.classifier.private_model import PrivateClassifier
from epsilometer.audits.classifier.release import NoRecordInAnswers, NoRecordInFile
from epsilometer.audits.classifier.sklearn_models import (
    clone_estimator,
    count_rows,
    list_last,
    take_rows,
)
from epsilometer.audits.classifier.subject import Classifier
from epsilometer.types import IntArray

EPSILONS = (1.0, 3.0, 8.0)
_Change: TypeAlias = tuple[str, Classifier]  # what to do, and the classifier with it done
_WATCHED = 20  # records that are left out again, if that needs refits
_COLUMNS = 3  # largest number of columns to try one by one
_NEARLY = 0.5  # share of records with distinct values from which a column is nearly unique
_RECORDS = 100  # at least one record in this many is dropped
# Parameters of estimators: what makes them smoother, from their value and the number of records.
_SMOOTHER: dict[str, Callable[[Any, int], Any]] = {
    "C": lambda value, n: value / 100,
    "alpha": lambda value, n: max(value, 0.01) * 100,
    "l2_regularization": lambda value, n: max(value, 0.01) * 100,
    "n_neighbors": lambda value, n: min(max(50, 10 * value), n // 4),
    "min_samples_leaf": lambda value, n: max(20, n // 50),
    "max_depth": lambda value, n: 3 if value is None or value > 3 else value,
    "weight_decay": lambda value, n: max(value, 1e-4) * 100,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Remedy:
    """A single change to a classifier.

    Attributes:
        action: What to do, as an imperative sentence.
        subject: The classifier after the change.
        retrains: Whether measuring it requires training models again.
        watched: Rows of the records that were riskiest before, among those that are left.
    """

    action: str
    subject: Classifier
    retrains: bool = True
    watched: IntArray


def list_remedies(subject: Classifier, riskiest: IntArray, *, exposed: int) -> Iterator[Remedy]:
    """Yield possible remedies, the least costly for users of the model first.

    Args:
        subject: The audited classifier.
        riskiest: Rows of records, the riskiest first.
        exposed: How many of them are above the limit.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> subject = Classifier(KNeighborsClassifier(1), np.eye(8), np.arange(8) % 2)
        >>> [each.action for each in list_remedies(subject, np.arange(8), exposed=0)][:2]
        ['Publish an API instead of the file.', 'Show 2 decimals, through an API.']
    """
    # A retrained model is no longer the one that was fitted elsewhere, nor the one in its file.
    known = replace(subject, fitted=None, model_file=None)
    plain = replace(
        known, groups=None, record_names=None, variation=0, removal=0, remedies=0, records=None
    )
    for action, changed in _show_less(plain):
        yield Remedy(action=action, subject=changed, retrains=False, watched=riskiest[:_WATCHED])
    if subject.target is not None:
        return
    for action, changed in _drop_columns(plain):
        yield Remedy(action=action, subject=changed, watched=riskiest[:_WATCHED])
    yield from _drop_records(plain, riskiest, exposed)
    for action, changed in (*_smooth(plain), *_train_privately(plain)):
        yield Remedy(action=action, subject=changed, watched=riskiest[:_WATCHED])


def _show_less(subject: Classifier) -> Iterator[_Change]:
    api = {"published_as": "api", "rules": _without_file(subject)}
    if subject.published_as == "file":
        yield "Publish an API instead of the file.", replace(subject, **api)
    if subject.published_as != "labels":
        for decimals in (2, 1):
            if subject.decimals is None or decimals < subject.decimals:
                changed = replace(subject, **{**api, "decimals": decimals})
                word = "decimal" if decimals == 1 else "decimals"
                by = ", through an API" if subject.published_as == "file" else ""
                yield f"Show {decimals} {word}{by}.", changed
        changed = replace(subject, **{**api, "published_as": "labels", "decimals": None})
        yield "Publish class labels only.", changed


def _without_file(subject: Classifier) -> Any:
    """Return rules for users without the file: the rule on answers replaces that on the file."""
    if subject.rules is None:
        return None
    about = NoRecordInFile | NoRecordInAnswers
    left = [rule for rule in subject.deciding_rules if not isinstance(rule, about)]
    instead = (NoRecordInAnswers(),) if len(left) < len(subject.deciding_rules) else ()
    return (*instead, *left)


def _drop_columns(subject: Classifier) -> Iterator[_Change]:
    """Yield changes that drop identifying columns, unique and nearly unique ones first."""
    columns = find_telling_columns(subject)
    for column in columns[:_COLUMNS]:
        name = _name_column(subject, column)
        yield f"Drop the column {name}.", replace(subject, X=_blank(subject.X, [column]))
    if len(columns) > 1:
        names = ", ".join(_name_column(subject, column) for column in columns)
        yield f"Drop the columns {names}.", replace(subject, X=_blank(subject.X, columns))


def find_telling_columns(subject: Classifier) -> list[int]:
    """Return columns where many people have a unique value, those with the most first.

    In a measured column nearly all values differ, which means nothing. A numeric column counts only
    if its values are whole numbers, like identifiers.
    """
    X, n = subject.X, count_rows(subject.X)  # noqa: N806
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) != 2 or hasattr(X, "tocsr"):
        return []
    names = subject.categorical
    found = []
    for column in range(shape[1]):
        values = np.asarray(X.iloc[:, column] if hasattr(X, "iloc") else X[:, column])
        words = values.dtype.kind in "OUS" or (
            names is not None and bool(np.asarray(names)[column])
        )
        given = values.astype(np.str_) if values.dtype.kind == "O" else values
        _, counts = np.unique(given, return_counts=True)
        whole = not words and values.dtype.kind in "iuf"
        whole = whole and bool(np.all((values == np.round(values)) | np.isnan(values)))  # or nan
        alone = int(np.sum(counts == 1))
        if (words and alone) or (whole and counts.size > _NEARLY * n):
            found.append((alone, column))
    return [column for _, column in sorted(found, key=lambda pair: (-pair[0], pair[1]))][:8]


def _name_column(subject: Classifier, column: int) -> str:
    names = subject.feature_names
    if names is None and hasattr(subject.X, "columns"):
        names = [str(name) for name in subject.X.columns]
    return repr(names[column]) if names else f"{column}"


def _blank(X: Any, columns: list[int]) -> Any:  # noqa: N803
    """Return the table with constant values in these columns, which is equivalent to a drop.

    Columns keep their positions, by which pipelines select them.
    """
    changed = X.copy()
    for column in columns:
        values = np.asarray(X.iloc[:, column] if hasattr(X, "iloc") else X[:, column])
        given = values.astype(np.str_) if values.dtype.kind == "O" else values
        _, first, counts = np.unique(given, return_index=True, return_counts=True)
        usual = values[first[np.argmax(counts)]]
        if hasattr(X, "iloc"):
            changed[changed.columns[column]] = usual
        else:
            changed[:, column] = usual
    return changed


def _drop_records(subject: Classifier, riskiest: IntArray, exposed: int) -> Iterator[Remedy]:
    n = count_rows(subject.X)
    dropped = min(max(exposed, -(-n // _RECORDS)), n // 10)
    left = np.setdiff1d(np.arange(n), riskiest[:dropped])
    labels = np.asarray(subject.y)
    if dropped and np.unique(labels[left]).size == np.unique(labels).size:
        word = "record" if dropped == 1 else f"{dropped:,} records"
        changed = replace(subject, X=take_rows(subject.X, left), y=labels[left])
        next_ones = riskiest[dropped : dropped + _WATCHED]
        watched = np.searchsorted(left, next_ones if next_ones.size else left[:_WATCHED])
        yield Remedy(action=f"Drop the riskiest {word}.", subject=changed, watched=watched)


def _smooth(subject: Classifier) -> Iterator[_Change]:
    estimator = clone_estimator(subject.estimator)
    *_, last = list_last(estimator)
    params = last.get_params(deep=False) if hasattr(last, "get_params") else {}
    changed = {
        name: smoother(params[name], count_rows(subject.X) // 2)
        for name, smoother in _SMOOTHER.items()
        if name in params and isinstance(params[name], int | float | None)
    }
    changed = {name: value for name, value in changed.items() if value != params[name]}
    if changed:
        last.set_params(**changed)
        said = ", ".join(f"{name} = {value:.3g}" for name, value in changed.items())
        yield f"Train a smoother model: {said}.", replace(subject, estimator=estimator)


def _train_privately(subject: Classifier) -> Iterator[_Change]:
    for epsilon in EPSILONS:
        estimator = clone_estimator(subject.estimator)
        *before, last = list_last(estimator)
        if isinstance(last, PrivateClassifier):
            return
        private: Any = PrivateClassifier(epsilon)
        if before:
            owner = before[-1]
            owner.steps[-1] = (owner.steps[-1][0], private)
            private = estimator
        elif not _is_numeric(subject.X):
            return
        else:
            private = _scale_first(private)
        changed = replace(subject, estimator=private)
        yield f"Train with differential privacy, ε = {epsilon:g}.", changed


def _is_numeric(X: Any) -> bool:  # noqa: N803
    try:
        return bool(np.isfinite(np.asarray(X, np.float64)).all())
    except (TypeError, ValueError):
        return False


def _scale_first(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)
