"""Explain how a number came about: what was counted, the formula, why it holds, what it leaves."""

from dataclasses import dataclass
from math import inf
from textwrap import fill

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.findings import (
    EpsilonFinding,
    FormFinding,
    FormPlan,
    MembershipFinding,
    PosteriorRuns,
    RuleFinding,
)
from epsilometer.core.printing import one_line
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.words import (
    claimed,
    headline,
    number,
    number_up,
    short,
    word_reach,
)
from epsilometer.errors import InvalidArgument
from epsilometer.report import words
from epsilometer.report.tables import facts_of, rule_confidence
from epsilometer.report.tones import OUTCOMES
from epsilometer.stats.derivations import BOUNDS, ESTIMATES, derivation_of
from epsilometer.stats.estimators import REGISTRY

_WIDTH = 96
COUNTED, FORMULA = "What was counted", "From that to ε"
HOLDS, NOT_SAID = "Why the confidence holds", "What it does not say"
_COMPUTED_FROM = "What it is computed from"
MEASURED = "How it is measured"
_VERDICT, _RULES = "From ε to the verdict", "From what was measured to the verdict"
_ADVANTAGE = "A = max over thresholds of TPR − FPR ± (√(ln(4/α′)/(2n)) + √(ln(4/α′)/(2m)))"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Tell how a result came about.

    Attributes:
        title: Of what it speaks.
        finding: What was found, in a sentence.
        sections: (title, lines) pairs.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        parts: Explanations of what it is made of.

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
        references = [f"{key}: {BIBLIOGRAPHY[key]}" for key in self.every_cite]
        lines = [*self._lines(set()), *(["", "References"] if references else [])]
        return "\n".join([*lines, *(_bullet(reference) for reference in references)])

    def _lines(self, said: set[tuple[str, tuple[str, ...]]]) -> list[str]:
        """Return its lines; of what was said before only that it was."""
        lines = [f"Explanation: {one_line(self.title)}", fill(one_line(self.finding), _WIDTH)]
        for title, sentences in self.sections:
            if (title, sentences) in said:
                lines += ["", f"{title}: as above."]
                continue
            said.add((title, sentences))
            # A formula is not broken: whoever copies it must get it whole.
            formula = title in (FORMULA, MEASURED)
            lines += [
                "",
                title,
                *(f"    {one_line(s)}" if formula else _bullet(s) for s in sentences),
            ]
        for part in self.parts:
            lines += ["", "―――", "", *part._lines(said)]
        return lines


def explain(result: Audit | EpsilonLowerBound | EpsilonEstimate) -> Explanation:
    """Explain how a result came about, in words and with its formula; ``print`` it.

    Guarantee: the numbers are those of the result, so that where the formula is closed, putting
        them in gives its ε.
    Assumption: it is a result of ours: of methods that others added there is no derivation.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(inside=[1.0] * 50, outside=[0.0] * 50)
        >>> audit = em.audit(scores, em.Claim(1.0, delta=1e-5))
        >>> print(em.explain(audit.bounds[0]).sections[0][1][0])  # doctest: +ELLIPSIS
        The threshold stands at rank 1 of the 50 inside scores, ...
    """
    match result:
        case EpsilonLowerBound():
            return _bound(result)
        case EpsilonEstimate():
            return _estimate(result)
        case Audit():
            return _audit(result)
    raise InvalidArgument(
        f"Expected an audit, a bound or an estimate, got {type(result).__name__}."
    )


def explain_if_known(audit: Audit) -> Explanation | None:
    """Return the same; None where a method is not ours, so that a page says nothing."""
    try:
        return explain(audit)
    except InvalidArgument:
        return None


def _bound(bound: EpsilonLowerBound) -> Explanation:
    derived = derivation_of(bound)
    method = REGISTRY.get(bound.method)
    sure = (
        f"So bounds like this exceed the true ε in at most {1 - bound.confidence:.3g} of audits."
        if bound.valid
        else "This is not a valid bound."
    )
    assumed = [f"It assumes: {method.assumes}"] if method is not None else []
    return Explanation(
        title=f"A bound by {bound.method}, thresholds by {bound.threshold_rule}",
        finding=words.word_bound(bound),
        sections=(
            (COUNTED, derived.counted),
            (FORMULA, derived.formula),
            (HOLDS, (*derived.holds, sure, *assumed, *bound.caveats)),
            (NOT_SAID, words.not_said(bound)),
        ),
        cites=bound.cites,
    )


