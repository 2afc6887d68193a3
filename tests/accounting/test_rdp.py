import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from epsilometer.accounting import pld, rdp
from epsilometer.errors import InvalidArgument


def test_is_above_privacy_loss_distributions_and_adds_up_rounds() -> None:
    asked = {"sampling_rate": 0.01, "delta": 1e-5}
    found = rdp.varied_poisson_epsilon([(1.0, 60), (1.0, 40)], **asked)
    assert found == rdp.varied_poisson_epsilon([(1.0, 100)], **asked)
    assert found > pld.varied_poisson_epsilon([(1.0, 100)], **asked)


def test_a_full_batch_is_the_conversion_of_the_gaussian_mechanism() -> None:
    """By Canonne, Kamath and Steinke (2020), the least over orders, found on a fine grid."""
    sigma, delta = 0.5, 1e-5
    orders = [1 + i / 100 for i in range(1, 5000)]
    truth = min(
        a / (2 * sigma**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders
    )
    found = rdp.varied_poisson_epsilon([(sigma, 1)], sampling_rate=1.0, delta=delta)
    assert truth <= found < 1.01 * truth  # its own orders are fewer


def test_bad_delta_is_told() -> None:
    with pytest.raises(InvalidArgument, match="delta"):
        rdp.varied_poisson_epsilon([(1.0, 1)], sampling_rate=0.1, delta=0.0)


def test_the_sampled_gaussian_is_as_papers_of_opacus_print_it() -> None:
    """25.63 is the theoretical ε of the audit of Bayesian networks; PLD says 23.11."""
    paper = {"noise_multiplier": 0.5, "sampling_rate": 256 / 50_000, "steps": 60 * 195}
    assert rdp.poisson_epsilon(**paper, delta=1e-5) == pytest.approx(25.6295, abs=1e-3)


SETTINGS = [
    ([(1.0, 60), (0.8, 40)], 0.01, 1e-5),
    ([(20.0, 5)], 0.001, 1e-6),
    ([(3.0, 10_000)], 0.02, 1e-7),
    ([(5.0, 1_000)], 1.0, 1e-9),
    ([(2.0, 3)], 0.0, 1e-3),
]


@pytest.mark.parametrize(("noise", "rate", "delta"), SETTINGS)
def test_is_that_of_dp_accounting(
    noise: list[tuple[float, int]], rate: float, delta: float
) -> None:
    accountant = RdpAccountant()
    for multiplier, steps in noise:
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))
        accountant.compose(event, steps)
    found = rdp.varied_poisson_epsilon(noise, sampling_rate=rate, delta=delta)
    # Its fractional orders have a bound in place of the moment, which is larger by so much.
    assert found == pytest.approx(float(accountant.get_epsilon(delta)), rel=1e-4)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 6.0])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 1.0])
def test_moments_of_whole_orders_by_sum_and_by_integral(sigma: float, rate: float) -> None:
    orders = np.array([2, 3, 8])
    by_sum = rdp._sum_moments(sigma, rate, orders)
    by_integral = rdp._integrate_moments(sigma, rate, orders.astype(float))
    np.testing.assert_allclose(by_integral, by_sum, rtol=1e-9, atol=4e-12)
    assert np.all(by_integral >= by_sum)


@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_a_full_batch_by_integration_is_by_formula(sigma: float) -> None:
    found = rdp.poisson_epsilon(noise_multiplier=sigma, sampling_rate=1.0, steps=2, delta=1e-5)
    known = rdp.varied_poisson_epsilon([(sigma, 2)], sampling_rate=1.0, delta=1e-5)
    assert found == pytest.approx(known, rel=1e-6)
