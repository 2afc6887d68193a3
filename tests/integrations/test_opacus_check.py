"""A sentence about the sampler and the books: what is done, what is assumed, the ε of both."""

from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.core import judge
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus import check
from epsilometer.sampling.samplers import Sequential, Shuffle
from tests.integrations.opacus_runs import Run, backward, prepared, train

DELTA = 1e-5
COARSE = 2e-3  # of ε, on the grids of the fixture
SETTING: dict[str, Any] = {"noise_multiplier": 1.0, "delta": DELTA}


def trained(**settings: Any) -> Run:
    run = prepared(batch=4, **settings)
    train(run)
    return run


def test_poisson_sampling_is_as_reported() -> None:
    run = trained()
    found = check(run.engine, loader=run.loader, delta=DELTA)
    assert found.agrees
    assert found.epsilon_reported == run.engine.get_epsilon(DELTA)
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(found.epsilon_reported, rel=0.01)
    assert str(found) == (
        "The loader draws its batches by Poisson sampling at rate 0.0625, as the PRV accountant "
        f"assumes: ε = {found.epsilon_reported:.4g} at δ = 1e-05 after 16 steps stands."
    )


def book(run: Run, steps: int) -> None:
    """Steps as the engine's hook books them."""
    for _ in range(steps):
        run.engine.accountant.step(noise_multiplier=1.0, sample_rate=1 / 20)


@pytest.mark.parametrize(("steps", "known"), [(35, 2.369), (5, 1.43)])
def test_the_books_are_used_step_by_step(steps: int, known: float) -> None:
    run = prepared(batch=4, records=80)  # 20 steps per epoch
    book(run, steps)
    found = check(run.engine, loader=run.loader, delta=DELTA)
    assert found.epsilon_reported == run.engine.get_epsilon(DELTA)
    assert found.epsilon_reported == pytest.approx(known, abs=5e-3)
    assert found.agrees
    assert (found.steps, found.epochs, found.planned) == (steps, steps // 20, False)
    assert f"ε = {found.epsilon_reported:.4g} at δ = 1e-05 after {steps} steps stands" in str(found)
    assert "epoch" not in str(found)


def test_the_real_epsilon_of_shuffling_is_that_of_whole_epochs() -> None:
    run = prepared(batch=4, records=80, poisson=False)
    book(run, 35)
    found = check(run.engine, loader=run.loader, delta=DELTA)
    exact = shuffle_epsilon(**SETTING, steps=20, epochs=1)
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(exact.epsilon, abs=COARSE)
    assert found.epsilon_reported == run.engine.get_epsilon(DELTA)
    assert not found.agrees
    book(run, 5)
    twice = check(run.engine, loader=run.loader, delta=DELTA).epsilon_real
    assert twice is not None
    assert twice.low > found.epsilon_real.low


def test_less_than_an_epoch_of_shuffling_has_no_known_epsilon() -> None:
    run = prepared(batch=4, records=80, poisson=False)
    book(run, 5)
    found = check(run.engine, loader=run.loader, delta=DELTA)
    assert not found.agrees
    assert found.epsilon_real is None
    assert "says nothing about this loader" in str(found)


def test_no_step_on_the_books_is_no_epsilon_that_stands() -> None:
    run = prepared(batch=4)
    for features, labels in run.loader:  # trained, but past the engine
        run.model.zero_grad()
        backward(run, features, labels)
        run.optimizer.original_optimizer.step()
    found = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA)
    assert found.verdict == judge.NOT_TESTED
    assert not found.agrees
    assert found.epsilon_reported == 0
    assert str(found).startswith("No private step is on the books of the PRV accountant")
    assert "stands" not in str(found)


def test_no_step_on_the_books_does_not_excuse_the_loader() -> None:
    run = prepared(batch=4, poisson=False)
    found = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA)
    assert found.verdict == judge.VIOLATED
    assert "shuffling every epoch, but" in str(found)


def test_steps_lost_on_resume_are_noticed() -> None:
    run = prepared(batch=4, inner=torch.optim.Adam)
    train(run, epochs=3)
    whole = run.engine.get_epsilon(DELTA)
    assert check(run.engine, run.optimizer, loader=run.loader, delta=DELTA).agrees
    run.engine.accountant.history = [(1.0, 1 / 16, 16)]  # a new engine for the last third
    found = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA)
    assert found.verdict == judge.VIOLATED
    assert found.epsilon_reported == run.engine.get_epsilon(DELTA)
    assert found.epsilon_real is not None
    assert found.epsilon_real.low == pytest.approx(whole, rel=0.01)
    assert "counts 48 steps, and 16 of them are on the books" in str(found)
    run.engine.accountant.history = []
    found = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA)
    assert found.verdict == judge.VIOLATED
    assert "none of them is on the books" in str(found)


def test_a_plan_is_called_one() -> None:
    run = trained()
    planned = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA, epochs=3)
    assert planned.planned
    assert planned.steps == 48
    assert f"for a plan of 3 epochs (48 steps), ε = {planned.epsilon_reported:.4g}" in str(planned)
    assert str(planned).endswith("will stand.")
    done = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA, epochs=1)
    assert not done.planned
    assert done.epsilon_reported == run.engine.get_epsilon(DELTA)


def test_books_of_a_higher_rate_than_the_loaders_stand() -> None:
    run = prepared(batch=1, records=93)  # Opacus makes 92 batches of it, at rate 1/93
    assert len(run.loader) == 92
    train(run)
    found = check(run.engine, loader=run.loader, delta=DELTA)
    assert found.agrees
    assert found.epsilon_real is not None
    assert found.epsilon_real.low < found.epsilon_reported


