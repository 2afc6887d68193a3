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
    """What an audit of published predictions rests on.

    Attributes:
        delta: δ of all bounds.
        samples: Predictions drawn of every model.
        runs: Models trained with the record, and as many without it.
        diverged_inside: Runs with the record that no longer predict numbers.
        diverged_outside: Runs without it that no longer predict numbers.
        tested: Predictions of test records that utility was measured on.
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
        form: In words, as ``"mean+std, to 0.01"``.
        shows: The kind of :class:`~epsilometer.audits.posterior.disclosure.ReleaseForm`.
        unit: Unit to which numbers are rounded; None: not rounded.
        samples: Predictions that it is made of.
        view: Its bound, of a learned attack on runs it was not learned from, decides. Beside
            it are valid bounds of joint thresholds, and the paper's, which are not valid.
        raw: The paper's estimate: the larger of its two decisions. No bound.
        advantage: TPR − FPR of the learned attack's own decision, on those runs.
        advantage_low: Lower limit on it.
        advantage_high: Upper limit on it and on its opposite's, also if lost runs had been hits.
        accuracy: Share of test records rightly labelled by what is published; None untested.
        ties: Share where two classes are largest, and no label can be given.
        calibration_error: Mean distance of confidence and accuracy.
        log_loss: Mean −ln of what is published for the true class.
        standing: On which side of the user's line it lies; it is no better than that of
            any form that can be made of it.
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
        """The view of its audience."""
        return (self.view,)

    @property
    def epsilon(self) -> float:
        """The bound that decides."""
        return self.view.bound.epsilon


class FormDifference(BaseFinding, frozen=True, kw_only=True):
    """How much more one form leaks than another: the advantage of the first less the second's.

    The interval is a bootstrap's over the runs that attacks were not learned from, the same of both
    forms; each has its confidence alone.
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
        samples: Predictions that it is made of.
        epsilon: Bound of the learned attack, at the audit's confidence alone.
        raw: The paper's estimate. No bound.
        advantage: Advantage of the learned attack.
        accuracy: Of what is published.
        ties: Share of test records without a label.
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
        epsilon: The limit: no form may be proved to leak more.
        advantage: And of none may the attack's advantage exceed this.
        forms: All forms that were audited, finest first.
        chosen: The first of these that stays below the limit; None where none does.
        pareto: Forms that no other beats in both log loss and advantage.
        advice: What to do, in sentences.
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
