"""Judge every form of publishing predictions by attacks on it, and choose a form.

An attack is learned on half of the runs and evaluated on the others.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
from msgspec.structs import replace
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.posterior.disclosure import ReleaseForm
from epsilometer.audits.posterior.runs import LEARNED_FROM, Collected, Question, Shown, Side
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import (
    EpsilonFinding,
    FormDifference,
    FormFinding,
    FormPlan,
    PosteriorRuns,
    Standing,
    SweepPoint,
    Swept,
    TheoryEpsilon,
)
from epsilometer.core.scores import Scores
from epsilometer.engine.run import Done
from epsilometer.errors import InvalidArgument
from epsilometer.stats.clusters import advantage_at, scores_needed
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.joint_thresholds import Joining, joint_bound
from epsilometer.stats.membership import Limited, advantage_difference
from epsilometer.stats.score_finding import measure_scores, name_scores
from epsilometer.stats.thresholds import Best, HoldOut
from epsilometer.types import BoolArray, FloatArray

_WORST = 1e9  # statistic of a run that diverged: beyond all others, on the wrong side
_LEARNED = "learned likelihood ratio, on runs it was not learned from"
_CITES = ("gal2016", "kairouz2015", "shibahara2021")
_UTILITY = ("accuracy", "ties", "calibration_error", "log_loss")
_RIDGE = 1.0  # penalty on standardised features, worth about one observation
_CONSTANT = 1e-12  # spread relative to a feature's size, below which it is rounding
_FAR = 1e3  # standard deviations at which features are clipped, so that squares stay finite
_WORST_FIRST: tuple[Standing, ...] = ("above", "unclear", "below")
_MADE_OF: dict[str, tuple[str, ...]] = {
    "samples": ("quantiles", "mean+std", "mean", "set", "label"),
    "quantiles": (),
    "mean+std": ("mean", "set", "label"),
    "mean": ("set", "label"),
    "vector": (),
    "set": (),
    "label": (),
}


def judge_forms(
    collected: Collected,
    question: Question,
    *,
    label: int,
    theory: tuple[TheoryEpsilon, ...],
    title: str,
    done: Done,
) -> Audit:
    """Return an audit with all forms, their differences, sweeps, and the plan."""
    inside, outside = collected.inside, collected.outside
    caveats = []
    forms = question.forms
    has_vector = inside.vector is not None or outside.vector is not None
    if not has_vector and any(shown.form.kind == "vector" for shown in forms):
        forms = tuple(shown for shown in forms if shown.form.kind != "vector")
        caveats.append("These models predict nothing without sampling: no form 'vector'.")
        if not forms:
            raise InvalidArgument(
                "Expected forms that these models have, got only 'vector': they predict nothing "
                "without sampling."
            )
    if lost := _word_lost(inside, outside):
        caveats.append(lost)
    seed = done.plan.seed
    attack = _Attack(collected=collected, label=label, delta=question.delta, seed=seed)
    # Shared, so that the worst of all forms may refute a claim.
    each = 1 - (1 - question.confidence) / len(forms)
    findings: list[FormFinding] = []
    decisions = []
    for shown in forms:
        scores = attack.score(shown)
        decisions.append((scores.inside >= 0, scores.outside >= 0))
        view = measure_scores(
            name_scores(
                scores,
                title=f"{title}, published: {shown.form}",
                adversary=_word_adversary(shown),
            ),
            delta=question.delta,
            # Power depends on the number of runs, the same for all forms.
            claim=None if findings else question.claim,
            confidence=each,
            seed=seed,
            **done.counts(range(done.plan.units)),
        )
        if findings:
            view = replace(view, power=findings[0].view.power)
        findings.append(_measure_form(attack, shown, scores, question, view, caveats=caveats))
    findings = lower_standings(findings, [shown.form for shown in forms])
    plan = plan_forms(findings, question)
    return Audit(
        subject=title,
        claim=question.claim,
        findings=(
            *findings,
            plan,
            PosteriorRuns(
                delta=question.delta,
                samples=question.samples,
                runs=inside.runs,
                diverged_inside=inside.lost,
                diverged_outside=outside.lost,
                tested=collected.tested,
            ),
            *_compare_forms(findings, decisions, question.confidence, seed),
            *(
                _measure_point(attack, swept, shown, question)
                for swept, shown in question.sweeps
                if has_vector or shown.form.kind != "vector"
            ),
            *theory,
        ),
        advice=plan.advice,
        caveats=(
            f"The bounds of {len(forms)} forms share the confidence; each point of a sweep has it "
            "on its own, and decides nothing.",
            "Utility is measured on models trained without the record."
            if collected.tested
            else "No test records were given, so utility was not measured.",
            *caveats,
            *(said for shown in forms for said in _word_spread(shown)),
        ),
        cites=_CITES + (("zhu2024",) if any(f.form.kind == "set" for f in forms) else ()),
        provenance=done.provenance,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Attack:
    """Attack a published form, always on the same runs."""

    collected: Collected
    label: int
    delta: float
    seed: int

    def score(self, shown: Shown) -> Scores:
        """Return log-odds of the learned attack on runs it was not learned from, in a fixed order.

        All runs that were lost are among them, each scored against the attack.
        """
        inside, outside = self.collected.inside, self.collected.outside
        against = np.full(inside.lost, -np.inf), np.full(outside.lost, np.inf)
        known = [self._read_side(shown, side, "features") for side in (inside, outside)]
        if min(map(len, known)) < 4:  # nothing to learn from
            return Scores(np.full(inside.runs, -np.inf), np.full(outside.runs, np.inf))
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(3,)))
        learned = learn_scores(known[0], known[1], rng=rng, fraction=LEARNED_FROM)
        return Scores(
            np.concatenate([learned.inside, against[0]]),
            np.concatenate([learned.outside, against[1]]),
        )

    def bound_jointly(
        self, shown: Shown, rule: HoldOut | Best, confidence: float
    ) -> tuple[EpsilonLowerBound, ...]:
        """Return bounds from thresholds on several statistics: all must be reached, or any."""
        inside, outside = self.collected.inside, self.collected.outside
        seen = [self._read_side(shown, side, "statistics") for side in (inside, outside)]
        wide = max(part.shape[1] for part in seen)
        known = [
            np.vstack([part.reshape(-1, wide), np.full((side.lost, wide), worst)])
            for part, side, worst in zip(seen, (inside, outside), (-_WORST, _WORST), strict=True)
        ]
        joinings: tuple[Joining, ...] = ("all", "any") if wide > 1 else ("all",)
        return tuple(
            joint_bound(
                known[0],
                known[1],
                joining=joining,
                delta=self.delta,
                confidence=confidence,
                rule=rule,
                seed=self.seed,
                adversary=_word_adversary(shown),
                adjacency="add_remove",
            )
            for joining in joinings
        )

    def _read_side(self, shown: Shown, side: Side, what: str) -> FloatArray:
        if not len(side.samples):
            return np.zeros((0, 1))
        compute = shown.form.features if what == "features" else shown.form.statistics
        return compute(side.samples[:, : shown.samples], label=self.label, vector=side.vector)


def _measure_form(
    attack: _Attack,
    shown: Shown,
    scores: Scores,
    question: Question,
    view: EpsilonFinding,
    *,
    caveats: Sequence[str],
) -> FormFinding:
    """Return the finding of a form, given the bound from its scores."""
    confidence = view.bound.confidence
    raw = attack.bound_jointly(shown, Best(), confidence)
    view = replace(
        view,
        bound=replace(
            view.bound,
            threshold_rule=f"{view.bound.threshold_rule}, {_LEARNED}",
            adjacency="add_remove",
            caveats=(*view.bound.caveats, *_word_spread(shown), *caveats),
        ),
        also=(*attack.bound_jointly(shown, HoldOut(LEARNED_FROM), confidence), *raw),
    )
    advantage = _limit_advantage(scores, confidence)
    return FormFinding(
        form=str(shown.form),
        shows=shown.form.kind,
        unit=shown.form.unit,
        samples=shown.samples,
        view=view,
        raw=max(bound.epsilon for bound in raw),
        advantage=advantage.value,
        advantage_low=advantage.low,
        advantage_high=advantage.high,
        standing=_find_standing(view.bound.epsilon, advantage, question),
        **_find_worth(attack.collected, question, shown),
    )


def _measure_point(attack: _Attack, swept: Swept, shown: Shown, question: Question) -> SweepPoint:
    scores = attack.score(shown)
    bound = epsilon_lower_bound(
        scores, delta=question.delta, confidence=question.confidence, seed=attack.seed
    )
    raw = attack.bound_jointly(shown, Best(), question.confidence)
    worth = _find_worth(attack.collected, question, shown)
    return SweepPoint(
        swept=swept,
        shows=shown.form.kind,
        unit=shown.form.unit,
        samples=shown.samples,
        epsilon=bound.epsilon,
        raw=max(each.epsilon for each in raw),
        advantage=advantage_at(scores, 0.0).value,
        accuracy=worth["accuracy"],
        ties=worth["ties"],
    )


def _find_worth(collected: Collected, question: Question, shown: Shown) -> dict[str, Any]:
    if collected.utility is None:
        return dict.fromkeys(_UTILITY)
    row = collected.utility[question.shown.index(shown)].tolist()
    known = zip(_UTILITY, row, strict=True)
    return {name: None if math.isnan(value) else value for name, value in known}


def _limit_advantage(scores: Scores, confidence: float) -> Limited:
    """Return the advantage, with limits that hold whatever lost runs would have shown.

    The upper limit also holds for the reversed attack: one that is worse than guessing leaks too.
    """
    against = advantage_at(scores, 0.0, confidence=confidence)
    hopeful = Scores(
        np.where(scores.inside == -np.inf, np.inf, scores.inside),
        np.where(scores.outside == np.inf, -np.inf, scores.outside),
    )
    high = advantage_at(hopeful, 0.0, confidence=confidence).high
    return against._replace(high=max(high, -against.low))


def _find_standing(epsilon: float, advantage: Limited, question: Question) -> Standing:
    if epsilon > question.line or advantage.low > question.advantage:
        return "above"
    return "below" if advantage.high <= question.advantage else "unclear"


def _compare_forms(
    findings: Sequence[FormFinding],
    decisions: Sequence[tuple[BoolArray, BoolArray]],
    confidence: float,
    seed: int,
) -> tuple[FormDifference, ...]:
    differences = []
    for i, j in combinations(range(len(findings)), 2):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4, i, j)))
        gap = advantage_difference(decisions[i], decisions[j], confidence=confidence, rng=rng)
        differences.append(
            FormDifference(
                first=findings[i].form,
                second=findings[j].form,
                difference=gap.value,
                low=gap.low,
                high=gap.high,
                confidence=confidence,
            )
        )
    return tuple(differences)


def _word_spread(shown: Shown) -> tuple[str, ...]:
    """Return caveats about a form with so few samples."""
    said = shown.form.caveats(shown.samples)
    return tuple(f"{text[0].upper()}{text[1:]}." for text in said)


def _word_adversary(shown: Shown) -> str:
    return f"sees what is published of the record: {shown.form}, of {shown.samples} samples"


def _word_lost(inside: Side, outside: Side) -> str:
    if not inside.lost and not outside.lost:
        return ""
    return (
        f"Diverged or failed: {inside.lost} of {inside.runs} runs with the record, {outside.lost} "
        f"of {outside.runs} without it. They count against a refutation."
    )


def lower_standings(
    findings: Sequence[FormFinding], forms: Sequence[ReleaseForm]
) -> list[FormFinding]:
    """Return findings in which no form has a better status than a coarser one.

    Coarser forms can be computed from finer ones, so a finer form leaks at least as much.
    """
    kept = []
    for finding, form in zip(findings, forms, strict=True):
        within = [
            other.standing
            for other, coarser in zip(findings, forms, strict=True)
            if can_derive(form, coarser)
        ]
        worst = min((finding.standing, *within), key=_WORST_FIRST.index)
        kept.append(replace(finding, standing=worst))
    return kept


def can_derive(fine: ReleaseForm, coarse: ReleaseForm) -> bool:
    """Tell whether the coarse form can be computed from the fine one.

    Example:
        >>> can_derive(ReleaseForm("samples"), ReleaseForm("mean", unit=0.1))
        True
        >>> can_derive(ReleaseForm("samples", unit=0.1), ReleaseForm("mean", unit=0.01))
        False
    """
    if fine.unit is None:
        same = coarse.kind == fine.kind and coarse.level == fine.level
        return same or coarse.kind in _MADE_OF[fine.kind]
    # A rounded mean may tie and leave the label open; rounding again is not rounding once.
    mean = dataclasses.replace(fine, kind="mean")
    return coarse == fine or (fine.kind == "mean+std" and coarse == mean)


def plan_forms(findings: Sequence[FormFinding], question: Question) -> FormPlan:
    """Return the finest form below the limit, and advice on forms that are unclear.

    Args:
        findings: Findings of all forms, finest first.
        question: Holds the limits on ε and on the advantage.
    """
    below = [each for each in findings if each.standing == "below"]
    chosen = below[0].form if below else None
    line = f"ε = {question.line:g} and an advantage of {question.advantage:.3g}"
    advice = []
    if chosen is None:
        advice.append(f"No output format is known to stay below the limit ({line}).")
    else:
        advice.append(
            f"Publish {'class labels' if chosen == 'label' else chosen}: the most detailed format "
            f"that stays below the limit ({line}) under these attacks on this record."
        )
    before = findings if chosen is None else findings[: findings.index(below[0])]
    if finer := [each for each in before if each.standing == "unclear"]:
        first = finer[0]
        needed = _count_needed(first, question)
        advice.append(
            f"Unclear for {'; '.join(each.form for each in finer)}: "
            + (
                f"{needed:,} runs with the record, and as many without, might decide about "
                f"{first.form}."
                if needed
                else "more runs might decide."
            )
        )
    if all(each.standing == "above" for each in findings):
        advice.append("Train with more noise, or publish no predictions for such records.")
    return FormPlan(
        epsilon=question.line,
        advantage=question.advantage,
        forms=tuple(each.form for each in findings),
        chosen=chosen,
        pareto=_list_pareto(findings),
        advice=tuple(advice),
    )


def _count_needed(finding: FormFinding, question: Question) -> int:
    """Return the runs per side needed for the advantage's upper limit to be small enough.

    The advantage itself is assumed not to change; 0 if no number of runs would be enough.
    """
    room = question.advantage - finding.advantage
    if room <= 0 or question.advantage >= 1:
        return 0
    scored = scores_needed(room, confidence=finding.view.bound.confidence)
    return math.ceil(scored / LEARNED_FROM)


def _list_pareto(findings: Sequence[FormFinding]) -> tuple[str, ...]:
    """Return the Pareto-optimal forms in log loss and advantage."""
    known = [(each.form, each.log_loss, each.advantage) for each in findings]
    tested = [(form, loss, leak) for form, loss, leak in known if loss is not None]
    return tuple(
        form
        for form, loss, leak in tested
        if not any(
            other <= loss and less <= leak and (other, less) != (loss, leak)
            for _, other, less in tested
        )
    )


def learn_scores(
    inside: ArrayLike, outside: ArrayLike, *, rng: np.random.Generator, fraction: float = 0.5
) -> Scores:
    """Score runs by a logistic regression on their features, learned on other runs.

    Features are standardised on the training runs, with squares and products added; the penalty
    is a ridge. Runs with the record weigh as much in total as those without it. The score is the
    log-odds that the record was present.

    Guarantees: no run is scored by a model that was fitted to it, so every valid threshold rule
        stays valid.
    Assumes: runs are independent.

    Args:
        inside: Features of runs with the record, ``(runs, k)``.
        outside: The same for runs without it.
        rng: Random generator that splits the runs.
        fraction: Fraction of the runs to learn from; the others are scored.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = learn_scores(
        ...     rng.normal(1, 1, (200, 2)), rng.normal(0, 1, (200, 2)), rng=rng
        ... )
        >>> scores.n_in, bool(scores.inside.mean() > scores.outside.mean())
        (100, True)
    """
    _validate.open_unit(fraction=fraction)
    sides = [np.asarray(side, np.float64) for side in (inside, outside)]
    for side in sides:
        if side.ndim != 2 or side.shape[1] != sides[0].shape[1] or len(side) < 4:
            raise InvalidArgument(
                "Expected features of shape (runs, k) of at least four runs with the record and "
                "four without it, got "
                f"{sides[0].shape} and {sides[1].shape}."
            )
        if not np.isfinite(side).all():
            raise InvalidArgument("Expected finite features, got nan or infinity.")
    orders = [rng.permutation(len(side)) for side in sides]
    cuts = [min(max(2, round(fraction * len(side))), len(side) - 2) for side in sides]
    seen = [side[order[:cut]] for side, order, cut in zip(sides, orders, cuts, strict=True)]
    together = np.vstack(seen)
    centre, spread = together.mean(axis=0), together.std(axis=0)
    # A constant feature carries no information and is set to 0.
    spread = np.where(spread > _CONSTANT * np.abs(together).max(axis=0), spread, np.inf)

    def expand(runs: FloatArray) -> FloatArray:
        return _expand(np.clip((runs - centre) / spread, -_FAR, _FAR))

    weights = _fit(*map(expand, seen))
    scored = (side[order[cut:]] for side, order, cut in zip(sides, orders, cuts, strict=True))
    return Scores(*(expand(side) @ weights for side in scored))


def _expand(x: FloatArray) -> FloatArray:
    """Add a constant, squares and products."""
    rows, columns = np.triu_indices(x.shape[1])
    return np.hstack([np.ones((len(x), 1)), x, x[:, rows] * x[:, columns]])


def _fit(inside: FloatArray, outside: FloatArray) -> FloatArray:
    x = np.vstack([inside, -outside])
    share = np.concatenate([np.full(len(side), 0.5 / len(side)) for side in (inside, outside)])
    ridge = np.full(x.shape[1], _RIDGE / len(x))
    ridge[0] = 0.0

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        margins = x @ weights
        value = share @ np.logaddexp(0, -margins) + 0.5 * ridge @ weights**2
        slopes = -share * scipy.special.expit(-margins)
        return float(value), x.T @ slopes + ridge * weights

    start = np.zeros(x.shape[1])
    return np.asarray(scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x)
