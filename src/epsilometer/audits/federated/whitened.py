"""Search for canaries in rounds with correlated noise: DP-FTRL, matrix factorisation."""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer.audits.federated.iterates import KEPT, MatchedFilter
from epsilometer.conformance.whitening import Whitening
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


class WhitenedFilter:
    r"""Compare canaries with their rounds' releases, after whitening the noise of all rounds.

    Rounds release x = B z + signal, z independent noise. With C = B⁻¹, the rounds y = C x have
    independent noise, and a canary of round t is in all later ones, by column t of C. So v = Σ a y,
    where a is the sum of a canary's columns, is its matched filter and reaches the accounted ε: a
    later round can cancel noise that covered the canary.

    Guarantee: a depends only on the declared noise and the canary's rounds. So the distribution of
        the cosine of a canary that took no part is exact, even if noise is not as declared.

    Args:
        count: How many canaries.
        declared: The declared distribution of the noise.
        memory: Bytes for vectors of rounds; if they need more, all results are nan.

    Attributes:
        full: Whether there were too many rounds, for memory or for the declared noise.

    Example:
        >>> found = WhitenedFilter(1, Whitening.by_tree())
        >>> found.see(np.array([2.0, 0.0]), np.array([1.0]), [0])
        >>> found.see(np.array([-1.0, 1.0]), np.array([-0.7]), [])
        >>> found.summarise().round(2)  # y = (2, 0), (1, 1), and v = (3, 1)
        array([0.95])
    """

    def __init__(self, count: int, declared: Whitening, *, memory: int = KEPT) -> None:
        self._count, self._declared, self._left = count, declared, memory
        self._members: list[IntArray] = []
        self._dots: list[FloatArray] = []
        self._steps: list[NDArray[np.float32]] = []
        self.full = False

    def see(self, vector: NDArray[Any], cosines: FloatArray, members: ArrayLike) -> None:
        """Take what a round released, all cosines with it, and who took part."""
        self._left -= 4 * vector.size
        with suppress(InvalidArgument):  # no noise is declared for so many rounds
            self._declared.row(len(self._steps))
            if self._left >= 0 and not self.full:
                self._members.append(np.unique(np.asarray(members, np.int64)))
                self._dots.append(cosines[: self._count] * float(np.linalg.norm(vector)))
                self._steps.append(vector.astype(np.float32))
                return
        self.full = True
        self._steps.clear()

    def summarise(self) -> FloatArray:
        """Return the cosine of each canary with its matched filter; nan without a round."""
        many = len(self._steps)
        if not many:
            return np.full(self._count, np.nan)
        encoder, weights = self._declared.make_encoder(many), np.zeros((self._count, many))
        for place, own in enumerate(self._members):
            weights[own] += encoder[:, place]
        steps, dots = np.stack(self._steps), np.stack(self._dots, axis=1)
        by_round = weights @ encoder  # a y = (a C) x
        products = (steps @ steps.T).astype(np.float64)
        squares = np.einsum("is,st,it->i", by_round, products, by_round)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = np.sum(by_round * dots, axis=1) / np.sqrt(squares)
        return np.where(squares > 0, np.clip(cosines, -1.0, 1.0), np.nan)


def make_whitened(count: int, noise: Any) -> WhitenedFilter | None:
    """Return the filter for the declared noise; None if that is independent or unknown.

    Args:
        count: How many canaries.
        noise: As declared to ``Whitening``.
    """
    if noise is not None:
        with suppress(InvalidArgument, TypeError):  # a custom noise of unknown distribution
            declared = Whitening(noise)
            if np.any(np.tril(declared.make_encoder(2), -1)):
                return WhitenedFilter(count, declared)
    return None


def make_filter(
    count: int, *, noise: Any, rounds: int, dimension: int, memory: int
) -> MatchedFilter | WhitenedFilter:
    """Return the filter for canaries: whitened if noise is correlated and rounds fit.

    Args:
        count: How many canaries.
        noise: As declared to ``Whitening``.
        rounds: How many rounds there are.
        dimension: Dimension of their space.
        memory: That of ``MatchedFilter``, if noise is independent.
    """
    if getattr(noise, "steady", False) and 4 * rounds * dimension <= KEPT:
        with suppress(InvalidArgument, TypeError):  # a custom noise of unknown distribution
            declared = Whitening(noise)
            declared.make_encoder(rounds)
            return WhitenedFilter(count, declared)
    return MatchedFilter(count, memory=memory)
