"""What predictions with the record and without it prove of every form of publishing them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from epsilometer.attacks.learned import learned_scores
from epsilometer.audits.form_plan import no_better_than_coarser, plan_of
from epsilometer.audits.posterior_runs import LEARNED_FROM, Asked, Collected, Shown, World
from epsilometer.audits.scores import audit_scores
from epsilometer.errors import InvalidArgument
from epsilometer.observations import Scores
from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.findings import FormDifference, FormFinding, Standing, SweepPoint, Swept, TheoryEpsilon
from epsilometer.core.audit import Provenance
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.stats.decisions import advantage_at, advantage_difference
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.joint_thresholds import Joining, joint_bound
from epsilometer.stats.membership import Limited
from epsilometer.stats.thresholds import Best, HoldOut
from epsilometer.types import BoolArray, FloatArray

_WORST = 1e9  # a statistic of a run that diverged: beyond all others, on the wrong side
_LEARNED = "learned likelihood ratio, on runs it was not learned from"
_CITES = ("gal2016", "kairouz2015", "shibahara2021")
_UTILITY = ("accuracy", "ties", "calibration_error", "log_loss")


def found(
    collected: Collected,
    asked: Asked,
    *,
    label: int,
    theory: tuple[TheoryEpsilon, ...],
    subject: str,
    provenance: Provenance,
    seed: int,
) -> PosteriorAudit:
    """All forms, their differences, sweeps, and the plan."""
    inside, outside = collected.inside, collected.outside
    caveats = []
    forms = asked.forms
    has_vector = inside.vector is not None or outside.vector is not None
    if not has_vector and any(form.kind == "vector" for form in forms):
        forms = tuple(form for form in forms if form.kind != "vector")
        caveats.append("These models predict nothing without sampling: no form 'vector'.")
        if not forms:
            raise InvalidArgument("Expected models with a prediction without sampling, got none.")
    if lost := _lost(inside, outside):
        caveats.append(lost)
    attack = _Attack(collected=collected, label=label, delta=asked.delta, seed=seed)
    # Shared, so that the worst of all forms may refute a claim.
    each = 1 - (1 - asked.confidence) / len(forms)
    findings, decisions = [], []
    for form in forms:
        shown = Shown(form, asked.samples)
        scores = attack.scores(shown)
        decisions.append((scores.inside >= 0, scores.outside >= 0))
        findings.append(_finding(attack, shown, scores, asked, each, provenance, subject, caveats))
    findings = no_better_than_coarser(findings, forms)
    plan = plan_of(findings, asked)
    return PosteriorAudit(
        subject=subject,
        claim=asked.claim,
        delta=asked.delta,
        confidence=asked.confidence,
        samples=asked.samples,
        runs=inside.runs,
        diverged_inside=inside.lost,
        diverged_outside=outside.lost,
        tested=collected.tested,
        forms=tuple(findings),
        differences=_differences(findings, decisions, asked.confidence, seed),
        sweeps=tuple(
            _point(attack, swept, shown, asked)
            for swept, shown in asked.sweeps
            if has_vector or shown.form.kind != "vector"
        ),
        plan=plan,
        theory=theory,
        caveats=(
            f"Bounds of {len(forms)} forms share the confidence; points of sweeps have it each "
            "alone, and decide nothing.",
            "Utility is that of models without the record."
            if collected.tested
            else "No test records were given: nothing is known of utility.",
            *caveats,
            *(said for form in forms for said in _spread(Shown(form, asked.samples))),
        ),
        seed=seed,
        cites=_CITES,
        provenance=provenance,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Attack:
    """The attacks on what is shown, all on the same runs."""

    collected: Collected
    label: int
    delta: float
    seed: int

    def scores(self, shown: Shown) -> Scores:
        """Log-odds of the learned attack, of runs it was not learned from, in one order.

        Runs that were lost are all among these, each scored against the attack.
        """
        inside, outside = self.collected.inside, self.collected.outside
        against = np.full(inside.lost, -np.inf), np.full(outside.lost, np.inf)
        known = [self._seen(shown, world, "features") for world in (inside, outside)]
        if min(map(len, known)) < 4:  # nothing to learn from
            return Scores(np.full(inside.runs, -np.inf), np.full(outside.runs, np.inf))
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(3,)))
        learned = learned_scores(known[0], known[1], rng=rng, fraction=LEARNED_FROM)
        return Scores(
            np.concatenate([learned.inside, against[0]]),
            np.concatenate([learned.outside, against[1]]),
        )

    def joint(
        self, shown: Shown, rule: HoldOut | Best, confidence: float
    ) -> tuple[EpsilonLowerBound, ...]:
        """By thresholds on statistics: all must be reached, or any."""
        inside, outside = self.collected.inside, self.collected.outside
        seen = [self._seen(shown, world, "statistics") for world in (inside, outside)]
        wide = max(part.shape[1] for part in seen)
        known = [
            np.vstack([part.reshape(-1, wide), np.full((world.lost, wide), worst)])
            for part, world, worst in zip(seen, (inside, outside), (-_WORST, _WORST), strict=True)
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
                adversary=_adversary(shown),
                adjacency="add_remove",
            )
            for joining in joinings
        )

    def _seen(self, shown: Shown, world: World, what: str) -> FloatArray:
        form = shown.form
        if not len(world.samples):
            return np.zeros((0, 1))
        of = form.features if what == "features" else form.statistics
        return of(world.samples[:, : shown.samples], label=self.label, vector=world.vector)


def _finding(
    attack: _Attack,
    shown: Shown,
    scores: Scores,
    asked: Asked,
    confidence: float,
    provenance: Provenance,
    subject: str,
    caveats: Sequence[str],
) -> FormFinding:
    audit = audit_scores(
        scores,
        delta=asked.delta,
        claim=asked.claim,
        confidence=confidence,
        seed=attack.seed,
        subject=f"{subject}, published: {shown.form}",
        adversary=_adversary(shown),
        provenance=provenance,
    )
    raw = attack.joint(shown, Best(), confidence)
    audit = replace(
        audit,
        bound=replace(
            audit.bound,
            threshold_rule=f"{audit.bound.threshold_rule}, {_LEARNED}",
            adjacency="add_remove",
            caveats=(*audit.bound.caveats, *_spread(shown), *caveats),
        ),
        also=(*attack.joint(shown, HoldOut(LEARNED_FROM), confidence), *raw),
    )
    advantage = _advantage(scores, confidence)
    worth = _worth(attack.collected, asked, shown)
    return FormFinding(
        form=str(shown.form),
        shows=shown.form.kind,
        unit=shown.form.unit,
        samples=shown.samples,
        audit=audit,
        raw=max(bound.epsilon for bound in raw),
        advantage=advantage.value,
        advantage_low=advantage.low,
        advantage_high=advantage.high,
        accuracy=worth["accuracy"],
        ties=worth["ties"],
        calibration_error=worth["calibration_error"],
        log_loss=worth["log_loss"],
        standing=_standing(audit.bound.epsilon, advantage, asked),
    )


def _point(attack: _Attack, swept: Swept, shown: Shown, asked: Asked) -> SweepPoint:
    scores = attack.scores(shown)
    bound = epsilon_lower_bound(
        scores, delta=asked.delta, confidence=asked.confidence, seed=attack.seed
    )
    raw = attack.joint(shown, Best(), asked.confidence)
    worth = _worth(attack.collected, asked, shown)
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


def _worth(collected: Collected, asked: Asked, shown: Shown) -> dict[str, float | None]:
    if collected.utility is None:
        return dict.fromkeys(_UTILITY)
    row = collected.utility[asked.shown.index(shown)].tolist()
    known = zip(_UTILITY, row, strict=True)
    return {name: None if math.isnan(value) else value for name, value in known}


def _advantage(scores: Scores, confidence: float) -> Limited:
    """With limits that hold whatever lost runs would have shown: they count on the wrong side.

    And the upper one whether she heeds the attack or its opposite, lest bad luck pass for safety.
    """
    against = advantage_at(scores, 0.0, confidence=confidence)
    hopeful = Scores(
        np.where(scores.inside == -np.inf, np.inf, scores.inside),
        np.where(scores.outside == np.inf, -np.inf, scores.outside),
    )
    high = advantage_at(hopeful, 0.0, confidence=confidence).high
    return against._replace(high=max(high, -against.low))


def _standing(epsilon: float, advantage: Limited, asked: Asked) -> Standing:
    if epsilon > asked.line or advantage.low > asked.advantage:
        return "above"
    return "below" if advantage.high <= asked.advantage else "cannot tell"


def _differences(
    findings: Sequence[FormFinding],
    decisions: Sequence[tuple[BoolArray, BoolArray]],
    confidence: float,
    seed: int,
) -> tuple[FormDifference, ...]:
    said = []
    for i, j in combinations(range(len(findings)), 2):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4, i, j)))
        gap = advantage_difference(decisions[i], decisions[j], confidence=confidence, rng=rng)
        said.append(
            FormDifference(
                first=findings[i].form,
                second=findings[j].form,
                difference=gap.value,
                low=gap.low,
                high=gap.high,
                confidence=confidence,
            )
        )
    return tuple(said)


def _spread(shown: Shown) -> tuple[str, ...]:
    """What to know of a form of so few samples, as sentences."""
    said = shown.form.caveats(shown.samples)
    return tuple(f"{text[0].upper()}{text[1:]}." for text in said)


def _adversary(shown: Shown) -> str:
    return f"sees what is published of the record: {shown.form}, of {shown.samples} samples"


def _lost(inside: World, outside: World) -> str:
    if not inside.lost and not outside.lost:
        return ""
    return (
        f"Diverged or failed: {inside.lost} of {inside.runs} runs with the record, {outside.lost} "
        f"of {outside.runs} without it. They count against a refutation."
    )
