"""Events, accountants and training parameters become the same list of entries."""

from typing import Any

import dp_accounting
import numpy as np
import pytest
from jax_privacy.accounting import DpParams, DpsgdTrainingAccountant, SamplingMethod
from jax_privacy.accounting.accountants import DpAccountantConfig
from jax_privacy.experimental import execution_plan

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy import read_books, report_epsilon

GAUSSIAN = dp_accounting.GaussianDpEvent(1.5)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.02, GAUSSIAN)


@pytest.mark.parametrize(
    ("event", "entries"),
    [
        (GAUSSIAN, [(1.5, 1.0, 1)]),
        (SAMPLED, [(1.5, 0.02, 1)]),
        (dp_accounting.SelfComposedDpEvent(SAMPLED, 70), [(1.5, 0.02, 70)]),
        (
            dp_accounting.ComposedDpEvent(
                [
                    dp_accounting.SelfComposedDpEvent(SAMPLED, 7),
                    dp_accounting.NoOpDpEvent(),
                    SAMPLED,
                ]
            ),
            [(1.5, 0.02, 8)],
        ),
        (dp_accounting.ComposedDpEvent([SAMPLED, GAUSSIAN]), [(1.5, 0.02, 1), (1.5, 1.0, 1)]),
        (dp_accounting.NoOpDpEvent(), []),
    ],
)
def test_events_are_read_exactly(event: Any, entries: Any) -> None:
    assert read_books(event) == entries


def test_the_ledger_of_an_accountant_is_read() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(SAMPLED, 30)
    accountant.compose(GAUSSIAN)
    assert read_books(accountant) == [(1.5, 0.02, 30), (1.5, 1.0, 1)]


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.ComposedDpEvent([SAMPLED, dp_accounting.LaplaceDpEvent(1.0)]),
    ],
)
def test_what_is_not_understood_is_refused_and_never_left_out(event: Any) -> None:
    with pytest.raises(InvalidArgument, match="Gaussian noise and Poisson sampling"):
        read_books(event)


def test_other_things_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="got dict"):
        read_books({"noise": 1.0})
    params = DpParams(noise_multipliers=1.0, num_samples=100, delta=1e-5, batch_size=10)
    with pytest.raises(InvalidArgument, match="steps="):
        read_books(params)
    users = DpParams(
        noise_multipliers=1.0, num_samples=100, delta=1e-5, batch_size=10, examples_per_user=3
    )
    with pytest.raises(InvalidArgument, match="single records"):
        read_books(users, steps=10)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"noise_multipliers": [(0, 1.0), (30, 2.0)]},
        {"batch_size_scale_schedule": {20: 2}},
        {"sampling_method": SamplingMethod.FIXED_BATCH_SIZE},
    ],
    ids=str,
)
def test_parameters_are_read_as_jax_privacys_own_accountant_books_them(changed: Any) -> None:
    class Keeping(DpAccountantConfig):
        def create_accountant(self) -> Any:
            self.made = dp_accounting.rdp.RdpAccountant()
            return self.made

    usual = {"noise_multipliers": 1.2, "num_samples": 500, "delta": 1e-5, "batch_size": 10}
    params, config = DpParams(**usual | changed), Keeping()
    DpsgdTrainingAccountant(config).compute_epsilon(60, params)
    ours, theirs = read_books(params, steps=60), read_books(config.made)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # theirs are in single precision


def test_the_reported_epsilon_is_that_of_an_accountant_of_ours() -> None:
    event = dp_accounting.SelfComposedDpEvent(SAMPLED, 50)
    ours = poisson_epsilon(noise_multiplier=1.5, sampling_rate=0.02, steps=50, delta=1e-5)
    assert report_epsilon(event, delta=1e-5) == pytest.approx(ours, rel=0.01)
    assert report_epsilon(dp_accounting.GaussianDpEvent(0.0), delta=1e-5) == float("inf")


def test_batches_that_are_cut_off_cost_what_they_cost_in_dp_accounting() -> None:
    """They were taken for plain Poisson sampling: ε = 3.84 in place of 9.35."""
    events = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    step = dp_accounting.TruncatedSubsampledGaussianDpEvent(240, 0.1, 30, 1.0)
    events.compose(step, 24)
    params = DpParams(
        noise_multipliers=1.0, num_samples=240, delta=1e-5, batch_size=24, truncated_batch_size=30
    )
    expected = pytest.approx(events.get_epsilon(1e-5), rel=1e-6)
    assert report_epsilon(dp_accounting.SelfComposedDpEvent(step, 24), delta=1e-5) == expected
    assert report_epsilon(params, delta=1e-5, steps=24) == expected


def test_a_plan_is_read_by_its_event() -> None:
    config = execution_plan.BandMFExecutionPlanConfig(
        iterations=12, strategy=[1.0, 0.5], epsilon=None, delta=None, noise_multiplier=1.1,
        sampling_prob=0.25,
    )  # fmt: skip
    assert read_books(config.plan, cycle_length=2) == [(1.1, 0.25, 12)]
