"""Record what a language model memorised of texts that were planted in its training data."""

from epsilometer.core.bound import BaseFinding
from epsilometer.core.plain import Confidence, Count, Nonnegative, PositiveCount, Probability


class MemorisationFinding(BaseFinding, frozen=True, kw_only=True):
    """How much of the planted texts a model reproduces. Shown with ε; decides nothing.

    Attributes:
        canaries: The canaries in words.
        planted: Number of canaries in the training data.
        held_out: Number of canaries not in the training data.
        exact: Share of planted canaries that the model completes verbatim from their prompt.
        exact_low: Lower limit on it.
        exact_high: Upper limit.
        near: Share that it completes with a similarity of at least ``similarity``.
        near_low: Lower limit on it.
        near_high: Upper limit.
        near_held_out: The same share of held-out canaries, which cannot have been memorised.
        similarity: Threshold on one minus the edit distance over the length.
        exposure: Median over planted canaries of log₂(n + 1) − log₂(rank among n held-out), in
            bits, as in Carlini et al. (2019); None where only completions were available.
        exposure_low: Lower limit on the median.
        exposure_high: Upper limit.
        most_exposure: Largest possible exposure with this many held-out canaries.
        confidence: Confidence of each pair of limits.

    Example:
        >>> import epsilometer as em
        >>> from epsilometer.audits.text.measuring import Measured
        >>> planted = em.plant_texts(["to be or not to be"], canaries=em.TextCanaries(count=400))
        >>> pairs = zip(planted.canaries, planted.included, strict=True)
        >>> texts = tuple(each.secret if known else "" for each, known in pairs)
        >>> model = em.LanguageModel(Measured(completions=texts), planted)
        >>> audit = em.audit(model, delta=1e-5)
        >>> audit.one(em.findings.MemorisationFinding).exact
        1.0
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
