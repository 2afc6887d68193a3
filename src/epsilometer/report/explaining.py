"""Explain how a number was computed: counts, formula, why it holds, and what it omits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from textwrap import fill

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.findings import EpsilonFinding, MembershipFinding
from epsilometer.core.printing import one_line
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.words import claimed, headline, number, number_up, word_reach
from epsilometer.errors import InvalidArgument
from epsilometer.report import texts
from epsilometer.stats.derivations import BOUNDS, ESTIMATES, derivation_of

_WIDTH = 96
_MARK = "  · "
_VERDICT = "From ε to the verdict"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Hold an explanation of how a result was computed.

    Attributes:
        title: Title of the explanation.
        finding: The finding, in a sentence.
        sections: (title, lines) pairs.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        parts: Explanations of its parts.

    Example:
        >>> import epsilometer as em
        >>> bound = em.epsilon_lower_bound(em.Scores([2.0] * 90, [0.0] * 90), delta=1e-5)
        >>> [title for title, _ in em.explain(bound).sections][:2]
        ['What was counted', 'From that to ε']
    """

    title: str
    finding: str
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    cites: tuple[str, ...] = ()
    parts: tuple["Explanation", ...] = ()

    @property
    def every_cite(self) -> tuple[str, ...]:
        """Return its own keys and those of its parts, each once."""
        keys = (*self.cites, *(key for part in self.parts for key in part.every_cite))
        return tuple(dict.fromkeys(keys))

    def __str__(self) -> str:
        return self.wrap(_WIDTH)

    def wrap(self, width: int, *, spell: Callable[[str], str] = str) -> str:
        """Return it as text of this width.

        Args:
            width: Number of columns.
            spell: Function that spells out characters the terminal cannot show.
        """
        references = [(_MARK, f"{key}: {BIBLIOGRAPHY[key]}") for key in self.every_cite]
        title = [("", ""), ("", "References")] if references else []
        return "\n".join(
            fill(
                spell(one_line(text)), width, initial_indent=mark, subsequent_indent=" " * len(mark)
            )
            for mark, text in (*self._lines(set()), *title, *references)
        )

    def _lines(self, said: set[tuple[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
        """Return its lines with their marks; repeated sections are only referred to."""
        lines = [("", f"Explanation: {self.title}"), ("", self.finding)]
        for title, sentences in self.sections:
            if (title, sentences) in said:
                lines += [("", ""), ("", f"{title}: as above.")]
                continue
            said.add((title, sentences))
            mark = " " * len(_MARK) if title in texts.CODE else _MARK
            lines += [("", ""), ("", title), *((mark, sentence) for sentence in sentences)]
        for part in self.parts:
            lines += [("", ""), ("", "―――"), ("", ""), *part._lines(said)]
        return lines


def explain(result: Audit | EpsilonLowerBound | EpsilonEstimate) -> Explanation:
    """Explain how a result was computed, in words and with its formula; ``print`` it.

    Guarantee: the numbers are those of the result: with a closed formula, they give its ε.
    Assumption: the method is one of epsilometer: methods of other packages have no derivation.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(inside=[1.0] * 50, outside=[0.0] * 50)
        >>> audit = em.audit(scores, em.Claim(1.0, delta=1e-5))
        >>> print(em.explain(audit.bounds[0]).sections[0][1][0])  # doctest: +ELLIPSIS
        50 of 50 inside scores are above rank 1 of the 50 outside scores, ...
    """
    match result:
        case EpsilonLowerBound():
            return _explain_bound(result)
        case EpsilonEstimate():
            return _explain_estimate(result)
        case Audit():
            return _explain_audit(result)
    raise InvalidArgument(
        f"Expected an audit, a bound or an estimate, got {type(result).__name__}."
    )


def _explain_bound(bound: EpsilonLowerBound) -> Explanation:
    derived = derivation_of(bound)
    sure = texts.say("exceeds", bound) if bound.valid else "This is not a valid bound."
    holds = (*derived.holds, sure, *texts.word_assumptions(bound), *bound.caveats)
    return Explanation(
        title=f"A bound by {bound.method}, thresholds by {bound.threshold_rule}",
        finding=texts.word_bound(bound),
        sections=(
            (texts.COUNTED, derived.counted),
            (texts.FORMULA, derived.formula),
            (texts.HOLDS, holds),
            (texts.NOT_SAID, (texts.word_limits(bound),)),
        ),
        cites=bound.cites,
    )


def _explain_estimate(estimate: EpsilonEstimate) -> Explanation:
    derived = derivation_of(estimate)
    counted = "What it is computed from" if estimate.confidence == 1 else texts.COUNTED
    return Explanation(
        title=f"An ε by theory: {estimate.method}, {estimate.subject}",
        finding=f"{texts.word_estimate(estimate)}.",
        sections=(
            (counted, derived.counted),
            (texts.FORMULA, derived.formula),
            (texts.HOLDS, (*derived.holds, *estimate.caveats)),
            (texts.NOT_SAID, (texts.say("of_the_mechanism", estimate),)),
        ),
        cites=estimate.cites,
    )


def _explain_audit(audit: Audit) -> Explanation:
    views, sections = audit.find(EpsilonFinding), list(texts.explain_kinds(audit))
    if len(views) == 1 and not sections:
        return _explain_view(audit)
    forms = [form.view for form in texts.list_findings(audit, "FormFinding")]
    if views:
        sections.append((_VERDICT, (texts.word_together(audit),)))
    attacks = (attack.bound for attack in audit.find(MembershipFinding))
    return Explanation(
        title=audit.subject,
        finding=headline(audit),
        sections=tuple(sections),
        cites=audit.cites,
        parts=(
            *(_explain_view(texts.take_view(audit, view)) for view in (*forms, *views)),
            *(_explain_bound(bound) for bound in attacks if bound and bound.method in BOUNDS),
        ),
    )


def _explain_view(audit: Audit) -> Explanation:
    """Explain an audit of one view."""
    (view,) = audit.find(EpsilonFinding)
    others = [f"For comparison only: {bound}." for bound in view.also]
    derived = [
        e for e in view.estimates if texts.proves(e) and e.method.startswith(tuple(ESTIMATES))
    ]
    beside = [f"Also: {e}." for e in view.estimates if e not in derived]
    return Explanation(
        title=audit.subject,
        finding=headline(audit),
        sections=((_VERDICT, (*_explain_verdict(audit, view), *others, *beside)),),
        cites=audit.cites,
        parts=(_explain_bound(view.bound), *map(_explain_estimate, derived)),
    )


def _explain_verdict(audit: Audit, view: EpsilonFinding) -> Iterator[str]:
    """Explain the verdict."""
    bound, claim = view.bound, audit.claim
    if claim is None:
        yield "Nothing was claimed, so nothing is refuted."
        return
    proved, limit = number(bound.epsilon, 4), claimed(claim.epsilon, 4)
    yield (
        f"A claim is refuted if a valid bound at its δ exceeds it: ε ≥ {proved} is proved, ε = "
        f"{limit} is claimed, and {proved} {'>' if bound.epsilon > claim.epsilon else '≤'} "
        f"{limit}."
    )
    if not bound.valid:
        yield "But the bound is not valid, and refutes nothing."
    if view.computed is not None:
        sign = ">" if view.computed.low > claim.epsilon else "≤"
        yield f"By computation, ε is at least {number(view.computed.low, 4)} {sign} {limit}."
    for estimate in view.estimates:
        if estimate.upper < inf:
            sign = "≤" if estimate.upper <= claim.epsilon else ">"
            yield f"By computation, ε is at most {number_up(estimate.upper)} {sign} {limit}."
    if view.failed:
        yield texts.word_run(view)[0]
    yield from filter(None, (audit.judgement.reason, word_reach(audit)))
    if audit.verdict == judge.NOT_REFUTED:
        yield "Not refuted does not mean proved."
