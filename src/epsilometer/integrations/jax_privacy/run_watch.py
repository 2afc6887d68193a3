"""Watch a JAX loop step by step with the checks shared by all integrations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from epsilometer.conformance.books import Booked, Books
from epsilometer.conformance.carryover import CarryoverCheck
from epsilometer.conformance.clipping import ClippingWatch
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.conformance.run_epsilon import bound_epsilon_of_run
from epsilometer.conformance.turns import TurnsWatch
from epsilometer.conformance.watch import StepWatch
from epsilometer.conformance.whitening import Whitening
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy.books import BookedSampling
from epsilometer.integrations.jax_privacy.samplers import Recognised
from epsilometer.integrations.jax_privacy.trees import name_leaves
from epsilometer.sampling.samplers import is_poisson
from epsilometer.types import FloatArray, IntArray

SHARE = LEVEL / 8  # of the level, for what is not noise: earlier records, batches, ε
_OF_SIZES = ("batch sizes", "sizes of steps")
_AHEAD = 16  # batches that a loader may have read ahead
_ROUNDING = 0.01  # relative, of sums in bfloat16
_UNSEEN = "what the loop does with noisy sums is not observed: apply them unchanged"
_REPLAY = "gradients of single records are not available: replay() tests them"


class RunWatch:
    """Watch noise, batches and books of one run.

    Args:
        noise_multiplier: Intended σ of the program.
        unit: Accounted standard deviation of the noise, before it is correlated.
        clip: Largest norm that one record may add to a sum.
        records: Records of the training set.
        known: How batches are drawn.
        history: Booked entries.
        booked: How batches are drawn according to the books.
        noise: Declared correlated noise.
        updates: Noise multiplier and rate of an update, and its number of batches, if it
            accumulates several; by default every batch is an update.

    Attributes:
        steps: Number of observed steps.
        lost: Number of steps whose sums were not finite.
        rate: Probability that an eligible record is in a batch; None if unknown.
        words: How batches are drawn, in words.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        unit: float,
        clip: float,
        records: int,
        known: Recognised,
        history: Sequence[Booked],
        booked: BookedSampling,
        noise: Whitening | None,
        updates: tuple[float, float | None, int] | None = None,
    ) -> None:
        self.noise_multiplier, self._unit, self._clip = noise_multiplier, unit, clip
        self._norms: list[float] = []  # of sums, in clipping norms
        self._sizes: list[int] = []  # of batches
        self.rate, self.words = known.rate, known.words
        self._known, self._history, self._booked = known, list(history), booked
        self._noise = StepWatch(level=LEVEL / 2, noise=noise)
        self._carryover = CarryoverCheck(level=SHARE)
        self._books = Books()
        # In batches of a fixed size, one record replaces another: twice the clipping norm.
        self._updates = updates or (
            noise_multiplier / (2 if booked.fixed else 1),
            known.rate,
            1,
        )
        self.steps = self.lost = 0
        highest = max((rate for _, rate, _ in history), default=1.0)
        self._sampled = highest < 1
        # An update may accumulate several batches: then the rate of one is known, and not booked.
        several = known.rate if updates and known.rate else highest
        self._participation = ParticipationWatch(records, several, level=SHARE)
        self._turns = TurnsWatch(records, known.cycle_length) if known.cycle_length > 1 else None
        self._cycle: list[IntArray] = []

    def see(self, residual: Any, *, norm: Any, noise: FloatArray, added: FloatArray) -> bool:
        """Add the noise of the next step; return whether it is finite.

        Args:
            residual: What was released minus the sum before noise, as a tree.
            norm: Norm of that sum, without canaries.
            noise: The same in the directions of canaries, in clipping norms.
            added: What canaries added, in clipping norms.
        """
        self.steps += 1
        self._norms.append(float(norm) / self._clip)
        sigma, rate, together = self._updates
        if self.steps % together == 0:
            self._books.take_step(noise_multiplier=sigma, rate=rate)
        try:
            self._noise.see(
                [(name, leaf / self._unit) for name, leaf in name_leaves(residual)],
                noise_multiplier=self.noise_multiplier,
                rate=self.rate,
            )
        except InvalidArgument:
            self.lost += 1
            return False
        if noise.size:
            self._carryover.see(noise / self.noise_multiplier, added / self.noise_multiplier)
        return True

    def see_batch(self, batch: Any) -> None:
        """Add the record numbers of the next batch, padded with −1."""
        indices = np.asarray(batch)
        if indices.ndim != 1:
            raise InvalidArgument(
                f"Expected a batch of record numbers, one per record, got shape {indices.shape}."
            )
        indices = indices[indices >= 0]
        self._sizes.append(indices.size)
        if self._turns is None:
            self._participation.see(indices)
            return
        # In a cycle every record has one turn, in which it is drawn at the booked rate.
        self._turns.see(indices)
        self._cycle.append(indices)
        if len(self._cycle) == self._known.cycle_length:
            self._participation.see(np.concatenate(self._cycle))
            self._cycle = []

    def finding(self, *, bound: EpsilonLowerBound | None = None) -> ConformanceFinding:
        """Return whether the observed run did what was accounted for."""
        found = self._noise.finding(
            ClippingWatch(level=SHARE, missing=_REPLAY).check(),
            leave_untested("updates", "every update is made by a sum with noise", _UNSEEN),
            *self._check_sums(),
            self._carryover.check(),
            *self._check_participation(),
            *self._books.check(self._history),
            bound=bound,
        )
        return replace(found, steps=self.steps, level=LEVEL)

    def bound_epsilon(self, *, delta: float, alpha: float) -> EpsilonLowerBound | None:
        """Return the ε of the measured noise; None if batches are not drawn by Poisson sampling."""
        groups, sampler = self._noise.group_noise(), self._known.sampler
        if not groups or sampler is None or not is_poisson(sampler) or self._known.cycle_length > 1:
            return None
        return bound_epsilon_of_run(groups, delta=delta, confidence=1 - alpha, sampling="poisson")

    def _check_sums(self) -> tuple[Check, ...]:
        """Compare each sum with its number of records; without batches there is no check."""
        steps, batches = self.steps, len(self._sizes)
        if not steps or not batches:
            return ()
        expected = "every batch is one step with fresh noise"
        seen = f"{batches} batches, {steps} steps"
        apart = abs(batches - steps)
        # A loader may read ahead, and some steps may not be watched, but not this many.
        several = apart >= min(batches, steps) and (batches < steps or apart > _AHEAD)
        if apart and not several:
            return (leave_untested("steps per batch", expected, seen),)
        paired = Check(
            name="steps per batch",
            outcome=judge.judge_limit(apart, limit=0),
            expected=expected,
            seen=seen,
            value=apart,
            steps=steps,
        )
        if several:
            return (paired,)
        norms, sizes = np.array(self._norms), np.array(self._sizes)
        known = np.isfinite(norms)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(norms > 0, norms / sizes, 0.0)[known]
        longest = float(each.max(initial=0.0))
        return (
            paired,
            Check(
                name="norm of the sum",
                outcome=judge.judge_limit(longest, limit=1 + _ROUNDING),
                expected="sums of clipped gradients, each of the clipping norm at most",
                seen=f"at most {longest:.4g} clipping norms per record",
                value=longest,
                steps=int(known.sum()),
            ),
        )

    def _check_participation(self) -> tuple[Check, ...]:
        expected = "records enter batches independently, at the booked rate"
        stated: tuple[Check, ...] = () if self._turns is None else (self._turns.check(),)
        if not self._sampled:
            return (*stated, leave_untested("participation", expected, "no sampling is booked"))
        stated += self._check_sampler()
        if not self._participation.batches:
            reason = "no batch was observed: go through run.watch_batches(batches)"
            return (*stated, leave_untested("participation", expected, reason))
        # Batches of one size may be what is booked, and most of those that are cut off have one.
        cut_off = self._known.most is not None and self._known.is_booked(self._booked)
        spared = _OF_SIZES if self._booked.fixed or cut_off else ()
        return (*stated, *(c for c in self._participation.checks() if c.name not in spared))

    def _check_sampler(self) -> tuple[Check, ...]:
        """Compare the sampler with the books, if its settings define it."""
        if not self._known.stated:
            return ()
        other = float(not self._known.is_booked(self._booked))
        return (
            Check(
                name="sampler on the books",
                outcome=judge.judge_limit(other, limit=0),
                expected="batches that are drawn as is accounted for",
                seen=self._known.words,
                value=other,
                steps=self.steps,
            ),
        )
