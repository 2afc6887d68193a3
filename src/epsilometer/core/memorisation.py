"""Record what a language model memorised of texts that were planted in its training data."""

from epsilometer.core.bound import BaseFinding
from epsilometer.core.plain import Confidence, Count, Nonnegative, PositiveCount, Probability


class MemorisationFinding(BaseFinding, frozen=True, kw_only=True):
    """How much of planted texts a model gives back. It is shown with ε, and decides nothing.

    Attributes:
        canaries: Which, in words.
        planted: How many were in the training data.
        held_out: How many were not.
        exact: Share of planted ones that the model completes to the letter from their prompt.
        exact_low: Lower limit on it.
        exact_high: Upper limit.
        near: Share that it completes to at least ``similarity`` of their letters.
        near_low: Lower limit on it.
        near_high: Upper limit.
        near_held_out: The same share of held-out ones, which no one can have memorised.
        similarity: One minus the edit distance over the length, from which on a text is near.
        exposure: Median over planted ones of log₂(n + 1) − log₂(rank among n held-out ones), in
            bits, as in Carlini et al. (2019); None where only text was seen.
        exposure_low: Lower limit on the median.
        exposure_high: Upper limit.
        most_exposure: What it is at most by this many held-out ones.
        confidence: Confidence of each pair of limits alone.
    """

    canaries: str
    planted: PositiveCount
    held_out: Count
    exact: Probability
    exact_low: Probability
    exact_high: Probability
    near: Probability
    near_low: Probability
    near_high: Probability
    near_held_out: Probability
    similarity: Probability
    exposure: Nonnegative | None
    exposure_low: Nonnegative | None
    exposure_high: Nonnegative | None
    most_exposure: Nonnegative
    confidence: Confidence
