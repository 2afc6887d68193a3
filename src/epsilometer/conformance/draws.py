"""Compute evidence against Poisson sampling: log ratios of batches, each given all earlier ones.

"Right" means here: every record enters a batch independently of everything else, all with the same
chance, which may change from batch to batch and is at most the booked rate. Given its size, a batch
is then a uniform subset, whatever the chance.
"""

import math

import numpy as np
import scipy.special

from epsilometer.types import FloatArray

_LARGEST_SUM = 4096  # terms up to which a normaliser is summed exactly


def rate_ratios(size: int, records: int, rate: float, others: FloatArray) -> FloatArray:
    r"""Return log ratios of a batch's size under other rates, against the booked one.

    :math:`b \ln(r/q) + (n - b) \ln((1 - r)/(1 - q))`. For r > q it grows with b, so its exponential
    has expectation at most 1 under every rate up to q; for r < q under every rate of q or more.

    Args:
        size: Records b in the batch.
        records: Records n of the training set.
        rate: The booked rate q.
        others: Rates r in (0, 1), shape ``(k,)``.

    Example:
        >>> rate_ratios(100, 1000, 0.05, np.array([0.1])).round(2)
        array([20.65])
    """
    absent = records - size
    if rate == 1:  # then an absent record has likelihood 0
        return size * np.log(others) if absent == 0 else np.where(others < 1, np.inf, 0.0)
    return np.asarray(
        size * np.log(others / rate) + absent * (np.log1p(-others) - math.log1p(-rate))
    )


def log_size_chance(size: int, records: int, rate: float) -> float:
    """Return the logarithm of the largest chance of a size under any rate up to the booked one.

    Example:
        >>> round(math.exp(log_size_chance(50, 1000, 0.05)), 4)
        0.0578
    """
    likeliest = min(size / records, rate)
    absent = records - size
    chosen = float(log_subsets(records, size))
    present = size * math.log(likeliest) if size else 0.0
    return chosen + present + (absent * math.log1p(-likeliest) if absent else 0.0)


def log_subsets(records: int, size: int) -> float:
    """Return the logarithm of the number of subsets of this size."""
    both = scipy.special.gammaln(size + 1) + scipy.special.gammaln(records - size + 1)
    return float(scipy.special.gammaln(records + 1) - both)


def marked_ratios(
    hits: int, marked: int, *, drawn: int, records: int, odds: FloatArray
) -> FloatArray:
    """Return log ratios for marked records that are drawn more or less often than others.

    Of ``drawn`` records out of ``records``, the number that is among ``marked`` ones is
    hypergeometric. The alternative is Fisher's noncentral distribution, with odds of a marked
    record ω times as large. Beyond 4,096 terms the normaliser is that of drawing with replacement,
    which is no smaller (Hoeffding 1963).

    Args:
        hits: Marked records in the batch.
        marked: Marked records in the training set, chosen before the batch was drawn.
        drawn: Records in the batch.
        records: Records of the training set.
        odds: Odds ratios ω > 0, shape ``(k,)``.

    Example:
        >>> marked_ratios(9, 50, drawn=10, records=100, odds=np.array([4.0])).round(2)
        array([3.48])
    """
    logs = np.log(odds)
    fewest, most = max(0, drawn - (records - marked)), min(drawn, marked)
    if fewest == most:
        return np.zeros_like(logs)
    if most - fewest > _LARGEST_SUM:
        share = marked / records
        return np.asarray(hits * logs - drawn * np.log1p(share * (odds - 1)))
    counts = np.arange(fewest, most + 1, dtype=np.float64)
    chances = _log_hypergeometric(counts, marked, drawn, records)
    terms = chances + counts * logs[:, None]
    top = terms.max(axis=1)
    return np.asarray(hits * logs - top - np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def most_ratio(hits: int, marked: int, *, drawn: int, records: int) -> float:
    """Return the log ratio of "as many marked records as possible", −∞ where there were fewer.

    Example:
        >>> round(most_ratio(10, 90, drawn=10, records=100), 3)
        1.107
    """
    most = min(drawn, marked)
    if hits < most:
        return -math.inf
    return -float(_log_hypergeometric(np.array([float(most)]), marked, drawn, records)[0])


def _log_hypergeometric(counts: FloatArray, marked: int, drawn: int, records: int) -> FloatArray:
    others = records - marked
    log = scipy.special.gammaln
    inside = log(marked + 1) - log(counts + 1) - log(marked - counts + 1)
    missed = drawn - counts
    outside = log(others + 1) - log(missed + 1) - log(others - missed + 1)
    return np.asarray(inside + outside - log_subsets(records, drawn))
