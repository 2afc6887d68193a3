"""Format numbers and verdicts: the sentences that every output shares."""

import math
import re
import textwrap
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import ConformanceFinding, FormFinding, FormPlan, RuleFinding
from epsilometer.core.printing import one_line
from epsilometer.core.scores import describe_design

# A verdict takes at most three lines of a narrow terminal, wherever it is printed.
_LINES, _COLUMNS = 3, (60, 80)
_CLAUSE_END = re.compile(r"[.;] (?=\S)| (?=\(.*\)\.$)")
# Limits of a printed audit: at most 25 lines and 2,000 characters.
_WIDTH = 78
_LONGEST = 4 * _WIDTH  # of the first line
_PRINTED = 10  # rules and views
_LARGE = 1e5  # numbers from here on are shown in short
_LABELS = {"pass": "PASS", "fail": "FAIL", "unclear": "UNCLEAR"}


def number(value: float, decimals: int = 2) -> str:
    """Format a number for people, truncated, not rounded; of large ones three digits.

    A lower bound must not be shown larger than it is.

    Example:
        >>> number(2.999), number(123_999.0), number_up(123_999.0)
        ('2.99', '1.23e+05', '1.24e+05')
    """
    return _cut(value, decimals, ROUND_FLOOR)


def number_up(value: float, decimals: int = 2) -> str:
    """Format an upper bound: it must not be shown smaller than it is."""
    return _cut(value, decimals, ROUND_CEILING)


def _cut(value: float, decimals: int, rounding: str) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    exact, large = Decimal(repr(value)), abs(value) >= _LARGE
    last = Decimal(1).scaleb(exact.adjusted() - 2 if large else -decimals)
    cut = exact.quantize(last, rounding) + 0  # no sign before zero
    return f"{float(cut):.3g}" if large else str(cut)


def short(value: float) -> str:
    """Format a number as its author would write it."""
    return number(value) if math.isinf(value) else f"{value:g}"


def claimed(epsilon: float, decimals: int = 2) -> str:
    """Format a claimed ε: as its author wrote it, or cut like a measured one if computed.

    Example:
        >>> claimed(8.0), claimed(0.125), claimed(9.9972561464343), claimed(0.0012345)
        ('8', '0.125', '9.99', '0.00123')
    """
    if epsilon == float(f"{epsilon:.3g}"):
        return short(epsilon)
    return number(epsilon, max(decimals, 2 - math.floor(math.log10(epsilon))))


def headline(audit: Audit) -> str:
    """State the verdict and its evidence in at most three lines of 60 columns.

    Whole clauses that do not fit are left to :func:`explain_verdict`.
    """
    verdict, said = audit.verdict.upper(), explain_verdict(audit)
    line = _fit_clauses(f"{verdict}: {said}")
    reason = audit.judgement.reason
    if audit.verdict == judge.VIOLATED and reason[: reason.find(";")] not in line:
        line = _fit_clauses(f"{verdict}: {reason}")  # what was measured says more than that it was
    return line


def _fit_clauses(text: str) -> str:
    """Return the first clauses of a text that fit, at least one; it ends with a full stop."""
    line = one_line(text)
    clauses = [line[: found.start()] for found in _CLAUSE_END.finditer(line)]
    whole = [clause for clause in reversed(clauses) if clause.count("(") == clause.count(")")]
    shorter = [line, *(f"{clause}." for clause in whole)]
    return next((each for each in shorter if _count_lines(each) <= _LINES), shorter[-1])


def _count_lines(text: str) -> int:
    return max(len(textwrap.wrap(text, columns, break_on_hyphens=False)) for columns in _COLUMNS)


def explain_verdict(audit: Audit) -> str:
    """State the evidence for the verdict, and what the audit could have refuted, in full."""
    reach = word_reach(audit) if audit.verdict == judge.NOT_REFUTED else ""
    return " ".join(filter(None, [word_finding(audit), reach, _word_design(audit)]))


def word_finding(audit: Audit) -> str:
    """State the evidence for the verdict in one or two sentences."""
    if audit.verdict == judge.VIOLATED:
        return f"The program did not do what was accounted for. {audit.judgement.reason}"
    rules = audit.find(RuleFinding)
    return _word_rules(audit, rules) if rules else _word_views(audit)


def announce(audit: Audit) -> str:
    """Say what was found in one sentence, for readers who know neither ε nor this program.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5)
        >>> announce(audit)
        'Claim false: it leaks ε ≥ 6.39; ε = 3 was claimed.'
    """
    claim = audit.claim
    if claim is None or audit.find(RuleFinding) or audit.verdict == judge.VIOLATED:
        return " ".join(filter(None, [word_finding(audit), _word_design(audit)]))
    places = _decimals(audit)
    said = f"ε = {claimed(claim.epsilon, places)} was claimed"
    if audit.verdict in judge.BAD:
        leaks = f"leaks ε ≥ {number(audit.epsilon, places)}; {said}."
        ran = None if audit.conformance is None else audit.conformance.bound
        several = len(audit.views) > 1 and (ran is None or ran.epsilon < audit.epsilon)
        view = max(audit.views, key=lambda each: each.epsilon, default=None)
        return f"Claim false: {view.subject if several and view else 'it'} {leaks}"
    if audit.verdict == judge.PROVED:
        return f"Claim true: by computation, ε is at most {number_up(audit.upper)}; {said}."
    if audit.verdict == judge.CANNOT_JUDGE:
        return f"Cannot judge: {said}. {audit.judgement.reason}"
    return f"Nothing found; {_word_could(audit)}."


