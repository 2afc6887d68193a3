"""Detect noise that anyone can reproduce: generators seeded with guessable numbers."""

import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray

_SEEDS = (*range(1024), *range(1970, 2040), 1234, 1337, 4242, 12345, 31337, 123456, 1234567)
_LATEST = 900  # seconds before the end of a round, tried as seeds
_LENGTH = 48  # values that are compared; torch draws the last 16 of an array otherwise
_LEAST = 24
# Of independent noise the cosine of 24 values exceeds it with a chance below 1e-15.
_ALIKE = 0.98
_GENERATORS = ("numpy.random.default_rng", "numpy.random.seed", "torch.manual_seed")
_NAME = "noise that cannot be guessed"
_EXPECTED = "noise does not come from a small seed"
_SMALL = 1 << 32  # all smaller seeds can be tried one after the other
_TORCH = 67280421310721  # the default seed of torch.Generator()


class GuessedNoise:
    """Compare the noise of every round with the noise of guessable seeds.

    Guarantee: chance flags fewer than one correct run in a million. A generator that is seeded
        once, at the start, is a remark: reproducible runs do that.

    Example:
        >>> guessed = GuessedNoise()
        >>> for number in range(4):
        ...     guessed.see([("weight", np.random.default_rng(number).normal(size=(8, 8)))])
        >>> guessed.check().outcome
        'violated'
    """

    def __init__(self) -> None:
        self._rounds = self._tested = self._matched = self._first = 0
        self._generator = ""

    def see(
        self, residuals: Iterable[tuple[str, FloatArray]], *, began: float | None = None
    ) -> None:
        """Add the noise of a round, one array at a time, in any unit.

        Args:
            residuals: The noise.
            began: Start of the round, in seconds since 1970: generators may be seeded by the clock.
        """
        self._rounds += 1
        now = int(time.time())
        seconds = range(now if began is None else max(int(began), now - _LATEST), now + 1)
        starts = [np.ravel(part)[:_LENGTH] for _, part in residuals if part.size >= _LEAST]
        self._tested += bool(starts)
        for start in starts:
            length = float(np.linalg.norm(start))
            for generator in _GENERATORS if length else ():
                drawn = _draw_guesses(generator, "torch" in sys.modules, seconds)[:, : start.size]
                if drawn.size and _find_largest(drawn, start / length) > _ALIKE:
                    self._matched += 1
                    self._first, self._generator = self._first or self._rounds, generator
                    return

    def check(self) -> Check:
        """Return the observations so far."""
        if not self._tested:
            return leave_untested(_NAME, _EXPECTED, "no array has 24 weights")
        outcome = judge.judge_limit(self._matched, limit=1)
        if self._matched == 1:
            outcome = judge.REMARK
        seen = f"{len(_SEEDS):,} seeds and the clock were tried, none gives this noise"
        if self._matched:
            seen = (
                f"in {self._matched} of {self._rounds} rounds noise begins as {self._generator} "
                "does with a guessed seed: anyone who knows it can subtract the noise"
            )
        return Check(
            name=_NAME,
            outcome=outcome,
            expected=_EXPECTED,
            seen=seen,
            value=float(self._matched),
            steps=self._first or self._rounds,
        )


def check_seed(seed: int | None, *, steps: int) -> Check:
    """Judge the seed of the generator that draws noise; a small one is a remark.

    Reproducible runs use one. The seed is not named, since results are published.

    Args:
        seed: Last seed of the generator; None if unknown.
        steps: Number of steps whose noise it drew.

    Example:
        >>> check_seed(42, steps=1).outcome
        'remark'
    """
    if seed is None or not steps:
        return leave_untested(_NAME, _EXPECTED, "the seed of the generator is not known")
    guessed = 0 <= seed < _SMALL or seed == _TORCH
    seen = "the generator was seeded with a large number"
    if guessed:
        seen = (
            "the generator was seeded with a number that can be guessed, which lets anyone "
            "subtract the noise. Train models for release in secure mode"
        )
    return Check(
        name=_NAME,
        outcome=judge.REMARK if guessed else judge.CONFORMS,
        expected=_EXPECTED,
        seen=seen,
        steps=steps,
    )


def _draw_guesses(generator: str, has_torch: bool, seconds: range) -> NDArray[np.float32]:
    """Return the first values that each seed draws, one row per seed."""
    if generator == "torch.manual_seed" and not has_torch:
        return np.zeros((0, _LENGTH), np.float32)
    return np.concatenate([_draw_all(generator, _SEEDS), _draw_all(generator, seconds)])


@lru_cache(maxsize=2 * len(_GENERATORS))  # seeds that are always tried, and those of a round
def _draw_all(generator: str, seeds: Sequence[int]) -> NDArray[np.float32]:
    return np.array([_draw_normal(generator, seed) for seed in seeds], np.float32)


def _draw_normal(generator: str, seed: int) -> Any:
    if generator == "numpy.random.default_rng":
        return np.random.default_rng(seed).standard_normal(_LENGTH)
    if generator == "numpy.random.seed":
        return np.random.RandomState(seed).standard_normal(_LENGTH)
    import torch

    return torch.randn(_LENGTH + 16, generator=torch.Generator().manual_seed(seed))[:_LENGTH]


def _find_largest(drawn: NDArray[np.float32], start: FloatArray) -> float:
    """Return the largest cosine, of either sign."""
    lengths = np.linalg.norm(drawn, axis=1)
    return float(np.abs(drawn @ start.astype(np.float32) / lengths).max())
