"""Guessing the buffer of a partial shuffle: valid, paid for, and stronger the smaller it is."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import PartialShuffle

FLAKE = 1e-6


@pytest.fixture
def audit_buffer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "reproductions" / "shuffling")
    return importlib.import_module("guessing").audit_buffer


def test_guessing_the_buffer_finds_it(audit_buffer: Any) -> None:
    bound, guess = audit_buffer(
        noise_multiplier=1.5,
        steps=40,
        delta=1e-3,
        buffer=4,
        guesses=[1, 4, 10, 40],
        runs=20_000,
    )
    full, _ = audit_buffer(
        noise_multiplier=1.5, steps=40, delta=1e-3, buffer=40, guesses=[40], runs=20_000
    )
    truth = shuffle_epsilon(
        noise_multiplier=1.5, steps=40, delta=1e-3, sampler=PartialShuffle(4), batch_size=1
    )
    assert guess == 4
    assert full.epsilon < bound.epsilon < truth.epsilon
    assert bound.confidence == 0.95


@pytest.mark.parametrize("guesses", [[], [0], [41]])
def test_guesses_outside_the_epoch_are_told(guesses: list[int], audit_buffer: Any) -> None:
    with pytest.raises(InvalidArgument, match="guesses from 1 to 40"):
        audit_buffer(noise_multiplier=1.0, steps=40, delta=1e-5, buffer=4, guesses=guesses, runs=10)


def buffer_is_wrong(audit_buffer: Any, repetitions: int) -> int:
    truth = shuffle_epsilon(
        noise_multiplier=1.0, steps=20, delta=1e-3, sampler=PartialShuffle(5), batch_size=1
    ).epsilon
    setting = {"noise_multiplier": 1.0, "steps": 20, "delta": 1e-3, "buffer": 5, "runs": 1_000}
    return sum(
        audit_buffer(**setting, guesses=[1, 2, 5, 10, 20], seed=seed)[0].epsilon > truth
        for seed in range(repetitions)
    )


def test_guesses_of_the_buffer_are_paid_for(audit_buffer: Any) -> None:
    assert buffer_is_wrong(audit_buffer, 40) <= scipy.stats.binom.isf(FLAKE, 40, 0.05)


@pytest.mark.slow
def test_guesses_of_the_buffer_are_wrong_no_more_often_than_they_say(audit_buffer: Any) -> None:
    assert buffer_is_wrong(audit_buffer, 500) <= scipy.stats.binom.isf(FLAKE, 500, 0.05)


def test_smaller_buffers_leak_more_and_are_guessed(audit_buffer: Any) -> None:
    """The direction of the paper: partial shuffling leaks more than full."""
    found = [
        audit_buffer(
            noise_multiplier=1.0,
            steps=64,
            delta=1e-3,
            buffer=buffer,
            guesses=[1, 8, 64],
            runs=10_000,
        )
        for buffer in (1, 8, 64)
    ]
    assert [guess for _, guess in found] == [1, 8, 64]
    assert found[0][0].epsilon > found[1][0].epsilon > found[2][0].epsilon
    assert all(bound.valid and bound.confidence == 0.95 for bound, _ in found)


def test_one_guess_costs_nothing_and_more_cost_little(audit_buffer: Any) -> None:
    setting = {"noise_multiplier": 1.0, "steps": 8, "delta": 1e-3, "buffer": 8, "runs": 20_000}
    alone, _ = audit_buffer(**setting, guesses=[8])
    among, _ = audit_buffer(**setting, guesses=[8, 8, 8, 8])
    assert among.epsilon < alone.epsilon < among.epsilon + 0.3
