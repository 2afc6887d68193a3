"""Pipelines: preprocessing that is fitted to the data is part of what is trained.

A mean that is subtracted depends on every record, so by default a pipeline is refitted as a whole.
Steps that learn nothing can be taken off; steps that do can be held fixed where a user asks for it,
and the answer then says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from epsilometer.audits.classifier.leave_one_out.estimators import is_exactly
from epsilometer.audits.classifier.leave_one_out.refits import pinned, rows, seeded
from epsilometer.errors import InvalidArgument

Preprocessing: TypeAlias = Literal["refit", "fixed"]
_STATELESS = (  # whose fit keeps nothing of the data but how many columns there are
    ("sklearn.preprocessing._data", "Normalizer"),
    ("sklearn.preprocessing._data", "Binarizer"),
    ("sklearn.preprocessing._polynomial", "PolynomialFeatures"),
    ("sklearn.feature_extraction.text", "HashingVectorizer"),
)
_FUNCTION = ("sklearn.preprocessing._function_transformer", "FunctionTransformer")


@dataclass(frozen=True, eq=False, kw_only=True)
class Unwrapped:
    """The last estimator of a pipeline, and what reaches it.

    Attributes:
        estimator: What is left to fit; a whole pipeline where its steps have to be refitted.
        features: What it is fitted to.
        transform: Makes features of queries for it.
        held: Names of the steps that were fitted to all records and stay as they are.
    """

    estimator: Any
    features: Any
    transform: Callable[[Any], Any]
    held: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """What is added to the path of a result; nothing where nothing is held."""
        return ", preprocessing held fixed" if self.held else ""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know."""
        if not self.held:
            return ()
        return (
            f"{', '.join(self.held)} fitted to all records and held fixed: what a record changes "
            "there is not counted.",
        )


def unwrapped(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
) -> Unwrapped:
    """Takes off what comes before the last estimator of a pipeline, as far as that may be done.

    Guarantees: with ``"refit"`` only steps are taken off that learn nothing from the data, so that
        refitting the rest is refitting the pipeline. What is not a pipeline stays as it is.

    Args:
        estimator: Perhaps a pipeline; not fitted itself.
        X: Features.
        y: Labels.
        preprocessing: ``"fixed"`` takes all steps off, fitted to all records.
        seed: Of steps that are random.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> pipeline = make_pipeline(StandardScaler(), GaussianNB())
        >>> X, y = [[1.0], [2.0], [3.0]], [0, 1, 1]
        >>> unwrapped(pipeline, X, y, preprocessing="fixed").held
        ('StandardScaler',)
        >>> unwrapped(pipeline, X, y).estimator is pipeline
        True
    """
    if preprocessing not in get_args(Preprocessing):
        raise InvalidArgument(f"Expected preprocessing 'refit' or 'fixed', got {preprocessing!r}.")
    if not is_exactly(estimator, "sklearn.pipeline", "Pipeline"):
        return Unwrapped(estimator=estimator, features=X, transform=_itself)
    *before, (_, last) = estimator.steps
    steps = [step for _, step in before if step is not None and step != "passthrough"]
    learns = [step for step in steps if not _stateless(step, X)]
    if learns and preprocessing == "refit":
        return Unwrapped(estimator=estimator, features=X, transform=_itself)
    fitted = pinned(estimator, seed)[:-1] if before else None
    if fitted is None:
        features, transform = X, _itself
    else:
        with seeded(seed):
            features = fitted.fit_transform(X, y)
        transform = fitted.transform
    inner = unwrapped(last, features, y, preprocessing=preprocessing, seed=seed)
    return Unwrapped(
        estimator=inner.estimator,
        features=inner.features,
        transform=lambda queries: inner.transform(transform(queries)),
        held=(*(type(step).__name__ for step in learns), *inner.held),
    )


def _stateless(step: Any, X: Any) -> bool:  # noqa: N803
    """Whether a step treats each record by itself, whatever it was fitted to."""
    if is_exactly(step, "sklearn.compose._column_transformer", "ColumnTransformer"):
        kinds = [kind for _, kind, _ in step.transformers] + [step.remainder]
        return all(
            kind in ("drop", "passthrough") if isinstance(kind, str) else _known(kind)
            for kind in kinds
        )
    if is_exactly(step, "sklearn.pipeline", "Pipeline"):
        parts = [part for _, part in step.steps if part is not None and part != "passthrough"]
        return all(_known(part) for part in parts)
    return _known(step) or (is_exactly(step, *_FUNCTION) and _row_by_row(step, X))


def _known(step: Any) -> bool:
    return any(is_exactly(step, *where) for where in _STATELESS)


def _row_by_row(step: Any, X: Any) -> bool:  # noqa: N803
    """Whether a function of the user's gives each half what it gives both together."""
    count = X.shape[0] if hasattr(X, "shape") else len(X)
    halves = np.array_split(np.arange(count), 2)
    try:
        together = _dense(pinned(step, 0).fit_transform(X))
        apart = [_dense(pinned(step, 0).fit_transform(rows(X, half))) for half in halves]
        return np.array_equal(together, np.concatenate(apart), equal_nan=True)
    except (TypeError, ValueError):  # of texts that cannot be compared so, or of odd shapes
        return False


def _dense(found: Any) -> Any:
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def _itself(queries: Any) -> Any:
    return queries