def _estimate(estimate: EpsilonEstimate) -> Explanation:
    derived = derivation_of(estimate)
    computed = estimate.confidence == 1
    return Explanation(
        title=f"An ε by theory: {estimate.method}, {estimate.subject}",
        finding=f"{words.word_estimate(estimate)}.",
        sections=(
            (_COMPUTED_FROM if computed else COUNTED, derived.counted),
            (FORMULA, derived.formula),
            (HOLDS, (*derived.holds, *estimate.caveats)),
            (
                NOT_SAID,
                (
                    "It speaks of the mechanism that was described, not of code that was run: "
                    "whether the two are the same, only an attack on the code can tell.",
                ),
            ),
        ),
        cites=estimate.cites,
    )


def _audit(audit: Audit) -> Explanation:
    views = words.own_views(audit)
    sections = [*_release(audit), *_posterior(audit)]
    parts = [_view(words.take_view(audit, form.view)) for form in words.ordered_forms(audit)]
    if len(views) == 1 and not sections:
        return _view(audit)
    if views:
        sections.append((_VERDICT, (words.word_views(audit),)))
        parts += [_view(words.take_view(audit, view)) for view in views]
    parts += [
        _bound(attack.bound)
        for attack in audit.find(MembershipFinding)
        if attack.bound is not None and attack.bound.method in BOUNDS
    ]
    return Explanation(
        title=audit.subject,
        finding=headline(audit),
        sections=tuple(sections),
        cites=audit.cites,
        parts=tuple(parts),
    )


def _view(audit: Audit) -> Explanation:
    """Explain an audit of one view."""
    (view,) = words.own_views(audit)
    others = [f"For comparison, deciding nothing: {bound}." for bound in view.also]
    derived = [e for e in view.estimates if _has_derivation(e)]
    beside = [f"Beside it: {e}." for e in view.estimates if e not in derived]
    return Explanation(
        title=audit.subject,
        finding=headline(audit),
        sections=((_VERDICT, (*_judged(audit, view), *others, *beside)),),
        cites=audit.cites,
        parts=(_bound(view.bound), *map(_estimate, derived)),
    )


def _has_derivation(estimate: EpsilonEstimate) -> bool:
    """Tell whether an estimate that may decide has a derivation of its own."""
    decides = estimate.confidence == 1 and estimate.role != "reference"
    return decides and any(estimate.method.startswith(name) for name in ESTIMATES)


def _judged(audit: Audit, view: EpsilonFinding) -> tuple[str, ...]:
    """Say why the verdict is what it is."""
    bound, claim = view.bound, audit.claim
    if claim is None:
        return ("Nothing was claimed, so nothing is refuted.",)
    proved, limit = number(bound.epsilon, 4), claimed(claim.epsilon, 4)
    lines = [
        f"Refuted is a claim that a valid bound at its δ exceeds: ε ≥ {proved} was proved, "
        f"ε = {limit} was claimed, and {proved} {'>' if bound.epsilon > claim.epsilon else '≤'}"
        f" {limit}."
    ]
    if not bound.valid:
        lines.append("But the bound is not valid, and refutes nothing.")
    if view.computed is not None:
        more = view.computed.low > claim.epsilon
        low = number(view.computed.low, 4)
        lines.append(f"By computation ε is at least {low} {'>' if more else '≤'} {limit}.")
    for estimate in view.estimates:
        if estimate.upper < inf:
            less = estimate.upper <= claim.epsilon
            most = number_up(estimate.upper)
            lines.append(f"By computation ε is at most {most} {'≤' if less else '>'} {limit}.")
    if view.failed:
        lines += words.run_notes(view)[:1]
    lines += [audit.judgement.reason] if audit.judgement.reason else []
    lines += [reach] if (reach := word_reach(audit)) else []
    if audit.verdict == judge.NOT_REFUTED:
        lines.append("What was not refuted was not proved either.")
    return tuple(lines)


