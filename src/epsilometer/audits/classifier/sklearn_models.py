"""Handle scikit-learn estimators: check, copy, seed and unwrap them, and read their predictions.

Callers that pass such an estimator have imported its module, so scikit-learn is not imported here.
"""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Preprocessing: TypeAlias = Literal["refit", "fixed"]
SEEDS = 2**31  # every library accepts seeds below it
# Steps whose fit keeps nothing of the data except the number of columns
_STATELESS = {
    f"sklearn.{name}"
    for name in ("Normalizer", "Binarizer", "PolynomialFeatures", "HashingVectorizer")
}


def identify(estimator: object) -> str:
    """Return package and exact class; a subclass, which may train differently, has another name.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> identify(GaussianNB())
        'sklearn.GaussianNB'
    """
    kind = type(estimator)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def check_choice(choices: Any, **named: Any) -> None:
    """Refuse values that are not among the choices of a ``Literal``."""
    for name, value in named.items():
        if value not in get_args(choices):
            known = " or ".join(map(repr, get_args(choices)))
            raise InvalidArgument(f"Expected {name} {known}, got {value!r}.")


def read_labels(y: Any) -> tuple[NDArray[Any], IntArray]:
    """Return the sorted classes, and the position of each record's label among them.

    Example:
        >>> read_labels(["no", "yes", "no"])
        (array(['no', 'yes'], dtype='<U3'), array([0, 1, 0]))
    """
    array = np.asarray(y)
    if array.ndim != 1:
        raise InvalidArgument(
            f"Expected one label per record in y, got shape {array.shape}. "
            "A column is flattened by y.ravel()."
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidArgument(f"Expected no nan in y, found {np.isnan(array).sum()}.")
    try:
        classes, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise InvalidArgument(
            "Expected labels of one kind in y, got a mixture that cannot be sorted."
        ) from error
    if classes.size < 2:
        raise InvalidArgument(
            f"Expected at least two classes in y, got {classes.size}. "
            "A classifier of one class gives the same answer whatever its records."
        )
    return classes, np.asarray(codes, np.int64)


def read_matrix(X: Any, *, name: str = "X") -> FloatArray:  # noqa: N803 - as in scikit-learn
    """Return the features as a dense matrix of finite doubles, without a copy where possible."""
    try:
        array = np.asarray(X, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected numbers in {name}, got something else. Encode text columns in a pipeline.",
            withheld=str(error)[:100],
        ) from error
    if array.ndim != 2:
        raise InvalidArgument(f"Expected {name} of shape (records, features), got {array.shape}.")
    if not np.isfinite(array).all():
        missing = np.count_nonzero(~np.isfinite(array))
        raise InvalidArgument(
            f"Expected finite numbers in {name}, found {missing} of {array.size} nan or infinite. "
            "Impute them in a pipeline, so that imputation is part of the audit."
        )
    return array


def count_rows(X: Any) -> int:  # noqa: N803
    """Return the number of records, also of a sparse matrix."""
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def take_rows(X: Any, chosen: Any) -> Any:  # noqa: N803
    """Return some rows of an array, a sparse matrix or a table with ``iloc``."""
    if hasattr(X, "iloc"):
        return X.iloc[chosen]
    if getattr(X, "format", "csr") not in ("csr", "csc"):  # others cannot be indexed by rows
        return X.tocsr()[chosen]
    return (X if hasattr(X, "shape") else np.asarray(X))[chosen]


def clone_estimator(estimator: Any) -> Any:
    """Return an untrained copy with the same parameters."""
    clone = getattr(sys.modules.get("sklearn.base"), "clone", copy.deepcopy)
    try:
        return clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"Expected an estimator that can be cloned, got {type(estimator).__name__}: "
            f"{' '.join(str(error).split())}. Its constructor must keep its arguments as they are."
        ) from error


def clone_with_seed(estimator: Any, seed: int, *, overwrite: bool = True) -> Any:
    """Return an untrained copy whose random states are set, including those of its parts.

    Args:
        estimator: The estimator to copy.
        seed: Replaces each ``random_state``.
        overwrite: Whether to replace states that are whole numbers already.
    """
    model = clone_estimator(estimator)
    if hasattr(model, "get_params"):
        random_states = [
            name
            for name, value in model.get_params().items()
            if name.rpartition("__")[2] == "random_state"
            and (overwrite or not isinstance(value, Integral))
        ]
        model.set_params(**dict.fromkeys(random_states, seed % (2**32 if overwrite else SEEDS)))
    return model


