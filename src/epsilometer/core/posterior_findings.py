"""Record what published predictions leak: one finding per form of publishing, and their plan."""

from typing import Literal, TypeAlias

from epsilometer import _validate
from epsilometer.core.bound import BaseFinding, EpsilonFinding
from epsilometer.core.plain import (
    Confidence,
    Count,
    Nonnegative,
    Number,
    PositiveCount,
    Probability,
)
from epsilometer.errors import InvalidArgument

Standing: TypeAlias = Literal["below", "above", "unclear"]
Swept: TypeAlias = Literal["samples", "unit"]


class PosteriorRuns(BaseFinding, frozen=True, kw_only=True):
    """The runs that an audit of published predictions is based on.

    Attributes:
        delta: δ of all bounds.
        samples: Predictions drawn from every model.
        runs: Number of models trained with the record, and of models trained without it.
        diverged_inside: Runs with the record that no longer predict numbers.
        diverged_outside: Runs without it that no longer predict numbers.
        tested: Predictions of test records on which utility was measured.

    Example:
        >>> import epsilometer as em
        >>> runs = em.findings.PosteriorRuns(
        ...     delta=1e-5, samples=50, runs=100, diverged_inside=1, diverged_outside=0, tested=1000
        ... )
        >>> runs.diverged_inside
        1
    """

    delta: Confidence
    samples: PositiveCount
    runs: PositiveCount
    diverged_inside: Count
    diverged_outside: Count
    tested: Count


class FormFinding(BaseFinding, frozen=True, kw_only=True):
    """One form of publishing: what it leaks of the record, and what it is worth to users.

    Attributes:
        form: The form in words, such as ``"mean+std, to 0.01"``.
        shows: The kind of :class:`~epsilometer.audits.posterior.disclosure.ReleaseForm`.
        unit: Unit to which numbers are rounded; None: not rounded.
        samples: Number of predictions that it is computed from.
        view: Its deciding bound is of a learned attack on runs not used for learning. ``also``
            has valid bounds of joint thresholds, and the paper's, which are not valid.
        raw: The paper's estimate, the larger of its two decisions; not a bound.
        advantage: TPR − FPR of the learned attack's own decision, on those runs.
        advantage_low: Lower limit on it.
        advantage_high: Upper limit on it and on its opposite's, even if lost runs had been hits.
        accuracy: Accuracy of the published labels on test records; None if untested.
        ties: Share of test records where two classes tie, so that no label can be given.
        calibration_error: Mean distance between confidence and accuracy.
        log_loss: Mean −ln of the published probability of the true class.
        standing: On which side of the user's limit the form lies; never better than any form that
            can be computed from it.

    Example:
        >>> import epsilometer as em
        >>> (view,) = em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5).views
        >>> form = em.findings.FormFinding(
        ...     form="mean", shows="mean", unit=None, samples=50, view=view, raw=4.5, advantage=1.0,
        ...     advantage_low=0.9, advantage_high=1.0, accuracy=0.9, ties=0.0, log_loss=0.3,
        ...     calibration_error=0.05, standing="above",
        ... )
        >>> round(form.epsilon, 2)
        4.08
    """

    form: str
    shows: str
    unit: float | None
    samples: PositiveCount
    view: EpsilonFinding
    raw: Nonnegative
    advantage: float
    advantage_low: float
    advantage_high: float
    accuracy: float | None
    ties: float | None
    calibration_error: float | None
    log_loss: Nonnegative | None
    standing: Standing

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.at_least(
            -1,
            advantage=self.advantage,
            advantage_low=self.advantage_low,
            advantage_high=self.advantage_high,
        )

    @property
    def views(self) -> tuple[EpsilonFinding, ...]:
        """The view of the recipients of this form."""
        return (self.view,)

    @property
    def epsilon(self) -> float:
        """The deciding bound on ε."""
        return self.view.bound.epsilon


class FormDifference(BaseFinding, frozen=True, kw_only=True):
    """How much more one form leaks than another: the advantage of the first minus the second's.

    The interval is a bootstrap interval over the runs not used to learn the attacks, the same for
    both forms. Each interval has its own confidence.

    Example:
        >>> import epsilometer as em
        >>> difference = em.findings.FormDifference(
        ...     first="mean", second="label", difference=0.4, low=0.2, high=0.6, confidence=0.95
        ... )
        >>> difference.low > 0
        True
    """

    first: str
    second: str
    difference: Number
    low: Number
    high: Number
    confidence: Confidence


class SweepPoint(BaseFinding, frozen=True, kw_only=True):
    """A form with another number of samples, or rounded to another unit; it decides nothing.

    Attributes:
        swept: What was varied.
        shows: The kind of the form.
        unit: Unit to which numbers are rounded.
        samples: Number of predictions that it is computed from.
        epsilon: Bound of the learned attack; each alone holds at the audit's confidence.
        raw: The paper's estimate; not a bound.
        advantage: Advantage of the learned attack.
        accuracy: Accuracy of the published labels.
        ties: Share of test records without a label.

    Example:
        >>> import epsilometer as em
        >>> point = em.findings.SweepPoint(
        ...     swept="samples", shows="mean", unit=None, samples=10, epsilon=0.5, raw=2.0,
        ...     advantage=0.3, accuracy=0.9, ties=0.0,
        ... )
        >>> point.samples, point.epsilon
        (10, 0.5)
    """

    swept: Swept
    shows: str
    unit: float | None
    samples: PositiveCount
    epsilon: Nonnegative
    raw: Nonnegative
    advantage: float
    accuracy: float | None
    ties: float | None


class FormPlan(BaseFinding, frozen=True, kw_only=True):
    """The most detailed form that stays below the user's limit.

    Attributes:
        epsilon: The limit on ε: no form may be proved to leak more.
        advantage: Largest allowed advantage of the attack.
        forms: All audited forms, the most detailed first.
        chosen: The first of these that stays below the limit; None where none does.
        pareto: Forms that no other beats in both log loss and advantage.
        advice: What to do, in sentences.

    Example:
        >>> import epsilometer as em
        >>> plan = em.findings.FormPlan(
        ...     epsilon=1.0, advantage=0.5, forms=("samples", "mean", "label"), chosen="label",
        ...     pareto=("label",), advice=("Publish the label only.",),
        ... )
        >>> plan.chosen
        'label'
    """

    epsilon: Nonnegative
    advantage: Probability
    forms: tuple[str, ...]
    chosen: str | None
    pareto: tuple[str, ...]
    advice: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen not in (None, *self.forms):
            raise InvalidArgument(
                f"Expected a form that was audited, got {_validate.short(self.chosen)}."
            )
