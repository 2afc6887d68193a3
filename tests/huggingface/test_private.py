"""Trainings with Opacus inside a Trainer: right ones are spared, wrong ones are found."""

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from transformers import TrainerCallback

from tests.huggingface.private import run_private


class HalfNoise(DPOptimizer):
    """Adds half the noise that is booked."""

    factor = 0.5

    def add_noise(self) -> None:
        """Add it."""
        booked = self.noise_multiplier
        self.noise_multiplier = booked * self.factor
        super().add_noise()
        self.noise_multiplier = booked


class DecayingNoise(HalfNoise):
    """Lets the noise fall with the learning rate, and books the first."""

    def add_noise(self) -> None:
        """Add less than before."""
        self.factor = getattr(self, "fallen", 1.0)
        self.fallen = 0.95 * self.factor
        super().add_noise()


class NoNoise(HalfNoise):
    """Adds none."""

    factor = 0.0


class Unclipped(DPOptimizer):
    """Sums gradients of single records as they are."""

    def clip_and_accumulate(self) -> None:
        """Sum them."""
        clip, self.max_grad_norm = self.max_grad_norm, 1e6
        super().clip_and_accumulate()
        self.max_grad_norm = clip


class LoseBooks(TrainerCallback):
    """Go on after a checkpoint that did not hold the books."""

    def __init__(self) -> None:
        self.engine: Any = None

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Forget all steps but the last."""
        del self.engine.accountant.history[:-1]
        self.engine.accountant.history[:] = [(0.8, 1 / 14, 1)]


def become(kind: type[DPOptimizer]) -> Any:
    def change(engine: Any, optimizer: Any) -> None:
        optimizer.__class__ = kind

    return change


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "books alone"])
def test_a_right_training_is_spared(watch: bool, tmp_path: Path) -> None:
    audit = run_private(tmp_path, watch=watch, epochs=2)
    assert audit.conformance.find("violated") == ()
    assert audit.verdict in ("not refuted", "cannot judge")
    assert audit.conformance.find("conforms")
    if not watch:  # silence is not success: what a Trainer cannot see is said
        names = {check.name for check in audit.conformance.find("not tested")}
        assert {"noise of the steps", "clipping"} <= names


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (HalfNoise, "noise scale"),
        (NoNoise, "noise scale"),
        (DecayingNoise, "noise scale"),
        (Unclipped, "clipping"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_optimisers_are_found(kind: Any, check: str, tmp_path: Path) -> None:
    audit = run_private(tmp_path, change=become(kind), epochs=1)
    assert audit.verdict == "violated"
    assert check in {each.name for each in audit.conformance.find("violated")}
    assert "**violated**" in (tmp_path / "README.md").read_text("utf-8")


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "books alone"])
def test_a_shuffled_loader_under_poisson_books_is_found(watch: bool, tmp_path: Path) -> None:
    audit = run_private(tmp_path, keep_loader=False, watch=watch)
    assert audit.verdict == "violated"
    assert "batch sizes" in {each.name for each in audit.conformance.find("violated")}


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "books alone"])
def test_books_that_were_not_restored_are_found(watch: bool, tmp_path: Path) -> None:
    lose = LoseBooks()

    def change(engine: Any, optimizer: Any) -> None:
        lose.engine = engine

    audit = run_private(tmp_path, change=change, callbacks=(lose,), watch=watch, epochs=2)
    assert audit.verdict == "violated"
    assert "steps on the books" in {each.name for each in audit.conformance.find("violated")}


def test_opacus_refuses_sums_that_are_not_cleared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cleared"):
        run_private(tmp_path, clear=False, epochs=1)


def test_random_numbers_of_training_stay_as_they_are(tmp_path: Path) -> None:
    run_private(tmp_path / "a", epochs=1, watch=False)
    first = torch.rand(3)
    run_private(tmp_path / "b", epochs=1, watch=False)
    assert torch.equal(first, torch.rand(3))