def has_fixed_seed(estimator: Any) -> bool:
    """Tell whether a ``random_state`` is a number, which would reveal the noise."""
    params = estimator.get_params() if hasattr(estimator, "get_params") else {}
    return any(
        name.rpartition("__")[2] == "random_state" and isinstance(value, Integral)
        for name, value in params.items()
    )


@contextmanager
def seed_globals(seed: int) -> Iterator[None]:
    """Set the global generators, which some estimators use, and restore them afterwards."""
    state, legacy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % SEEDS)
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.random.get_rng_state()
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)
        if torch is not None:
            torch.random.set_rng_state(torch_state)


@dataclass(frozen=True, eq=False)
class FitEstimator:
    """Train a fresh copy of an estimator: ``fit(X, y, seed)`` returns a predictor of ln p.

    It takes labels as positions among ``classes``, and passes on the classes themselves. Every
    ``random_state``, including those of its parts, is set from the seed.

    Guarantee: the estimator itself is not changed; a class absent from training has ln p = −inf.
        If all records have one class, which many estimators refuse, that class is certain.

    Attributes:
        estimator: An estimator with ``fit`` and ``predict_proba``, or ``decision_function``, see
            ``predict_logs``.
        classes: All classes, in the order of columns.
    """

    estimator: Any
    classes: NDArray[Any]

    def __call__(self, X: Any, y: IntArray, seed: int) -> Callable[[Any], FloatArray]:  # noqa: N803
        """Train on these records, and return a function that predicts."""
        model = clone_with_seed(self.estimator, seed)
        # Many estimators refuse a single class, which is then certain
        sure = np.where(np.arange(self.classes.size) == y[0], 0.0, -np.inf)
        alone = np.unique(y).size == 1

        def predict(queries: Any) -> FloatArray:
            try:
                return predict_logs(model, queries, classes=self.classes)
            except Exception:
                if not alone:
                    raise
                return np.tile(sure, (count_rows(queries), 1))

        try:
            model.fit(X, self.classes[y])
        except Exception:
            if not alone:
                raise
            return lambda queries: np.tile(sure, (count_rows(queries), 1))
        return predict


def predict_logs(model: Any, X: Any, *, classes: NDArray[Any]) -> FloatArray:  # noqa: N803
    """Return ln p of every class under a trained model, shape ``(records, classes)``.

    A model without ``predict_proba`` is read by its decision function, see ``decision_logs``.

    Guarantee: −inf for classes that the model does not know.

    Example:
        >>> class Coin:
        ...     classes_ = np.array(["no", "yes"])
        ...     def predict_proba(self, X):
        ...         return np.full((len(X), 2), 0.5)
        >>> predict_logs(Coin(), [[1.0]], classes=np.array(["maybe", "no", "yes"])).round(2)
        array([[ -inf, -0.69, -0.69]])
    """
    with np.errstate(divide="ignore"):
        if hasattr(model, "predict_log_proba"):  # naive Bayes has digits here that p has lost
            logs: FloatArray = np.asarray(model.predict_log_proba(X), np.float64)
        elif hasattr(model, "predict_proba"):
            logs = np.log(np.asarray(model.predict_proba(X), np.float64))
        elif hasattr(model, "decision_function"):
            logs = decision_logs(model.decision_function(X))
        else:
            raise InvalidArgument(
                "Expected a model with predict_proba or decision_function, got "
                f"{type(model).__name__}. Give a function fit(X, y, seed) that returns one of ln "
                "p."
            )
    known = np.asarray(getattr(model, "classes_", classes[: logs.shape[1]]))
    place = np.searchsorted(classes, known)
    if logs.shape[1] != known.size or not np.array_equal(
        classes[np.minimum(place, classes.size - 1)], known
    ):
        raise InvalidArgument(
            f"Expected a model of classes among the {classes.size} of the labels, got others.",
            withheld=f"It has columns for {known.tolist()[:10]}.",
        )
    every = np.full((logs.shape[0], classes.size), -np.inf)
    every[:, place] = logs
    return every


