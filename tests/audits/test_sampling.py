from typing import Any

import pytest

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.audits.sampling import SamplerCheck, compare_sampling
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import (
    PartialShuffle,
    Poisson,
    Sampler,
    Shuffle,
    WithoutReplacement,
)

pytestmark = pytest.mark.usefixtures("coarse")


def compared(sampler: Sampler | None, **more: Any) -> SamplerCheck:
    settings = {
        "name": "what it does",
        "noise_multiplier": 1.0,
        "rate": 0.05,
        "epochs": 2,
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
    assert found.epsilon_real.epsilon == poisson_epsilon(
        noise_multiplier=1.0, sampling_rate=0.1, steps=40, delta=1e-5
    )


def test_shuffling_is_another_mechanism() -> None:
    found = compared(Shuffle())
    assert not found.agrees
    assert found.epsilon_real is not None
    assert found.epsilon_real.low > 1.5
    assert str(found) == (
        "The loader draws its batches by what it does, but the PRV accountant assumes Poisson "
        "sampling at rate 0.05: it reports ε = 1.5 at δ = 1e-05 after 2 epochs, while this "
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
    assert compared(Shuffle(), rate=1.0).agrees
    assert not compared(None, rate=1.0).agrees


def test_no_noise_has_no_epsilon() -> None:
    assert compared(Shuffle(), noise_multiplier=0.0, reported=float("inf")).epsilon_real is None


def test_bad_calls_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="epochs"):
        compared(Shuffle(), epochs=0)
    with pytest.raises(InvalidArgument, match="delta"):
        compared(Shuffle(), delta=1.0)
