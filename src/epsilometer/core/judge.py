"""Decide: the only code that turns a claim and findings into a verdict and an exit code.

Every other place (``Audit.verdict``, commands, pages, Markdown, MLflow, pytest, the history) asks
here. A test forbids verdict words anywhere else in the package.
"""

import math
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from epsilometer.core.bound import (
    BaseFinding,
    Check,
    CheckedRun,
    CheckOutcome,
    EpsilonEstimate,
    EpsilonFinding,
    EpsilonLowerBound,
    Outcome,
    RuleFinding,
)
from epsilometer.core.claim import Adjacency, Claim

_Finding = TypeVar("_Finding", bound=BaseFinding)
VIOLATED: Final = "violated"
REFUTED: Final = "refuted"
DO_NOT_RELEASE: Final = "do not release"
CANNOT_JUDGE: Final = "cannot judge"
CANNOT_TELL: Final = "cannot tell"
NOT_REFUTED: Final = "not refuted"
NO_CLAIM: Final = "no claim"
PROVED: Final = "proved"
RELEASE: Final = "release"
Verdict: TypeAlias = Literal[
    "violated",
    "refuted",
    "do not release",
    "cannot judge",
    "cannot tell",
    "not refuted",
    "no claim",
    "proved",
    "release",
]
CONFORMS: Final = "conforms"
NOT_TESTED: Final = "not tested"
REMARK: Final = "remark"
Conformance: TypeAlias = Literal["violated", "conforms", "not tested"]
# Checks of what one record can add to a sum.
SENSITIVITY: Final = (
    "clipping",
    "sensitivity to a replaced record",
    "sensitivity to a removed record",
)
Tone: TypeAlias = Literal["bad", "unclear", "neutral", "good"]

GRAVEST_FIRST: tuple[Verdict, ...] = get_args(Verdict)
BAD: tuple[Verdict, ...] = (VIOLATED, REFUTED, DO_NOT_RELEASE)
UNCLEAR: tuple[Verdict, ...] = (CANNOT_JUDGE, CANNOT_TELL)
GOOD: tuple[Verdict, ...] = (PROVED, RELEASE)
_TOO_GUESSED = math.log(1_000)  # at most one attack in 1,000 that guesses is taken for a worse one
_LEVELS = 8  # different scores between the ends that two sides do not share equally by chance
_BY_RULE: MappingProxyType[Outcome, Verdict] = MappingProxyType(
    {"fail": DO_NOT_RELEASE, "unclear": CANNOT_TELL, "pass": RELEASE}
)


class Judgement(NamedTuple):
    """A verdict and, where it is unclear, the reason why."""

    verdict: Verdict
    reason: str = ""


def judge(claim: Claim | None, findings: Sequence[BaseFinding], *, failed: int = 0) -> Judgement:
    """Judge an audit as a whole.

    A program that did not do what was accounted for is the most severe finding, whatever its bounds
    say. Rules about publishing decide where there are any; else the claim is judged by what each
    view proves. The bounds of one audit hold together at its confidence, so one of them suffices to
    refute. "Not refuted" needs a view that could have refuted the claim, and none that failed.

    Args:
        claim: The claim; None without one.
        findings: The findings, in any order.
        failed: Number of failed units of work.
    """
    runs = [run for finding in findings if (run := finding.checked_run) is not None]
    for run in runs:
        if judge_conformance(run.checks) == VIOLATED:
            return Judgement(VIOLATED, explain_violation(run))
    rules = [rule for finding in findings if (rule := finding.release_rule) is not None]
    if rules:
        return _judge_rules(rules, failed=failed)
    return _judge_views(claim, findings, runs)


def judge_finding(claim: Claim | None, finding: BaseFinding) -> Verdict:
    """Judge one finding alone: a view by the claim, a rule by its outcome."""
    verdict = judge(claim, [finding]).verdict
    measured = finding.views or (finding.checked_run is not None and finding.checked_run.bound)
    # What bounds no ε has nothing to say about a claim.
    return NO_CLAIM if verdict == CANNOT_JUDGE and not measured else verdict


def judge_conformance(checks: Sequence[Check]) -> Conformance:
    """Judge whether a program did what was accounted for, by all its checks.

    One violated check suffices. A program of which nothing could be tested does not conform.
    """
    outcomes = {check.outcome for check in checks}
    if VIOLATED in outcomes:
        return VIOLATED
    return CONFORMS if outcomes & {CONFORMS, REMARK} else NOT_TESTED


