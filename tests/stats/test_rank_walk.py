"""The exact law of rank looks: against closed forms, counted paths and simulated mechanisms."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from epsilometer.stats import rank_walk
from epsilometer.stats.rank_looks import LookFamily
from epsilometer.stats.rank_walk import Looks, WalkLaw


def separation(epsilon: float, m: int, n: int) -> float:
    """Chance that the worst ε-DP mechanism separates all scores, in closed form."""
    p = 1 / (1 + math.exp(-epsilon))
    q = 1 - p

    def choose(n: np.ndarray | int, k: np.ndarray | int) -> np.ndarray:
        return np.asarray(gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(n - k + 1.0))

    a, b = np.arange(n + 1), np.arange(m)
    first = m * math.log(p) + choose(n, a) + a * math.log(q) + (n - a) * math.log(p)
    second = n * math.log(p) + choose(m, b) + b * math.log(p) + (m - b) * math.log(q)
    return float(
        np.exp(first - choose(m + a, a)).sum() + np.exp(second - choose(n + m - b, n)).sum()
    )


def enumerate_hit(looks: Looks, epsilon: float, delta: float) -> float:
    """Chance that some look happens: every score in every outcome, every order within them."""
    high, low = rank_walk.compute_weights(epsilon, delta)
    weights = np.array([[delta, high, low, 0.0], [0.0, low, high, delta]])
    n, m = looks.n_out, looks.n_in
    total = 0.0
    for word in itertools.product((0, 1), repeat=n + m):  # 0 inside, 1 outside, from above
        if sum(word) != n or not _hit(word, looks):
            continue
        state = {(0, 0): 1.0}  # (outcome, scores in it) → weight
        for label in word:
            following: dict[tuple[int, int], float] = {}
            for (outcome, size), weight in state.items():
                for to in range(outcome, 4):
                    after = size + 1 if to == outcome else 1
                    gain = weight * weights[label, to] / after
                    if gain:
                        following[to, after] = following.get((to, after), 0.0) + gain
            state = following
        total += sum(state.values())
    return total * math.factorial(n) * math.factorial(m)


def _hit(word: tuple[int, ...], looks: Looks) -> bool:
    labels = np.array(word)
    for k, x in zip(looks.k, looks.x, strict=True):
        if np.flatnonzero(labels == 0)[x - 1] < np.flatnonzero(labels == 1)[k - 1]:
            return True
    return False


def simulate(looks: Looks, epsilon: float, delta: float, draws: int) -> float:
    rng = np.random.default_rng(3)
    u = np.sort(rng.random((draws, looks.n_out)), axis=1)
    w = np.sort(rng.random((draws, looks.n_in)), axis=1)
    v = np.maximum(
        0, np.maximum(np.exp(-epsilon) * (w - delta), 1 - delta - np.exp(epsilon) * (1 - w))
    )
    return float(np.mean((v[:, looks.x - 1] < u[:, looks.k - 1]).any(axis=1)))


@pytest.mark.parametrize(
    ("m", "n", "epsilon"), [(50, 50, 3.4), (100, 100, 4.18), (1000, 1000, 6.5), (30, 400, 4.5)]
)
def test_perfect_separation_has_its_closed_form(m: int, n: int, epsilon: float) -> None:
    law = WalkLaw(Looks(np.array([1]), np.array([m]), n, m), epsilon, delta=0.0, alpha=0.05)
    for near in (epsilon, epsilon + law.radius / 2, epsilon - law.radius / 2):
        assert law.hit(near) == pytest.approx(separation(near, m, n), rel=1e-6)


@pytest.mark.parametrize(
    ("size", "most"), [(50, 3.4726), (100, 4.1835), (1000, 6.5020), (10_000, 8.8061)]
)
def test_perfect_separation_proves_the_most_there_is(size: int, most: float) -> None:
    looks = Looks(np.array([1]), np.array([size]), size, size)
    found = rank_walk.find_epsilon(looks, most - 0.4, delta=0.0, alpha=0.05)
    assert most - 5e-4 < found < most + 1e-4


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0, 3),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.data(),
)
def test_agrees_with_all_orders(
    m: int, n: int, epsilon: float, delta: float, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, min(m, n)))
    k, x = (
        np.array(sorted(data.draw(st.sets(st.integers(1, most), min_size=size, max_size=size))))
        for most in (n, m)
    )
    looks = Looks(k, x, n, m)
    found = WalkLaw(looks, epsilon, delta=delta, alpha=0.05).hit(epsilon)
    # What the edges of windows leave out counts as a hit.
    assert found == pytest.approx(enumerate_hit(looks, epsilon, delta), abs=1e-5)


@pytest.mark.parametrize(
    ("m", "n", "epsilon", "delta"),
    [(40, 30, 0.5, 0.02), (200, 200, 1.0, 1e-3), (20, 300, 2.0, 0.0), (300, 20, 0.0, 0.01)],
)
@pytest.mark.in_turn(2)
def test_agrees_with_simulated_mechanisms(m: int, n: int, epsilon: float, delta: float) -> None:
    family = LookFamily(m, n, delta=delta, alpha=0.1)
    mark = next(mark for mark in range(family.marks) if family.value_of(mark) >= epsilon)
    looks = family.looks(mark)
    draws = 40_000
    found = WalkLaw(looks, epsilon, delta=delta, alpha=0.05).hit(epsilon)
    expected = simulate(looks, epsilon, delta, draws)
    assert found == pytest.approx(expected, abs=4 * math.sqrt(expected / draws))


@pytest.mark.parametrize(("m", "n"), [(1000, 1000), (3000, 3000), (20, 20_000), (5000, 300)])
def test_few_times_stand_for_all(m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    family = LookFamily(m, n, delta=1e-5, alpha=0.05)
    for mark in range(70, 1200, 173):
        looks, epsilon = family.looks(mark), max(0.0, float(family.value_of(mark)))
        few = WalkLaw(looks, epsilon, delta=1e-5, alpha=0.05).hit(epsilon)
        with monkeypatch.context() as patch:
            patch.setattr(rank_walk, "_ALL_TIMES", 10**9)
            every = WalkLaw(looks, epsilon, delta=1e-5, alpha=0.05).hit(epsilon)
        assert abs(few - every) < rank_walk._MARGIN * every


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_chance_is_alpha_at_what_is_found(delta: float) -> None:
    family = LookFamily(200, 300, delta=delta, alpha=0.05)
    for mark in (100, 200, 400, 700):
        for off in (-0.3, 0.0, 0.4):  # a bad guess costs time alone
            guess = float(family.value_of(mark)) + off
            looks = family.looks(mark)
            found = rank_walk.find_epsilon(looks, guess, delta=delta, alpha=0.05)
            hit = WalkLaw(looks, found, delta=delta, alpha=0.05).hit(found)
            assert hit > 0.0499
            assert found == 0 or hit <= 0.05


def test_transforms_give_what_sums_give(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = LookFamily(4000, 4000, delta=1e-5, alpha=0.05).looks(300)
    direct = WalkLaw(looks, 0.7, delta=1e-5, alpha=0.05).hit(0.7)
    monkeypatch.setattr(rank_walk, "_DIRECT", 0)
    assert WalkLaw(looks, 0.7, delta=1e-5, alpha=0.05).hit(0.7) == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("alpha", [0.2, 1e-3, 1e-8])
def test_small_chances_are_right_too(alpha: float) -> None:
    """A single look of few scores, whose chance is known."""
    looks = Looks(np.array([1]), np.array([60]), 60, 60)
    found = rank_walk.find_epsilon(looks, 1.0, delta=0.0, alpha=alpha)
    assert separation(found, 60, 60) == pytest.approx(alpha, rel=5e-3)


def sum_all(looks: Looks, epsilon: float, delta: float) -> float:
    """Chance that some look happens: every place of the outcomes' edges, no nodes, no windows."""
    return 1 - _sum_avoiding(looks, epsilon, delta)