def decision_logs(decision: Any) -> FloatArray:
    """Return ln p for a decision function d: log-odds of two classes, the softmax of more.

    They rank like d, but are not calibrated: the model defines no probabilities.

    Args:
        decision: Decision values, shape ``(queries,)`` or ``(queries, classes)``.

    Example:
        >>> decision_logs([0.0, 2.0]).round(3)
        array([[-0.693, -0.693],
               [-2.127, -0.127]])
    """
    array = np.asarray(decision, np.float64)
    if array.ndim == 1:
        # ln p of each class directly: ln(1 − p) would lose its digits where p is near 1
        return -np.logaddexp(0.0, np.stack([array, -array], axis=1))
    if array.ndim != 2 or array.shape[1] < 2:
        raise InvalidArgument(
            "Expected a decision function of shape (queries,) or (queries, classes), "
            f"got {array.shape}."
        )
    return np.asarray(scipy.special.log_softmax(array, axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class Unwrapped:
    """The last estimator of a pipeline, and the features that reach it.

    Attributes:
        estimator: The estimator to fit; a whole pipeline if its steps have to be refitted.
        features: The features it is fitted to.
        transform: Turns queries into features for it.
        held: Names of the steps that stay fixed as fitted to all records.
    """

    estimator: Any
    features: Any
    transform: Callable[[Any], Any]
    held: tuple[str, ...] = ()

    @property
    def path_suffix(self) -> str:
        """The addition to the path of a result; empty where nothing is held."""
        return ", preprocessing held fixed" if self.held else ""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats for readers."""
        if not self.held:
            return ()
        return (
            f"{', '.join(self.held)} fitted to all records and held fixed: a record's effect on "
            "that is not counted.",
        )


def unwrap_pipeline(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
) -> Unwrapped:
    """Remove the steps before the last estimator of a pipeline, where that is allowed.

    What a step learns from the data depends on every record. So by default only steps that learn
    nothing are removed: refitting the rest is then equivalent to refitting the pipeline.

    Args:
        estimator: An estimator or a pipeline; not fitted itself.
        X: Features.
        y: Labels.
        preprocessing: ``"fixed"`` removes all steps, fitted to all records.
        seed: Seed of random steps.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> pipeline = make_pipeline(StandardScaler(), GaussianNB())
        >>> X, y = [[1.0], [2.0], [3.0]], [0, 1, 1]
        >>> unwrap_pipeline(pipeline, X, y, preprocessing="fixed").held
        ('StandardScaler',)
        >>> unwrap_pipeline(pipeline, X, y).estimator is pipeline
        True
    """
    check_choice(Preprocessing, preprocessing=preprocessing)
    whole = Unwrapped(estimator=estimator, features=X, transform=lambda queries: queries)
    if identify(estimator) != "sklearn.Pipeline":
        return whole
    learning = [step for step in _list_steps(estimator)[:-1] if not is_stateless(step, X)]
    if learning and preprocessing == "refit":
        return whole
    features, transform = X, whole.transform
    if len(estimator.steps) > 1:
        before = clone_with_seed(estimator, seed, overwrite=False)[:-1]
        with seed_globals(seed):
            features = before.fit_transform(X, y)
        transform = before.transform
    inner = unwrap_pipeline(
        estimator.steps[-1][1], features, y, preprocessing=preprocessing, seed=seed
    )
    return Unwrapped(
        estimator=inner.estimator,
        features=inner.features,
        transform=lambda queries: inner.transform(transform(queries)),
        held=(*(type(step).__name__ for step in learning), *inner.held),
    )


def _list_steps(pipeline: Any) -> list[Any]:
    *before, (_, last) = pipeline.steps
    return [*(step for _, step in before if step is not None and step != "passthrough"), last]


def list_last(estimator: Any) -> Iterator[Any]:
    """Yield a pipeline, those inside its last step, and the last estimator."""
    yield estimator
    if isinstance(getattr(estimator, "steps", None), list):
        yield from list_last(estimator.steps[-1][1])


def is_stateless(step: Any, X: Any) -> bool:  # noqa: N803
    """Tell whether a step treats each record independently, whatever it was fitted to."""
    match identify(step):
        case "sklearn.ColumnTransformer":
            kinds = [kind for _, kind, _ in step.transformers] + [step.remainder]
            parts = [kind for kind in kinds if kind not in ("drop", "passthrough")]
        case "sklearn.Pipeline":
            parts = [part for _, part in step.steps if part not in (None, "passthrough")]
        case "sklearn.FunctionTransformer":
            return _treats_rows_alone(step, X)
        case _:
            parts = [step]
    return all(identify(part) in _STATELESS for part in parts)


def _treats_rows_alone(step: Any, X: Any) -> bool:  # noqa: N803
    """Tell whether a function gives the same results for halves of the records as for all."""

    def apply(features: Any) -> Any:
        found = clone_estimator(step).fit_transform(features)
        return np.asarray(found.toarray() if hasattr(found, "toarray") else found)

    halves = np.array_split(np.arange(count_rows(X)), 2)
    try:
        apart = np.concatenate([apply(take_rows(X, half)) for half in halves])
        return np.array_equal(apply(X), apart, equal_nan=True)
    except (TypeError, ValueError):  # texts that cannot be compared, or unusual shapes
        return False
