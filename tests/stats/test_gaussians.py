import math

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import gaussians
from tests import oracles
from tests.conftest import cases, peer_values


@pytest.mark.parametrize(("inputs", "expected"), cases("c01", "agm-eps"))
def test_epsilon_of_reference(inputs: dict, expected: dict) -> None:
    found = em.gaussian_epsilon(inputs["sigma"], inputs["delta"])
    assert found == pytest.approx(expected["eps"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("c01", "agm-sigma"))
def test_sigma_of_reference(inputs: dict, expected: dict) -> None:
    found = em.gaussian_sigma(inputs["eps"], inputs["delta"])
    assert found == pytest.approx(expected["sigma"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("c01", "agm-delta"))
def test_delta_of_reference(inputs: dict, expected: dict) -> None:
    found = em.gaussian_delta(inputs["sigma"], inputs["eps"], log=True)
    assert found == pytest.approx(expected["log_delta"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("c01", "paper-v2-table2"))
def test_printed_epsilon_of_the_one_shot_paper_is_a_zcdp_one(inputs: dict, expected: dict) -> None:
    exact = em.gaussian_epsilon(inputs["sigma"], inputs["delta"])
    assert exact == pytest.approx(expected["exact_eps"], rel=1e-9)
    rho = 0.5 / inputs["sigma"] ** 2
    zcdp = rho + 2 * math.sqrt(rho * math.log(1 / inputs["delta"]))
    assert zcdp == pytest.approx(expected["zcdp_eps"], rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c01", "paper-v2-table3"))
def test_printed_epsilon_of_the_one_shot_paper_implies_its_delta(
    inputs: dict, expected: dict
) -> None:
    printed = inputs["printed_in_paper"]
    low = em.gaussian_delta(inputs["sigma"], printed + 0.05)
    high = em.gaussian_delta(inputs["sigma"], printed - 0.05)
    assert (low, high) == pytest.approx((expected["delta_low"], expected["delta_high"]), rel=1e-9)


@pytest.mark.parametrize(("inputs", "value"), peer_values("gaussian eps(mu,delta)"))
def test_epsilon_of_dp_accounting(inputs: dict, value: float) -> None:
    assert em.gaussian_epsilon(1 / inputs["mu"], inputs["delta"]) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c11", "gdp-eps"))
def test_gdp_epsilon_of_reference(inputs: dict, expected: dict) -> None:
    for delta in ("1e-5", "1e-6"):
        found = gaussians.gdp_epsilon(inputs["mu"], float(delta))
        assert found == pytest.approx(expected[f"eps_{delta}"], rel=1e-9)
    found = em.gaussian_delta(1 / inputs["mu"], 1.0)
    assert found == pytest.approx(expected["delta_at_eps1"], rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.floats(-3, 3), st.floats(-300, -0.3))
def test_epsilon_has_twelve_digits(log_sigma: float, log_delta: float) -> None:
    """δ falls as ε rises, so δ at ε(1 ± 1e-12) must lie on both sides of the δ asked for."""
    sigma, delta = 10**log_sigma, 10**log_delta
    epsilon, digits = em.gaussian_epsilon(sigma, delta), 60 + int(-log_delta)
    # Where ε nears 0 it answers to the last digit of δ: no method has more digits there.
    step = 1e-12 * epsilon + 1e-14 / sigma
    assert oracles.gaussian_delta(1 / sigma, epsilon + step, digits) <= delta
    if epsilon > step:
        assert oracles.gaussian_delta(1 / sigma, epsilon - step, digits) >= delta


@settings(max_examples=50, deadline=None)
@given(st.floats(-2, 3), st.floats(-100, -0.5))
def test_sigma_has_twelve_digits(log_epsilon: float, log_delta: float) -> None:
    """δ falls as σ rises, so δ at σ(1 ± 1e-12) must lie on both sides of the δ asked for."""
    epsilon, delta = 10**log_epsilon, 10**log_delta
    sigma, digits = em.gaussian_sigma(epsilon, delta), 60 + int(-log_delta)
    assert oracles.gaussian_delta(1 / (sigma * (1 + 1e-12)), epsilon, digits) <= delta
    assert oracles.gaussian_delta(1 / (sigma * (1 - 1e-12)), epsilon, digits) >= delta


@given(st.floats(-3, 3), st.floats(-300, -0.5))
def test_sigma_inverts_epsilon(log_sigma: float, log_delta: float) -> None:
    sigma, delta = 10**log_sigma, 10**log_delta
    epsilon = em.gaussian_epsilon(sigma, delta)
    if epsilon > 1e-6 / sigma:
        assert em.gaussian_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c02", "two-gauss"))
def test_two_gaussians_of_reference(inputs: dict, expected: dict) -> None:
    laws = [inputs[name] for name in ("mu_null", "sd_null", "mu_alt", "sd_alt")]
    if "eps" not in expected:
        deltas = gaussians.two_gaussians_delta(*laws, inputs["eps"])
        assert deltas == pytest.approx(tuple(expected.values()), rel=1e-8)
        return
    delta = inputs["delta"]
    forward, backward = gaussians.two_gaussians_directions(*laws, delta)
    assert forward == pytest.approx(expected["eps_alt_given_null"], rel=1e-8, abs=1e-10)
    assert backward == pytest.approx(expected["eps_null_given_alt"], rel=1e-8, abs=1e-10)
    assert em.two_gaussians_epsilon(*laws, delta) == max(forward, backward)
    by_threshold = em.two_gaussians_epsilon(*laws, delta, rule="threshold")
    assert by_threshold == pytest.approx(expected["eps_v1_threshold"], rel=1e-8, abs=1e-10)


def test_two_equal_spreads_are_the_gaussian_mechanism() -> None:
    for sigma in (0.1, 1.0, 10.0):
        pair = em.two_gaussians_epsilon(0.0, sigma, 1.0, sigma, 1e-5)
        assert pair == pytest.approx(em.gaussian_epsilon(sigma, 1e-5), rel=1e-10)


def test_infinite_only_where_it_is_infinite() -> None:
    assert em.two_gaussians_epsilon(0, 1, 1, 1, delta=0.0) == math.inf
    assert em.two_gaussians_epsilon(0, 1, 0, 1, delta=0.0) == 0.0
    assert em.two_gaussians_epsilon(0, 1, 0, 2, delta=0.0) == math.inf
    narrow = gaussians.two_gaussians_directions(0, 1, 0.5, 0.5, 0.0)
    z = np.linspace(-5, 5, 10**6)
    loss = -math.log(0.5) - (z - 0.5) ** 2 / (2 * 0.25) + z**2 / 2
    assert narrow == (pytest.approx(loss.max(), rel=1e-9), math.inf)
    assert em.gaussian_epsilon(1.0, 0.0) == math.inf


@pytest.mark.parametrize(("inputs", "expected"), cases("c04", "table1"))
def test_table_1_of_the_one_shot_paper(
    inputs: dict, expected: dict, rng: np.random.Generator
) -> None:
    d, k, sims = inputs["d"], inputs["k"], 50
    cosines = rng.normal(1 / inputs["sigma"], 1, (sims, k)) / math.sqrt(d)
    tied, fitted = [], []
    for row in cosines:
        mean, spread = row.mean(), row.std()
        tied.append(em.two_gaussians_epsilon(0, d**-0.5, mean, d**-0.5, inputs["delta"]))
        fitted.append(em.two_gaussians_epsilon(0, d**-0.5, mean, spread, inputs["delta"]))
    # Six standard errors of a mean of 50, from the spreads of the reference's 200 simulations.
    slack = 6 / math.sqrt(sims)
    near = expected["mean_eps_known_variance"], expected["std_eps_known_variance"]
    assert np.mean(tied) == pytest.approx(near[0], abs=slack * near[1])
    near = expected["mean_eps_exact"], expected["std_eps_exact"]
    assert np.mean(fitted) == pytest.approx(near[0], abs=slack * near[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: em.gaussian_epsilon(0.0, 1e-5),
        lambda: em.gaussian_epsilon(-1.0, 1e-5),
        lambda: em.gaussian_epsilon(1.0, 1.5),
        lambda: em.gaussian_epsilon(float("nan"), 1e-5),
        lambda: em.gaussian_sigma(-1.0, 1e-5),
        lambda: em.gaussian_sigma(1.0, 0.0),
        lambda: em.two_gaussians_epsilon(0, 0, 1, 1, 1e-5),
        lambda: em.two_gaussians_epsilon(0, 1, 1, 1, 1e-5, rule="best"),
    ],
)
def test_bad_arguments_are_told(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match="Expected"):
        call()


def _hockey_stick(laws: tuple[float, ...], epsilon: float) -> tuple[float, float]:
    """δ of both directions on a fine grid: present→absent, then absent→present."""
    z = np.linspace(-30, 30, 600_001)
    q, p = scipy.stats.norm.pdf(z, *laws[:2]), scipy.stats.norm.pdf(z, *laws[2:])
    return tuple(
        float(np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), z)) for a, b in ((p, q), (q, p))
    )


LAWS = [(0.5, 1.0, 1.5, 1.3), (-1.0, 2.0, 0.5, 0.7), (0.3, 1.5, 0.3, 2.5), (2.0, 0.8, 0.0, 0.8)]


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
def test_delta_of_two_gaussians_is_the_divergence(laws: tuple, epsilon: float) -> None:
    found = gaussians.two_gaussians_delta(*laws, epsilon)
    assert found == pytest.approx(_hockey_stick(laws, epsilon), abs=1e-7)


@pytest.mark.parametrize("laws", LAWS[:3])
@pytest.mark.parametrize("delta", [1e-3, 0.05])
def test_thresholds_are_worth_what_their_best_one_is(laws: tuple, delta: float) -> None:
    t = np.linspace(-20, 20, 400_001)
    norm = scipy.stats.norm
    with np.errstate(divide="ignore", invalid="ignore"):
        forth = np.log(norm.sf(t, *laws[2:]) - delta) - norm.logsf(t, *laws[:2])
        back = np.log(norm.cdf(t, *laws[:2]) - delta) - norm.logcdf(t, *laws[2:])
    found = gaussians.two_gaussians_directions(*laws, delta, "threshold")
    expected = [max(0.0, float(np.nanmax(each))) for each in (forth, back)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_an_answer_that_need_not_be_exact_errs_upwards_and_a_little() -> None:
    for laws in LAWS:
        exact = gaussians.two_gaussians_directions(*laws, 1e-4)
        rough = gaussians.two_gaussians_directions(*laws, 1e-4, relative=0.05)
        for near, truth in zip(rough, exact, strict=True):
            assert truth < near <= 1.06 * truth
        assert em.two_gaussians_epsilon(*laws, 1e-4, relative=0.05) == max(rough)


def test_tails_are_one_function_where_two_formulas_meet() -> None:
    """P's and Q's tails on both sides of 0, where the shared factor begins to be taken out."""
    for shift in (0.5, 1.0, 2.0, 4.0):
        for epsilon in (0.01, 0.4, 1.0, 2.5, 8.0):
            found, _ = gaussians.two_gaussians_delta(0.0, 1.0, shift, 1.0, epsilon)
            truth = float(oracles.gaussian_delta(shift, epsilon, 40))
            assert found == pytest.approx(truth, rel=1e-12)


def test_roots_do_not_cancel() -> None:
    for low, high in ((-3.0, 1e-9), (1e-9, 5.0), (-1e8, -1.0), (0.0, 2.0), (-2.0, 2.0)):
        for a in (0.5, -0.5):
            b, c = -a * (low + high), a * low * high
            found = gaussians._roots(a, b, c, abs(a) * (high - low))
            assert found == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: em.gaussian_delta(1.0, -0.1),
        lambda: em.gaussian_delta(0.0, 1.0),
        lambda: gaussians.gdp_epsilon(-1.0, 1e-5),
        lambda: em.two_gaussians_epsilon(0, 1, 1, 0, 1e-5),
        lambda: em.two_gaussians_epsilon(math.nan, 1, 1, 1, 1e-5),
        lambda: em.two_gaussians_epsilon(0, 1, math.nan, 1, 1e-5),
        lambda: em.two_gaussians_epsilon(0, 1, 1, 1, 1.5),
        lambda: gaussians.two_gaussians_delta(0, 0, 1, 1, 1.0),
        lambda: gaussians.two_gaussians_delta(0, 1, 1, 0, 1.0),
        lambda: gaussians.two_gaussians_delta(0, 1, 1, 1, -1.0),
    ],
)
def test_more_bad_arguments_are_told(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match="Expected"):
        call()


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 0.6, 3.0, 6.0, 12.0])
def test_delta_has_twelve_digits_in_tail_and_bulk(mu: float) -> None:
    """From ε = 0, where δ is nearly 1 if μ is large, to ten standard deviations beyond."""
    for x in (-mu / 2, -0.4 * mu, -0.2 * mu, 0.3, 2.0, 10.0):
        epsilon = mu * (x + mu / 2)
        truth = mpmath.log(oracles.gaussian_delta(mu, epsilon, 80))
        assert em.gaussian_delta(1 / mu, epsilon, log=True) == pytest.approx(
            float(truth), rel=1e-12
        )


@pytest.mark.parametrize("sigma", [0.2, 1.0, 30.0])
def test_epsilon_is_small_before_it_is_none(sigma: float) -> None:
    for epsilon in (1e-3 / sigma, 0.05 / sigma, 0.1 / sigma**2):
        delta = em.gaussian_delta(sigma, epsilon)
        assert em.gaussian_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-9)
    at_none = em.gaussian_delta(sigma, 0.0)
    assert em.gaussian_epsilon(sigma, at_none * (1 + 1e-9)) == 0.0
    assert em.gaussian_epsilon(sigma, 1.0) == 0.0
