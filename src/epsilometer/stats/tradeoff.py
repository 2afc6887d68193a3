"""Compute trade-offs between the errors of an attack, and what privacy guarantees allow."""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.stats import binomial
from epsilometer.types import FloatArray, IntArray


def epsilon_of_rates(fpr: ArrayLike, fnr: ArrayLike, delta: float) -> FloatArray:
    """Return the ε that rates imply at ``delta``, both directions, shape ``(2, …)``.

    Under (ε, δ)-DP every attack has 1 − FNR ≤ e^ε FPR + δ, and the same with the rates swapped
    (Kairouz et al. 2015, Theorem 2.1). A direction whose numerator is not positive says nothing,
    and gives 0.

    Example:
        >>> epsilon_of_rates(0.1, 0.2, 1e-5).round(4)
        array([2.0794, 1.5041])
    """
    fpr, fnr = np.asarray(fpr, np.float64), np.asarray(fnr, np.float64)
    return epsilon_of_limits((fpr, 1 - fpr), (fnr, 1 - fnr), delta)


def epsilon_of_limits(
    fpr: tuple[FloatArray, FloatArray], fnr: tuple[FloatArray, FloatArray], delta: float
) -> FloatArray:
    """``epsilon_of_rates`` from pairs (rate, 1 − rate), so that neither loses its digits."""
    gain = np.stack([fnr[1], fpr[1]]) - delta
    loss = np.stack([fpr[0], fnr[0]])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(gain > 0, gain / loss, 1.0)
    return np.log(np.maximum(ratio, 1.0))  # below 1 is no evidence, not negative ε


