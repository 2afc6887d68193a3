"""Put findings into facts and tables: the cells that page, Markdown and terminal share."""

from collections.abc import Iterable
from dataclasses import dataclass

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import (
    AccuracyFinding,
    ConformanceFinding,
    EpsilonFinding,
    FormDifference,
    FormFinding,
    FormPlan,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    PosteriorRuns,
    RecordRisk,
    RemovalPlan,
    RoundingStep,
    RuleFinding,
    SamplerFinding,
    TheoryEpsilon,
    Variation,
)
from epsilometer.core.words import claimed, number, number_up, short
from epsilometer.report.tones import OUTCOMES
from epsilometer.report.words import ordered_forms, own_views

_NONE = "–"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Findings of a kind, a row each.

    Attributes:
        title: Of the table.
        head: Of its columns.
        rows: As many cells each; the first is a name.
        note: What must be known to read it.
        brief: Whether it also stands in Markdown and on the terminal, which have less room.
        numeric: Whether all cells but the first are numbers; words are broken into lines.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    brief: bool = True
    numeric: bool = True


def tables_of(audit: Audit) -> tuple[Table, ...]:
    """Return the tables of an audit, in the order they are read; those without rows not."""
    every = (
        *(_checks(finding) for finding in audit.find(ConformanceFinding)),
        _views(audit),
        _attacks(audit.find(MembershipFinding)),
        *_forms(audit),
        _groups(audit.find(GroupRisk)),
        _rounding(audit.find(RoundingStep)),
        _variation(audit.find(Variation)),
    )
    return tuple(table for table in every if table.rows)


def facts_of(audit: Audit) -> list[tuple[str, str]]:
    """Return titles and values of what was measured once, and of what theory says."""
    facts: list[tuple[str, str]] = []
    for sampler in audit.find(SamplerFinding):
        facts += _sampler_facts(audit, sampler)
    for left in audit.find(LeaveOneOut):
        facts += _leave_one_out_facts(left)
    for model in audit.find(AccuracyFinding):
        facts.append(("accuracy", f"{model.accuracy:.1%} of the records are predicted rightly"))
    for plan in audit.find(RemovalPlan):
        facts.append(("dropping records", plan.ended))
    for runs in audit.find(PosteriorRuns):
        facts += _runs_facts(runs)
    for limits in audit.find(FormPlan):
        facts += _plan_facts(limits)
    facts += [
        (f"theory, {theory.method}", f"ε ≤ {number_up(theory.epsilon)} ({theory.note})")
        for theory in audit.find(TheoryEpsilon)
    ]
    return facts


def rule_rows(audit: Audit) -> list[tuple[RuleFinding, str, str]]:
    """Return each rule with its outcome and how sure that is, in words."""
    return [
        (rule, OUTCOMES[rule.outcome], rule_confidence(rule)) for rule in audit.find(RuleFinding)
    ]


def rule_confidence(rule: RuleFinding) -> str:
    """Say how sure the outcome of a rule is."""
    return "computed" if rule.confidence == 1 else f"{rule.confidence:.4g} confidence"


def advice_of(audit: Audit) -> list[str]:
    """Return what to do, of the audit and of its plans, each once."""
    plans = (line for plan in audit.find(FormPlan) for line in plan.advice)
    return list(dict.fromkeys([*audit.advice, *plans]))


def records_table(records: Iterable[RecordRisk]) -> Table:
    """Return records by their rank, with what makes them stand out; by their row where asked."""
    listed = tuple(records)
    rows = [r.row for r in listed if r.row is not None]
    return Table(
        title="Records at risk",
        head=("rank", *(["row"] if rows else []), "risk", "measured as", "note"),
        rows=tuple(
            (
                f"{r.rank:,}",
                *([_NONE if r.row is None else str(r.row)] if rows else []),
                number(r.risk, 4),
                r.measure,
                r.note,
            )
            for r in listed
        ),
    )


def shown_as(decimals: int | None) -> str:
    """Say how many decimals are shown."""
    if decimals is None:
        return "all digits"
    if decimals < 0:
        return "class alone"
    return "1 decimal" if decimals == 1 else f"{decimals} decimals"


def proved(bound: EpsilonLowerBound) -> str:
    """Return a bound as a cell, marked where it is none."""
    return f"≥ {number(bound.epsilon)}" + ("" if bound.valid else " (not a valid bound)")


