"""The law of looks at guesses, against enumeration and the linear program over all mechanisms."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.special
import scipy.stats

from epsilometer.stats import guess_looks
from epsilometer.stats.estimators import one_run
from epsilometer.stats.guess_looks import Game, LookFamily

PLACES = 7
VECTORS = np.array(list(itertools.product([0, 1], repeat=PLACES)))


def largest_chance(event: np.ndarray, odds: np.ndarray, lost: float) -> float:
    """The largest chance of an event of right guesses under (ε, δ)-DP, with mδ = ``lost``.

    Averaged over relabellings, a mechanism is a law ν of which places are right, and DP says
    Σ_j Σ_R [ν(R) − c_j·ν(R′)]₊ ≤ mδ: a linear program.
    """
    many, size = VECTORS.size, len(VECTORS)
    numbers = VECTORS @ (1 << np.arange(PLACES)[::-1])
    where = np.argsort(numbers)
    rows, columns, values = [], [], []
    for row, (at, place) in enumerate(itertools.product(range(size), range(PLACES))):
        turned = where[numbers[at] ^ (1 << (PLACES - 1 - place))]
        right = VECTORS[at, place]
        rows += [row] * 3
        columns += [at, turned, size + row]
        values += [1.0, -odds[place] if right else -math.exp(2 * EPSILON) / odds[place], -1.0]
    limits = scipy.sparse.coo_matrix((values, (rows, columns)), shape=(many, size + many))
    total = np.append(np.zeros(size), np.ones(many))
    found = scipy.optimize.linprog(
        -np.append(event, np.zeros(many)),
        A_ub=scipy.sparse.vstack([limits, total[None]]),
        b_ub=np.append(np.zeros(many), lost),
        A_eq=1 - total[None],
        b_eq=[1],
    )
    return float(-found.fun)


EPSILON = 0.7
CHANCE = 1 / (1 + math.exp(-EPSILON))


def happens(*looks: tuple[int, int]) -> np.ndarray:
    return np.any([VECTORS[:, :made].sum(axis=1) >= right for made, right in looks], axis=0)


@pytest.mark.parametrize("lost", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("look", [(7, 7), (7, 6), (7, 4), (5, 4), (3, 3)])
def test_a_p_value_is_attained_by_some_mechanism(look: tuple[int, int], lost: float) -> None:
    odds = np.full(PLACES, math.exp(EPSILON))
    found = one_run.p_value(PLACES, *look, epsilon=EPSILON, delta=lost / PLACES)
    assert found == pytest.approx(largest_chance(happens(look), odds, lost), abs=1e-7)


@pytest.mark.parametrize("lost", [0.0, 0.01, 0.1])
@pytest.mark.parametrize(
    "looks",
    [
        ((3, 3), (5, 4)),
        ((3, 3), (5, 5), (7, 6)),
        ((2, 2), (4, 4), (6, 5)),
        ((4, 3), (5, 4), (6, 5)),
    ],
)
def test_no_mechanism_makes_some_look_happen_more_often(
    looks: tuple[tuple[int, int], ...], lost: float
) -> None:
    made, right = np.array(looks).T
    odds = np.full(PLACES, math.exp(EPSILON))
    worst = largest_chance(happens(*looks), odds, lost)
    alone = guess_looks.compute_chance(made, right, CHANCE, alpha=0.05)
    slope = guess_looks.limit_slope(made, right, CHANCE)
    nested = guess_looks._limit_nested(int(made[0]), int(right[0]), CHANCE)
    assert alone == pytest.approx(largest_chance(happens(*looks), odds, 0.0), abs=1e-7)
    assert worst <= alone + lost * slope + 1e-7
    assert worst <= alone + lost * nested + 1e-7
    if lost:  # forgetting δ is caught, and what is paid for it is not many times too much
        assert worst > alone + 0.4 * lost * slope


def test_the_published_price_of_delta_is_several_times_ours() -> None:
    """Theorem 5.2 of Steinke et al. 2023 has 2·maxᵢ Pr[v > W ≥ v − i]/i."""
    for made, right in ((100, 75), (1000, 760), (1000, 900)):
        for chance in (0.05, 0.01, 1e-4):
            q = scipy.special.betaincinv(right, made - right + 1, chance)
            epsilon = float(scipy.special.logit(q))
            law = scipy.stats.binom(made, scipy.special.expit(epsilon))
            i = np.arange(1, right + 1)
            theirs = 2 * np.max((law.sf(right - i - 1) - law.sf(right - 1)) / i)
            tail, more = (
                float(one_run.p_value(made, made, right, epsilon=epsilon, delta=delta))
                for delta in (0.0, 1e-6)
            )
            assert tail == pytest.approx(chance)
            assert 0 < (more - tail) / (made * 1e-6) < 0.4 * theirs


@pytest.mark.parametrize(("chance", "alpha"), [(0.6, 0.05), (0.9, 1e-6), (0.99, 0.3)])
def test_the_chance_of_looks_is_that_of_a_walk(chance: float, alpha: float) -> None:
    made = np.array([5, 8, 30, 31, 200])
    right = np.minimum(made, np.ceil(made * chance + 2 * np.sqrt(made * chance * (1 - chance))))
    made, right = guess_looks._drop_needless(made, right.astype(np.int64))
    law = {0: 1.0}
    happened = 0.0
    for step in range(1, int(made[-1]) + 1):
        moved: dict[int, float] = {}
        for count, mass in law.items():
            moved[count] = moved.get(count, 0.0) + mass * (1 - chance)
            moved[count + 1] = moved.get(count + 1, 0.0) + mass * chance
        law = moved
        for r, v in zip(made, right, strict=True):
            if r == step:
                happened += sum(mass for count, mass in law.items() if count >= v)
                law = {count: mass for count, mass in law.items() if count < v}
    found = guess_looks.compute_chance(made, right, chance, alpha=alpha)
    assert found == pytest.approx(happened, rel=1e-4)
    assert found >= happened - 1e-3 * alpha


def test_transforms_convolve_as_sums_do(rng: np.random.Generator) -> None:
    chances, kernel = rng.random(1500), rng.random(900)
    np.testing.assert_allclose(
        guess_looks._convolve(chances, kernel), np.convolve(chances, kernel), rtol=1e-9
    )


def test_needless_looks_never_happen_alone(rng: np.random.Generator) -> None:
    made = np.array([3, 5, 8, 12, 20])
    right = np.array([3, 5, 7, 7, 18])
    walks = np.cumsum(rng.random((2000, 20)) < 0.6, axis=1)[:, made - 1]
    kept = guess_looks._drop_needless(made, right)
    at = np.searchsorted(made, kept[0])
    assert kept[0].size < made.size
    np.testing.assert_array_equal(
        (walks >= right).any(axis=1), (walks[:, at] >= kept[1]).any(axis=1)
    )


@pytest.mark.parametrize(
    "game",
    [
        Game(canaries=100),
        Game(canaries=333, delta=1e-4),
        Game(canaries=400, inclusion=0.1, delta=1e-5),
        Game(canaries=150, paired=True, steps=2, delta=1e-5),
        Game(canaries=2),
        Game(canaries=1, paired=True),
    ],
)
def test_whoever_speaks_for_an_epsilon_has_its_least_counts(
    game: Game, rng: np.random.Generator
) -> None:
    family = LookFamily(game, 0.05)
    seen = []
    for chance in rng.uniform(0.5, 1.0, 40):
        right = rng.binomial(family.made, chance)
        value, look = family.order(right)
        if value == -math.inf:
            continue
        least = family.find_least(value - 1e-6)
        assert right[look] >= least[look]
        assert (right < family.find_least(value + 1e-6)).all()
        seen.append((value, guess_looks.find_epsilon(game, 0.05, value) if value > 0 else 0.0))
    values, epsilons = np.array(sorted(seen)).T if seen else (np.zeros(0),) * 2
    assert (np.diff(epsilons) >= -1e-5).all() or game.delta > 0
    assert (epsilons[values <= 0] == 0).all()


def test_looks_guess_everybody_and_lie_close() -> None:
    for canaries in (2, 3, 100, 101, 10_000):
        family = LookFamily(Game(canaries=canaries), 0.05)
        both = family.sides == "both"
        assert family.made.max() == canaries - canaries % 2
        ranks = family.ranks[both]
        assert (ranks[1:] <= np.maximum(ranks[:-1] + 1, 1.2 * ranks[:-1])).all()
        assert ranks[0] == 1


def test_small_looks_are_not_made_where_delta_costs_too_much() -> None:
    def smallest(delta: float) -> int:
        family = LookFamily(Game(canaries=1000, delta=delta), 0.05)
        return int(family.made[family.find_least(0.5) <= family.made].min())

    assert smallest(0.0) < smallest(1e-4) < smallest(1e-3) <= 1000