def _word_could(audit: Audit) -> str:
    reach = audit.reach
    if reach is None or reach == math.inf:
        return "this audit could have refuted any claim"
    return f"this audit could have refuted claims up to ε = {number(reach)}"


def word_evidence(audit: Audit) -> str:
    """State the evidence of a one-sentence finding: the bound, its confidence, and its reach."""
    if audit.claim is None or audit.find(RuleFinding):
        return ""
    parts, epsilon = [], audit.epsilon
    if epsilon > 0 and audit.verdict not in judge.UNCLEAR:
        computed = (view.computed.low for view in audit.views if view.computed is not None)
        sure = "" if epsilon in computed else f" with {audit.confidence:.4g} confidence"
        parts.append(f"True ε ≥ {number(epsilon)} at δ = {_proved_delta(audit):g}{sure}.")
    if audit.verdict == judge.NOT_REFUTED:
        parts += [f"ε = {claimed(audit.claim.epsilon)} was claimed.", word_reach(audit)]
    if (plan := audit.one(FormPlan)) is not None:
        parts.append(_word_plan(audit, plan))
    return " ".join(filter(None, [*parts, _word_design(audit)]))


def _word_design(audit: Audit) -> str:
    """Say how the scores were drawn, if the subject has a design."""
    if not audit.views or "design" not in audit.provenance.settings:
        return ""
    bound = audit.views[0].bound
    said = describe_design(bound.design, bound.inclusion)
    return said and f"Design: {said}."


def _word_views(audit: Audit) -> str:
    plan = audit.one(FormPlan)
    if audit.claim is None:
        return _word_plan(audit, plan) if plan is not None else _word_proof(audit)
    places = _decimals(audit)
    claim = f"ε = {claimed(audit.claim.epsilon, places)} was claimed"
    if audit.verdict in judge.BAD:
        return f"{claim}, but {_word_proofs(audit)}."
    if audit.verdict == judge.PROVED:
        return f"{claim}; by computation, ε is at most {number_up(audit.upper)}."
    if audit.verdict == judge.CANNOT_JUDGE:
        return f"{claim}. {audit.judgement.reason}"
    at = f" at δ = {_proved_delta(audit):g}"
    return f"{claim}; ε ≥ {number(audit.epsilon, places)}{at} is proved."


def word_reach(audit: Audit) -> str:
    """Say what an audit could have found: its reach and its power, in one sentence."""
    if audit.reach is None:
        return ""
    if any(view.computed is not None for view in audit.views):
        return "ε was computed: every smaller claim would have been refuted."
    if audit.conformance is not None and judge.reach_of(audit.conformance) == math.inf:
        return "The noise of the run was measured: with less of it, any claim would be refuted."
    reach = "any claim" if audit.reach == math.inf else f"claims up to ε = {number(audit.reach)}"
    power = audit.power
    if power is None:
        noticed = "; its power on this one was not computed"
    elif power == math.inf:
        noticed = "; this one less than 4 times in 5 at any true ε"
    else:
        noticed = f"; this one 4 times in 5 at a true ε of {number_up(power)}"
    return f"This audit could refute {reach}{noticed}."


def _proved_delta(audit: Audit) -> float:
    """Return δ at which an ε is proved."""
    if audit.views:
        return audit.views[0].bound.delta
    bound = audit.conformance.bound if audit.conformance is not None else None
    return 0.0 if bound is None else bound.delta


def _word_rules(audit: Audit, rules: tuple[RuleFinding, ...]) -> str:
    if audit.verdict == judge.RELEASE:
        return "The one rule passes." if len(rules) == 1 else f"All {len(rules)} rules pass."
    # The gravest comes first, and its first sentence is for everybody.
    first, more, _ = rules[0].finding.partition(". ")
    return audit.judgement.reason or first + more.strip()


def _word_proof(audit: Audit) -> str:
    if not audit.views:
        return _word_conformance(audit)
    view = max(audit.views, key=lambda each: each.epsilon)
    if not view.bound.valid and view.computed is None:
        return f"ε ≥ {number(view.bound.epsilon)} is not a valid bound."
    return f"ε ≥ {number(audit.epsilon)} at δ = {view.bound.delta:g} is proved."


def _word_conformance(audit: Audit) -> str:
    finding = audit.conformance
    if finding is None:
        return "Nothing was claimed."
    if finding.verdict == judge.NOT_TESTED:
        return "Nothing was claimed, and what the program did could not be tested."
    missing = len(finding.find(judge.NOT_TESTED))
    done = len(finding.checks) - missing
    left = f"; {missing} could not be tested" if missing else ""
    steps = "1 step" if finding.steps == 1 else f"{finding.steps:,} steps"
    checks = "1 check" if done == 1 else f"{done} checks"
    return f"Nothing was claimed. {checks} of {steps} found no violation{left}."


