"""Define the result of an audit: one type for every kind of subject."""

import math
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from epsilometer.core import judge
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim, check_unit
from epsilometer.core.findings import (
    ConformanceFinding,
    EpsilonFinding,
    Evidence,
    Finding,
    FormFinding,
)
from epsilometer.core.plain import Confidence, Count, Plain, check_cites, make_html_table
from epsilometer.core.printing import one_line
from epsilometer.core.renderers import RENDERERS, save
from epsilometer.core.settings import has_supplied
from epsilometer.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import Self

_T = TypeVar("_T")
_DEEPEST = 32  # levels of settings; real ones have four


class Provenance(Plain, frozen=True, kw_only=True):
    """The exact settings of an audit and of its run, enough to repeat it.

    Data are named by reference (a file and its columns) or as ``{"supplied": …}``, never by value;
    functions as ``module:name``.

    Attributes:
        subject: Name of the subject in the registry of ``epsilometer.audit``.
        settings: The subject's own fields, as JSON values.
        delta: δ of the audit; None if it needs none.
        confidence: Confidence of all bounds together.
        seed: Seed of all randomness.
        until: Condition for stopping early, as JSON values; None if it could not stop early.
        versions: (package, version) pairs.
        shapes: (field, shape in words) pairs of the data. Not digests, which would reveal the last
            record to an adversary who knows all others.
        plan: Hash of the run's plan without its data; empty if there was no run.
        units: Planned units of work.
        used: Units whose observations were used; fewer where the run stopped early.
        failed: Units that raised or killed their worker.
        code: SHA-256 of the user's code in the run, without its values; empty if there was none.
        accepted: Accepted changes of the code during the run, in words.
    """

    subject: str
    settings: dict[str, Any]
    delta: float | None
    confidence: Confidence
    seed: Count
    until: dict[str, Any] | None = None
    versions: tuple[tuple[str, str], ...]
    shapes: tuple[tuple[str, str], ...] = ()
    plan: str = ""
    units: Count = 1
    used: Count = 1
    failed: Count = 0
    code: str = ""
    accepted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_depth(self.settings)
        _check_depth(self.until)
        if self.used + self.failed > self.units:
            raise InvalidArgument(
                f"Expected at most {self.units} units used and failed, "
                f"got {self.used} and {self.failed}."
            )

    @property
    def supplied(self) -> tuple[str, ...]:
        """Names of settings that must be supplied to repeat the audit."""
        return tuple(name for name, value in self.settings.items() if has_supplied(value))