def _sum_avoiding(looks: Looks, epsilon: float, delta: float) -> float:
    n, m = looks.n_out, looks.n_in
    weights = rank_walk.compute_weights(epsilon, delta)
    above = _weigh_paths(looks, *weights, delta)
    below = _weigh_paths(looks.turned, *weights, delta)[::-1]  # of inside scores, from below
    total = 0.0
    for s, (front, back) in enumerate(zip(above, below, strict=True)):
        j = np.arange(max(0, s - m), min(s, n) + 1)  # outside above; m − (s − j) inside below
        logs = front[j] + back[m - s + j]
        total += float(np.exp(logs + gammaln(n + 1) + gammaln(m + 1)).sum())
    return total


def _weigh_paths(looks: Looks, high: float, low: float, delta: float) -> list[np.ndarray]:
    """Logarithm of the weight of all ways down that meet no look, by steps and by scores outside.

    A way of s steps, a of which were revealed, has the weight δ^a / a! · Π w / (s − a)!.
    """
    n, m = looks.n_out, looks.n_in
    checks = dict(zip((looks.k - 1 + looks.x).tolist(), looks.k.tolist(), strict=True))
    rows = 1 if delta == 0 else min(m, min(checks) - 1, 80) + 1
    chances = np.zeros((rows, n + 1))
    revealed = np.arange(rows)
    log_delta = revealed * (math.log(delta) if delta else 0.0) - gammaln(revealed + 1.0)
    # Steps are weighed by the shares of both sides first: powers of ½ would underflow.
    share_in, share_out = m / (n + m), n / (n + m)
    log_in, log_out = math.log(high / share_in), math.log(low / share_out)
    found = []
    for s in range(n + m + 1):
        if s:
            moved = share_in * chances
            moved[:, 1:] += share_out * chances[:, :-1]
            chances = moved
        if s < rows:
            chances[s] = np.arange(n + 1) == 0  # all steps so far were revealed
        if s in checks:
            chances[:, : checks[s]] = 0.0
        walked = np.maximum(s - revealed, 0)
        logs = log_delta - gammaln(walked + 1.0) + walked * log_in
        ways = np.where(s >= revealed, logs, -np.inf)
        peak = ways.max()
        with np.errstate(divide="ignore"):
            tilt = np.arange(n + 1) * (log_out - log_in)
            found.append(np.log(np.exp(ways - peak) @ chances) + peak + tilt)
    return found


