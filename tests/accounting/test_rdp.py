import math

import pytest

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
