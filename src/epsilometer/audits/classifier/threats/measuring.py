"""Measure all requested threats with one set of models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.classifier.sklearn_models import (
    FitEstimator,
    clone_with_seed,
    predict_logs,
    seed_globals,
    take_rows,
)
from epsilometer.audits.classifier.threats.asking import ask_models, check_features
from epsilometer.audits.classifier.threats.attributes import (
    code_columns,
    guess_attribute,
    hide_column,
    impute,
)
from epsilometer.audits.classifier.threats.ranges import draw_ranges, score_ranges
from epsilometer.audits.classifier.threats.structure import (
    SMALLEST,
    count_in_leaves,
    measure_structure,
)
from epsilometer.audits.classifier.threats.threat import (
    ATTRIBUTE,
    RANGE,
    STRUCTURE,
    THREATS,
    USAGE,
    Threat,
)
from epsilometer.audits.classifier.threats.usage import measure_usage
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.stats import clusters
from epsilometer.types import IntArray

_STREAM = 10  # number of the random stream of threats
_MODELS = 40  # models to train: 20 pairs are enough to estimate use with 95 % confidence
_UNREAD = "unread leaves"
_UNKNOWN = 0.25  # share of columns that a range leaves unknown


def check_threats(threats: Sequence[str]) -> None:
    """Refuse unknown threats; an attribute needs its column: ``attribute:sex``."""
    for threat in threats:
        kind, _, column = threat.partition(":")
        if kind not in THREATS or bool(column) != (kind == ATTRIBUTE):
            raise InvalidArgument(
                "Expected threats among attribute:COLUMN, range, structure and usage, got "
                f"{_validate.short(threat)}."
            )


def measure_threats(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    codes: IntArray,
    classes: NDArray[Any],
    threats: Sequence[str],
    *,
    names: Sequence[str] | None,
    categorical: NDArray[Any] | None,
    decimals: int | None,
    has_file: bool,
    confidence: float,
    seed: int,
    engine: Engine | None = None,
    directory: Any = None,
    listen: Sequence[Listener] = (),
) -> Arrays:
    """Return the measurements of all threats, as named arrays.

    Args:
        estimator: The estimator; not fitted.
        X: Features.
        codes: Positions of labels among the classes.
        classes: The labels.
        threats: Threats to measure: ``attribute:sex``, ``range``, ``structure``, ``usage``.
        names: Names of the columns of X; None: their numbers.
        categorical: Which columns are categorical; None: none are.
        decimals: Number of decimals of shown probabilities; None: all; −1: the class alone.
        has_file: Whether others are given the model itself, and so its leaves.
        confidence: Confidence of the error of the estimated use.
        seed: Seed of all random draws.
        engine: Executes training.
        directory: Where models are stored.
        listen: Callbacks that receive events.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, _STREAM)))
    features = X if threats == (STRUCTURE,) else check_features(X)
    fit = FitEstimator(estimator, classes)
    questions: dict[str, Any] = {}
    hidden = {}
    for threat in threats:
        kind, _, column = threat.partition(":")
        if kind == ATTRIBUTE:
            place = _find_column(column, names, features)
            named = categorical is not None and bool(categorical[place])
            hidden[threat] = hide_column(features, place, categorical=named)
            questions[threat] = hidden[threat].changed
        elif kind == RANGE:
            width = features.shape[1]
            some = rng.permutation(width)[: max(1, int(_UNKNOWN * width))]
            questions[threat] = draw_ranges(features, np.sort(some), rng)
    arrays: dict[str, NDArray[Any]] = {}
    if STRUCTURE in threats:
        arrays |= _measure_structure(fit, features, codes, decimals, has_file, seed)
    if set(threats) <= {STRUCTURE}:
        return arrays
    asked = ask_models(
        fit,
        features,
        codes,
        questions,
        models=_MODELS,
        decimals=decimals,
        seed=seed,
        engine=engine,
        directory=directory,
        listen=listen,
    )
    arrays["member"] = asked.member
    for threat, kept in hidden.items():
        prior = impute(code_columns(features), codes, kept, rng)
        arrays[threat] = guess_attribute(asked, threat, kept, prior)
        arrays[f"baseline {threat}"] = np.array((prior.argmax(axis=1) == kept.codes).mean())
    if RANGE in threats:
        arrays[RANGE] = score_ranges(asked, RANGE)
    if USAGE in threats:
        error = measure_usage(asked, confidence=confidence, rng=rng)
        arrays[USAGE] = np.array([error.width, error.records, error.models], np.float64)
    return arrays