@dataclass(frozen=True, eq=False, kw_only=True)
class TradeoffCurve:
    """Both errors of the attack "in iff score ≥ threshold" at every distinct threshold.

    Attributes:
        thresholds: Descending, from +inf (no run is called in) to the smallest score.
        false_positives: Outside scores at or above each threshold.
        false_negatives: Inside scores below each threshold.
        n_in: Scores inside.
        n_out: Scores outside.

    Example:
        >>> import epsilometer as em
        >>> curve = em.tradeoff_curve(em.Scores(inside=[1.0, 3.0], outside=[0.0, 2.0]))
        >>> curve.fpr.tolist(), curve.fnr.tolist(), curve.auc
        ([0.0, 0.0, 0.5, 0.5, 1.0], [1.0, 0.5, 0.5, 0.0, 0.0], 0.75)
    """

    thresholds: FloatArray
    false_positives: IntArray
    false_negatives: IntArray
    n_in: int
    n_out: int

    @property
    def fpr(self) -> FloatArray:
        """False positive rate at each threshold, rising from 0 to 1."""
        return self.false_positives / self.n_out

    @property
    def fnr(self) -> FloatArray:
        """False negative rate at each threshold, falling from 1 to 0."""
        return self.false_negatives / self.n_in

    @property
    def auc(self) -> float:
        """Chance that an inside score exceeds an outside one; equal scores count half."""
        return _area(self.fpr, 1 - self.fnr)

    def hull(self) -> tuple[FloatArray, FloatArray]:
        """FPR and FNR of the lower convex hull: what randomising between thresholds can reach."""
        keep = _lower_hull(self.false_positives, self.false_negatives)
        return self.fpr[keep], self.fnr[keep]

    def tpr_at(self, fpr: ArrayLike, *, randomised: bool = False) -> FloatArray:
        """Return the true positive rate at given false positive rates.

        The best single threshold whose FPR does not exceed the given one; with ``randomised``,
        the convex hull, which mixes two thresholds.
        """
        _validate.rates(fpr=fpr)
        fpr = np.asarray(fpr, np.float64)
        if randomised:
            hull_fpr, hull_fnr = self.hull()
            # At one FPR the hull may stand upright: there the best is the end of the wall.
            last = np.append(np.diff(hull_fpr) > 0, True)
            return np.asarray(1 - np.interp(fpr, hull_fpr[last], hull_fnr[last]))
        reached = np.searchsorted(self.fpr, fpr * (1 + 1e-12), side="right") - 1
        return np.asarray(1 - self.fnr[reached])

    def thin(self, points: int = 50) -> "TradeoffCurve":
        """Return some of the curve's points for drawing, dense at low FPR and low FNR.

        A band of the thinned curve holds as that of the whole: its confidence was paid for all.
        """
        shares = np.linspace(0.0, 1.0, points)
        at_out = np.append(shares * self.n_out, np.geomspace(1.0, max(self.n_out, 1), points))
        at_in = np.append(shares * self.n_in, np.geomspace(1.0, max(self.n_in, 1), points))
        rising, falling = self.false_positives, self.false_negatives[::-1]
        last = self.thresholds.size - 1
        keep = np.concatenate(
            [
                np.searchsorted(rising, at_out),
                np.searchsorted(rising, at_out, side="right") - 1,  # the corner of the same FPR
                last - np.searchsorted(falling, at_in),
                last + 1 - np.searchsorted(falling, at_in, side="right"),
            ]
        )
        keep = np.unique(np.clip(keep, 0, last))
        return TradeoffCurve(
            thresholds=self.thresholds[keep],
            false_positives=self.false_positives[keep],
            false_negatives=self.false_negatives[keep],
            n_in=self.n_in,
            n_out=self.n_out,
        )

    def band(
        self, confidence: float = DEFAULT_CONFIDENCE
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return limits on the true rates that hold at all thresholds together.

        Each of the n possible counts of a sample is given α/4n per side. So the limits hold for
        every threshold at once and any distribution of the scores.

        Returns:
            FPR low, FPR high, FNR low, FNR high, each of the shape of ``thresholds``.
        """
        _validate.open_unit(confidence=confidence)
        low, high = binomial.clopper_pearson_lower, binomial.clopper_pearson_upper
        out, inside = (1 - confidence) / (4 * self.n_out), (1 - confidence) / (4 * self.n_in)
        return (
            low(self.false_positives, self.n_out, alpha=out),
            high(self.false_positives, self.n_out, alpha=out),
            low(self.false_negatives, self.n_in, alpha=inside),
            high(self.false_negatives, self.n_in, alpha=inside),
        )


def tradeoff_curve(scores: Scores | ScoreCounts) -> TradeoffCurve:
    """Return the curve of these scores, or of these counts at their thresholds.

    Example:
        >>> curve = tradeoff_curve(Scores(inside=[1.0, 2.0, 2.0], outside=[0.0, 1.0]))
        >>> curve.thresholds, curve.false_positives, curve.false_negatives
        (array([inf,  2.,  1.,  0.]), array([0, 0, 1, 2]), array([3, 1, 0, 0]))
        >>> round(curve.auc, 4)
        0.9167
    """
    if isinstance(scores, ScoreCounts):
        thresholds = np.concatenate([[-np.inf], scores.thresholds, [np.inf]])
        positives = np.append(np.cumsum(scores.outside_bins[::-1])[::-1], 0)
        missed = np.append(0, np.cumsum(scores.inside_bins))
        thresholds, positives, missed = thresholds[::-1], positives[::-1], missed[::-1]
    else:
        inside, outside = np.sort(scores.inside), np.sort(scores.outside)
        values = np.unique(np.concatenate([inside, outside]))[::-1]
        thresholds = np.concatenate([[np.inf], values])
        positives = np.append(0, outside.size - np.searchsorted(outside, values))
        missed = np.append(inside.size, np.searchsorted(inside, values))
    return TradeoffCurve(
        thresholds=thresholds,
        false_positives=positives,
        false_negatives=missed,
        n_in=scores.n_in,
        n_out=scores.n_out,
    )


def dp_curve(fpr: ArrayLike, *, epsilon: float, delta: float) -> FloatArray:
    """Return the smallest FNR that (ε, δ)-DP allows at each FPR (Kairouz et al. 2015).

    Example:
        >>> dp_curve([0.0, 0.1, 1.0], epsilon=1.0, delta=0.1).round(4)
        array([0.9   , 0.6282, 0.    ])
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.rates(fpr=fpr)
    fpr = np.asarray(fpr, np.float64)
    steep, flat = 1 - delta - np.exp(epsilon) * fpr, np.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.maximum(np.maximum(steep, flat), 0.0))


def gdp_curve(fpr: ArrayLike, *, mu: float) -> FloatArray:
    """Return the smallest FNR that μ-Gaussian DP allows at each FPR (Dong et al. 2022).

    Example:
        >>> gdp_curve([0.0, 0.5, 1.0], mu=1.0).round(4)
        array([1.    , 0.1587, 0.    ])
    """
    _validate.at_least(0, mu=mu)
    _validate.rates(fpr=fpr)
    return np.asarray(scipy.special.ndtr(-scipy.special.ndtri(np.asarray(fpr, np.float64)) - mu))


def envelope_curve(fpr: ArrayLike, *, epsilons: ArrayLike, deltas: ArrayLike) -> FloatArray:
    """Return the smallest FNR that a privacy profile δ(ε) allows: the highest of its curves."""
    fpr = np.asarray(fpr, np.float64)
    best = np.zeros_like(fpr)
    for epsilon, delta in zip(np.ravel(epsilons), np.ravel(deltas), strict=True):
        best = np.maximum(best, dp_curve(fpr, epsilon=float(epsilon), delta=float(delta)))
    return best


def _area(x: FloatArray, y: FloatArray) -> float:
    return float(np.sum((x[1:] - x[:-1]) * (y[1:] + y[:-1])) / 2)


def _lower_hull(x: IntArray, y: IntArray) -> IntArray:
    """Indices of the lower convex hull of points whose x rises and y falls."""
    hull: list[int] = []
    for i in range(x.size):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) > (y[b] - y[a]) * (x[i] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull)
