"""Watch the noise of a run step by step, and say whether it is what was accounted for."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.conformance.checks import CHECKS, LEVEL
from epsilometer.conformance.summary import (
    StepSummary,
    as_residual,
    choose_sketch,
    summarise_step,
)
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument


class StepWatch:
    """Watch the noise that a program releases, one step after the other.

    Nine checks share ``level``. Each keeps the largest e-value that it ever had: a check is
    violated where that reaches 9/level. Evidence on scale, shape, signs, ties and sums of steps is
    made of likelihood ratios. Cosines become p-values by their exact law and these e-values, of
    which step t has the weight 1/(t(t+1)).

    Guarantee: at most a share ``level`` of right runs is ever accused, whenever it is stopped and
        however often it is asked. Too much noise is a remark.
    Assumption: in a right run residuals are independent Gaussian noise; all coordinates of one
        tensor in one step have the same scale, of at least 1. Rounding to 1/16 of it
        or finer is allowed.

    Memory is bounded: 1,024 coordinates of 256 steps, and two numbers for each of at most 2²⁰ rows.

    Args:
        level: Chance of accusing a right run, for all checks together.
        steady: Whether the residuals are noise alone. False where the sum before noise is unknown
            and may drift: then only what holds under every drift is tested, that is scale.
        drift: Why they may not be, in a sentence.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> watch = StepWatch()
        >>> for _ in range(20):
        ...     watch.see([("weight", 0.5 * rng.normal(size=(16, 16)))])  # half the noise
        >>> watch.finding().verdict, watch.finding().check("noise scale").steps
        ('violated', 1)
    """

    def __init__(self, *, level: float = LEVEL, steady: bool = True, drift: str = "") -> None:
        _validate.open_unit(level=level)
        self.level, self.steps = level, 0
        self._drift = "" if steady else drift or "the sum before noise may change between steps"
        self._sketch: tuple[NDArray[np.int64], ...] | None = None
        self._layout: tuple[tuple[str, int, int, int], ...] = ()
        self._checks = tuple(check() for check in CHECKS)

    def see(
        self,
        residuals: Iterable[tuple[str, Any]],
        *,
        ties: tuple[int, int] | None = None,
        amplitudes: Any = None,
        amplitude_noise: float = 1.0,
    ) -> None:
        """Take the residuals of the next step; arguments as of :func:`summarise_step`."""
        arrays = [(name, as_residual(name, value)) for name, value in residuals]
        if self._sketch is None:
            self._sketch = choose_sketch([array.size for _, array in arrays])
        self.see_summary(
            summarise_step(
                arrays,
                sketch=self._sketch,
                ties=ties,
                amplitudes=amplitudes,
                amplitude_noise=amplitude_noise,
            )
        )

    def see_summary(self, step: StepSummary) -> None:
        """Take the summary of the next step, computed where its arrays are."""
        layout = tuple((t.name, t.count, t.rows.size, t.sketch.size) for t in step.tensors)
        if self.steps and layout != self._layout:
            raise InvalidArgument("Expected the same tensors in every step, got others.")
        self._layout = layout
        self.steps += 1
        for check in self._checks:
            if check.steady and self._drift:
                continue
            check.see(step, self.steps)
            check.keep_largest(self.steps, shares=len(self._checks), level=self.level)

    def distrust(self, reason: str) -> None:
        """Give up the checks that need residuals of noise alone: they turned out to hold more."""
        self._drift = reason

    @property
    def violated(self) -> bool:
        """Whether any check is violated by now; that stays, unless residuals are distrusted."""
        return any(
            check.crossed is not None and not (check.steady and self._drift)
            for check in self._checks
        )

    def finding(self, *more: Check) -> ConformanceFinding:
        """Return what was found so far; ``more`` are checks that others made of the same run."""
        own = [
            check.conclude(shares=len(self._checks), level=self.level, drift=self._drift)
            for check in self._checks
        ]
        return ConformanceFinding(checks=(*own, *more), steps=self.steps, level=self.level)
