"""The bound of one run at all ranks: it is wrong as seldom as it says, and proves what it can."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.rules import AllRanks, Bonferroni, Fixed, HoldOut, RankGrid
from epsilometer.stats.estimators import one_run
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.guess_looks import Game, LookFamily, find_epsilon
from tests import oracles
from tests.conftest import run_often

Score = Callable[[np.random.Generator, np.ndarray], np.ndarray]  # of who is in


def respond(epsilon: float, abstain: float = 0.0) -> Score:
    """Randomised response, which is tight; a share of canaries is not answered for."""

    def score(rng: np.random.Generator, member: np.ndarray) -> np.ndarray:
        right = rng.random(member.size) < 1 / (1 + math.exp(-epsilon))
        return np.where(
            rng.random(member.size) < abstain, 0.0, np.where(right == member, 1.0, -1.0)
        )

    return score


def gaussian(mu: float) -> Score:
    return lambda rng, member: rng.normal(0, 1, member.size) + mu * member


def reveal(epsilon: float, delta: float, together: int) -> Score:
    """Randomised response; with chance mδ/k, k canaries are revealed at once: (ε, δ)-DP."""

    def score(rng: np.random.Generator, member: np.ndarray) -> np.ndarray:
        scores = respond(epsilon)(rng, member)
        if rng.random() < member.size * delta / together:
            who = rng.choice(member.size, together, replace=False)
            scores[who] = np.where(member[who], 9.0, -9.0)
        return scores

    return score


def play(score: Score, canaries: int, rng: np.random.Generator, **stated: Any) -> Scores:
    member = np.zeros(canaries, bool)
    while not 0 < member.sum() < canaries:
        member = rng.random(canaries) < stated.get("inclusion", 0.5)
    scores = score(rng, member)
    return Scores(scores[member], scores[~member], design="coins", **stated)


def play_pairs(score: Score, pairs: int, rng: np.random.Generator, design: str) -> Scores:
    """Canaries of a fixed number inside, or of pairs, each scored by a mechanism of its own."""
    member = np.repeat([True, False], pairs)
    scores = score(rng, member)
    return Scores(scores[member], scores[~member], design=design)  # type: ignore[arg-type]


def play_replacements(epsilon: float, pairs: int, rng: np.random.Generator) -> Scores:
    """Randomised response of which canary of a pair is in: tight where records are replaced."""
    right = rng.random(pairs) < 1 / (1 + math.exp(-epsilon))
    return Scores(right.astype(float), 1.0 - right, design="paired")


CELLS: dict[str, tuple[Callable[[int, np.random.Generator], Scores], float, float, str]] = {
    "response": (lambda m, rng: play(respond(1.0), m, rng), 1.0, 0.0, "unstated"),
    "response 0": (lambda m, rng: play(respond(0.0), m, rng), 0.0, 0.0, "unstated"),
    "response 3": (lambda m, rng: play(respond(3.0), m, rng), 3.0, 0.0, "unstated"),
    "abstain": (lambda m, rng: play(respond(1.0, 0.7), m, rng), 1.0, 0.0, "unstated"),
    "gaussian": (
        lambda m, rng: play(gaussian(0.5), m, rng),
        gdp_epsilon(0.5, 0.1),
        0.1,
        "unstated",
    ),
    "revealed": (lambda m, rng: play(reveal(1.0, 1e-3, 10), m, rng), 1.0, 1e-3, "unstated"),
    "in 0.1": (
        lambda m, rng: play(respond(1.0), m, rng, inclusion=0.1),
        1.0,
        0.0,
        "unstated",
    ),
    "in 0.9": (
        lambda m, rng: play(reveal(1.0, 1e-4, 8), m, rng, inclusion=0.9),
        1.0,
        1e-4,
        "unstated",
    ),
    "pairs": (lambda m, rng: play_pairs(respond(1.0), m // 2, rng, "paired"), 1.0, 0.0, "unstated"),
    "fixed": (
        lambda m, rng: play_pairs(respond(1.0), m // 2, rng, "fixed"),
        1.0,
        0.0,
        "add_remove",
    ),
    "replaced": (lambda m, rng: play_replacements(1.0, m // 2, rng), 1.0, 0.0, "replace"),
    "pairs of gaussians": (
        lambda m, rng: play_pairs(gaussian(0.5), m // 2, rng, "paired"),
        gdp_epsilon(0.5, 0.01),
        0.01,
        "add_remove",
    ),
}


def count_wrong(cell: str, canaries: int, audits: int, rng: np.random.Generator) -> int:
    draw, truth, delta, adjacency = CELLS[cell]
    wrong = 0
    for seed in range(audits):
        found = one_run.METHOD.find if adjacency != "replace" else one_run.METHOD.find_replaced
        assert found is not None
        epsilon = found(
            draw(canaries, rng),
            delta=delta,
            alpha=0.05,
            rule=AllRanks(),
            rng=np.random.default_rng(seed),
        ).epsilon
        wrong += epsilon > truth
    return wrong


@pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")
@pytest.mark.parametrize("canaries", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cell", run_often(CELLS, ["response", "abstain", "in 0.1"]))
def test_it_is_wrong_as_seldom_as_it_says(
    cell: str, canaries: int, rng: np.random.Generator
) -> None:
    assert not oracles.too_often(count_wrong(cell, canaries, 400, rng), 400)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")
@pytest.mark.parametrize("canaries", [20, 50, 200, 1000, 10_000])
@pytest.mark.parametrize("cell", CELLS)
def test_it_is_wrong_as_seldom_as_it_says_in_many_audits(
    cell: str, canaries: int, rng: np.random.Generator
) -> None:
    audits = 20_000 if canaries <= 1000 else 5_000
    assert not oracles.too_often(count_wrong(cell, canaries, audits, rng), audits)


# Mistakes that must be caught


def worst_error(canaries: int, delta: float, value: float, claimed: float) -> float:
    """How often a value is reached under the worst mechanism of (claimed, δ) for one look.

    It multiplies the chances of randomised response where everybody's look happens.
    """
    family = LookFamily(Game(canaries=canaries, delta=delta), 0.05)
    look = int(np.flatnonzero(family.made == canaries)[-1])
    v = int(family.find_least(value)[look])
    law = scipy.stats.binom(canaries, 1 / (1 + math.exp(-claimed)))
    tail = float(law.sf(v - 1))
    return tail + canaries * delta * tail * (1 - tail) / (v * float(law.pmf(v)))


def test_forgetting_delta_is_caught() -> None:
    """With mδ = 0.3 whoever leaves δ out errs in more than 5 % under the worst mechanism."""
    m, delta, value = 100, 0.003, 1.5
    true = find_epsilon(Game(canaries=m, delta=delta), 0.05, value)
    look = Game(canaries=m, delta=0.0)
    family = LookFamily(look, 0.05)
    v = int(family.find_least(value)[np.flatnonzero(family.made == m)[-1]])
    naive = math.log((chance := float(scipy.stats.beta.ppf(0.05, v, m - v + 1))) / (1 - chance))
    assert worst_error(m, delta, value, naive - 1e-9) > 0.054
    assert 0 < true < naive
    assert worst_error(m, delta, value, true) <= 0.05


def test_the_chance_of_the_wrong_side_is_caught(rng: np.random.Generator) -> None:
    """Of 90 % inside, "in" is right nine times in ten without any leak."""
    member = rng.random(500) < 0.9
    right, wrong = Game(canaries=500, inclusion=0.9), Game(canaries=500, inclusion=0.1)
    counts = np.cumsum(member)
    for game, proved in ((right, False), (wrong, True)):
        family = LookFamily(game, 0.05)
        of_in = family.sides == "in"
        correct = np.where(of_in, counts[np.minimum(family.ranks, 500) - 1], 0)
        assert (family.order(correct)[0] > 1) == proved


def test_pairs_of_one_step_would_be_caught(rng: np.random.Generator) -> None:
    """Two canaries of a pair tell of the coin together: e^(2ε), where ε each."""
    wrong = 0
    for _ in range(20):
        scores = play_pairs(respond(1.0), 500, rng, "paired")
        found = [
            em.epsilon_lower_bound(scores, delta=0.0, adjacency=adjacency).epsilon  # type: ignore[arg-type]
            for adjacency in ("replace", "add_remove", "unstated")
        ]
        assert found[1] == found[2] == pytest.approx(found[0] / 2, rel=1e-4)
        wrong += found[0] > 1.0
        assert found[1] < 1.0
    assert wrong == 20


# Power


def mean_bound(score: Score, canaries: int, delta: float, rule: Any, audits: int = 30) -> float:
    rng = np.random.default_rng(0)
    return float(
        np.mean(
            [
                em.epsilon_lower_bound(play(score, canaries, rng), delta=delta, rule=rule).epsilon
                for _ in range(audits)
            ]
        )
    )


@pytest.mark.parametrize("canaries", [20, 100, 1000, 10_000])
def test_perfect_separation_proves_what_theory_lets_it(canaries: int) -> None:
    chance = 0.05 ** (1 / canaries)
    most = math.log(chance / (1 - chance))
    half = np.arange(canaries // 2)
    found = em.epsilon_lower_bound(Scores(1.0 + half, -1.0 - half, design="coins"), delta=0.0)
    assert most - 1e-3 < found.epsilon <= most


def memorise(share: float) -> Score:
    return lambda rng, member: np.where(
        member & (rng.random(member.size) < share),
        9 + rng.random(member.size),
        rng.random(member.size),
    )


@pytest.mark.parametrize(
    ("score", "canaries", "delta", "least"),
    [  # what jax-privacy 2.0 proves on average, α divided by the vertices of its hull
        (lambda rng, member: member + rng.random(member.size) / 2, 100, 1e-5, 2.437),
        (lambda rng, member: member + rng.random(member.size) / 2, 1000, 1e-5, 4.799),
        (gaussian(3.0), 100, 1e-5, 2.038),
        (respond(2.0, 0.7), 1000, 1e-5, 1.436),
        (gaussian(1.0), 1000, 1e-5, 1.279),
        pytest.param(gaussian(1.0), 10_000, 1e-5, 1.055, marks=pytest.mark.slow),
        (respond(1.0), 1000, 1e-5, 0.806),
        pytest.param(respond(1.0), 10_000, 1e-5, 0.93, marks=pytest.mark.slow),
        (memorise(0.1), 1000, 1e-5, 2.083),
        (memorise(0.02), 10_000, 1e-5, 0.909),
    ],
)
@pytest.mark.in_turn(2)
def test_no_peer_proves_more(score: Score, canaries: int, delta: float, least: float) -> None:
    assert mean_bound(score, canaries, delta, None) > 0.99 * least


@pytest.mark.parametrize(
    ("score", "canaries", "delta"),
    [
        (gaussian(1.0), 100, 0.0),
        (gaussian(2.0), 1000, 1e-5),
        (respond(2.0), 100, 0.0),
        (respond(2.0), 1000, 1e-5),
        (respond(4.0), 1000, 1e-5),
        (memorise(0.1), 1000, 1e-5),
        (respond(2.0), 1000, 1e-3),
    ],
)
@pytest.mark.in_turn(3)
def test_other_rules_prove_no_more(score: Score, canaries: int, delta: float) -> None:
    ours = mean_bound(score, canaries, delta, None, 20)
    for rule in (RankGrid(), HoldOut(), Bonferroni()):
        if canaries == 100 or rule != Bonferroni():
            assert mean_bound(score, canaries, delta, rule, 20) < 1.02 * ours, rule


# Designs


@pytest.mark.parametrize("rule", [RankGrid(), HoldOut(), Bonferroni(), Fixed(0.5)])
def test_other_rules_are_for_fair_coins(rule: Any, rng: np.random.Generator) -> None:
    for scores in (
        play(gaussian(1.0), 200, rng, inclusion=0.3),
        play_pairs(gaussian(1.0), 100, rng, "paired"),
        play_pairs(gaussian(1.0), 100, rng, "fixed"),
    ):
        with pytest.raises(InvalidArgument, match=r"fair coin tosses.*AllRanks\(\)"):
            em.epsilon_lower_bound(scores, delta=1e-5, rule=rule)


def test_same_seed_same_bound_and_ties_by_the_seed(rng: np.random.Generator) -> None:
    for scores in (
        play(respond(2.0, 0.5), 200, rng),
        play_pairs(respond(2.0), 100, rng, "fixed"),
        play_pairs(respond(2.0), 100, rng, "paired"),
    ):
        found = [
            em.epsilon_lower_bound(scores, delta=0.0, seed=seed) for seed in (0, 0, 1, 2, 3, 4)
        ]
        assert found[0] == found[1]
        assert len({bound.epsilon for bound in found}) > 1 or scores.design == "paired"


def test_a_swap_of_sides_and_signs_keeps_the_order_of_magnitude(rng: np.random.Generator) -> None:
    scores = play(gaussian(2.0), 500, rng)
    turned = Scores(-scores.outside, -scores.inside, design="coins")
    pair = [em.epsilon_lower_bound(part, delta=1e-5).epsilon for part in (scores, turned)]
    assert pair[0] == pytest.approx(pair[1], rel=0.2)


def test_small_errors_are_paid_for_too() -> None:
    """Perfect separation at any confidence proves what theory lets it."""
    half = np.arange(500)
    scores = Scores(1.0 + half, -1.0 - half, design="coins")
    for alpha in (0.3, 1e-3, 1e-12):
        chance = math.exp(math.log(alpha) / 1000)
        most = math.log(chance / (1 - chance))
        found = one_run.find(
            scores, delta=0.0, alpha=alpha, rule=AllRanks(), rng=np.random.default_rng(0)
        )
        assert most - 2e-3 < found.epsilon <= most
