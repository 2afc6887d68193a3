"""Who computes along with an explanation arrives at the bound: from its text alone.

Every formula is evaluated here by other means (scipy.stats, sums, grids) from the numbers that the
text shows, and must give the ε that the text shows.
"""

import ast
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import epsilometer
from epsilometer import EpsilonEstimate, EpsilonLowerBound, Scores, epsilon_lower_bound
from epsilometer.accounting import shuffle_upper
from epsilometer.core.scores import Design
from epsilometer.errors import InvalidArgument
from epsilometer.rules import Best, Bonferroni, Fixed, HoldOut, Published, RankGrid
from epsilometer.stats import bets, derivation, sphere, sphere_estimates
from epsilometer.stats.derivation import Derivation
from epsilometer.stats.derivations import BOUNDS, ESTIMATES, derivation_of
from epsilometer.stats.estimators import REGISTRY, guesses
from epsilometer.stats.guess_looks import Game, find_epsilon
from epsilometer.stats.joint_thresholds import joint_bound
from epsilometer.stats.sphere import cosine_cdf, cosine_logsf
from tests.examples import a_bound, an_estimate

# Text shows 8 digits; the difference of two such numbers near 1 keeps 5 of them or more.
SHOWN = 1e-4
NUMBER = r"(-?[\d.]+(?:e[-+]?\d+)?|∞)"
DELTA = 1e-5
DIMENSION = 10_000


def scores(seed: int, size: int, shift: float, design: Design = "runs") -> Scores:
    rng = np.random.default_rng(seed)
    sides = rng.normal(shift, 1, size), rng.normal(0, 1, size + 7)
    return Scores(*sides, design=design)


drawn = st.integers(0, 10**6), st.integers(20, 400), st.floats(0, 4)
observed, canaries = st.builds(scores, *drawn), st.builds(scores, *drawn, st.just("coins"))
few = settings(max_examples=15, deadline=None)


def text_of(result: EpsilonLowerBound | EpsilonEstimate) -> str:
    return "\n".join(derivation_of(result).formula)


def found(pattern: str, text: str) -> list[float]:
    """The numbers at the places of # in a pattern that is otherwise taken literally."""
    literal = NUMBER.join(re.escape(part) for part in pattern.split("#"))
    match = re.search(literal, text)
    assert match, (pattern, text)
    return [float(group.replace("∞", "inf")) for group in match.groups()]


def check_limits(text: str) -> None:
    for rate in ("FPR", "FNR"):
        if f"{rate}⁺ = " in text and "all were errors" not in text:
            level, a, b, limit = found("Beta⁻¹(1 − #; #, #) = #", text.partition(f"{rate}⁺ = ")[2])
            assert limit == pytest.approx(scipy.stats.beta.isf(level, a, b), rel=1e-6)


def check_epsilon(text: str, bound: EpsilonLowerBound) -> None:
    """The last line, evaluated."""
    delta, one, other, epsilon = found("max(0, ln((1 − # − #) / #)) = #", text)
    assert delta == bound.delta
    ratio = (1 - delta - one) / other
    assert epsilon == pytest.approx(np.log(max(ratio, 1.0)), rel=SHOWN, abs=SHOWN)
    assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)


def check_gaussian(text: str, bound: EpsilonLowerBound) -> None:
    mu, delta, epsilon = found("At μ = #, δ = #: ε = #", text)
    assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)
    if mu > 1e-6 and np.isfinite(epsilon) and epsilon > 0:
        normal = scipy.stats.norm.cdf
        gap = normal(mu / 2 - epsilon / mu) - np.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
        assert gap == pytest.approx(delta, rel=1e-3)


def at_rank(text: str, allows: str, merit: float) -> float:
    """p at a merit: what the two laws of the text say, by the midpoint rule over quantiles."""
    k, n = found("F ~ Beta(k, n − k + 1) = Beta(#, #)", text)
    x, m = found("B ~ Beta(x, m − x + 1) = Beta(#, #)", text)
    rate = scipy.stats.beta.ppf((np.arange(40_000) + 0.5) / 40_000, k, n)
    if allows == "ε":
        most = np.minimum(np.exp(merit) * rate + DELTA, 1)
    else:
        most = scipy.stats.norm.cdf(scipy.stats.norm.ppf(rate) + merit)
    return float(np.mean(scipy.stats.beta.cdf(most, x, m)))


@few
@given(observed, st.sampled_from(["clopper_pearson", "jeffreys"]), st.integers(0, 3))
def test_two_rates_give_the_bound(seen: Scores, method: str, which: int) -> None:
    rule = (Fixed(1.0), HoldOut(), Bonferroni(), Published())[which]
    bound = epsilon_lower_bound(seen, delta=DELTA, method=method, rule=rule)
    check_limits(text_of(bound))
    check_epsilon(text_of(bound), bound)


