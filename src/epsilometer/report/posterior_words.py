"""An audit of predictions with uncertainty in plain sentences and cells of tables."""

from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.findings import FormDifference, FormFinding
from epsilometer.report import words
from epsilometer.core.bound import EpsilonLowerBound

FORM_HEAD = ("published", "proved ε ≥", "paper's ε̂", "TPR − FPR (limits)", "the line")
BOUND_HEAD = ("published", "learned", "all reached", "any reached", "paper: all", "paper: any")
UTILITY_HEAD = ("published", "accuracy", "ties", "calibration error", "log loss")
DIFFERENCE_HEAD = ("leaks more by", "TPR − FPR", "interval")
_NONE = "–"


def finding(result: PosteriorAudit) -> str:
    """The verdict in a sentence; where nothing was promised, the plan."""
    if result.claim is None and result.plan.chosen is None:
        return "No form of publishing is known to stay below the line."
    if result.claim is None:
        return f"The finest form that stays below the line: {result.plan.chosen}."
    promised = f"ε = {words.promised(result.claim.epsilon)} was promised"
    worst = max(result.forms, key=lambda form: form.epsilon)
    proved = f"ε ≥ {words.number(worst.epsilon)} at δ = {result.delta:g}"
    match result.verdict:
        case "refuted":
            return f"{promised}; predictions published as {worst.form} prove {proved}."
        case "not refuted":
            return f"{promised}; no form of publishing predictions proves more than {proved}."
        case _:
            failed = result.provenance.failed
            return f"{promised}; {failed:,} units failed, and what they would show may refute it."


def meaning(result: PosteriorAudit) -> list[str]:
    """What was done, what the numbers say, and what they do not say."""
    return [
        *([] if result.claim is None else result.plan.advice[:1]),
        f"{result.runs:,} models were trained with the record and as many without it; each was "
        f"asked {result.samples:,} times what it says of the record. All forms are judged on the "
        "same answers.",
        f"Proved bounds are those of an attack that is learned on half of the runs and judged on "
        f"the others. All of them together are above the truth in at most "
        f"{1 - result.confidence:.3g} of audits.",
        "The paper's ε̂ is the most that thresholds chosen on the very runs they are judged by "
        "are worth, rates floored at one run. It is no bound: it is above 0 also where nothing "
        "leaks.",
        "That a form stays below the line is no proof of privacy: another attack, another record "
        "or more runs may show more.",
        *result.caveats,
    ]


def facts(result: PosteriorAudit) -> list[tuple[str, str]]:
    """Titles and values of what was measured, and what theory says."""
    rows = [
        ("runs", f"{result.runs:,} with the record, {result.runs:,} without it"),
        ("samples", f"{result.samples:,} predictions of each model"),
        (
            "the line",
            f"ε = {words.promised(result.plan.epsilon)}, advantage {result.plan.advantage:.3g}",
        ),
    ]
    if result.diverged_inside or result.diverged_outside:
        lost = f"{result.diverged_inside:,} with the record, {result.diverged_outside:,} without it"
        rows.append(("diverged", lost))
    if result.tested:
        rows.append(("tested", f"{result.tested:,} predictions of test records"))
    if result.plan.pareto:
        rows.append(("not beaten in log loss and advantage", "; ".join(result.plan.pareto)))
    rows += [
        (f"theory, {said.method}", f"ε ≤ {said.epsilon:.2f} ({said.note})")
        for said in result.theory
    ]
    return rows


def form_row(form: FormFinding) -> tuple[str, ...]:
    """A form as cells: what it leaks, and how it lies to the line."""
    return (
        form.form,
        words.number(form.epsilon),
        f"{form.raw:.2f}",
        f"{form.advantage:.2f} ({form.advantage_low:.2f} to {form.advantage_high:.2f})",
        form.standing,
    )


def bound_row(form: FormFinding) -> tuple[str, ...]:
    """A form as cells: the bound that decides, joint thresholds, and the paper's estimates."""
    valid = [bound for bound in form.audit.also if bound.valid]
    raw = [bound for bound in form.audit.also if not bound.valid]
    return (form.form, words.number(form.epsilon), *_two(valid), *_two(raw))


def utility_row(form: FormFinding) -> tuple[str, ...]:
    """A form as cells: what it is worth to users."""
    return (
        form.form,
        _share(form.accuracy),
        _share(form.ties),
        _NONE if form.calibration_error is None else f"{form.calibration_error:.3f}",
        _NONE if form.log_loss is None else f"{form.log_loss:.3f}",
    )


def difference_row(gap: FormDifference) -> tuple[str, ...]:
    """A difference as cells."""
    return (
        f"{gap.first} than {gap.second}",
        f"{gap.difference:+.3f}",
        f"{gap.low:+.3f} to {gap.high:+.3f}",
    )


def _two(bounds: list[EpsilonLowerBound]) -> tuple[str, str]:
    """Of all and of any; a single statistic has one decision."""
    cells = [words.number(bound.epsilon) for bound in bounds[:2]]
    first, second, *_ = (*cells, _NONE, _NONE)
    return first, second


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"