def judge_evidence(log_e: float | None, *, shares: int, level: float) -> CheckOutcome:
    """Judge a check by its evidence: violated where the e-value reaches ``shares / level``.

    Guarantee: where e-values have expectation at most 1 at every stopping time, ``shares`` checks
        together flag at most a share ``level`` of correct programs (Ville 1939).

    Args:
        log_e: Natural logarithm of the largest e-value so far; None where nothing was tested.
        shares: Checks that share the level.
        level: Chance of a violation on a correct program, for all checks together.

    Example:
        >>> judge_evidence(12.0, shares=9, level=1e-3), judge_evidence(2.0, shares=9, level=1e-3)
        ('violated', 'conforms')
    """
    if log_e is None:
        return NOT_TESTED
    return VIOLATED if log_e >= math.log(shares / level) else CONFORMS


def judge_limit(value: float | None, *, limit: float) -> CheckOutcome:
    """Judge a check that measures without sampling: violated where its limit is exceeded."""
    if value is None:
        return NOT_TESTED
    return CONFORMS if value <= limit else VIOLATED  # what is not a number does not conform


def explain_violation(run: CheckedRun) -> str:
    """Say what the first violated check measured, and how many checks are violated."""
    broken = [check for check in run.checks if check.outcome == VIOLATED]
    first = f"{broken[0].name[:1].upper()}{broken[0].name[1:]}: {broken[0].seen}"
    others = len(broken) - 1
    if not others:
        return f"{first}."
    return f"{first}; {others} more {'check' if others == 1 else 'checks'} violated."


def sort_findings(claim: Claim | None, findings: Iterable[_Finding]) -> tuple[_Finding, ...]:
    """Put the most severe first; findings of equal gravity keep their order."""
    return tuple(
        sorted(findings, key=lambda finding: GRAVEST_FIRST.index(judge_finding(claim, finding)))
    )


def exit_code(verdict: Verdict) -> int:
    """Return the exit code of a command that ends with this verdict."""
    return 1 if verdict in BAD else 4 if verdict in UNCLEAR else 0


def tone(verdict: Verdict) -> Tone:
    """Return how a verdict is shown. Only what is proved, or passed all rules, is good."""
    if verdict in BAD:
        return "bad"
    if verdict in UNCLEAR:
        return "unclear"
    return "good" if verdict in GOOD else "neutral"


def _judge_rules(rules: Sequence[RuleFinding], *, failed: int) -> Judgement:
    verdicts = [_BY_RULE[rule.outcome] for rule in rules]
    gravest = min(verdicts, key=GRAVEST_FIRST.index)
    if gravest == RELEASE and failed:  # what failed units would have found is not ruled out
        return Judgement(CANNOT_TELL, f"{_count(failed)} failed.")
    reason = "" if gravest != CANNOT_TELL else rules[verdicts.index(gravest)].finding
    return Judgement(gravest, reason)


def _judge_views(
    claim: Claim | None, findings: Sequence[BaseFinding], runs: Sequence[CheckedRun] = ()
) -> Judgement:
    if claim is None:
        return Judgement(NO_CLAIM)
    views = [view for finding in findings for view in finding.views]
    proofs: list[EpsilonLowerBound | EpsilonEstimate] = [
        run.bound for run in runs if run.bound is not None
    ]
    for view in views:
        proofs += [view.bound, *view.estimates]
    if any(_refutes(claim, proof) for proof in proofs):
        return Judgement(REFUTED)
    if any(_proves(claim, estimate) for view in views for estimate in view.estimates):
        return Judgement(PROVED)
    obstacle = _find_obstacle(claim, findings, runs)
    return Judgement(CANNOT_JUDGE, obstacle) if obstacle else Judgement(NOT_REFUTED)


def _refutes(claim: Claim, proof: EpsilonLowerBound | EpsilonEstimate) -> bool:
    """Tell whether a bound, or an ε that was computed, proves the claim false.

    A claim at a smaller δ than the bound's is stronger, so refuting the weaker one refutes it.
    """
    return (
        claim.delta <= proof.delta
        and _is_comparable(claim, proof.adjacency)
        and proof.refutes(claim.epsilon)
    )


def _proves(claim: Claim, estimate: EpsilonEstimate) -> bool:
    """Tell whether a computed upper bound proves the claim, for the same neighbouring relation."""
    return (
        estimate.upper <= claim.epsilon
        and estimate.delta <= claim.delta
        and claim.adjacency in ("unstated", estimate.adjacency)
        and claim.unit != "client"
    )


def _is_comparable(claim: Claim, adjacency: Adjacency) -> bool:
    """Tell whether an ε for one adjacency applies to a claim for another.

    Replacing a record may cost twice what adding, removing or zeroing one does, so an ε for one
    neither refutes nor proves a claim for the other.
    """
    stated = {claim.adjacency, adjacency} - {"unstated"}
    return len(stated) < 2 or "replace" not in stated


