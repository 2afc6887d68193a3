from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import Claim, ConfidenceSequence, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import bets
from epsilometer.stats.binomial import clopper_pearson_upper
from epsilometer.stats.sequential import anytime_limits, place_thresholds
from tests import oracles
from tests.conftest import run_often

Limits: TypeAlias = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _refuted_at_some_time(audit: ConfidenceSequence, pairs: np.ndarray, claim: float) -> bool:
    for start in range(0, pairs.shape[1], 10):
        audit.update(*pairs[:, start : start + 10])
        if audit.refuted(claim):
            return True
    return False


@pytest.mark.parametrize("epsilon", run_often([0.0, 1.0], [1.0]))
@pytest.mark.simulation
def test_no_look_at_any_time_is_wrong_too_often(epsilon: float, rng: np.random.Generator) -> None:
    """Randomised response: the claim is exactly true, and looked at 30 times."""
    audits, wrong = 500, 0
    honest = np.exp(epsilon) / (1 + np.exp(epsilon))
    for _ in range(audits):
        inside = rng.random(300) < honest
        outside = rng.random(300) >= honest
        audit = ConfidenceSequence([0.5], delta=0.0)
        pairs = np.stack([inside, outside]).astype(float)
        wrong += _refuted_at_some_time(audit, pairs, epsilon)
    assert not oracles.too_often(wrong, audits)


