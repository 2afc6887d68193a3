"""How a number came about: what was counted, the formula, why it holds, what it does not say."""

from dataclasses import dataclass
from textwrap import fill

from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.findings import FormFinding
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.core.audit import ReleaseAudit
from epsilometer.core.findings import MembershipFinding
from epsilometer.report import posterior_words, release_words, words
from epsilometer.core.audit import AuditGroup, AuditResult, Result
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.stats.derivations import BOUNDS, derivation_of
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
    """How a result came about.

    Attributes:
        title: Of what it speaks.
        finding: What was found, in a sentence.
        sections: (title, lines) pairs.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        parts: Explanations of what it is made of.
    """

    title: str
    finding: str
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    cites: tuple[str, ...] = ()
    parts: tuple["Explanation", ...] = ()

    @property
    def every_cite(self) -> tuple[str, ...]:
        """Its own keys and those of its parts, each once."""
        keys = (*self.cites, *(key for part in self.parts for key in part.every_cite))
        return tuple(dict.fromkeys(keys))

    def __str__(self) -> str:
        references = [f"{key}: {BIBLIOGRAPHY[key]}" for key in self.every_cite]
        lines = [*self._lines(set()), *(["", "References"] if references else [])]
        return "\n".join([*lines, *(_bullet(reference) for reference in references)])

    def _lines(self, told: set[tuple[str, tuple[str, ...]]]) -> list[str]:
        """Its lines; of what was told before only that it was."""
        lines = [words.one_line(self.title), fill(words.printable(self.finding), _WIDTH)]
        for title, sentences in self.sections:
            if (title, sentences) in told:
                lines += ["", f"{title}: as above."]
                continue
            told.add((title, sentences))
            # A formula is not broken: whoever copies it must get it whole.
            formula = title in (FORMULA, MEASURED)
            lines += ["", title, *(f"    {s}" if formula else _bullet(s) for s in sentences)]
        for part in self.parts:
            lines += ["", "―――", "", *part._lines(told)]
        return lines


def explain(result: "Result | EpsilonEstimate") -> Explanation:
    """How a result came about, in words and with its formula; ``print`` it.

    Guarantees: the numbers are those of the result, so that where the formula is closed, putting
        them in gives its ε.
    Assumes: it is a result of ours. Results that were written before they had a ``basis`` are
        explained without numbers.

    Example:
        >>> from epsilometer import Fixed, Scores, epsilon_lower_bound
        >>> scores = Scores(inside=[1.0] * 50, outside=[0.0] * 50)
        >>> bound = epsilon_lower_bound(scores, delta=0.0, rule=Fixed(0.5))
        >>> said = explain(bound)
        >>> print(said.sections[0][1][0])  # doctest: +ELLIPSIS
        The attack says “in” where a score is at least 0.5. So it takes 0 of 50 scores outside ...
    """
    match result:
        case EpsilonLowerBound():
            return _bound(result)
        case EpsilonEstimate():
            return _estimate(result)
        case AuditResult():
            return _audit(result)
        case AuditGroup():
            return Explanation(
                title=result.subject,
                finding=f"{words.group_finding(result)} {words.GROUP_RULE}",
                sections=(),
                parts=tuple(_audit(audit) for audit in result.results),
            )
        case ReleaseAudit():
            return _release(result)
        case PosteriorAudit():
            return _posterior(result)


def explained(result: Result) -> Explanation | None:
    """The same; None where it is of a method that is not ours, so that a page says nothing."""
    try:
        return explain(result)
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
        finding=words.bound_finding(bound),
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
        finding=f"{words.estimate_finding(estimate)}.",
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


def _audit(result: AuditResult) -> Explanation:
    others = [f"For comparison, deciding nothing: {bound}." for bound in result.also]
    exact = [estimate for estimate in result.estimates if estimate == result.computed]
    sampled = [f"Beside it: {e}." for e in result.estimates if e.confidence < 1]
    return Explanation(
        title=result.subject,
        finding=words.verdict(result),
        sections=((_VERDICT, (*_judged(result), *others, *sampled)),),
        parts=(_bound(result.bound), *map(_estimate, exact)),
    )


def _judged(result: AuditResult) -> tuple[str, ...]:
    """Why the verdict is what it is."""
    bound, claim = result.bound, result.claim
    if claim is None:
        return ("Nothing was promised, so nothing is refuted.",)
    proved, promised = words.number(bound.epsilon, 4), words.promised(claim.epsilon, 4)
    lines = [
        f"Refuted is a promise that a valid bound at its δ exceeds: ε ≥ {proved} was proved, "
        f"ε = {promised} was promised, and {proved} {'>' if bound.epsilon > claim.epsilon else '≤'}"
        f" {promised}."
    ]
    if not bound.valid:
        lines.append("But the bound is not valid, and refutes nothing.")
    if result.computed is not None:
        low = words.number(result.computed.low, 4)
        more = result.computed.low > claim.epsilon
        lines.append(f"By computation ε is at least {low} {'>' if more else '≤'} {promised}.")
    if result.provenance.failed:
        lines += words.run_notes(result.provenance)[:1]
    if result.verdict == "not refuted":
        lines.append("What was not refuted was not proved either.")
    return tuple(lines)