def draw_looks(rng: np.random.Generator, most: int) -> tuple[Looks, float]:
    """Looks anywhere, each about as rare as it pleases, and a guess of their ε."""
    n, m = (round(math.exp(rng.uniform(math.log(5), math.log(most)))) for _ in range(2))
    epsilon = float(rng.choice([0.2, 1.0, 3.0]) * rng.uniform(0.5, 1.5))
    k = np.unique(np.ceil(np.exp(rng.uniform(0, math.log(n), rng.integers(1, 40)))).astype(int))
    rate = k / (n + 1)
    share = np.minimum(np.exp(epsilon) * rate, 1 - np.exp(-epsilon) * (1 - rate))
    spread = np.sqrt(share * (1 - share) / m + np.exp(2 * epsilon) * rate * (1 - rate) / n)
    x = np.ceil(m * np.minimum(share + rng.uniform(1, 5) * spread, 1)).astype(int)
    stairs = np.flatnonzero((np.diff(x, prepend=0) > 0) & (x >= 1))
    return Looks(k[stairs], x[stairs], n, m), epsilon


def compare_with_sum(seed: int, most: int) -> None:
    """Whatever the looks, α is kept, and nearly all of it is used."""
    rng = np.random.default_rng(seed)
    looks, guess = draw_looks(rng, most)
    alpha = float(rng.choice([0.05, 1e-3, 1e-4, 1e-5, 1e-6]))
    delta = float(rng.choice([0.0, 1e-5, 1e-3]))
    found = rank_walk.find_epsilon(looks, guess, delta=delta, alpha=alpha)
    if found == 0:
        assert sum_all(looks, 1e-5, delta) > alpha * (1 - 3 * rank_walk._MARGIN)
        return
    chance = sum_all(looks, found, delta)
    assert alpha * (1 - 3 * rank_walk._MARGIN) < chance < alpha


@pytest.mark.parametrize(("m", "n", "delta"), [(3, 5, 0.0), (6, 4, 0.01), (5, 5, 0.3)])
def test_the_sum_is_that_of_all_orders(m: int, n: int, delta: float) -> None:
    looks = Looks(np.array([1, 3]), np.array([2, 3]), n, m)
    for epsilon in (0.0, 0.7, 2.0):
        expected = enumerate_hit(looks, epsilon, delta)
        assert sum_all(looks, epsilon, delta) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_keeps_alpha_whatever_the_looks(seed: int) -> None:
    compare_with_sum(seed, 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_keeps_alpha_of_many_looks_and_scores(seed: int) -> None:
    compare_with_sum(seed, 2_000)


@pytest.mark.parametrize("alpha", [1e-6, 1e-9])
@pytest.mark.parametrize(
    ("n", "m"), [(100, 100), (20, 5_000), (100, 100_000), (99_000, 99_000)], ids=str
)
def test_digits_suffice_where_the_law_is_used(n: int, m: int, alpha: float) -> None:
    """A look that never happens has chance 0; less would be what rounding took from α.

    At 10⁻⁹ it took up to a quarter of α from 100 + 100,000 scores.
    """
    family = LookFamily(m, n, delta=0.0, alpha=alpha)
    exact = rank_walk.is_affordable(m, n, delta=0.0, alpha=alpha)
    assert exact or alpha < 1e-8
    for epsilon in (0.0, 1.0, 4.0):
        beyond = int(np.argmax(family.value_of(np.arange(family.marks)) >= epsilon + 3))
        law = WalkLaw(family.looks(beyond), epsilon, delta=0.0, alpha=alpha)
        assert not exact or law.hit(epsilon) > -rank_walk._MARGIN * alpha


def test_factorials_have_all_digits() -> None:
    logs = rank_walk._log_factorials(1 << 12)
    np.testing.assert_allclose(logs, gammaln(np.arange(logs.size) + 1.0), rtol=1e-15, atol=1e-15)


def test_balanced_samples_walk_once() -> None:
    """The walk from below is that from above; of other samples both are walked."""
    looks = LookFamily(400, 400, delta=1e-3, alpha=0.05).looks(600)
    once = WalkLaw(looks, 1.5, delta=1e-3, alpha=0.05)
    assert np.array_equal(looks.turned.k, looks.k)
    assert once.hit(1.5) == pytest.approx(sum_all(looks, 1.5, 1e-3), abs=5e-5)
