"""An audit of scores judges a claim by one bound, and says how well the attack did."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer import Claim, ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.rules import Best, Fixed, HoldOut
from epsilometer.stats.score_finding import round_threshold
from tests import oracles

DELTA = 1e-5
SPREAD = oracles.even_normals(2000)
SCORES = Scores(SPREAD + 1.0, SPREAD)  # a Gaussian mechanism with μ = 1
TRUTH = em.gaussian_epsilon(1.0, DELTA)  # 4.377


def claim(epsilon: float, delta: float = DELTA) -> Claim:
    return Claim(epsilon=epsilon, delta=delta, adjacency="add_remove")


def audit_scores(
    scores: Scores | ScoreCounts, claimed: Claim | None = None, **options: Any
) -> em.Audit:
    """Audit scores; options of the subject and of the call by one name each."""
    own = {name: options.pop(name) for name in ("method", "rule", "also") if name in options}
    delta = options.pop("delta", None if claimed is not None else DELTA)
    return em.audit(replace(scores, **own), claimed, delta=delta, **options)


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    [(0.0, "refuted"), (1.0, "refuted"), (TRUTH, "not refuted"), (100.0, "cannot judge")],
)
def test_false_claims_are_refuted_and_true_ones_are_not(claimed: float, verdict: str) -> None:
    """Data without noise prove an ε between 1 and the truth, whatever the method's slack."""
    audit = audit_scores(SCORES, claim(claimed))
    assert audit.verdict == verdict
    assert 1.0 < audit.epsilon < TRUTH


def test_equal_laws_refute_nothing() -> None:
    audit = audit_scores(Scores(SPREAD, SPREAD[:-1]), claim(0.0))
    assert audit.verdict == "not refuted"
    assert audit.views[0].attack.auc == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("outside", "why"),
    [
        (SPREAD + 3.0, "worse than guessing"),  # losses that were not negated
        (SPREAD, "the same were given twice"),
        (np.full_like(SPREAD, SPREAD[0]), "All scores are equal"),
    ],
)
def test_scores_that_are_of_no_attack_judge_nothing(outside: Any, why: str) -> None:
    """Whatever leaks, they could not refute: that is no all-clear."""
    inside = outside if "equal" in why else SPREAD
    audit = audit_scores(Scores(inside, outside), claim(0.0))
    assert (audit.verdict, audit.reach, audit.power) == ("cannot judge", 0.0, math.inf)
    assert why in audit.judgement.reason


def test_without_a_claim_there_is_a_bound_and_no_verdict_on_it() -> None:
    audit = audit_scores(SCORES)
    assert audit.verdict == "no claim"
    bound = em.epsilon_lower_bound(SCORES, delta=DELTA)
    assert audit.bounds == (round_threshold(bound),)
    assert audit.bounds[0].threshold == pytest.approx(bound.threshold, rel=1e-5)
    assert audit.bounds[0].threshold != bound.threshold  # which is the score of a single record


@pytest.mark.parametrize("options", [{"rule": Best()}, {"method": "jeffreys"}])
def test_bounds_that_are_not_valid_give_no_verdict(options: dict[str, Any]) -> None:
    audit = audit_scores(SCORES, claim(0.0), **options)
    (bound,) = audit.bounds
    assert bound.epsilon > 1.0
    assert audit.epsilon == 0.0
    assert audit.verdict == "cannot judge"
    assert bound.caveats


def test_what_else_is_asked_for_is_shown_and_decides_nothing() -> None:
    audit = audit_scores(SCORES, claim(3.0), also=("gdp", "jeffreys"))
    (view,) = audit.views
    assert [bound.method for bound in view.also] == ["gdp", "jeffreys"]
    assert view.also[0].epsilon > 3.0 > view.bound.epsilon  # gdp alone would refute
    assert audit.verdict == "not refuted"


def test_the_bound_is_the_one_that_was_asked_for() -> None:
    options = {"delta": 1e-3, "confidence": 0.8, "method": "jeffreys", "rule": HoldOut(0.5)}
    named = replace(SCORES, adversary="sees all")
    (bound,) = audit_scores(named, **options, seed=3).bounds
    asked = em.epsilon_lower_bound(SCORES, **options, seed=3, adversary="sees all")  # type: ignore[arg-type]
    assert bound == round_threshold(asked)


def test_the_adjacency_of_the_claim_is_carried_to_the_bound() -> None:
    assert audit_scores(SCORES, claim(1.0)).bounds[0].adjacency == "add_remove"
    assert audit_scores(SCORES).bounds[0].adjacency == "unstated"


def test_the_attack_is_summed_up_by_its_definition(rng: np.random.Generator) -> None:
    inside, outside = rng.integers(0, 9, 60) + 2.0, rng.integers(0, 9, 50) + 0.0
    attack = audit_scores(Scores(inside, outside)).views[0].attack
    pairs = inside[:, None] - outside[None, :]
    assert attack.auc == pytest.approx(np.mean(pairs > 0) + np.mean(pairs == 0) / 2, abs=1e-12)
    assert (attack.n_in, attack.n_out) == (60, 50)
    cuts = [*np.unique(np.concatenate([inside, outside])), np.inf]
    for fpr, tpr in attack.tpr_at_fpr:
        allowed = [cut for cut in cuts if np.mean(outside >= cut) <= fpr]
        assert tpr == pytest.approx(max(np.mean(inside >= cut) for cut in allowed), abs=1e-12)


def test_counts_are_judged_like_scores() -> None:
    counts = ScoreCounts.at(np.linspace(-3, 4, 15)).add(
        inside=SCORES.inside, outside=SCORES.outside
    )
    raw, counted = (
        audit_scores(observed, claim(1.0), rule=Fixed(2.5)) for observed in (SCORES, counts)
    )
    assert counted.bounds == raw.bounds
    assert counted.verdict == raw.verdict == "refuted"
    assert counted.reach == raw.reach


@pytest.mark.parametrize(
    "options",
    [
        {"delta": 1e-6, "claimed": claim(1.0)},
        {"delta": -1.0},
        {"confidence": 1.0},
        {"method": "magic"},
        {"also": ("magic",)},
        {"rule": "best"},
        {"seed": -1},
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        audit_scores(SCORES, **options)
