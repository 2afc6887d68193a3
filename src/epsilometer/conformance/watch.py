"""Watch the noise of a run step by step, and test whether it is as accounted for."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.conformance.noise_checks import CHECKS, LEVEL, NoiseCheck, Unwhitened
from epsilometer.conformance.run_epsilon import NoiseGroup, round_up
from epsilometer.conformance.summary import (
    StepSummary,
    choose_sketch,
    read_residual,
    summarise_step,
)
from epsilometer.conformance.whitening import Whitening
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument

_MOST_GROUPS = 256  # of steps with the same booked noise and rate
_MOST_STEPS = 1 << 16  # of a group, whose noise is kept one by one
_NOMINAL = 1e-8
_COARSE = 1.01  # ratio of noise multipliers that are taken together where there are more


class StepWatch:
    """Watch the noise that a program releases, step by step.

    Eight checks share ``level``, nine where noise is declared to be correlated. Each keeps its
    largest e-value: it is violated if that reaches 8/level, or 9/level. Evidence on scale, shape,
    signs, ties and sums of steps consists of likelihood ratios. Cosines give exact p-values and
    these e-values, where step t has the weight 1/(t(t+1)).

    Guarantee: at most a fraction ``level`` of correct runs is ever flagged, at any stopping time
        and however often it is queried. Too much noise is a remark.
    Assumption: in a correct run residuals are independent Gaussian noise. All coordinates of one
        tensor in one step have the same scale, at least 1. Rounding to 1/16 of it or finer is
        allowed.

    Memory is bounded: 1,024 coordinates of 256 steps, two numbers for each of at most 2²⁰ rows, and
    three for each step.

    Args:
        level: Probability of flagging a correct run, for all checks together.
        steady: Whether the residuals are pure noise. False if the sum before noise is unknown and
            may drift: then only the scale is tested, which is valid under any drift.
        drift: Why they may not be, in a sentence.
        noise: Declared correlated noise, see :class:`Whitening`; it is whitened first. If earlier
            steps are too large to keep, only the sketch is whitened; for the rest, the scale of the
            new noise in every step is tested.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> watch = StepWatch()
        >>> for _ in range(20):
        ...     _ = watch.see([("weight", 0.5 * rng.normal(size=(16, 16)))])  # half the noise
        >>> watch.finding().verdict, watch.finding().check("noise scale").steps
        ('violated', 1)
    """

    def __init__(
        self, *, level: float = LEVEL, steady: bool = True, drift: str = "", noise: Any = None
    ) -> None:
        _validate.open_unit(level=level)
        self.level, self.steps = level, 0
        self._drift = "" if steady else drift or "the sum before noise may change between steps"
        self._sketch: tuple[NDArray[np.int64], ...] | None = None
        self._layout: tuple[tuple[str, int, int, int], ...] = ()
        self._groups: dict[tuple[float, float], _Group] = {}
        self._declared = None if noise is None else Whitening(noise)
        kinds: tuple[type[NoiseCheck], ...] = CHECKS
        if self._declared is not None:
            self._stream = self._declared.start()
            kinds = (*CHECKS, Unwhitened)
        self._checks = tuple(check(shares=len(kinds), level=level) for check in kinds)

    def see(
        self,
        residuals: Iterable[tuple[str, Any]],
        *,
        ties: tuple[int, int] | None = None,
        noise_multiplier: float | None = None,
        rate: float | None = None,
    ) -> list[NDArray[Any]] | None:
        """Add the residuals of the next step; return their new noise.

        It is independent of everything known before the step. It is None if declared correlated
        noise is whitened only in a sketch.

        Args:
            residuals: See :func:`summarise_step`.
            ties: Likewise.
            noise_multiplier: Booked σ of this step; None excludes it from :meth:`group_noise`.
            rate: Booked sampling rate of this step; None likewise.
        """
        booked = self._read_booked(noise_multiplier, rate)
        arrays = [(name, read_residual(name, value)) for name, value in residuals]
        if self._sketch is None:
            self._sketch = choose_sketch([array.size for _, array in arrays])
        whole = self._declared is not None and self._declared.fits([a.size for _, a in arrays])
        if whole:
            self._check_layout(tuple((name, array.size, 0, 0) for name, array in arrays))
            white = self._stream.next([array for _, array in arrays])
            arrays = [(name, array) for (name, _), array in zip(arrays, white, strict=True)]
        step = summarise_step(
            arrays,
            sketch=self._sketch,
            ties=(0, 0) if whole and ties is None else ties,
        )
        if whole:
            self._take(step, booked)
        else:
            self.see_summary(step, noise_multiplier=noise_multiplier, rate=rate)
        if self._declared is None or whole:
            return [array for _, array in arrays]
        return None

    def see_summary(
        self,
        step: StepSummary,
        *,
        noise_multiplier: float | None = None,
        rate: float | None = None,
    ) -> None:
        """Add the summary of the next step, computed on the device of its arrays.

        Args:
            step: Summary of residuals in units of the accounted noise; declared noise is not
                whitened yet.
            noise_multiplier: See :meth:`see`.
            rate: Likewise.
        """
        booked = self._read_booked(noise_multiplier, rate)
        self._check_layout(
            tuple((t.name, t.count, t.rows.size, t.sketch.size) for t in step.tensors)
        )
        if self._declared is None:
            self._take(step, booked)
            return
        own = self._declared.row(self.steps).own
        new = replace(
            step,
            tensors=tuple(
                replace(
                    part,
                    squares=part.squares * own**2,
                    total=part.total * own,
                    rows=part.rows * own**2,
                    small=part.small if own <= 1 else 0,  # it was counted in other units
                )
                for part in step.tensors
            ),
        )
        self._take(self._stream.whiten_sketches(step), booked, unwhitened=new)

    def _check_layout(self, layout: tuple[tuple[str, int, int, int], ...]) -> None:
        if self.steps and layout != self._layout:
            raise InvalidArgument("Expected the same tensors in every step, got others.")
        self._layout = layout

    def _take(
        self,
        step: StepSummary,
        booked: tuple[float, float] | None,
        *,
        unwhitened: StepSummary | None = None,
    ) -> None:
        if booked is not None:
            self._book(step, *booked)
        self.steps += 1
        for check in self._checks:
            if check.steady and self._drift:
                continue
            own = unwhitened if isinstance(check, Unwhitened) else step
            if own is not None:
                check.see(own, self.steps)
            check.keep_largest(self.steps)

    def _read_booked(
        self, noise_multiplier: float | None, rate: float | None
    ) -> tuple[float, float] | None:
        """Return the booked noise multiplier and rate of a step; None if one is missing."""
        if noise_multiplier is None or rate is None:
            return None
        _validate.positive(noise_multiplier=noise_multiplier)
        _validate.probability(rate=rate)
        others = {noise for noise, _ in self._groups} - {noise_multiplier}
        if self._declared is not None and others:
            raise InvalidArgument(
                "Expected the same noise multiplier in all steps of correlated noise, got another."
            )
        return noise_multiplier, rate

    def _book(self, step: StepSummary, noise_multiplier: float, rate: float) -> None:
        """Add a step to those with the same booked noise and rate; their number is bounded."""
        key = noise_multiplier, rate
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            # More noise and rarer batches leak less, so a bound computed from them still holds.
            key = round_up(noise_multiplier, _COARSE), rate and 1 / round_up(1 / rate, _COARSE)
        if key not in self._groups:
            self._groups[key] = _Group(step)
        self._groups[key].add(step, self.steps + 1)

    def group_noise(self) -> tuple[NoiseGroup, ...]:
        """Return the observed noise, grouped by the booked noise.

        Residuals with a mean make noise look larger, so a bound computed from it still holds. With
        declared correlated noise, all steps are one release of the whitened noise, with the
        sensitivity of the declared matrix. Nothing is returned if batches were sampled.
        """
        if self._declared is not None and any(rate != 1 for _, rate in self._groups):
            return ()
        return tuple(
            NoiseGroup(
                noise_multiplier=noise,
                rate=rate,
                steps=group.steps if self._declared is None else 1,
                tensors=group.tensors(),
                quietest=() if self._declared is not None else tuple(group.quietest),
            )
            for (noise, rate), group in self._groups.items()
        )

    def distrust(self, reason: str) -> None:
        """Drop the checks that need residuals of pure noise: these turned out to contain more."""
        self._drift = reason

    @property
    def violated(self) -> bool:
        """Whether any check has ever been violated, unless residuals are distrusted."""
        return any(
            check.crossed is not None and not (check.steady and self._drift)
            for check in self._checks
        )

    def finding(self, *more: Check, bound: EpsilonLowerBound | None = None) -> ConformanceFinding:
        """Return the finding so far.

        Args:
            more: Further checks of the same run.
            bound: The ε of what ran, from :func:`bound_epsilon_of_run`.
        """
        own = [check.check(drift=self._drift) for check in self._checks]
        return ConformanceFinding(
            checks=(*own, *more), steps=self.steps, level=self.level, bound=bound
        )


class _Group:
    """Accumulate the noise of the tensors in steps with the same booked noise and rate."""

    def __init__(self, step: StepSummary) -> None:
        self._names = [part.name for part in step.tensors]
        self._counts = np.array([part.count for part in step.tensors])
        self._squares = np.zeros(len(self._names))
        self.steps = 0
        self.quietest: list[tuple[int, int, float]] = []
        # The quietest part is chosen by limits at one fixed level, whatever level is used later.
        every = np.append(self._counts, self._counts.sum())
        self._quantiles = 2 * scipy.special.gammaincinv(every / 2, _NOMINAL)

    def add(self, step: StepSummary, number: int) -> None:
        """Add the step with this number in the run."""
        squares = np.array([part.squares for part in step.tensors])
        self._squares += squares
        self.steps += 1
        if len(self.quietest) < _MOST_STEPS:
            every = np.append(squares, squares.sum())
            least = int(np.argmin(every / self._quantiles))
            counts = np.append(self._counts, self._counts.sum())
            self.quietest.append((number, int(counts[least]), float(every[least])))

    def tensors(self) -> tuple[tuple[str, int, float], ...]:
        """Return name, residuals and squares of each tensor."""
        counts = (self._counts * self.steps).tolist()
        return tuple(zip(self._names, counts, self._squares.tolist(), strict=True))