class Audit(Plain, frozen=True, kw_only=True, dict=True):
    """The findings of an audit, and the verdict that follows from them.

    Guarantee: all deciding bounds hold together at ``confidence``; the verdict is computed from
        the findings, by ``epsilometer.core.judge`` alone.
    Assumption: those of the bounds' methods; each bound names its method.

    Attributes:
        format: Format of the file; readers refuse others.
        subject: A description of what was audited.
        claim: The claim that is judged; None without one.
        findings: What was found, the most severe first.
        advice: What to do next, in sentences.
        caveats: What a reader must know.
        cites: Keys of ``references.BIBLIOGRAPHY``, in addition to those of bounds and estimates.
        provenance: The exact settings of the audit and of its run.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(inside=[2.0] * 500, outside=[0.0] * 500)
        >>> audit = em.audit(scores, em.Claim(3.0, delta=1e-5))
        >>> audit.verdict, round(audit.epsilon, 2), round(audit.reach, 2)
        ('refuted', 5.81, 5.81)
    """

    format: Literal[2] = 2
    subject: str
    claim: Claim | None
    findings: tuple[Finding, ...]
    advice: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    cites: tuple[str, ...] = ()
    provenance: Provenance

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.findings:
            raise InvalidArgument("Expected at least one finding in an audit, got none.")
        check_cites(self.cites)
        msgspec.structs.force_setattr(
            self, "findings", judge.sort_findings(self.claim, self.findings)
        )

    @cached_property
    def judgement(self) -> judge.Judgement:
        """The verdict with its reason."""
        return judge.judge(self.claim, self.findings, failed=self.provenance.failed)

    @property
    def verdict(self) -> judge.Verdict:
        """The verdict: one of ``epsilometer.core.judge.GRAVEST_FIRST``."""
        return self.judgement.verdict

    @property
    def exit_code(self) -> int:
        """The exit code of a command that made this audit."""
        return judge.exit_code(self.verdict)

    @property
    def confidence(self) -> float:
        """The confidence with which all deciding bounds hold together."""
        return self.provenance.confidence

    @cached_property
    def views(self) -> tuple[EpsilonFinding, ...]:
        """The findings that bound ε, one per adversary's view, the most severe first."""
        return tuple(view for finding in self.findings for view in finding.views)

    @property
    def bounds(self) -> tuple[EpsilonLowerBound, ...]:
        """The bounds that decide, one per view."""
        return tuple(view.bound for view in self.views)

    @property
    def estimates(self) -> tuple[EpsilonEstimate, ...]:
        """Every ε by theory or estimation; the ``role`` of each says what it may decide."""
        return tuple(estimate for view in self.views for estimate in view.estimates)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Data of the figures, one per view."""
        return tuple(view.evidence for view in self.views)

    @property
    def epsilon(self) -> float:
        """The largest valid lower bound on ε; 0 where nothing is proved."""
        ran = [finding.bound for finding in self.find(ConformanceFinding)]
        proved = [bound.epsilon for bound in ran if bound is not None and bound.valid]
        return max((*proved, *(view.epsilon for view in self.views)), default=0.0)

    @property
    def upper(self) -> float:
        """The smallest proved upper bound on ε; ∞ where none is proved."""
        return min((estimate.upper for estimate in self.estimates), default=math.inf)

    @property
    def reach(self) -> float | None:
        """The largest claim that these observations could refute; None without a claim.

        0 where only conformance was checked, without a bound on ε.
        """
        deciding = [each for each in self.findings if each.views or each.checked_run is not None]
        if self.claim is None or not deciding:
            return None
        return max(map(judge.reach_of, deciding))

    @property
    def conformance(self) -> ConformanceFinding | None:
        """Whether the program did what was accounted for; None where that was not checked."""
        return self.one(ConformanceFinding)

    @property
    def power(self) -> float | None:
        """The smallest true ε at which this audit refutes its claim 4 times in 5.

        None without a claim, or where a claim other than the audited one is judged. Also None where
        the noise of the run was measured: then slightly less noise refutes any claim.
        """
        if any(judge.reach_of(each) == math.inf for each in self.find(ConformanceFinding)):
            return None
        known = [
            view.power if judge.reach_of_view(view, released=view is not finding) else math.inf
            for finding in self.findings
            for view in finding.views
            if view.power is not None
        ]
        return min(known) if self.claim is not None and known else None

    def find(self, kind: type[_T]) -> tuple[_T, ...]:
        """Return the findings of one type, the most severe first."""
        return tuple(finding for finding in self.findings if isinstance(finding, kind))

    def one(self, kind: type[_T]) -> _T | None:
        """Return the first finding of a type, or None."""
        return next(iter(self.find(kind)), None)

    def view(self, text: str) -> EpsilonFinding:
        """Return the one view whose subject ends with a text or, if none does, contains it."""
        for test in (str.endswith, str.__contains__):
            found = [view for view in self.views if test(view.subject, text)]
            if len(found) == 1:
                return found[0]
        listed = "; ".join(view.subject for view in self.views)
        raise InvalidArgument(f"Expected one view named {text!r}, got: {listed}.")

    def with_claim(self, claim: Claim | None) -> "Self":
        """Return the audit judged by another claim, without the power against the audited one.

        Raises:
            InvalidArgument: The claim is about clients where records were tested, or vice versa.
        """
        if claim == self.claim:
            return self
        if self.claim is not None and self.claim.unit != "unstated":
            check_unit(claim, self.claim.unit)
        return msgspec.structs.replace(
            self, claim=claim, findings=tuple(_drop_power(each) for each in self.findings)
        )

    def save(self, path: str | Path) -> Path:
        """Write the audit as ``.json``, ``.html``, ``.md``, ``.txt``, or ``.svg`` for a badge."""
        return save(self, Path(path))

    def to_json(self) -> str:
        """Return the audit as strict JSON text that ``epsilometer.load`` can read."""
        return RENDERERS[".json"](self)

    def __str__(self) -> str:
        return RENDERERS[".txt"](self)

    def __repr__(self) -> str:
        return f"<Audit of {one_line(self.subject, 60)!r}: {self.verdict}>"

    def __rich_repr__(self) -> Any:
        yield self.subject
        yield "verdict", self.verdict

    def _repr_html_(self) -> str:
        title, *lines = str(self).splitlines()
        rows = (tuple(line.strip().split(": ", 1)) for line in lines)
        return make_html_table(title, rows)


def _check_depth(settings: Any) -> None:
    """Refuse settings that are nested so deeply that reading them would overflow the stack."""
    level = [settings]
    for _ in range(_DEEPEST):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        nested = (part for part in parts if not isinstance(part, (str, int, float, NoneType)))
        level = [inner for part in nested for inner in part]
        if not level:
            return
    raise InvalidArgument(f"Expected settings nested at most {_DEEPEST} deep, got deeper ones.")


def _drop_power(finding: Finding) -> Finding:
    if isinstance(finding, EpsilonFinding):
        return msgspec.structs.replace(finding, power=None)
    if isinstance(finding, FormFinding):
        return msgspec.structs.replace(
            finding, view=msgspec.structs.replace(finding.view, power=None)
        )
    return finding