@few
@given(observed, st.sampled_from([RankGrid(), Best()]))
def test_the_ranks_of_a_grid_give_its_level(seen: Scores, rule: RankGrid | Best) -> None:
    bound = epsilon_lower_bound(seen, delta=DELTA, rule=rule)
    if bound.epsilon > 0:
        epsilon, level = found("p(#) = #", text_of(bound))
        assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)
        # 0.2 % are left to the safe side by the estimator, the rest is this test's grid.
        assert at_rank(text_of(bound), "ε", epsilon) == pytest.approx(level, rel=0.02)


@few
@given(observed, st.booleans())
def test_gaussian_dp_gives_the_bound(seen: Scores, fixed: bool) -> None:
    rule = Fixed(1.0) if fixed else RankGrid()
    bound = epsilon_lower_bound(seen, delta=DELTA, method="gdp", rule=rule)
    text = text_of(bound)
    check_gaussian(text, bound)
    if fixed:
        check_limits(text)
        fpr, fnr, mu = found("max(0, −Φ⁻¹(#) − Φ⁻¹(#)) = #", text)
        expected = max(0.0, -scipy.stats.norm.ppf(fpr) - scipy.stats.norm.ppf(fnr))
        assert mu == pytest.approx(expected, rel=SHOWN, abs=SHOWN)
    elif bound.epsilon > 0:
        mu, level = found("p(#) = #", text)
        assert at_rank(text, "μ", mu) == pytest.approx(level, rel=0.02)


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.5])
def test_a_rank_sum_gives_the_bound(mu: float) -> None:
    seen = scores(3, 40, mu)
    bound = epsilon_lower_bound(seen, delta=DELTA, method="gdp")
    text = text_of(bound)
    check_gaussian(text, bound)
    least, found_mu, alpha = found("by u = # or more, for μ = # and α = #", text)
    assert alpha == pytest.approx(0.05)
    assert (dict(bound.basis)["pairs won"] >= least) == (found_mu > 0)
    rng = np.random.default_rng(0)  # a mechanism of this μ wins so many pairs with chance α
    inside, outside = rng.normal(found_mu, 1, (3_000, 40, 1)), rng.normal(size=(3_000, 1, 47))
    sums = (inside > outside).sum(axis=(1, 2))
    assert 0.03 < np.mean(sums >= least) < 0.07


@few
@given(canaries)
def test_the_guesses_of_one_run_give_its_level(seen: Scores) -> None:
    bound = epsilon_lower_bound(seen, delta=1e-7, method="one_run", rule=RankGrid())
    if bound.epsilon == 0:
        return
    m, r, v, delta, epsilon, level = found(
        "m = #, r = #, v = #, δ = #: p(#) = α′ = #", text_of(bound)
    )
    law = scipy.stats.binom(int(r), 1 / (1 + np.exp(-epsilon)))
    tail = law.sf(v - 1)
    value = tail + m * delta * tail * (1 - tail) / (v * law.pmf(v))
    assert value == pytest.approx(level, rel=1e-3)
    assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)


@few
@given(canaries)
def test_all_looks_at_one_run_have_the_chance_that_is_said(seen: Scores) -> None:
    bound = epsilon_lower_bound(seen, delta=1e-7)
    if bound.epsilon == 0:
        return
    m, delta, value, epsilon, alpha = found(
        "m = #, δ = #: looks that speak for # or more happen with chance p(#) = α = #",
        text_of(bound),
    )
    game = Game(canaries=int(m), delta=delta)
    assert find_epsilon(game, alpha, value) == pytest.approx(bound.epsilon, rel=1e-5)
    assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)


@few
@given(canaries)
def test_the_recursion_of_one_run_fdp_ends_where_it_says(seen: Scores) -> None:
    bound = epsilon_lower_bound(seen, delta=DELTA, method="one_run_fdp")
    text = text_of(bound)
    check_gaussian(text, bound)
    m, r, v, level, mu = found(
        "m = #, r = #, v = #, α′ = # the largest μ that is refuted is #", text
    )

    def contradiction(mu: float) -> bool:
        a, b = level * v / m, level * (r - v) / m
        for i in range(int(v) - 1, -1, -1):
            raised = max(b, scipy.stats.norm.cdf(scipy.stats.norm.ppf(a) - mu))
            a, b = min(a + i / (r - i) * (raised - b), 1.0), raised
        return a + b > r / m

    if mu > 0:
        assert contradiction(mu * (1 - 1e-5))
        assert not contradiction(mu * (1 + 1e-5))


