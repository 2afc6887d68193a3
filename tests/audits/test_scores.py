"""An audit judges a claim by one bound, and says how well the attack did."""

import numpy as np
import pytest

import epsilometer as em
from epsilometer import Best, Fixed, HoldOut, PrivacyClaim, ScoreCounts, Scores
from epsilometer.audits.scores import audit_scores
from epsilometer.errors import InvalidArgument
from tests import oracles

DELTA = 1e-5
SPREAD = oracles.even_normals(2000)
SCORES = Scores(SPREAD + 1.0, SPREAD)  # a Gaussian mechanism with μ = 1
TRUTH = em.gaussian_epsilon(1.0, DELTA)  # 4.377


def claim(epsilon: float, delta: float = DELTA) -> PrivacyClaim:
    return PrivacyClaim(epsilon=epsilon, delta=delta, adjacency="add_remove")


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    [(0.0, "refuted"), (1.0, "refuted"), (TRUTH, "not refuted"), (np.inf, "not refuted")],
)
def test_false_claims_are_refuted_and_true_ones_are_not(claimed: float, verdict: str) -> None:
    """Data without noise prove an ε between 1 and the truth, whatever the method's slack."""
    result = audit_scores(SCORES, delta=DELTA, claim=claim(claimed))
    assert result.verdict == verdict
    assert 1.0 < result.bound.epsilon < TRUTH


def test_equal_worlds_refute_nothing() -> None:
    result = audit_scores(Scores(SPREAD, SPREAD), delta=DELTA, claim=claim(0.0))
    assert result.verdict == "not refuted"
    assert result.attack.auc == pytest.approx(0.5, abs=1e-12)


def test_reversed_scores_refute_nothing() -> None:
    scores = Scores(SPREAD, SPREAD + 3.0)
    assert audit_scores(scores, delta=DELTA, claim=claim(0.0)).verdict == "not refuted"


def test_without_a_claim_there_is_a_bound_and_no_verdict_on_it() -> None:
    result = audit_scores(SCORES, delta=DELTA)
    assert result.verdict == "no claim"
    assert result.bound == em.epsilon_lower_bound(SCORES, delta=DELTA)


@pytest.mark.parametrize("knobs", [{"rule": Best()}, {"method": "jeffreys"}])
def test_bounds_that_are_not_valid_give_no_verdict(knobs: dict) -> None:
    result = audit_scores(SCORES, delta=DELTA, claim=claim(0.0), **knobs)
    assert result.bound.epsilon > 1.0
    assert result.verdict == "no verdict"
    assert result.bound.caveats


def test_what_else_is_asked_for_is_shown_and_decides_nothing() -> None:
    result = audit_scores(SCORES, delta=DELTA, claim=claim(3.0), also=("gdp", "jeffreys"))
    assert [bound.method for bound in result.also] == ["gdp", "jeffreys"]
    assert result.also[0].epsilon > 3.0 > result.bound.epsilon  # gdp alone would refute
    assert result.verdict == "not refuted"


def test_the_bound_is_the_one_that_was_asked_for() -> None:
    knobs = {"delta": 1e-3, "confidence": 0.8, "method": "jeffreys", "rule": HoldOut(0.5)}
    result = audit_scores(SCORES, **knobs, seed=3, adversary="sees all")  # type: ignore[arg-type]
    alone = em.epsilon_lower_bound(SCORES, **knobs, seed=3, adversary="sees all")  # type: ignore[arg-type]
    assert result.bound == alone


def test_the_adjacency_of_the_claim_is_carried_to_the_bound() -> None:
    assert audit_scores(SCORES, delta=DELTA, claim=claim(1.0)).bound.adjacency == "add_remove"
    assert audit_scores(SCORES, delta=DELTA).bound.adjacency == "unstated"


def test_the_attack_is_summed_up_by_its_definition(rng: np.random.Generator) -> None:
    inside, outside = rng.integers(0, 9, 60) + 2.0, rng.integers(0, 9, 50) + 0.0
    attack = audit_scores(Scores(inside, outside), delta=DELTA).attack
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
    rule = Fixed(2.5)
    raw = audit_scores(SCORES, delta=DELTA, claim=claim(1.0), rule=rule)
    counted = audit_scores(counts, delta=DELTA, claim=claim(1.0), rule=rule)
    assert counted.bound == raw.bound
    assert counted.verdict == raw.verdict == "refuted"


@pytest.mark.parametrize(
    "knobs",
    [
        {"delta": 1e-6, "claim": claim(1.0)},
        {"delta": -1.0},
        {"confidence": 1.0},
        {"method": "magic"},
        {"also": ("magic",)},
        {"rule": "best"},
        {"seed": -1},
    ],
)
def test_bad_arguments_are_told(knobs: dict) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        audit_scores(SCORES, **{"delta": DELTA, **knobs})