def test_a_loader_of_physical_batches_is_the_logical_one() -> None:
    run = prepared(batch=16, poisson=False)
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer
    ) as split:
        found = check(split, run.optimizer, delta=DELTA)
    assert found.assumed == "Poisson sampling at rate 0.25"


@pytest.mark.parametrize("accountant", ["prv", "rdp", "gdp"])
def test_shuffling_under_an_accountant_of_poisson_sampling_is_caught(accountant: str) -> None:
    honest, silent = (trained(poisson=p, accountant=accountant) for p in (True, False))
    found = check(silent.engine, loader=silent.loader, delta=DELTA)
    # Opacus reports the same number for both, without a word:
    assert found.epsilon_reported == honest.engine.get_epsilon(DELTA)
    exact = shuffle_epsilon(**SETTING, steps=16, sampler=Shuffle())
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(exact.epsilon, abs=COARSE)
    assert found.epsilon_real.low > found.epsilon_reported
    assert not found.agrees
    assert found.sentence.count(".\n") == 0
    assert f"the {accountant.upper()} accountant assumes Poisson sampling" in found.sentence
    assert f"while this loader's is at least {found.epsilon_real.low:.4g}." in found.sentence


def test_records_in_order_are_caught() -> None:
    run = trained(poisson=False, shuffle=False)
    found = check(run.engine, loader=run.loader, delta=DELTA)
    exact = shuffle_epsilon(**SETTING, steps=16, sampler=Sequential())
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(exact.epsilon, abs=COARSE)
    assert "in order" in found.sentence


def test_a_loader_and_its_optimiser_are_enough_before_training() -> None:
    run = prepared(batch=4, poisson=False)
    found = check(run.loader, run.optimizer, delta=DELTA, epochs=3)
    expected = poisson_epsilon(**SETTING, sampling_rate=1 / 16, steps=48)
    assert found.epsilon_reported == pytest.approx(expected)
    assert found.epochs == 3
    assert "for a plan of 3 epochs (48 steps) it will report" in found.sentence
    with_engine = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA, epochs=3)
    assert with_engine.epsilon_reported == pytest.approx(expected, rel=0.02)
    assert run.engine.accountant.history == []  # nothing was booked by looking


def test_looking_uses_up_no_random_number() -> None:
    run = prepared(batch=4, poisson=False)
    before = torch.get_rng_state()
    check(run.loader, run.optimizer, delta=DELTA)
    assert torch.equal(before, torch.get_rng_state())


def test_all_records_in_every_step_is_right_in_any_order() -> None:
    run = prepared(batch=64, poisson=False)
    found = check(run.loader, run.optimizer, delta=DELTA, epochs=2)
    assert found.agrees
    assert "taking all records in every step" in found.sentence


def test_accumulated_batches_count_as_opacus_counts_them() -> None:
    run = prepared(batch=4, poisson=False)
    run.engine.accountant.history = [(1.0, 2 / 16, 8)]  # two batches a step, one epoch
    found = check(run.engine, loader=run.loader, delta=DELTA)
    exact = shuffle_epsilon(**SETTING, steps=8)
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(exact.epsilon, abs=COARSE)


def test_another_loader_than_was_accounted_for_is_caught() -> None:
    run, other = trained(), prepared(batch=16)
    found = check(run.engine, loader=other.loader, delta=DELTA)
    assert not found.agrees
    assert "at rate 0.25, but the PRV accountant assumes Poisson sampling at rate 0.0625" in str(
        found
    )


def test_a_sampler_of_ones_own_is_watched() -> None:
    class Backwards(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Any:
            return iter(range(63, -1, -1))

        def __len__(self) -> int:
            return 64

    run = prepared(batch=4)
    mine = DataLoader(run.loader.dataset, batch_size=4, sampler=Backwards())
    found = check(mine, run.optimizer, delta=DELTA)
    assert "(as watched)" in found.sentence
    assert not found.agrees


def test_noise_that_changed_is_accounted_by_the_most() -> None:
    run = prepared(batch=4, poisson=False)
    run.engine.accountant.history = [(1.0, 1 / 16, 8), (2.0, 1 / 16, 8)]
    found = check(run.engine, loader=run.loader, delta=DELTA)
    assert found.epsilon_reported == run.engine.get_epsilon(DELTA)
    exact = shuffle_epsilon(noise_multiplier=2.0, delta=DELTA, steps=16)
    assert found.epsilon_real is not None
    assert found.epsilon_real.epsilon == pytest.approx(exact.epsilon, abs=COARSE)


def test_no_noise_is_no_privacy() -> None:
    run = prepared(batch=4, noise=0.0)
    found = check(run.engine, run.optimizer, loader=run.loader, delta=DELTA, epochs=1)
    assert found.epsilon_reported == float("inf")


def test_bad_calls_are_refused() -> None:
    run = prepared(batch=4)
    for call, said in (
        (lambda: check(run.engine, delta=DELTA), "does not keep its loader"),
        (lambda: check(run.loader, delta=DELTA), "Give optimizer="),
        (lambda: check(run.engine, loader=run.loader, delta=DELTA), "Give optimizer="),
        (lambda: check(run.model, run.optimizer, delta=DELTA), "DataLoader"),
        (lambda: check(run.loader, run.model, delta=DELTA), "DPOptimizer"),
        (lambda: check(run.loader, run.optimizer, delta=0.0), "delta"),
        (lambda: check(run.loader, run.optimizer, delta=DELTA, epochs=0), "epochs"),
        (
            lambda: check(DataLoader(TensorDataset(torch.zeros(0, 1))), run.optimizer, delta=DELTA),
            "at least one",
        ),
    ):
        with pytest.raises((InvalidArgument, ValueError), match=said):
            call()