def test_the_posterior_mass_of_joint_beta_is_its_level() -> None:
    bound = epsilon_lower_bound(scores(1, 200, 2.0), delta=DELTA, method="joint_beta")
    text = text_of(bound)
    a, b, c, d = found("= Beta(#, #), Beta(#, #)", text)
    epsilon, level = found("P(#) = #", text)
    even = (np.arange(1500) + 0.5) / 1500
    fpr, fnr = scipy.stats.beta.ppf(even, a, b)[:, None], scipy.stats.beta.ppf(even, c, d)
    up = np.exp(epsilon)
    allowed = (1 - fnr <= up * fpr + DELTA) & (1 - fpr <= up * fnr + DELTA)
    allowed &= (fnr <= up * (1 - fpr) + DELTA) & (fpr <= up * (1 - fnr) + DELTA)
    assert allowed.mean() == pytest.approx(level, rel=0.05)  # of the grid


def test_the_wealth_of_anytime_is_what_it_says_at_one_threshold() -> None:
    """With one threshold, one formula: the mean over bets of the products over pairs."""
    seen = scores(2, 300, 2.0)
    bound = epsilon_lower_bound(seen, delta=DELTA, method="anytime", rule=Fixed(1.0))
    (told,) = derivation_of(bound).counted
    _, _, _, inside, outside, both, pairs = (
        float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", told)
    )
    epsilon, needed = found("look: #, where 1/α = #", text_of(bound))
    top = (np.floor(epsilon / bets.WIDTH) + 1) * bets.WIDTH
    paid = np.exp(bets.compute_log_payoffs(epsilon, DELTA, top=top))
    counts = [both, inside - both, outside - both, pairs - inside - outside + both]
    products = np.prod(paid**counts, axis=1)
    assert np.exp(bets.LOG_WEIGHTS) @ products == pytest.approx(needed, rel=1e-3)


cosines = st.builds(
    lambda seed, size, shift: np.random.default_rng(seed).normal(shift, 1, size) / 100,
    st.integers(0, 10**6),
    st.integers(3, 300),
    st.floats(-2, 6),
)


@few
@given(cosines, st.sampled_from(["ranks", "quantiles", "paper"]))
def test_cosines_give_the_bound(known: np.ndarray, rule: str) -> None:
    if rule == "paper":
        bound = sphere.one_shot_epsilon_lo(known, dimension=DIMENSION, delta=DELTA)
    else:
        bound = sphere.cosine_bound(known, dimension=DIMENSION, delta=DELTA, rule=rule)  # type: ignore[arg-type]
    text = text_of(bound)
    if "TPR⁻ = Beta" in text:
        level, a, b = found("TPR⁻ = Beta⁻¹(#; #, #)", text)
        (rate,) = found(" = #\n", text)
        limit = scipy.stats.beta.ppf(level, a, b) if a else 0.0
        hit_once = level / (a + b - 1)
        expected = min(limit, hit_once) if "for one hit" in text else limit
        assert rate == pytest.approx(expected, rel=1e-6, abs=1e-12)
    else:
        level, a, b, rate = found("FNR⁺ = Beta⁻¹(1 − #; #, #) = #", text)
        if b > 0:
            assert rate == pytest.approx(scipy.stats.beta.isf(level, a, b), rel=1e-6)
    if bound.epsilon == 0:
        return
    if bound.direction == "present→absent":
        sure, delta, log_fpr, epsilon = found("max(0, ln(# − #) − (#)) = #", text)
        assert log_fpr == pytest.approx(float(cosine_logsf(bound.threshold, DIMENSION)), rel=1e-6)
        assert epsilon == pytest.approx(np.log(sure - delta) - log_fpr, rel=SHOWN, abs=SHOWN)
    else:
        tnr, delta, rate, epsilon = found("max(0, ln(# − #) − ln(#)) = #", text)
        assert tnr == pytest.approx(float(cosine_cdf(bound.threshold, DIMENSION)), rel=1e-6)
        assert epsilon == pytest.approx(np.log(tnr - delta) - np.log(rate), rel=SHOWN, abs=SHOWN)
    assert epsilon == pytest.approx(bound.epsilon, rel=1e-7)


@few
@given(cosines)
def test_the_mean_cosine_gives_the_bound(known: np.ndarray) -> None:
    bound = sphere.tied_bound(known, dimension=DIMENSION, delta=DELTA)
    text = text_of(bound)
    d, k, mean, s, q, again, mu = found("max(0, √#·(#·#/# − #)/#) = #", text)
    assert again == s
    assert mu == pytest.approx(max(0.0, np.sqrt(d) * (k * mean / s - q) / s), rel=SHOWN, abs=1e-6)
    check_gaussian(text, bound)


