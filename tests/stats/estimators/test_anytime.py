"""The anytime bound of scores in order is that of a sequence fed with them."""

import numpy as np
import pytest

import epsilometer as em
from epsilometer import ConfidenceSequence, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.rules import Best, Fixed, HoldOut, RankGrid
from epsilometer.stats.estimators import anytime

KNOBS = {"delta": 1e-3, "confidence": 0.8}


def _scores() -> Scores:
    rng = np.random.default_rng(1)
    return Scores(rng.normal(2, 1, 120), rng.normal(0, 1, 130))


@pytest.mark.parametrize("rule", [Fixed(1.2), HoldOut(0.25), RankGrid()])
def test_bound_is_that_of_the_sequence(rule: Fixed | HoldOut | RankGrid) -> None:
    scores = _scores()
    used = {Fixed: 0, HoldOut: 30, RankGrid: 0}[type(rule)]
    pilot = Scores(scores.inside[: used or 1], scores.outside[: used or 1])
    if isinstance(rule, RankGrid):
        audit = ConfidenceSequence(**KNOBS)
    else:
        best = em.epsilon_lower_bound(pilot, rule=Best(), **KNOBS).threshold
        value = rule.value if isinstance(rule, Fixed) else best
        audit = ConfidenceSequence([value], **KNOBS)
    audit.update(scores.inside[used:120], scores.outside[used:120])
    expected = audit.lower_bound()
    found = em.epsilon_lower_bound(scores, method="anytime", rule=rule, **KNOBS)
    assert found.epsilon == expected.epsilon > 0
    assert (found.direction, found.threshold) == (expected.direction, expected.threshold)


@pytest.mark.parametrize(
    ("pairs", "fraction", "size"),
    [(2, 0.3, 1), (2, 0.99, 1), (3, 0.01, 1), (3, 0.99, 2), (10, 0.3, 3), (100, 0.1, 10)],
)
def test_a_pilot_leaves_a_pair_to_bet_on(pairs: int, fraction: float, size: int) -> None:
    assert anytime._pilot_size(pairs, fraction) == size


def test_a_single_pair_has_no_pilot() -> None:
    with pytest.raises(InvalidArgument, match="at least 2 pairs"):
        em.epsilon_lower_bound(Scores([1.0], [0.0]), method="anytime", rule=HoldOut(), **KNOBS)
    found = em.epsilon_lower_bound(Scores([1.0, 1.0], [0.0, 0.0]), method="anytime", **KNOBS)
    assert found.epsilon == 0.0