def _word_proofs(audit: Audit) -> str:
    """Say what refutes the claim: the attack, a computation, or the noise that was measured."""
    assert audit.claim is not None
    places, claim = _decimals(audit), audit.claim.epsilon
    ran = None if audit.conformance is None else audit.conformance.bound
    if ran is not None and ran.epsilon == audit.epsilon:
        at = f" at δ = {ran.delta:g}"
        return f"the measured noise proves ε ≥ {number(ran.epsilon, places)}{at}"
    refuting = [v for v in audit.views if judge.judge_finding(audit.claim, v) in judge.BAD]
    view = max(refuting, key=lambda each: each.epsilon)
    proofs = []
    if view.bound.refutes(claim):
        at = f" at δ = {view.bound.delta:g}"
        proofs.append(f"the attack proves ε ≥ {number(view.bound.epsilon, places)}{at}")
    if view.computed is not None and view.computed.refutes(claim):
        low, high = number(view.computed.low, places), number_up(audit.upper, places)
        both = math.isfinite(audit.upper) and len(audit.views) == 1
        ends = f"between {low} and {high}" if both else f"at least {low}"
        proofs.append(f"by computation, ε is {ends}")
    where = f" ({view.subject})" if len(audit.views) > 1 else ""
    return "; ".join(proofs) + where


def _word_plan(audit: Audit, plan: FormPlan) -> str:
    """Say what to publish, and whether all richer forms were found to exceed the limit."""
    line = f"ε = {claimed(plan.epsilon)}"
    if plan.chosen is None:
        return f"Publish nothing: no output is known to stay below {line}."
    named = "class labels" if plan.chosen == "label" else plan.chosen
    place = plan.forms.index(plan.chosen)
    if place == 0:
        return f"Publish {named}: it stays below {line}."
    richer = [form for form in audit.find(FormFinding) if form.form in plan.forms[:place]]
    if richer and all(form.standing == "above" for form in richer):
        return f"Publish {named} only; every richer output exceeds {line}."
    return f"Publish {named} only; no richer output is known to stay below {line}."


def _decimals(audit: Audit) -> int:
    """Return enough decimals to distinguish a claim from the number that refutes it."""
    claim = audit.claim
    return decimals_apart(audit.epsilon, 0.0 if claim is None else claim.epsilon)


def decimals_apart(proved: float, claim: float) -> int:
    """Return the number of decimals that distinguishes two numbers, from 2 to 9."""
    decimals = 2
    if proved != claim:
        while decimals < 9 and number(proved, decimals) == number(claim, decimals):
            decimals += 1
    return decimals


def summarise(audit: Audit) -> str:
    """Return the audit in at most 20 lines of at most 78 letters, the first one longer."""
    lines = [f"subject: {audit.subject}"]
    if audit.claim is not None:
        lines.append(f"claim: ε = {audit.claim.epsilon:.6g} at δ = {audit.claim.delta:g}")
    views = audit.views
    proved = [f"{_LABELS[rule.outcome]}: {rule.rule}" for rule in audit.find(RuleFinding)]
    for finding in audit.find(ConformanceFinding):
        proved += _summarise_checks(finding)
    if len(views) == 1:
        proved.append(f"bound: {views[0].bound}")
    else:
        proved += [f"{_word_bound(view.bound)}: {view.subject}" for view in views]
    lines += proved[:_PRINTED]
    if len(proved) > _PRINTED:
        lines.append(f"… and {len(proved) - _PRINTED:,} more")
    lines += [f"advice: {text}" for text in audit.advice[:2]]
    caveats = [*audit.caveats, *(views[0].bound.caveats if views else ())]
    lines += [f"caveat: {text}" for text in caveats[:3]]
    lines.append("save('report.html') writes the whole report.")
    first = one_line(headline(audit), _LONGEST)
    return "\n".join([first, *(f"  {one_line(line, _WIDTH - 2)}" for line in lines)])


def _summarise_checks(finding: ConformanceFinding) -> list[str]:
    """Return one line per check that does not conform, then one line for all that do."""
    fine = finding.find(judge.CONFORMS)
    lines = [
        f"{check.outcome.upper()}: {check.name}: {check.seen}"
        for check in finding.checks
        if check not in fine
    ]
    if fine:
        named = ", ".join(check.name for check in fine)
        lines.append(
            f"{judge.CONFORMS.upper()}: {len(fine)} of {len(finding.checks)} checks: {named}"
        )
    if finding.bound is not None:
        lines.append(f"what ran: {finding.bound}")
    return lines


def _word_bound(bound: EpsilonLowerBound) -> str:
    epsilon = f"ε ≥ {number(bound.epsilon)}"
    return epsilon if bound.valid else f"{epsilon}, NOT A VALID BOUND"