def tight_coins(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """Rates on the edge p = e^ε q + δ, at a share of the way to the corner."""
    false = share * (1 - delta) / (1 + np.exp(epsilon))
    return np.exp(epsilon) * false + delta, false


def draw_tight(law: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of runs of a mechanism that satisfies (1, δ)-DP and nothing better."""
    if law == "laplace":
        return 1 + rng.laplace(size=n), rng.laplace(size=n)
    if law == "atoms":  # 8 scores, of which each neighbour is 1/e or e times as probable
        weights = np.exp(np.repeat([-0.5, 0.5], 4))
        odds = weights / weights.sum()
        return 1.0 * rng.choice(8, n, p=odds), 1.0 * rng.choice(8, n, p=odds[::-1])
    share = {"corner": 1.0, "delta": 1.0, "edge": 0.2, "drift": 1.0, "moves": 0.2}[law]
    caught, false = tight_coins(1.0, DELTAS.get(law, 0.0), share)
    inside, outside = rng.random(n) < caught, rng.random(n) < false
    odd = np.arange(n) // 100 % 2 == 1
    if law == "drift":  # with and without the record change places
        inside, outside = np.where(odd, outside, inside), np.where(odd, inside, outside)
    if law == "moves":  # from one edge to the other
        inside, outside = np.where(odd, ~outside, inside), np.where(odd, ~inside, outside)
    return 1.0 * inside, 1.0 * outside


DELTAS = {"delta": 0.1}
LAWS = ["corner", "delta", "edge", "drift", "moves", "laplace", "atoms"]


@pytest.mark.parametrize("law", run_often(LAWS, ["corner", "drift", "laplace"]))
@pytest.mark.parametrize("audits", [30, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.simulation
def test_a_tight_claim_watched_at_every_pair_is_not_refuted_too_often(
    law: str, audits: int
) -> None:
    """The sequence places its thresholds too. At 80 %, so that errors would be seen."""
    wrong = 0
    for seed in range(audits):
        audit = ConfidenceSequence(delta=DELTAS.get(law, 0.0), confidence=0.8)
        for pair in zip(*draw_tight(law, 250, np.random.default_rng([7, seed])), strict=True):
            audit.update(*pair)
            if audit.refuted(1.0):
                wrong += 1
                break
    assert not oracles.too_often(wrong, audits, 0.2)


def test_forgetting_the_price_is_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classic mistake: an interval valid at one time, looked at many times."""
    monkeypatch.setattr(
        ConfidenceSequence,
        "_lack",
        lambda self, epsilon, top: (  # a normal test at the current time, right at ε = 0
            1.645 * np.sqrt(self.pairs / 2) - (self._inside[0] - np.exp(epsilon) * self._outside[0])
        ),
    )
    audits, wrong = 400, 0
    for _ in range(audits):
        audit = ConfidenceSequence([0.5], delta=0.0)
        wrong += _refuted_at_some_time(audit, (rng.random((2, 300)) < 0.5).astype(float), 0.0)
    assert oracles.too_often(wrong, audits)


def test_refutes_what_is_false_and_stops_early(rng: np.random.Generator) -> None:
    audit = ConfidenceSequence.from_pilot(
        Scores(rng.normal(3, 1, 200), rng.normal(0, 1, 200)), delta=1e-5
    )
    needed = 0
    while not audit.refuted(Claim(epsilon=1.0, delta=1e-5)):
        audit.update(rng.normal(3, 1), rng.normal(0, 1))
        needed += 1
        assert needed < 500
    assert audit.lower_bound().epsilon > 1.0
    assert audit.lower_bound().valid


def test_bound_never_falls_and_does_not_depend_on_how_pairs_came(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(2, 1, 400), rng.normal(0, 1, 400)
    one_by_one = ConfidenceSequence([1.0, 2.0], delta=1e-5)
    at_once = ConfidenceSequence([1.0, 2.0], delta=1e-5)
    at_once.update(inside, outside)
    best = 0.0
    for a, b in zip(inside, outside, strict=True):
        one_by_one.update(a, b)
    assert one_by_one.lower_bound() == at_once.lower_bound()
    for a, b in zip(-inside, outside, strict=True):  # evidence to the contrary
        one_by_one.update(a, b)
        assert one_by_one.lower_bound().epsilon >= best
        best = one_by_one.lower_bound().epsilon


def test_wealth_is_what_the_bets_pay(rng: np.random.Generator) -> None:
    """Against the product over pairs, one bet at a time."""
    inside, outside, delta = rng.normal(1, 1, 50), rng.normal(0, 1, 50), 0.01
    audit = ConfidenceSequence([0.5, 1.0], delta=delta)
    audit.update(inside, outside)
    payoffs = np.exp(bets.compute_log_payoffs(0.3, delta, top=0.35))
    for column, threshold in enumerate([0.5, 1.0]):
        outcome = 2 * (inside < threshold) + (outside < threshold)
        wealth = np.prod(payoffs[:, outcome], axis=1)
        expected = np.log(np.exp(bets.LOG_WEIGHTS) @ wealth / 2)
        assert audit._log_wealth(0.3, 0.35)[column] == pytest.approx(expected)


def test_a_sequence_places_thresholds_by_earlier_pairs_alone(rng: np.random.Generator) -> None:
    """Each stage against a sequence that was given its thresholds and the later pairs."""
    inside, outside = rng.normal(2, 1, 100), rng.normal(0, 1, 100)
    audit = ConfidenceSequence(delta=1e-3)
    audit.update(inside, outside)
    start, wealth = 0, []
    for stage, share in ((8, 0.35), (32, 0.3)):
        thresholds = place_thresholds(inside[:stage], outside[:stage])
        assert np.all(audit.thresholds[start : start + thresholds.size] == thresholds)
        start += thresholds.size
        alone = ConfidenceSequence(thresholds, delta=1e-3)
        alone.update(inside[stage:], outside[stage:])
        wealth.append(alone._log_wealth(1.0, 1.0) + np.log(share))
    assert audit.thresholds.size == start
    assert audit._log_wealth(1.0, 1.0) == pytest.approx(np.concatenate(wealth))
    total = np.log(0.35 + np.exp(np.concatenate(wealth)).sum())  # 0.35 waits for later stages
    assert audit._lack(1.0, 1.0) == pytest.approx(np.log(1 / 0.05) - total)


def test_before_the_first_threshold_nothing_is_refuted() -> None:
    audit = ConfidenceSequence(delta=0.0, confidence=0.05)
    audit.update([9.0] * 7, [0.0] * 7)
    found = audit.lower_bound()
    assert (found.epsilon, found.threshold, found.basis) == (0.0, np.inf, ())
    assert audit.ceiling() == np.inf
    assert not audit.refuted(0.0)


def test_bad_calls_are_told() -> None:
    audit = ConfidenceSequence([0.0], delta=1e-5)
    for call in (
        audit.lower_bound,
        lambda: audit.update([1.0, 2.0], [1.0]),
        lambda: audit.update(float("nan"), 1.0),
        lambda: audit.refuted(Claim(epsilon=1.0, delta=1e-6)),
        lambda: audit.refuted(-1.0),
        lambda: ConfidenceSequence([], delta=1e-5),
        lambda: ConfidenceSequence([0.0], delta=2.0),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()
    assert not audit.refuted(1.0)


STEPS = 1000


@cache
def every_limit(limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    """Of every count (row) at every time (column)."""
    trials = np.arange(1, STEPS + 1)
    return limits(np.minimum(np.arange(STEPS + 1)[:, None], trials), trials)


def ever_fails(limits: Limits, p: float, rng: np.random.Generator) -> tuple[int, int]:
    """Of how many paths of 1,000 coins either limit ever fails, and of how many paths."""
    paths = 2000
    heads = np.cumsum(rng.random((paths, STEPS)) < p, axis=1)
    low, high = every_limit(limits)
    at = np.arange(STEPS)
    wrong = (low[heads, at] > p) | (high[heads, at] < p)
    return int(wrong.any(axis=1).sum()), paths


def anytime(successes: np.ndarray, trials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return anytime_limits(successes, trials, alpha=0.05)


def at_one_time(successes: np.ndarray, trials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's, which hold at a time fixed beforehand."""
    low = 1 - clopper_pearson_upper(trials - successes, trials, alpha=0.025)
    return low, clopper_pearson_upper(successes, trials, alpha=0.025)


@pytest.mark.parametrize("p", run_often([0.003, 0.1, 0.5, 0.97], [0.5]))
@pytest.mark.simulation
def test_limits_hold_at_all_times_together(p: float, rng: np.random.Generator) -> None:
    assert not oracles.too_often(*ever_fails(anytime, p, rng))


@pytest.mark.simulation
def test_limits_for_one_time_do_not_hold_at_all_times(rng: np.random.Generator) -> None:
    """The mutation of the test above: it can fail."""
    assert oracles.too_often(*ever_fails(at_one_time, 0.5, rng))


@given(
    st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.floats(1e-6, 0.5),
)
def test_limits_are_where_the_bettor_reaches_his_goal(count: tuple[int, int], alpha: float) -> None:
    """His wealth in mpmath, at the limits: 1/α, and less between them."""
    k, n = count
    low, high = (float(limit) for limit in anytime_limits(k, n, alpha=alpha))

    def wealth(p: float) -> mpmath.mpf:
        with mpmath.workdps(40):
            mixed = mpmath.beta(k + 0.5, n - k + 0.5) / mpmath.beta(0.5, 0.5)
            return mixed / (mpmath.mpf(p) ** k * (1 - mpmath.mpf(p)) ** (n - k))

    assert 0 <= low <= k / n <= high <= 1
    if low > 0:
        assert float(wealth(low) * alpha) == pytest.approx(1, rel=1e-6)
    if high < 1:
        assert float(wealth(high) * alpha) == pytest.approx(1, rel=1e-6)
    assert wealth(k / n) * alpha <= 1 + 1e-6
    assert (low == 0) >= (k == 0)
    assert (high == 1) >= (k == n)


@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_looking_all_the_time_costs_at_most_twice_the_width(n: int) -> None:
    """The price: √((log n + log 2π + 2 log 1/α) / n) against 1.96/√n, so 1.5 to 2 times here."""
    k = np.arange(n // 20, n, n // 20)
    low, high = anytime_limits(k, n, alpha=0.05)
    fixed_low, fixed_high = at_one_time(k, np.asarray(n))
    assert np.all(high - low < 2.1 * (fixed_high - fixed_low))
    assert np.all(low < fixed_low)
    assert np.all(fixed_high < high)


THRESHOLDS = np.array([-0.5, 0.5, 1.5, 2.5])


def attainable(mu: float, delta: float) -> float:
    """What the attack N(μ, 1) against N(0, 1) proves at the best threshold with endless runs."""
    fpr, tpr = scipy.stats.norm.sf(THRESHOLDS), scipy.stats.norm.sf(THRESHOLDS, mu)
    forth = np.log((tpr - delta) / fpr)
    back = np.log(((1 - fpr) - delta) / (1 - tpr))
    return float(max(forth.max(), back.max()))


@pytest.mark.simulation
def test_no_ceiling_at_any_time_is_too_low_too_often(rng: np.random.Generator) -> None:
    truth, audits, wrong = attainable(2.0, 1e-5), 60, 0
    for _ in range(audits):
        audit = ConfidenceSequence(THRESHOLDS, delta=1e-5, confidence=0.9)
        below = False
        for pairs in np.diff(np.geomspace(4, 400, 9).astype(int), prepend=0):
            audit.update(rng.normal(2, 1, pairs), rng.normal(0, 1, pairs))
            below |= audit.ceiling() < truth
        wrong += below
    assert not oracles.too_often(wrong, audits, 0.1)


def root(wealth: Callable[[float], float], low: float, high: float) -> float:
    return float(scipy.optimize.brentq(wealth, low, high, xtol=1e-14))


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_ceiling_pays_for_every_limit_it_uses(
    confidence: float, rng: np.random.Generator
) -> None:
    """A maximum over thresholds hides a limit that is too tight from any count of errors: so by
    its definition, with roots found elsewhere and α shared by two limits a threshold.
    """
    pairs, delta, thresholds = 300, 1e-3, THRESHOLDS[:3]  # none above or below all scores
    inside, outside = rng.normal(1, 1, pairs), rng.normal(0, 1, pairs)
    audit = ConfidenceSequence(thresholds, delta=delta, confidence=confidence)
    audit.update(inside, outside)
    goal = np.log(2 * thresholds.size / (1 - confidence))
    best = 0.0
    for threshold in thresholds:
        limits = []
        for scores, side in ((inside, 1), (outside, 0)):
            k = int((scores >= threshold).sum())

            def short(p: float, k: int = k) -> float:
                mixed = scipy.special.betaln(k + 0.5, pairs - k + 0.5) - np.log(np.pi)
                return float(
                    mixed - scipy.stats.bernoulli.logpmf([1, 0], p) @ [k, pairs - k] - goal
                )

            ends = (1e-12, k / pairs) if side == 0 else (k / pairs, 1 - 1e-12)
            limits.append(root(short, *ends))
        caught, false = limits
        best = max(best, np.log((caught - delta) / false))
        best = max(best, np.log((1 - false - delta) / (1 - caught)))
    assert audit.ceiling() == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_ceiling_comes_down_to_what_can_be_attained(mu: float) -> None:
    """On even quantiles, so without noise; both ends close in on the truth."""
    spread = oracles.even_normals(200_000)
    audit = ConfidenceSequence(THRESHOLDS, delta=1e-5)
    audit.update(spread + mu, np.roll(spread, 77_777))
    truth = attainable(mu, 1e-5)
    assert audit.lower_bound().epsilon < truth < audit.ceiling()
    assert audit.ceiling() - audit.lower_bound().epsilon < 0.35


def test_bad_limits_are_told() -> None:
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="alpha"):
            anytime_limits(1, 2, alpha=alpha)


def test_limits_at_the_ends_and_of_no_trials() -> None:
    low, high = anytime_limits([0, 1, 1, 0], [1, 1, 2, 0], alpha=0.05)
    assert low[0] == 0.0 < low[1]
    assert high[0] < 1.0 == high[1]
    assert 0.0 < low[2] < 0.5 < high[2] < 1.0
    assert (low[3], high[3]) == (0.0, 1.0)


def test_a_bound_says_what_it_is_and_where_it_was_found() -> None:
    inside, outside = np.array([3.0] * 60), np.array([0.0] * 57 + [3.0] * 3)
    audit = ConfidenceSequence([1.0, 2.0, 1.0], delta=1e-3, confidence=0.9)
    audit.update(inside, outside)
    found = audit.lower_bound()
    assert (found.method, found.delta, found.confidence) == ("anytime", 1e-3, 0.9)
    assert found.threshold_rule == "Fixed before the first pair, 2 thresholds"
    assert (found.n_in, found.n_out, found.threshold) == (60, 60, 1.0)
    assert found.direction == "both"
    assert found.cites == ("ville1939", "turner2024", "kairouz2015")
    mirrored = ConfidenceSequence([1.0, 2.0], delta=1e-3, confidence=0.9)
    mirrored.update(3 - outside, 3 - inside)
    assert mirrored.lower_bound().epsilon == pytest.approx(found.epsilon, rel=1e-8)
    nothing = ConfidenceSequence([1.0, 2.0], delta=1e-3)
    nothing.update(outside, inside)
    found = nothing.lower_bound()
    assert (found.epsilon, found.threshold) == (0.0, 1.0)


def test_the_bound_is_where_wealth_reaches_its_goal(rng: np.random.Generator) -> None:
    audit = ConfidenceSequence([0.5, 1.5], delta=1e-5, confidence=0.9)
    audit.update(rng.normal(2, 1, 300), rng.normal(0, 1, 300))
    best = audit.lower_bound().epsilon

    def logarithm(epsilon: float) -> float:
        top = (np.floor(best * 32) + 1) / 32
        return float(scipy.special.logsumexp(audit._log_wealth(epsilon, top)))

    assert logarithm(best) >= np.log(10) >= logarithm(best * (1 + 1e-8))


def test_one_pair_is_enough_to_look_and_equality_reaches_a_threshold() -> None:
    audit = ConfidenceSequence([1.0], delta=0.0)
    assert not audit.refuted(0.0)
    audit.update(1.0, 0.5)
    assert audit.lower_bound().epsilon == 0.0
    for _ in range(200):
        audit.update(1.0, 0.5)  # at the threshold, and below it
    assert audit.refuted(1.0)
    assert not audit.refuted(audit.lower_bound().epsilon)  # only what lies below it


def test_a_single_pair_refutes_where_confidence_is_low() -> None:
    audit = ConfidenceSequence([1.0], delta=0.0, confidence=0.05)
    audit.update(2.0, 0.0)
    assert audit.refuted(0.0)


def test_a_pilot_places_thresholds_beyond_ranks() -> None:
    inside, outside = np.arange(100.0), np.arange(50.0) + 0.25
    audit = ConfidenceSequence.from_pilot(Scores(inside, outside), delta=1e-5, confidence=0.9)
    expected = [outside[-k] + 0.375 for k in (1, 4, 16)]
    expected += [0.125] + [inside[k - 1] - 0.375 for k in (4, 16)]
    assert audit.thresholds.tolist() == sorted(expected)
    assert (audit.delta, audit.confidence) == (1e-5, 0.9)


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [
        ([1.0, 1.0], [0.0, 0.0], [0.5]),  # nothing above the highest but a gap
        ([0.0, 1.0], [0.0, 1.0], [0.5]),  # nothing below the lowest, nothing above the highest
        ([2.0, 2.0], [2.0, 2.0], [2.0]),
        ([np.inf], [-np.inf], [np.inf]),
        ([np.inf, 0.0], [-np.inf, 0.0], [0.0, np.inf]),
        ([np.nextafter(1.0, 2.0)], [1.0], [np.nextafter(1.0, 2.0)]),
    ],
)
def test_thresholds_separate_neighbours(
    inside: list[float], outside: list[float], expected: list[float]
) -> None:
    assert place_thresholds(np.array(inside), np.array(outside)).tolist() == expected


@pytest.mark.parametrize("name", ["thresholds", "inside_score", "outside_score"])
def test_what_is_no_number_is_named(name: str) -> None:
    audit = ConfidenceSequence([0.0], delta=1e-5)
    nan = float("nan")
    call = {
        "thresholds": lambda: ConfidenceSequence([nan], delta=1e-5),
        "inside_score": lambda: audit.update(nan, 1.0),
        "outside_score": lambda: audit.update(1.0, nan),
    }[name]
    with pytest.raises(InvalidArgument, match=f" {name}[,:]"):
        call()


def test_thresholds_are_compared_in_double_precision() -> None:
    audit = ConfidenceSequence(np.array([0.1], np.float32), delta=1e-5)
    assert audit.thresholds.dtype == np.float64
