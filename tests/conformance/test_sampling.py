from typing import Any

import pytest

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.conformance.sampling import SamplerCheck, compare_sampling
from epsilometer.core import judge
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import (
    PartialShuffle,
    Poisson,
    Sampler,
    Shuffle,
    WithoutReplacement,
)


def compared(sampler: Sampler | None, **more: Any) -> SamplerCheck:
    settings = {
        "name": "what it does",
        "history": [(1.0, 0.05, 40)],
        "delta": 1e-5,
        "reported": 1.5,
        "accountant": "PRV",
        **more,
    }
    return compare_sampling(sampler, **settings)


def test_the_same_rate_agrees_and_another_does_not() -> None:
    assert compared(Poisson(rate=0.05)).agrees
    found = compared(Poisson(rate=0.1))
    assert not found.agrees
    assert found.epsilon_real is not None
    exact = poisson_epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=40, delta=1e-5)
    assert found.epsilon_real.epsilon == exact
    assert exact - 0.01 < found.epsilon_real.low <= exact
    assert compared(Poisson(rate=0.04)).agrees  # less than is booked


def test_accumulated_batches_are_booked_at_their_rates_together() -> None:
    assert compared(Poisson(rate=0.025)).agrees
    assert compared(Poisson(rate=0.025), history=[(1.0, 0.05, 10), (1.0, 0.025, 10)]).agrees
    found = compared(Poisson(rate=0.05), history=[(1.0, 0.1, 20), (1.0, 0.025, 20)])
    assert not found.agrees
    assert found.epsilon_real is not None
    assert found.epsilon_real.low < found.epsilon_real.high


@pytest.mark.parametrize(
    ("history", "epochs"),
    [
        ([(1.0, 0.05, 19)], 0),
        ([(1.0, 0.05, 39)], 1),
        ([(1.0, 0.05, 20), (2.0, 0.05, 20)], 2),
        ([(1.0, 0.05, 30), (1.0, 0.1, 15)], 2),  # from the middle of one epoch to that of another
        ([(1.0, 1 / 3, 3)], 1),
    ],
)
def test_only_whole_epochs_count(history: list[tuple[float, float, int]], epochs: int) -> None:
    assert compared(None, history=history).epochs == epochs


def test_steps_that_are_not_booked_do_not_stand() -> None:
    right = compared(Poisson(rate=0.05), taken=40)
    assert right.agrees
    found = compared(Poisson(rate=0.05), taken=100)
    assert found.verdict == judge.VIOLATED
    assert found.epsilon_real is not None
    assert right.epsilon_real is not None
    assert found.epsilon_real.low > right.epsilon_real.low
    planned = compared(Poisson(rate=0.05), taken=100, planned=True)
    assert planned.verdict == judge.VIOLATED
    assert "has batches for 100 steps" in planned.sentence


def test_nothing_stands_where_nothing_was_booked() -> None:
    found = compared(Poisson(rate=0.05), history=[(1.0, 0.05, 0)], reported=0.0)
    assert found.verdict == judge.NOT_TESTED
    assert found.epsilon_real is None
    assert compared(Shuffle(), history=[(1.0, 0.05, 0)]).verdict == judge.VIOLATED


def test_shuffling_is_another_mechanism() -> None:
    found = compared(Shuffle())
    assert not found.agrees
    assert found.epsilon_real is not None
    assert found.epsilon_real.low > 1.5
    assert str(found) == (
        "The loader draws its batches by what it does, but the PRV accountant assumes Poisson "
        "sampling at rate 0.05: it reports ε = 1.5 at δ = 1e-05 after 40 steps, while this "
        f"loader's is at least {found.epsilon_real.low:.4g}."
    )


@pytest.mark.parametrize("sampler", [None, WithoutReplacement(), PartialShuffle(buffer=10)])
def test_what_has_no_accountant_is_said_to_have_none(sampler: Sampler | None) -> None:
    found = compared(sampler)
    assert found.epsilon_real is None
    assert found.sentence.endswith("which says nothing about this loader.")


def test_a_buffer_is_accounted_for_where_the_batch_size_is_known() -> None:
    assert compared(PartialShuffle(buffer=100), batch_size=10).epsilon_real is not None


def test_full_batches_agree_unless_nothing_is_known() -> None:
    assert compared(Shuffle(), history=[(1.0, 1.0, 2)]).agrees
    assert not compared(None, history=[(1.0, 1.0, 2)]).agrees


def test_no_noise_has_no_epsilon() -> None:
    found = compared(Shuffle(), history=[(0.0, 0.05, 40)], reported=float("inf"))
    assert found.epsilon_real is None


def test_bad_calls_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="history"):
        compared(Shuffle(), history=[])
    with pytest.raises(InvalidArgument, match="delta"):
        compared(Shuffle(), delta=1.0)