def _checks(finding: ConformanceFinding) -> Table:
    return Table(
        title="Did the program do what was accounted for?",
        head=("check", "outcome", "expected", "seen", "evidence (ln e)", "steps"),
        rows=tuple(
            (
                check.name,
                check.outcome,
                check.expected,
                check.seen,
                _NONE if check.log_e is None else number(check.log_e, 1),
                f"{check.steps:,}",
            )
            for check in finding.checks
        ),
        note=f"At most a share of {finding.level:g} of right programs is found to violate any.",
        numeric=False,
    )


def _views(audit: Audit) -> Table:
    """Compare the views, where there are several; a lone one is the whole audit."""
    views = own_views(audit)
    return Table(
        title="Views of the adversary",
        head=("view", "verdict", "proved ε", "by computation", "reach"),
        rows=tuple(_view_row(audit, view) for view in views) if len(views) > 1 else (),
    )


def _view_row(audit: Audit, view: EpsilonFinding) -> tuple[str, ...]:
    computed = view.computed
    reach = judge.reach_of(view)
    return (
        view.subject,
        judge.judge_finding(audit.claim, view),
        proved(view.bound),
        _NONE if computed is None else f"≥ {number(computed.low)}",
        _NONE if view.reach is None else number(reach),
    )


def _attacks(attacks: Iterable[MembershipFinding]) -> Table:
    return Table(
        title="Attacks",
        head=("attack", "AUC", "TPR − FPR (limits)", "caught (limits)", "ε"),
        rows=tuple(_attack_row(attack) for attack in attacks),
    )


def _attack_row(attack: MembershipFinding) -> tuple[str, ...]:
    bound = attack.bound
    return (
        attack.attack,
        f"{attack.auc:.3f}",
        f"{attack.advantage:.3f} ({attack.advantage_low:.3f}–{attack.advantage_high:.3f})",
        f"{attack.tpr:.1%} ({attack.tpr_low:.1%}–{attack.tpr_high:.1%})",
        _NONE if bound is None or not bound.valid else f"≥ {number(bound.epsilon)}",
    )


def _forms(audit: Audit) -> tuple[Table, ...]:
    forms = ordered_forms(audit)
    useful = [form for form in forms if form.accuracy is not None]
    return (
        Table(
            title="Forms of publishing, finest first",
            head=("published", "proved ε ≥", "paper's ε̂", "TPR − FPR (limits)", "the limit"),
            rows=tuple(_form_row(form) for form in forms),
        ),
        Table(
            title="Bounds on ε",
            note="The learned attack's decides. Beside it are joint thresholds, chosen on half of "
            "the runs: valid, each alone. The paper's are chosen and judged on the same runs, and "
            "are no bounds.",
            head=("published", "learned", "all reached", "any reached", "paper: all", "paper: any"),
            rows=tuple(_form_bounds(form) for form in forms),
            brief=False,
        ),
        Table(
            title="What each form is worth to users",
            head=("published", "accuracy", "ties", "calibration error", "log loss"),
            rows=tuple(_utility_row(form) for form in useful),
        ),
        _differences(audit.find(FormDifference), audit.confidence),
    )


def _form_row(form: FormFinding) -> tuple[str, ...]:
    return (
        form.form,
        number(form.epsilon),
        f"{form.raw:.2f}",
        f"{form.advantage:.2f} ({form.advantage_low:.2f} to {form.advantage_high:.2f})",
        form.standing,
    )


def _form_bounds(form: FormFinding) -> tuple[str, ...]:
    valid = [bound for bound in form.view.also if bound.valid]
    raw = [bound for bound in form.view.also if not bound.valid]
    return (form.form, number(form.epsilon), *_two(valid), *_two(raw))


def _utility_row(form: FormFinding) -> tuple[str, ...]:
    return (
        form.form,
        _share(form.accuracy),
        _share(form.ties),
        _NONE if form.calibration_error is None else f"{form.calibration_error:.3f}",
        _NONE if form.log_loss is None else f"{form.log_loss:.3f}",
    )


def _differences(gaps: Iterable[FormDifference], confidence: float) -> Table:
    return Table(
        title="Differences between forms",
        note="How much more the learned attack gains by one form than by another: TPR − FPR of the "
        "one less that of the other, on the same runs. Intervals are a bootstrap's over these "
        f"runs, each of confidence {confidence:g} alone.",
        head=("leaks more by", "TPR − FPR", "interval"),
        rows=tuple(
            (
                f"{gap.first} than {gap.second}",
                f"{gap.difference:+.3f}",
                f"{gap.low:+.3f} to {gap.high:+.3f}",
            )
            for gap in gaps
        ),
        brief=False,
    )


