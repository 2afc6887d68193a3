"""What a report draws: the observations, condensed to some hundred numbers."""

from collections.abc import Callable, Sequence

import numpy as np

from epsilometer.core.findings import Curve, Evidence
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.stats.thresholds import Observed
from epsilometer.stats.tradeoff import TradeoffCurve
from epsilometer.types import FloatArray, IntArray

_BINS = 60
_FEWEST = 50  # observations of either kind below which a part proves nothing worth a point
_POINTS = 8


def condense_evidence(
    scores: Observed,
    curve: TradeoffCurve,
    *,
    confidence: float,
    growth: Sequence[tuple[int, float]] = (),
    curves: Sequence[Curve] = (),
) -> Evidence:
    """Thins the curve, bins the scores; ``confidence`` is that of the band."""
    thin = curve.thinned()
    fpr_low, fpr_high, fnr_low, fnr_high = thin.band(confidence)
    edges, inside_bins, outside_bins = _binned(scores)
    return Evidence(
        fpr=_few_digits(thin.fpr),
        fnr=_few_digits(thin.fnr),
        fpr_low=_few_digits(fpr_low),
        fpr_high=_few_digits(fpr_high),
        fnr_low=_few_digits(fnr_low),
        fnr_high=_few_digits(fnr_high),
        band_confidence=confidence,
        edges=_few_digits(edges),
        inside_bins=tuple(inside_bins.tolist()),
        outside_bins=tuple(outside_bins.tolist()),
        growth=tuple(growth),
        curves=tuple(curves),
    )


def measure_growth(
    scores: Observed, bound: Callable[[Scores], float], *, seed: int, in_order: bool
) -> tuple[tuple[int, float], ...]:
    """What halves, quarters, … of the observations prove; counts have no parts, and give nothing.

    Args:
        scores: All observations.
        bound: The ε that a part proves.
        seed: Of the random order in which parts are taken.
        in_order: Take them in the order given instead, for methods that bet on it.
    """
    if isinstance(scores, ScoreCounts):
        return ()
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    inside, outside = (
        part if in_order else stream.permutation(part) for part in (scores.inside, scores.outside)
    )
    points = []
    for halvings in range(_POINTS):
        n_in, n_out = inside.size >> halvings, outside.size >> halvings
        if halvings and min(n_in, n_out) < _FEWEST:
            break
        part = scores if halvings == 0 else Scores(inside[:n_in], outside[:n_out])
        points.append((n_in + n_out, bound(part)))
    return tuple(reversed(points))


def _binned(scores: Observed) -> tuple[FloatArray, IntArray, IntArray]:
    if isinstance(scores, ScoreCounts):
        return _merged(scores)
    every = np.concatenate([scores.inside, scores.outside]).astype(np.float64)
    finite = every[np.isfinite(every)]
    low, high = np.quantile(finite, [0.001, 0.999]) if finite.size else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    inside_bins, outside_bins = (
        np.histogram(np.clip(part, low, high), edges)[0] for part in (scores.inside, scores.outside)
    )
    return edges, inside_bins, outside_bins


def _merged(counts: ScoreCounts) -> tuple[FloatArray, IntArray, IntArray]:
    """The bins of counts, neighbours together until they are few enough to draw."""
    thresholds = counts.thresholds
    step = float(np.mean(np.diff(thresholds))) if thresholds.size > 1 else 1.0
    edges = np.concatenate([[thresholds[0] - step], thresholds, [thresholds[-1] + step]])
    starts = np.arange(0, edges.size - 1, -(-edges.size // _BINS))
    inside_bins, outside_bins = (
        np.add.reduceat(bins, starts) for bins in (counts.inside_bins, counts.outside_bins)
    )
    return np.append(edges[starts], edges[-1]), inside_bins, outside_bins


def _few_digits(values: FloatArray) -> tuple[float, ...]:
    """Six digits: enough to draw, and half the size."""
    return tuple(float(f"{value:.6g}") for value in values)
