"""What may be shown of predictions with uncertainty? What each form leaks, and what it is worth."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeAlias

from epsilometer import _validate
from epsilometer.claims import PrivacyClaim
from epsilometer.errors import InvalidArgument
from epsilometer.plain import fields_of, plain_values, settle
from epsilometer.results import AuditResult, Provenance, Verdict, html_table, known_cites

Standing: TypeAlias = Literal["below", "above", "cannot tell"]
Swept: TypeAlias = Literal["samples", "unit"]


@dataclass(frozen=True, kw_only=True)
class FormFinding:
    """One form of publishing: what it leaks of the record, and what it is worth to users.

    Attributes:
        form: In words, as ``"mean+std, to 0.01"``.
        shows: The kind of :class:`~epsilometer.attacks.disclosure.ReleaseForm`.
        unit: To which numbers are rounded; None for as they are.
        samples: Predictions that it is made of.
        audit: Its first bound, of a learned attack on runs it was not learned from, decides. Beside
            it are valid bounds of joint thresholds, and the paper's, which are not valid.
        raw: The paper's estimate: the larger of its two decisions. No bound.
        advantage: TPR − FPR of the learned attack's own decision, on those runs.
        advantage_low: Lower limit on it.
        advantage_high: Upper limit on it and on its opposite's, also if lost runs had been hits.
        accuracy: Share of test records rightly labelled by what is published; None untested.
        ties: Share where two classes are largest, and no label can be given.
        calibration_error: Mean distance of confidence and accuracy.
        log_loss: Mean −ln of what is published for the true class.
        standing: On which side of the user's line it lies; it is no better than that of any form
            that can be made of it.
    """

    form: str
    shows: str
    unit: float | None
    samples: int
    audit: AuditResult
    raw: float
    advantage: float
    advantage_low: float
    advantage_high: float
    accuracy: float | None
    ties: float | None
    calibration_error: float | None
    log_loss: float | None
    standing: Standing

    def __post_init__(self) -> None:
        _validate.whole(1, samples=self.samples)
        _validate.at_least(0, raw=self.raw)
        if self.log_loss is not None:
            _validate.at_least(0, log_loss=self.log_loss)
        _validate.at_least(
            -1,
            advantage=self.advantage,
            advantage_low=self.advantage_low,
            advantage_high=self.advantage_high,
        )
        settle(self)

    @property
    def epsilon(self) -> float:
        """The bound that decides."""
        return self.audit.bound.epsilon


@dataclass(frozen=True, kw_only=True)
class FormDifference:
    """How much more one form leaks than another: the advantage of the first less the second's.

    The interval is a bootstrap's over the runs that attacks were not learned from, the same of both
    forms; each has its confidence alone.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    confidence: float

    def __post_init__(self) -> None:
        _validate.number(difference=self.difference, low=self.low, high=self.high)
        _validate.open_unit(confidence=self.confidence)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A form with another number of samples, or rounded to another unit; it decides nothing.

    Attributes:
        swept: What was varied.
        shows: The kind of the form.
        unit: To which numbers are rounded.
        samples: Predictions that it is made of.
        epsilon: Bound of the learned attack, at the audit's confidence alone.
        raw: The paper's estimate. No bound.
        advantage: Of the learned attack.
        accuracy: Of what is published.
        ties: Share of test records without a label.
    """

    swept: Swept
    shows: str
    unit: float | None
    samples: int
    epsilon: float
    raw: float
    advantage: float
    accuracy: float | None
    ties: float | None

    def __post_init__(self) -> None:
        _validate.whole(1, samples=self.samples)
        _validate.at_least(0, epsilon=self.epsilon, raw=self.raw)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class FormPlan:
    """The finest form that stays below the user's line.

    Attributes:
        epsilon: The line: no form may be proved to leak more.
        advantage: And of none may the attack's advantage exceed this.
        chosen: The first form, finest first, that stays below; None where none does.
        pareto: Forms that no other beats in both log loss and advantage.
        advice: What to do, in sentences.
    """

    epsilon: float
    advantage: float
    chosen: str | None
    pareto: tuple[str, ...]
    advice: tuple[str, ...]

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        _validate.probability(advantage=self.advantage)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class TheoryEpsilon:
    """What an accountant says of the training: an upper bound, where its assumptions hold."""

    method: str
    epsilon: float
    note: str

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        settle(self)


@dataclass(frozen=True, kw_only=True)
class PosteriorAudit:
    """Predictions with uncertainty: what each form of publishing them leaks of one record.

    Attributes:
        subject: What was audited, in words.
        claim: What was promised, if anything.
        delta: δ of all bounds.
        confidence: With which all forms' bounds hold together.
        samples: Predictions drawn of every model.
        runs: Models trained with the record, and as many without it.
        diverged_inside: Of those with the record, that no longer predict numbers.
        diverged_outside: Of those without it.
        tested: Predictions of test records that utility was measured on.
        forms: Finest first.
        differences: Of all pairs of forms.
        sweeps: Over numbers of samples and units of rounding.
        plan: What may be published below the user's line.
        theory: What accountants say of the training.
        caveats: What a reader must know.
        seed: From which all randomness followed.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        provenance: How to do it again.
    """

    subject: str
    claim: PrivacyClaim | None
    delta: float
    confidence: float
    samples: int
    runs: int
    diverged_inside: int
    diverged_outside: int
    tested: int
    forms: tuple[FormFinding, ...]
    differences: tuple[FormDifference, ...]
    sweeps: tuple[SweepPoint, ...]
    plan: FormPlan
    theory: tuple[TheoryEpsilon, ...]
    caveats: tuple[str, ...]
    seed: int
    cites: tuple[str, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        if not self.forms:
            raise InvalidArgument("Expected at least one form of publishing, got none.")
        if self.plan.chosen not in (None, *(form.form for form in self.forms)):
            raise InvalidArgument(
                f"Expected a form that was audited, got {_validate.short(self.plan.chosen)}."
            )
        _validate.open_unit(delta=self.delta, confidence=self.confidence)
        _validate.whole(1, samples=self.samples, runs=self.runs)
        _validate.whole(
            0,
            diverged_inside=self.diverged_inside,
            diverged_outside=self.diverged_outside,
            tested=self.tested,
        )
        known_cites(self.cites)
        settle(self)

    @property
    def audits(self) -> tuple[AuditResult, ...]:
        """One a form, so that it is read like any group of audits."""
        return tuple(form.audit for form in self.forms)

    def _repr_html_(self) -> str:
        rows = ((form.form, str(form.audit.bound)) for form in self.forms)
        return html_table(f"{self.subject}: {self.verdict}", rows)

    @property
    def verdict(self) -> Verdict:
        """``refuted`` if any form's bound refutes the claim: they share the confidence."""
        if self.claim is None:
            return "no claim"
        said = {audit.verdict for audit in self.audits}
        return next(v for v in ("refuted", "no verdict", "not refuted") if v in said)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = plain_values(asdict(self))
        for plain, form in zip(parts["forms"], self.forms, strict=True):
            plain["audit"] = form.audit.to_dict()
        return {"kind": "PosteriorAudit", "verdict": self.verdict, **parts}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The result that ``to_dict`` wrote."""
        without = {name: value for name, value in plain.items() if name != "verdict"}
        forms = without.get("forms")
        if isinstance(forms, list):
            without["forms"] = [_without_verdict(form) for form in forms]
        return cls(**fields_of(cls, without))


def _without_verdict(form: Any) -> Any:
    """A form whose audit is read without what it says of itself."""
    if not isinstance(form, dict) or not isinstance(form.get("audit"), dict):
        return form
    audit = {name: value for name, value in form["audit"].items() if name != "verdict"}
    return {**form, "audit": audit}