def _groups(groups: tuple[GroupRisk, ...]) -> Table:
    return Table(
        title="Classes and groups",
        note="Groups of few records are shown together, so that a share tells nothing of a person.",
        head=("group", "records", "share exposed", "median risk", "AUC (limits)"),
        rows=tuple(_group_row(group) for group in groups),
        brief=len(groups) > 1,
    )


def _group_row(group: GroupRisk) -> tuple[str, ...]:
    auc = _NONE
    if group.auc is not None and group.auc_low is not None and group.auc_high is not None:
        auc = f"{group.auc:.3f} ({group.auc_low:.2f}–{group.auc_high:.2f})"
    return (
        f"{group.column}: {group.name}",
        f"{group.records:,}",
        f"{group.exposed:.1%}",
        number(group.median, 4),
        auc,
    )


def _rounding(steps: Iterable[RoundingStep]) -> Table:
    return Table(
        title="What fewer decimals would do",
        head=("shown", "exposed", "largest risk", "accuracy", "TPR − FPR"),
        rows=tuple(
            (
                shown_as(step.decimals),
                f"{step.exposed:,}",
                number(step.largest),
                f"{step.accuracy:.1%}",
                _NONE if step.advantage is None else f"{step.advantage:.3f}",
            )
            for step in steps
        ),
    )


def _variation(variations: Iterable[Variation]) -> Table:
    return Table(
        title="How much predictions vary anyway",
        head=("cause", "models", "median spread of p(own class)", "of a tenth, at least"),
        rows=tuple(
            (each.cause, f"{each.models:,}", f"{each.deciles[5]:.3g}", f"{each.deciles[-2]:.3g}")
            for each in variations
        ),
        brief=False,
    )


def _sampler_facts(audit: Audit, sampler: SamplerFinding) -> Iterable[tuple[str, str]]:
    yield "sampler", sampler.sampler
    yield "accounted as Poisson", f"ε = {number(sampler.accounted_epsilon)}"
    for view in own_views(audit):
        if view.computed is not None:
            yield "with this sampler", f"ε is at least {number(view.computed.low)}, by computation"
    if sampler.needed_noise is not None:
        yield "noise needed", f"at least {number_up(sampler.needed_noise)} for the claimed ε"
    bins = sampler.balls_in_bins
    yield "with balls in bins", f"ε = {number(bins.epsilon)} by the same noise"
    if sampler.published:
        yield "published lower bound", f"ε ≥ {number(sampler.published)} (one epoch)"


def _leave_one_out_facts(left: LeaveOneOut) -> Iterable[tuple[str, str]]:
    yield "computed", left.path
    yield "records", f"{left.measured:,} of {left.of:,} left out, one at a time"
    yield f"above {short(left.limit)}", f"{left.exposed:,} with {shown_as(left.decimals)} shown"
    yield "largest", f"{number(left.largest, 3)}, median {left.median:.2g}"
    if left.median_floor is not None and left.largest_floor is not None:
        floor = f"median {left.median_floor:.2g}, largest {number(left.largest_floor)}"
        apart = "" if left.separation is None else f"; above it with p = {left.separation:.2g}"
        yield "another seed alone", f"{floor}{apart}"
    if left.hidden:
        yield "at full precision", f"{left.hidden:,} more above it"
    if left.edge_only:
        yield "edges", f"{left.edge_only:,} more by the edge of a bin alone: not counted"
    if left.infinite:
        yield "infinite", f"{left.infinite:,}: a class is impossible to one model only"
    if left.coverage:
        yield "not measured", left.coverage


def _runs_facts(runs: PosteriorRuns) -> Iterable[tuple[str, str]]:
    yield "runs", f"{runs.runs:,} with the record, {runs.runs:,} without it"
    yield "samples", f"{runs.samples:,} predictions of each model"
    if runs.diverged_inside or runs.diverged_outside:
        lost = f"{runs.diverged_inside:,} with the record, {runs.diverged_outside:,} without it"
        yield "diverged", lost
    if runs.tested:
        yield "tested", f"{runs.tested:,} predictions of test records"


def _plan_facts(plan: FormPlan) -> Iterable[tuple[str, str]]:
    yield "the limit", f"ε = {claimed(plan.epsilon)}, advantage {plan.advantage:.3g}"
    if plan.pareto:
        yield "not beaten in log loss and advantage", "; ".join(plan.pareto)


def _two(bounds: list[EpsilonLowerBound]) -> tuple[str, str]:
    """Of all and of any; a single statistic has one decision."""
    cells = [number(bound.epsilon) for bound in bounds[:2]]
    first, second, *_ = (*cells, _NONE, _NONE)
    return first, second


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"