def _release(audit: Audit) -> list[tuple[str, tuple[str, ...]]]:
    """Explain rules about publishing; nothing where there are none."""
    rules = [
        f"{rule.rule}: measured {number(rule.value, 4)}, between {number(rule.low, 4)} and "
        f"{number(rule.high, 4)} ({rule_confidence(rule)}); allowed {short(rule.limit)}. "
        f"So: {OUTCOMES[rule.outcome]}."
        for rule in audit.find(RuleFinding)
    ]
    if not rules:
        return []
    counted = [f"{title}: {value.rstrip('.')}." for title, value in facts_of(audit)]
    counted += [_attacked(attack) for attack in audit.find(MembershipFinding)]
    return [
        (COUNTED, tuple(counted) or ("Nothing was measured.",)),
        (
            MEASURED,
            (
                "PDTP of a record = max over classes c of |ln p(c) − ln p′(c)|, p with it in "
                "training and p′ without, at that record",
                "share above the limit: Beta⁻¹(α′/2; k, n − k + 1) to Beta⁻¹(1 − α′/2; k + 1, "
                "n − k), k of n measured; exact where all were",
                _ADVANTAGE,
                "caught: inside scores above the outside score whose rank puts the FPR on the "
                "safe side, with Clopper and Pearson's limits",
            ),
        ),
        (
            _RULES,
            (
                *rules,
                "A rule fails where the lower end is above what is allowed, passes where the upper "
                "end is not, and is unclear else; so it is where training is too random, or shadow "
                "models too unlike. The gravest outcome decides.",
            ),
        ),
        (
            HOLDS,
            (
                "All statements that rest on samples (each attack under each rule) share "
                f"1 − {audit.confidence:.4g}, so that each is made at its own, higher "
                "confidence and the verdict keeps the whole.",
                "The largest TPR − FPR may be chosen on the same scores: its limits hold at "
                "all thresholds at once (Massart 1990).",
                *audit.caveats,
            ),
        ),
        (
            NOT_SAID,
            (
                "Nothing of attacks that were not run, nor of adversaries who know more. A "
                "guarantee needs differentially private training.",
            ),
        ),
    ]


def _attacked(attack: MembershipFinding) -> str:
    return (
        f"{attack.attack}: {attack.n_in:,} scores inside, {attack.n_out:,} outside; TPR − FPR "
        f"{attack.advantage:.4f} ({attack.advantage_low:.4f} to {attack.advantage_high:.4f}), "
        f"{attack.tpr:.2%} caught at FPR {attack.fpr:.3g}, each pair of limits at "
        f"{attack.confidence:.4g}."
    )


def _posterior(audit: Audit) -> list[tuple[str, tuple[str, ...]]]:
    """Explain forms of publishing; nothing where there are none."""
    forms, plan = words.ordered_forms(audit), audit.one(FormPlan)
    if not forms:
        return []
    trained = [
        f"{runs.runs:,} models were trained with the record and as many without it; each was asked "
        f"{runs.samples:,} times."
        for runs in audit.find(PosteriorRuns)
    ]
    allowed = (
        []
        if plan is None
        else [
            f"a form stays below the limit where ε ≤ {claimed(plan.epsilon)} and the advantage's "
            f"upper limit ≤ {plan.advantage:.4g}"
        ]
    )
    each = 1 - (1 - audit.confidence) / len(forms)
    return [
        (COUNTED, (*trained, *(_form(form) for form in forms))),
        (
            MEASURED,
            (
                "score of a run = learned ln p(what is published | with) − ln p(… | without), "
                "learned on half of the runs, judged on the others",
                "advantage = TPR − FPR of that attack's own decision, on the others",
                *allowed,
            ),
        ),
        (
            HOLDS,
            (
                f"{len(forms)} forms share 1 − {audit.confidence:.4g}, so that each is judged at "
                f"{each:.6g} at least and all hold together.",
                "A form is no better than any that can be made of it: rounding cannot leak "
                "more than what was rounded.",
                *audit.caveats,
            ),
        ),
        (
            NOT_SAID,
            (
                "That a form stays below the limit is no proof of privacy: another attack, "
                "another record or more runs may show more.",
            ),
        ),
    ]


def _form(form: FormFinding) -> str:
    return (
        f"{form.form}: ε ≥ {number(form.epsilon, 4)}, advantage {form.advantage:.4f} "
        f"({form.advantage_low:.4f} to {form.advantage_high:.4f}): {form.standing}."
    )


def _bullet(text: str) -> str:
    return fill(one_line(text), _WIDTH, initial_indent="  · ", subsequent_indent="    ")
