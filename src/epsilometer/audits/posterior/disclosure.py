"""Publish predictions with uncertainty in forms: how much of the samples, and how rounded.

An adversary sees only what is published. Every form turns samples of a record's prediction into
published numbers, and those into statistics that separate runs with the record from runs without.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

Kind: TypeAlias = Literal["label", "set", "vector", "mean", "mean+std", "quantiles", "samples"]
QUANTILES = (0.1, 0.5, 0.9)
_LEAST = 1e-12  # a probability of 0 counts as this in logarithms
_BINS = 15  # of confidence, as calibration errors are usually reported
_EQUAL = 1e-12  # means of the same rounded numbers, summed in another order, differ by less


def entropy(p: FloatArray) -> FloatArray:
    """Return the entropy of vectors of probabilities along the last axis, in nats."""
    return np.asarray(-(p * np.log(np.maximum(p, _LEAST))).sum(-1))


def mutual_information(samples: FloatArray) -> FloatArray:
    """Return the mutual information of prediction and model (BALD), in nats."""
    return np.asarray(entropy(samples.mean(-2)) - entropy(samples).mean(-1))


def variation_ratio(samples: FloatArray) -> FloatArray:
    """Return the share of samples whose class differs from the most common one."""
    classes = samples.shape[-1]
    named = np.eye(classes)[samples.argmax(-1)]
    return np.asarray(1 - named.mean(-2).max(-1))


# From samples (…, T, C) and a label: larger values indicate that the record was trained on. Spreads
# are negated, not inverted: the order is the same, and a single sample has a spread of 0.
STATISTICS: MappingProxyType[str, Callable[[FloatArray, int], FloatArray]] = MappingProxyType(
    {
        "mean": lambda samples, label: samples[..., label].mean(-1),
        "std": lambda samples, label: -samples[..., label].std(-1),
        "min": lambda samples, label: samples[..., label].min(-1),
        "max": lambda samples, label: samples[..., label].max(-1),
        "entropy": lambda samples, _: -entropy(samples.mean(-2)),
        "mutual information": lambda samples, _: -mutual_information(samples),
        "variation ratio": lambda samples, _: -variation_ratio(samples),
    }
)


def make_set(mean: FloatArray, level: float) -> FloatArray:
    """Return the smallest set of likeliest classes that hold ``level`` of the probability.

    Conformal prediction publishes such sets, with a level that was calibrated on other records
    (adaptive prediction sets). Ties are broken in the order of classes.

    Example:
        >>> make_set(np.array([0.2, 0.5, 0.3]), 0.75)
        array([0., 1., 1.])
    """
    order = np.argsort(-mean, axis=-1, kind="stable")
    ranked = np.take_along_axis(mean, order, axis=-1)
    before = np.cumsum(ranked, axis=-1) - ranked  # probability of all likelier classes
    taken = (before < level - _EQUAL).astype(np.float64)
    shown = np.zeros_like(mean)
    np.put_along_axis(shown, order, taken, axis=-1)
    return shown


# What each kind shows of samples (…, T, C), as (…, numbers, C); "vector" shows no samples, and a
# set needs its level.
_SHOW: MappingProxyType[str, Callable[[FloatArray], FloatArray]] = MappingProxyType(
    {
        "label": lambda known: np.eye(known.shape[-1])[known.mean(-2).argmax(-1)][..., None, :],
        "mean": lambda known: known.mean(-2, keepdims=True),
        "mean+std": lambda known: np.stack([known.mean(-2), known.std(-2)], axis=-2),
        "quantiles": lambda known: np.moveaxis(np.quantile(known, QUANTILES, axis=-2), 0, -2),
        "samples": lambda known: known,
    }
)


@dataclass(frozen=True)
class ReleaseForm:
    """Form in which a prediction is published.

    Attributes:
        kind: ``"label"``: the class alone; ``"set"``: the likeliest classes, as conformal
            prediction publishes them (Zhu et al. 2024); ``"vector"``: one vector, without
            sampling; ``"mean"`` of samples; ``"mean+std"``; ``"quantiles"``; all ``"samples"``.
        unit: Unit to which every number is rounded, half to even; None: not rounded.
        level: Calibrated level of a set: how much of the mean's probability it holds.

    Example:
        >>> samples = np.array([[[0.61, 0.39], [0.73, 0.27]]])
        >>> ReleaseForm("mean+std", unit=0.1).statistics(samples, label=0)
        array([[ 0.7, -0.1]])
    """

    kind: Kind
    unit: float | None = None
    level: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidArgument(
                f"Expected one of {get_args(Kind)}, got {_validate.short(self.kind)}."
            )
        if self.unit is not None:
            _validate.positive(unit=self.unit)
            _validate.probability(unit=self.unit)
        if (self.level is None) == (self.kind == "set") or (self.kind == "set" and self.unit):
            raise InvalidArgument(
                "Expected a level of the form 'set' and of no other, as in 'set:0.9', and no unit "
                f"of a set, got {self.kind!r} with level {self.level!r} and unit {self.unit!r}."
            )
        if self.level is not None:
            _validate.open_unit(level=self.level)

    def __str__(self) -> str:
        if self.level is not None:
            return f"{self.kind} of {self.level:g}"
        return self.kind if self.unit is None else f"{self.kind}, to {self.unit:g}"

    def caveats(self, samples: int) -> tuple[str, ...]:
        """Return caveats about the form with this many samples.

        Example:
            >>> ReleaseForm("mean+std").caveats(1)
            ('one sample has no spread: mean+std tells what mean does; take two or more',)
        """
        _validate.whole(1, samples=samples)
        if samples == 1 and self.kind in ("mean+std", "quantiles", "samples"):
            said = f"one sample has no spread: {self.kind} tells what mean does; take two or more"
            return (said,)
        return ()

    def publish(self, samples: ArrayLike, vector: ArrayLike | None = None) -> FloatArray:
        """Return what is published, ``(…, numbers, classes)``; a label or set is 1 at its classes.

        Args:
            samples: Samples of predictions, ``(…, T, C)``.
            vector: The prediction without sampling, ``(…, C)``; for the form ``"vector"``.
        """
        known = _check_samples(samples)
        if self.level is not None:
            return make_set(known.mean(-2), self.level)[..., None, :]
        shown = _check_vector(vector, known) if self.kind == "vector" else _SHOW[self.kind](known)
        if self.unit is None or self.kind == "label":
            return np.asarray(shown)
        return np.asarray(np.round(shown / self.unit) * self.unit)

    def statistics(
        self, samples: ArrayLike, *, label: int, vector: ArrayLike | None = None
    ) -> FloatArray:
        """Return statistics for the adversary, ``(…, k)``: larger values indicate membership.

        Guarantees: computed only from what :meth:`publish` returns.
        """
        return self._compute_statistics(self.publish(samples, vector), label)

    def features(
        self, samples: ArrayLike, *, label: int, vector: ArrayLike | None = None
    ) -> FloatArray:
        """Return features for a learned attack, ``(…, k)``: :meth:`statistics` and entropies.

        Guarantees: computed only from what :meth:`publish` returns.
        """
        shown = self.publish(samples, vector)
        known = self._compute_statistics(shown, label)
        if self.kind in ("label", "set"):
            return known
        if self.kind == "samples":
            more = _stack(shown, label, ("entropy", "mutual information", "variation ratio"))
        else:  # rounded numbers may lie outside [0, 1], where entropy is undefined
            more = -entropy(np.clip(self._take_central(shown), 0, 1))[..., None]
        return np.concatenate([known, more], axis=-1)

    def central(self, samples: ArrayLike, vector: ArrayLike | None = None) -> FloatArray:
        """Return the prediction that a user derives from what is published, ``(…, C)``."""
        return self._take_central(self.publish(samples, vector))

    def _take_central(self, shown: FloatArray) -> FloatArray:
        if self.kind == "samples":
            return np.asarray(shown.mean(-2))
        if self.kind == "set":  # a set does not say which of its classes is likeliest
            return np.asarray(shown[..., 0, :] / shown[..., 0, :].sum(-1, keepdims=True))
        return shown[..., len(QUANTILES) // 2 if self.kind == "quantiles" else 0, :]

    def _compute_statistics(self, shown: FloatArray, label: int) -> FloatArray:
        _validate.whole(0, label=label)
        if label >= shown.shape[-1]:
            raise InvalidArgument(
                f"Expected a label from 0 to {shown.shape[-1] - 1}, as many as there are "
                f"classes, got {label}."
            )
        if self.kind == "samples":
            return _stack(shown, label, ("mean", "std", "min", "max"))
        if self.kind == "set":  # a large set is evidence against membership
            held = shown[..., 0, :]
            return np.stack([held[..., label], -held.sum(-1)], axis=-1)
        # A large spread is evidence against membership, as in STATISTICS.
        signs = np.array([1.0, -1.0]) if self.kind == "mean+std" else 1.0
        return np.asarray(shown[..., label] * signs)


def as_form(value: "ReleaseForm | str") -> ReleaseForm:
    """Convert a form as users write it: a ``ReleaseForm``, or its kind and unit as text.

    Example:
        >>> as_form("mean+std:0.01")
        ReleaseForm(kind='mean+std', unit=0.01, level=None)
        >>> str(as_form("set:0.9"))
        'set of 0.9'
    """
    if isinstance(value, ReleaseForm):
        return value
    if not isinstance(value, str):
        raise InvalidArgument(
            f"Expected a ReleaseForm, or a text as 'mean+std:0.01', got {_validate.short(value)}."
        )
    kind, colon, number = value.partition(":")
    try:
        given = float(number) if colon else None
        if kind == "set":
            return ReleaseForm("set", level=given)
        return ReleaseForm(kind, unit=given)  # type: ignore[arg-type]
    except ValueError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"Expected a form as 'mean+std' or 'mean+std:0.01', got {_validate.short(value)}."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Utility of a release form to its users.

    Attributes:
        accuracy: Share of records whose label has the largest published probability; a tie for the
            largest gives no label and counts as wrong.
        ties: Share of records with such a tie.
        calibration_error: Expected calibration error: |confidence − accuracy| in 15 bins of
            confidence, averaged over records.
        log_loss: Mean −ln of the probability published for the true class.
    """

    accuracy: float
    ties: float
    calibration_error: float
    log_loss: float