@pytest.mark.parametrize("joining", ["all", "any"])
def test_joint_thresholds_give_their_number_with_a_limit_and_without(joining: str) -> None:
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(1, 1, (120, 2)), rng.normal(0, 1, (120, 2))
    paper = joint_bound(inside, outside, joining=joining, delta=DELTA, rule=Best())  # type: ignore[arg-type]
    check_epsilon(text_of(paper), paper)
    assert "It does not" in derivation_of(paper).holds[0]
    valid = joint_bound(inside, outside, joining=joining, delta=DELTA)  # type: ignore[arg-type]
    check_limits(text_of(valid))
    check_epsilon(text_of(valid), valid)


@pytest.mark.parametrize(
    "name", ["false positives", "false negatives", "scores outside", "level of the FNR"]
)
def test_a_basis_that_is_not_the_bounds_is_seen(name: str) -> None:
    """Planted: a count that is off by one, or a level that was not paid."""
    bound = epsilon_lower_bound(scores(4, 200, 2.0), delta=DELTA, rule=Fixed(1.0))
    wrong = tuple(
        (n, v / 2 if n == name == "level of the FNR" else v + (n == name)) for n, v in bound.basis
    )
    planted = replace(bound, basis=wrong)
    with pytest.raises(AssertionError):
        check_epsilon(text_of(planted), planted)


@pytest.mark.parametrize("method", REGISTRY)
def test_the_basis_survives_json_and_says_the_same(method: str) -> None:
    seen = scores(5, 100, 3.0, REGISTRY[method].designs[0])
    bound = epsilon_lower_bound(seen, delta=1e-7, method=method)
    again = msgspec.convert(bound.to_dict(), EpsilonLowerBound, strict=False)
    assert bound.basis
    assert isinstance(again, EpsilonLowerBound)
    assert derivation_of(again) == derivation_of(bound)


def said(derived: Derivation) -> None:
    for lines in (derived.counted, derived.formula, derived.holds):
        assert lines
        assert all(line.strip() for line in lines)


@pytest.mark.parametrize("method", BOUNDS)
def test_every_method_is_explained_also_without_numbers(method: str) -> None:
    said(derivation_of(a_bound(method=method)))


@pytest.mark.parametrize("begun", ESTIMATES)
def test_every_kind_of_estimate_is_explained_also_without_numbers(begun: str) -> None:
    said(derivation_of(an_estimate(2.0, method=f"{begun} of something")))


def test_estimates_are_explained_with_their_numbers() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(3, 1, 300) / 100, rng.normal(0, 1, 300) / 100
    fitted = sphere_estimates.cosine_estimate(inside, dimension=DIMENSION, delta=DELTA, rng=rng)
    both = sphere_estimates.two_sample_estimate(inside, outside, delta=DELTA, rng=rng)
    largest = sphere_estimates.largest_estimate(
        inside, outside, dimension=DIMENSION, delta=DELTA, rng=rng
    )
    for estimate in (fitted, both):
        mean, std, absent, spread = found("P = N(#, #²), Q = N(#, #²)", text_of(estimate))
        assert std > 0
        assert spread > 0
        assert mean > absent
    rounds, shift = found("(n = #, μ = #)", text_of(largest))
    assert rounds >= 1
    assert shift > 0


def _methods_of(*names: str) -> set[str]:
    """What is given as ``method`` wherever such a result is made, as far as it is a text."""
    root = Path(epsilometer.__file__).parents[2]
    places = ("src", "reproductions", "tests/accounting")
    methods = set()
    for path in (path for place in places for path in (root / place).rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if any(f"{name}(" in text for name in names) else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                for given in (word.value for word in node.keywords if word.arg == "method"):
                    parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                    if isinstance(parts[0], ast.Constant):
                        methods.add(parts[0].value)
    return methods


def test_no_method_is_without_an_explanation() -> None:
    assert {"cosines", "mean_cosine", "anytime"} <= _methods_of("EpsilonLowerBound") <= set(BOUNDS)
    estimates = _methods_of("EpsilonEstimate", "_make_estimate", "make_reference")
    estimates |= set(shuffle_upper.CAVEATS)
    assert len(estimates) >= len(ESTIMATES)
    for method in estimates:
        assert method.startswith(tuple(ESTIMATES)), method


def test_no_rule_is_without_its_price() -> None:
    rules = {rule.__name__ for method in REGISTRY.values() for rule in method.rules}
    assert set(derivation.read_texts()["paid"]) == rules - {"AllRanks", "RankSum"}
    assert set(guesses._PAID) == rules - {"AllRanks", "RankSum", "Published"}  # of two limits


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (a_bound(method="magic"), "'magic'"),
        (a_bound(basis=(("level", 0.1),)), "basis"),
        (a_bound(method="one_run", basis=(("canaries", 1.0),)), "basis"),
        (a_bound(method="anytime", basis=(("pairs", float("inf")),)), "basis"),
        (an_estimate(1.0, method="magic"), "'magic'"),
    ],
)
def test_what_cannot_be_explained_is_told(bound: EpsilonLowerBound, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        derivation_of(bound)
