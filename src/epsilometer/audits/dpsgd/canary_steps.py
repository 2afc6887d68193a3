"""Was the canary in? Scores from what every noisy step shows in the canary's direction.

An adversary who does not know the batches may be judged by an ε that sampling amplified; one who
knows in which steps each canary would have been only by the ε of those steps without
amplification. The two are kept apart here: the first never sees ``took``.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Views: TypeAlias = dict[str, FloatArray]
_FADING = 0.9  # of a contribution that lingers: the usual momentum
_LEAST = 1e-3  # noise, in units of the clipping norm, below which none is told from none


@dataclass(frozen=True, eq=False, kw_only=True)
class CanarySteps:
    """What T steps showed of m canaries.

    Attributes:
        seen: The noisy sum of the step, less what the adversary knows of it, in the direction of
            each canary and in units of the clipping norm, shape ``(T, m)``: 1 where it took part,
            and noise.
        took: In which steps each canary takes part if it is in at all, shape ``(T, m)``.
        noise: Noise multipliers of the steps, shape ``(T,)``.
        chance: Of taking part in a step, for one who does not know, shape ``(T,)``.
        blur: Standard deviation of what other canaries add to ``seen``, shape ``(T,)``; it weighs
            steps and promises nothing.
        epoch: Which epoch a step belongs to, shape ``(T,)``, where records come once an epoch;
            None where steps are independent.
    """

    seen: FloatArray
    took: NDArray[np.bool_]
    noise: FloatArray
    chance: FloatArray
    blur: FloatArray
    epoch: IntArray | None = None

    def __post_init__(self) -> None:
        steps = self.seen.shape[:1]
        if self.seen.ndim != 2 or self.seen.size == 0 or self.took.shape != self.seen.shape:
            raise InvalidArgument(
                f"Expected steps × canaries, at least one of each, in seen and took, got shapes "
                f"{self.seen.shape} and {self.took.shape}."
            )
        shapes = [part.shape for part in (self.noise, self.chance, self.blur)]
        if any(shape != steps for shape in shapes):
            raise InvalidArgument(
                f"Expected a noise multiplier, a chance and a blur for each of {steps[0]} steps, "
                f"got shapes {', '.join(map(str, shapes))}."
            )

    @property
    def variance(self) -> FloatArray:
        """Of noise and blur of each step, shape ``(T, 1)``."""
        return np.asarray(np.maximum(np.hypot(self.noise, self.blur), _LEAST)[:, None] ** 2)

    @property
    def exposure(self) -> FloatArray:
        """μ² of each canary for one who knows the batches: each own step adds 1/noise²."""
        each = np.maximum(self.noise, _LEAST)[:, None] ** -2
        return np.asarray((self.took * each).sum(axis=0))


def blind_views(steps: CanarySteps) -> Views:
    """Scores, shape ``(m,)`` each, of adversaries who do not know the batches.

    - *likelihood ratio*: the best there is if every step is as it should be;
    - *sum*: of all steps, which also finds what lingers in later steps;
    - *differences*: of a step to the middle one, in units of how much steps really differ: finds
      noise that repeats.

    Guarantees: no score depends on ``took``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> took = rng.random((50, 4)) < 0.2
        >>> planted = np.array([1, 0, 1, 0])
        >>> steps = CanarySteps(seen=took * planted + rng.normal(0, 0.3, (50, 4)), took=took,
        ...     noise=np.full(50, 0.3), chance=np.full(50, 0.2), blur=np.zeros(50))
        >>> blind_views(steps)["likelihood ratio"] > 0
        array([ True, False,  True, False])
    """
    views = {"sum": np.asarray((steps.seen / steps.variance).sum(axis=0))}
    if np.all(steps.chance == 1):  # all steps are everybody's: the sum says it all
        return views
    views["likelihood ratio"] = _ratio(steps, (steps.seen - 0.5) / steps.variance)
    if steps.seen.shape[0] >= 3:
        apart = steps.seen - np.median(steps.seen, axis=0)
        spread = max(_LEAST, 1.4826 * float(np.median(np.abs(apart))))
        views["differences"] = _ratio(steps, (apart - 0.5) / spread**2)
    return views


def known_views(steps: CanarySteps) -> Views:
    """Scores, shape ``(m,)`` each, of adversaries who know in which steps a canary would be.

    - *own steps*: the likelihood ratio of the steps that the canary would be in;
    - *own steps and later ones*: as if its contribution faded by a tenth a step, as momentum does;
    - *own steps less the others*: finds noise that repeats.
    """
    own = steps.took.astype(np.float64)
    lingering = np.empty_like(own)
    level = np.zeros(own.shape[1])
    for t, row in enumerate(own):
        level = _FADING * level + row
        lingering[t] = level
    views = {
        "own steps": _matched(steps, own),
        "own steps and later ones": _matched(steps, lingering),
    }
    if np.any(steps.took.any(axis=0) & ~steps.took.all(axis=0)):
        inside, outside = own.sum(axis=0), (1 - own).sum(axis=0)
        gap = (steps.seen * own).sum(axis=0) / np.maximum(inside, 1)
        gap = gap - (steps.seen * (1 - own)).sum(axis=0) / np.maximum(outside, 1)
        views["own steps less the others"] = (gap - 0.5) * inside * outside / own.shape[0]
    return views


def _matched(steps: CanarySteps, signal: FloatArray) -> FloatArray:
    """ln of the likelihood ratio of this signal against none."""
    return np.asarray(((steps.seen - signal / 2) * signal / steps.variance).sum(axis=0))


def _ratio(steps: CanarySteps, gain: FloatArray) -> FloatArray:
    """ln of the likelihood ratio where ``gain`` is that of a step known to be the canary's."""
    with np.errstate(divide="ignore"):
        yes, no = np.log(steps.chance)[:, None], np.log1p(-steps.chance)[:, None]
    if steps.epoch is None:
        return np.asarray(np.logaddexp(no, yes + gain).sum(axis=0))
    total = np.zeros(gain.shape[1])
    for epoch in np.unique(steps.epoch):
        at = np.flatnonzero(steps.epoch == epoch)
        missed = max(0.0, 1 - float(steps.chance[at].sum()))  # an epoch that was broken off
        own = scipy.special.logsumexp(yes[at] + gain[at], axis=0)
        with np.errstate(divide="ignore"):
            total += np.logaddexp(np.log(missed), own)
    return total
