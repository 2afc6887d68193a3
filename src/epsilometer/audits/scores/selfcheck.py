"""Check the auditor itself: it must refute broken mechanisms and must not refute sound ones.

The controls are mechanisms whose ε is known, some broken in the classic ways. Each releases
something about a small dataset, with a target record and without it. The adversary knows everything
else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from epsilometer import _validate
from epsilometer.audits.scores.subject import run_audit
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.scores import Scores
from epsilometer.engine.request import Request
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.types import FloatArray

RUNS = 100_000
CONFIDENCE = 0.999  # so that no sound control of three is refuted in 997 of 1,000 seeds
EPSILON, DELTA = 1.0, 1e-5
_DIMENSION = 8
_OTHERS = 20


@dataclass(frozen=True, kw_only=True)
class Control:
    """Hold a mechanism with a claim, and whether the claim is true.

    Attributes:
        name: Its name.
        sound: Whether the claim holds.
        claim: Its claim.
        play: ``play(runs, rng)`` returns scores of that many runs with the target and without it.
    """

    name: str
    sound: bool
    claim: Claim
    play: Callable[[int, np.random.Generator], Scores]


def make_controls() -> tuple[Control, ...]:
    """Return all controls, the sound ones first."""
    approximate = Claim(epsilon=EPSILON, delta=DELTA, adjacency="add_remove")
    pure = Claim(epsilon=EPSILON, delta=0.0, adjacency="replace")
    counted = Claim(epsilon=EPSILON, delta=0.0, adjacency="add_remove")
    return (
        Control(name="Gaussian sum", sound=True, claim=approximate, play=_release_sum),
        Control(name="randomised response", sound=True, claim=pure, play=_respond_at_random),
        Control(name="Laplace count", sound=True, claim=counted, play=_count_with_laplace),
        Control(name="noise halved", sound=False, claim=approximate, play=_halve_noise),
        Control(name="clipping forgotten", sound=False, claim=approximate, play=_forget_clipping),
        Control(name="same seed twice", sound=False, claim=approximate, play=_repeat_seed),
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold a control and its audit."""

    control: Control
    audit: Audit

    @property
    def right(self) -> bool:
        """Whether a broken control was refuted, or a sound one was not."""
        return (self.audit.verdict == judge.REFUTED) != self.control.sound


def selfcheck(*, runs: int = RUNS, seed: int = 0) -> tuple[Outcome, ...]:
    """Audit every control with the default method and rule. Same seed, same outcomes."""
    _validate.whole(0, seed=seed)
    known = make_controls()
    streams = np.random.default_rng(seed).spawn(len(known))
    return tuple(
        Outcome(control=control, audit=_audit_control(control, runs, stream))
        for control, stream in zip(known, streams, strict=True)
    )


def _audit_control(control: Control, runs: int, stream: np.random.Generator) -> Audit:
    scores = replace(
        control.play(runs, stream),
        title=control.name,
        adversary="knows all records except whether the target is included",
    )
    claim = control.claim
    return run_audit(scores, Request(claim=claim, delta=claim.delta, confidence=CONFIDENCE))


def _release_sum(runs: int, rng: np.random.Generator) -> Scores:
    return _score_sum(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA))


def _halve_noise(runs: int, rng: np.random.Generator) -> Scores:
    return _score_sum(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA) / 2)


def _forget_clipping(runs: int, rng: np.random.Generator) -> Scores:
    return _score_sum(runs, rng, sigma=gaussian_sigma(EPSILON, DELTA), clip=np.inf)


def _score_sum(runs: int, rng: np.random.Generator, *, sigma: float, clip: float = 1.0) -> Scores:
    """Release a noisy sum of clipped vectors; the score is its component along the target."""
    others = _clip_rows(rng.normal(size=(_OTHERS, _DIMENSION)), clip)
    target = _clip_rows(5.0 * np.ones((1, _DIMENSION)) / np.sqrt(_DIMENSION), clip)[0]

    def release(present: bool) -> FloatArray:
        total = others.sum(axis=0) + present * target
        return np.asarray(total + rng.normal(0.0, sigma, (runs, _DIMENSION)))

    along = target / np.linalg.norm(target)
    return Scores(
        inside=(release(True) - others.sum(axis=0)) @ along,
        outside=(release(False) - others.sum(axis=0)) @ along,
    )


def _clip_rows(records: FloatArray, clip: float) -> FloatArray:
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    return np.asarray(records * np.minimum(1.0, clip / norms))


def _respond_at_random(runs: int, rng: np.random.Generator) -> Scores:
    """Release the true bit with probability e^ε/(1+e^ε), else the other; it is the score."""
    honest = 1 / (1 + np.exp(-EPSILON))
    inside, outside = rng.random((2, runs)) < honest
    return Scores(inside=inside.astype(float), outside=(~outside).astype(float))


def _count_with_laplace(runs: int, rng: np.random.Generator) -> Scores:
    noise = rng.laplace(0.0, 1 / EPSILON, (2, runs))
    return Scores(inside=_OTHERS + 1 + noise[0], outside=_OTHERS + noise[1])


def _repeat_seed(runs: int, rng: np.random.Generator) -> Scores:
    """Release twice, before and after the target leaves, with noise from the same seed."""
    sigma = np.sqrt(2) * gaussian_sigma(EPSILON, DELTA)  # right for two independent draws
    noise = rng.normal(0.0, sigma, (2, runs))
    before_in, before_out = _OTHERS + 1 + noise[0], _OTHERS + noise[1]
    after_in, after_out = _OTHERS + noise[0], _OTHERS + noise[1]
    return Scores(inside=before_in - after_in, outside=before_out - after_out)
