"""Watch a Trainer's loader and steps, and compare them with an accountant's books."""

from collections.abc import Iterator
from typing import Any

from epsilometer.conformance.books import Books
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.loader_watch import LoaderWatch
from epsilometer.conformance.participation import LEVEL, ParticipationWatch
from epsilometer.core.findings import Check, ConformanceFinding

_NOISE = "noise of the steps"


class RunChecks:
    """Check what a Trainer shows of a run: batches, steps and books, not noise.

    Guarantees: at most 1 correct run in 10,000 is found violated. What was not observed is reported
        as not tested.
    Assumes: the claim is for Poisson sampling, as the accountants of DP-SGD assume.

    Args:
        loader: The Trainer's loader.
        optimizer: Optimiser whose steps are counted; its ``noise_multiplier`` is read if it has
        one.
        accountant: Object with ``history``: (noise multiplier, rate, steps) entries, as in Opacus.
        processes: Number of processes that share the records.
        accumulated: Number of batches per step.
    """

    def __init__(
        self,
        loader: Any,
        optimizer: Any,
        accountant: Any,
        *,
        processes: int = 1,
        accumulated: int = 1,
    ) -> None:
        self._optimizer, self._accountant = unwrap_optimizer(optimizer), accountant
        self._processes = processes
        self._before = list(accountant.history)
        self._books = Books()
        sampler = _find_sampler(loader)
        self._loader = LoaderWatch(loader, sampler)
        rate = float(getattr(sampler, "sample_rate", 1 / max(1, len(loader))))  # of Opacus
        self._rate = min(1.0, rate * accumulated)
        self._participation = ParticipationWatch(len(loader.dataset), rate)

    def take_step(self) -> None:
        """Count a step of the optimiser, and record its batches."""
        self._loader.take()
        noise = getattr(self._optimizer, "noise_multiplier", None)
        booked = self._booked_noise() if noise is None else float(noise)
        self._books.take_step(booked, self._rate)
        self._loader.feed(self._participation)

    def close(self) -> None:
        """Stop watching and restore the loader."""
        self._loader.close()

    @property
    def conformance(self) -> ConformanceFinding:
        """Whether batches, steps and books agree so far."""
        return ConformanceFinding(
            checks=tuple(self._list_checks()), steps=self._books.steps, level=LEVEL
        )

    def _list_checks(self) -> Iterator[Check]:
        yield self._loader.check(self._books.steps)
        yield from self._check_participation()
        history = self._accountant.history
        yield from self._books.check(history, before=self._before, taken_before=None)
        if getattr(self._optimizer, "noise_multiplier", None) is None:
            reason = f"{type(self._optimizer).__name__} does not say what noise it adds"
        else:
            reason = "a Trainer does not see sums before noise: give watch=, of Opacus"
        yield leave_untested(_NOISE, "every step has the booked noise", reason)
        yield leave_untested("clipping", "every record's gradient is clipped", reason)

    def _check_participation(self) -> Iterator[Check]:
        expected = "records enter batches independently, at the booked rate"
        if self._processes > 1:
            reason = f"each of {self._processes} processes draws from its own share of the records"
            yield leave_untested("participation", expected, reason)
        elif self._books.steps == 0:
            yield leave_untested("participation", expected, "no step was taken")
        else:
            yield from self._participation.checks()

    def _booked_noise(self) -> float:
        """Return the booked noise if the optimiser states none: noise is then untested."""
        history = self._accountant.history
        return float(history[-1][0]) if history else 0.0


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the user's optimiser inside accelerate's wrapper."""
    while type(optimizer).__module__.startswith("accelerate."):
        optimizer = optimizer.optimizer
    return optimizer


def _find_sampler(loader: Any) -> Any:
    """Return the sampler of a loader, also if accelerate distributes its batches."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while type(sampler).__module__.startswith("accelerate.") and hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return sampler