def _find_obstacle(
    claim: Claim, findings: Sequence[BaseFinding], runs: Sequence[CheckedRun]
) -> str:
    """Say why findings that do not refute a claim say nothing about it; empty if they do."""
    views = [view for finding in findings for view in finding.views]
    if not views and not any(run.bound for run in runs):
        return "No bound on ε was measured."
    for view in views:
        if obstacle := _find_obstacle_in(claim, view):
            return obstacle
    if any(_could_refute(claim, run) for run in runs):
        return ""
    attacks = [(view, view is not finding) for finding in findings for view in finding.views]
    reach = max((reach_of_view(view, released=form) for view, form in attacks), default=0.0)
    if claim.epsilon < reach:
        return ""
    for view, form in attacks:
        if failed := _find_failed_attack(view, released=form):
            return failed
    return (
        f"ε = {claim.epsilon:.4g} is beyond reach: even a perfect attack would prove only "
        f"ε ≥ {reach:.4g} from so few observations."
    )


def _could_refute(claim: Claim, run: CheckedRun) -> bool:
    """Tell whether measured noise and sensitivity could have refuted the claim.

    A run without noise has no finite ε, so no claim is out of reach.
    """
    bound = run.bound
    return (
        bound is not None
        and reach_of_run(run) > claim.epsilon
        and claim.delta <= bound.delta
        and _is_comparable(claim, bound.adjacency)
    )


def _find_obstacle_in(claim: Claim, view: EpsilonFinding) -> str:
    bound = view.bound
    if claim.delta > bound.delta:
        return (
            f"The bound is at δ = {bound.delta:g}, and says nothing at the larger {claim.delta:g}."
        )
    if not _is_comparable(claim, bound.adjacency):
        return (
            f"The claim is for adjacency {claim.adjacency!r}, the bound for {bound.adjacency!r}: "
            "an ε for one says nothing about the other."
        )
    if view.computed is not None:
        return ""  # no attack, no sample and no unit is needed
    if not bound.valid:
        return f"ε ≥ {bound.epsilon:.4g} ({bound.method}) is not a valid bound."
    if view.failed:
        return f"{_count(view.failed)} failed; their results might have refuted the claim."
    return ""


def reach_of(finding: BaseFinding) -> float:
    """Return the largest ε that a finding could have refuted."""
    runs = () if finding.checked_run is None else (finding.checked_run,)
    views = [reach_of_view(view, released=view is not finding) for view in finding.views]
    return max((*views, *map(reach_of_run, runs)), default=0.0)


def reach_of_view(view: EpsilonFinding, *, released: bool = False) -> float:
    """Return the largest ε that an attack could have refuted; infinite where ε was computed.

    Args:
        view: The finding of one adversary's view.
        released: Whether it is about a form of publishing, which may be constant over runs.
    """
    if view.computed is not None:
        return math.inf
    if not view.bound.valid or view.reach is None or _find_failed_attack(view, released=released):
        return 0.0
    return view.reach


def _find_failed_attack(view: EpsilonFinding, *, released: bool) -> str:
    """Say why the scores cannot come from a working attack; empty if they can.

    An attack that guesses has an AUC below its mean of ½ by t with chance at most exp(−2·k·t²),
    with k scores on the smaller side (Hoeffding 1963). Scores with exactly the same distribution
    on both sides were all equal, or were given twice.
    """
    attack, curve = view.attack, view.evidence
    if view.bound.epsilon > 0 or view.computed is not None:
        return ""
    if attack.auc < 0.5 - math.sqrt(_TOO_GUESSED / 2 / min(attack.n_in, attack.n_out)):
        return (
            f"The attack is worse than guessing (AUC {attack.auc:.2g}): scores without the record "
            'are higher. A higher score must mean "was in": negate losses.'
        )
    between = [pair for pair in zip(curve.fpr, curve.fnr, strict=True) if 0 < pair[0] < 1]
    if not released and math.isclose(attack.auc, 0.5) and not 0 < len(between) < _LEVELS:
        if not between:
            return "All scores are equal, so they cannot refute any claim."
        if all(math.isclose(fpr + fnr, 1, abs_tol=2e-6) for fpr, fnr in between):
            return "Scores with and without the record are equal: the same were given twice."
    return ""


def reach_of_run(run: CheckedRun) -> float:
    """Return the largest ε that measured noise could have refuted: infinite, or 0.

    Without noise there is no finite ε, so a run whose noise and sensitivity were measured could
    refute any claim. Where clipping was not tested, as with ghost clipping, noise alone says
    nothing about a claim that it does not refute.
    """
    bounded = run.bound is not None and run.bound.valid
    clipped = any(check.name in SENSITIVITY and check.outcome != NOT_TESTED for check in run.checks)
    return math.inf if bounded and clipped else 0.0


def _count(failed: int) -> str:
    return "1 unit" if failed == 1 else f"{failed:,} units"