def measure_utility(central: ArrayLike, labels: ArrayLike, *, unit: float | None = None) -> Utility:
    """Measure the utility of published predictions ``(records, C)``, given the records' labels.

    A probability rounded to 0 counts as half a unit in the log loss, not as impossible.
    """
    p, y = np.asarray(central, np.float64), np.asarray(labels, np.int64)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(y) or p.shape[1] < 2:
        raise InvalidArgument(
            "Expected predictions (records, classes) of two classes or more and as many labels, "
            f"got {p.shape} and {y.shape}."
        )
    if not np.isfinite(p).all():
        raise InvalidArgument("Expected probabilities, got nan or infinity among predictions.")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise InvalidArgument(
            f"Expected labels from 0 to {p.shape[1] - 1}, got {y.min()} to {y.max()}."
        )
    top = np.sort(p, axis=1)[:, -2:]
    tied: BoolArray = top[:, 1] - top[:, 0] <= _EQUAL
    right = (p.argmax(1) == y) & ~tied
    confidence = np.clip(top[:, 1], 0, 1)
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, confidence - right, minlength=_BINS)
    least = _LEAST if unit is None else unit / 2
    return Utility(
        accuracy=float(right.mean()),
        ties=float(tied.mean()),
        calibration_error=float(np.abs(gaps).sum() / len(y)),
        log_loss=float(-np.log(np.clip(p[np.arange(len(y)), y], least, 1)).mean()),
    )


def _stack(shown: FloatArray, label: int, names: tuple[str, ...]) -> FloatArray:
    return np.stack([STATISTICS[name](shown, label) for name in names], axis=-1)


def _check_vector(vector: ArrayLike | None, samples: FloatArray) -> FloatArray:
    """Return predictions without sampling in the shape of what is published."""
    if vector is None:
        raise InvalidArgument(
            "Expected a prediction without sampling for the form 'vector', got none: "
            "this sampler has none."
        )
    alone = np.asarray(vector, np.float64)
    expected = samples.shape[:-2] + samples.shape[-1:]
    if alone.shape != expected:
        raise InvalidArgument(
            f"Expected a vector for each prediction, shape {expected}, got {alone.shape}."
        )
    if not np.isfinite(alone).all():
        raise InvalidArgument("Expected probabilities, got nan or infinity in vectors.")
    return alone[..., None, :]


def _check_samples(samples: ArrayLike) -> FloatArray:
    known = np.asarray(samples, np.float64)
    if known.ndim < 2 or 0 in known.shape:
        raise InvalidArgument(f"Expected samples of shape (…, T, classes), got {known.shape}.")
    if not np.isfinite(known).all():
        raise InvalidArgument("Expected probabilities, got nan or infinity among samples.")
    return known