def list_threats(found: Mapping[str, NDArray[Any]], threats: Sequence[str]) -> tuple[Threat, ...]:
    """Return threats from the arrays of ``measure_threats``."""
    listed = []
    for threat in threats:
        kind, _, column = threat.partition(":")
        if kind == STRUCTURE:
            few, of, in_steps, leaves = found[STRUCTURE].tolist()
            note = f"{few:,.0f} of {of:,.0f} records share their answer or leaf with fewer than "
            note += f"{SMALLEST - 1} others."
            if not in_steps and not leaves:
                note = "Answers differ between inputs: a unique one does not single anyone out."
            unread = found.get(_UNREAD)
            if unread is not None:
                note += f" The leaves of {', '.join(unread.tolist())} could not be read."
            high = few / of if unread is None else 1.0
            listed.append(Threat(kind=kind, share=few / of, high=high, note=note))
        elif kind == USAGE:
            width, records, models = found[USAGE].tolist()
            note = (
                f"The share of {records:,.0f} records that was used can be inferred to within "
                f"{width:.2f}, as measured on {models:.0f} models."
            )
            listed.append(Threat(kind=kind, share=width, note=note))
        else:
            observed = clusters.ScoresByRecord.from_models(found[threat], found["member"])
            base = found.get(f"baseline {threat}")
            listed.append(
                Threat(
                    kind=kind,
                    column=column,
                    observed=observed,
                    threshold=0.5 if kind == ATTRIBUTE else None,
                    baseline=None if base is None else float(base),
                )
            )
    return tuple(listed)


def _find_column(name: str, names: Sequence[str] | None, features: Any) -> int:
    known = names if names is not None else getattr(features, "columns", range(features.shape[1]))
    places = [str(each) for each in known]
    if name not in places:
        raise InvalidArgument(
            f"Expected a column to hide among {_validate.listed(places)}, got {name!r}."
        )
    return places.index(name)


def _measure_structure(
    fit: FitEstimator,
    features: Any,
    codes: IntArray,
    decimals: int | None,
    has_file: bool,
    seed: int,
) -> dict[str, NDArray[Any]]:
    """Count records by how many share their answers, and their leaf if the file is published."""
    half = np.random.default_rng(seed).permutation(codes.size) < codes.size // 2
    model = clone_with_seed(fit.estimator, seed, overwrite=False)
    with seed_globals(seed):
        model.fit(features, fit.classes[codes])
        part = fit(take_rows(features, np.flatnonzero(half)), codes[half], seed)
    unseen = part(take_rows(features, np.flatnonzero(~half)))
    answers = predict_logs(model, features, classes=fit.classes)
    found = measure_structure(answers, unseen, decimals=decimals)
    few = np.zeros(codes.size, bool) if not found.in_steps else found.singled_out
    arrays: dict[str, NDArray[Any]] = {}
    leaves = count_in_leaves(model, features) if has_file else None
    if leaves is not None and leaves.sizes is not None:
        few = few | (leaves.sizes < SMALLEST)
    if leaves is not None and leaves.unread:
        arrays[_UNREAD] = np.array(leaves.unread, np.str_)
    read = leaves is not None and leaves.sizes is not None
    numbers = [int(few.sum()), codes.size, found.in_steps, read]
    return {STRUCTURE: np.array(numbers, np.float64), **arrays}