def _release(result: ReleaseAudit) -> Explanation:
    rules = [
        f"{reason.rule}: measured {words.number(reason.value, 4)}, between "
        f"{words.number(reason.low, 4)} and {words.number(reason.high, 4)} "
        f"({release_words.reason_confidence(reason)}); allowed {words.short(reason.limit)}. "
        f"So: {reason.decision}."
        for reason in result.reasons
    ]
    counted = [f"{title}: {value}." for title, value in _leaving(result)]
    counted += [_attacked(attack) for attack in result.attacks]
    return Explanation(
        title=result.subject,
        finding=release_words.finding(result),
        sections=(
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
                    "A rule says “do not release” where the lower end is above what is allowed, "
                    "“release” where the upper end is not, else “cannot tell”; so it does where "
                    "training is too random, or shadow models too unlike. The gravest decides.",
                ),
            ),
            (
                HOLDS,
                (
                    "All statements that rest on samples (each attack under each rule) share "
                    f"1 − {result.confidence:.4g}, so that each is made at its own, higher "
                    "confidence and the verdict keeps the whole.",
                    "The largest TPR − FPR may be chosen on the same scores: its limits hold at "
                    "all thresholds at once (Massart 1990).",
                    *result.caveats,
                ),
            ),
            (
                NOT_SAID,
                (
                    "Nothing of attacks that were not run, nor of adversaries who know more. A "
                    "guarantee needs differentially private training.",
                ),
            ),
        ),
        cites=result.cites,
        parts=tuple(
            _bound(attack.bound)
            for attack in result.attacks
            if attack.bound is not None and attack.bound.method in BOUNDS
        ),
    )


def _leaving(result: ReleaseAudit) -> list[tuple[str, str]]:
    return [] if result.leaving is None else release_words.leaving_rows(result.leaving)


def _attacked(attack: MembershipFinding) -> str:
    return (
        f"{attack.attack}: {attack.n_in:,} scores inside, {attack.n_out:,} outside; TPR − FPR "
        f"{attack.advantage:.4f} ({attack.advantage_low:.4f} to {attack.advantage_high:.4f}), "
        f"{attack.tpr:.2%} caught at FPR {attack.fpr:.3g}, each pair of limits at "
        f"{attack.confidence:.4g}."
    )


def _posterior(result: PosteriorAudit) -> Explanation:
    each = 1 - (1 - result.confidence) / len(result.forms)
    return Explanation(
        title=result.subject,
        finding=posterior_words.finding(result),
        sections=(
            (
                COUNTED,
                (
                    f"{result.runs:,} models were trained with the record and as many without it; "
                    f"each was asked {result.samples:,} times.",
                    *(_form(form) for form in result.forms),
                ),
            ),
            (
                MEASURED,
                (
                    "score of a run = learned ln p(what is published | with) − ln p(… | without), "
                    "learned on half of the runs, judged on the others",
                    "advantage = TPR − FPR of that attack's own decision, on the others",
                    "a form stays below the line where "
                    f"ε ≤ {words.promised(result.plan.epsilon)} and "
                    f"the advantage's upper limit ≤ {result.plan.advantage:.4g}",
                ),
            ),
            (
                HOLDS,
                (
                    f"{len(result.forms)} forms share 1 − {result.confidence:.4g}, so that each is "
                    f"judged at {each:.6g} at least and all hold together.",
                    "A form is no better than any that can be made of it: rounding cannot leak "
                    "more than what was rounded.",
                    *result.caveats,
                ),
            ),
            (
                NOT_SAID,
                (
                    "That a form stays below the line is no proof of privacy: another attack, "
                    "another record or more runs may show more.",
                ),
            ),
        ),
        cites=result.cites,
        parts=tuple(_audit(form.audit) for form in result.forms),
    )


def _form(form: FormFinding) -> str:
    return (
        f"{form.form}: ε ≥ {words.number(form.epsilon, 4)}, advantage {form.advantage:.4f} "
        f"({form.advantage_low:.4f} to {form.advantage_high:.4f}): {form.standing}."
    )


def _bullet(text: str) -> str:
    return fill(words.printable(text), _WIDTH, initial_indent="  · ", subsequent_indent="    ")
