"""Look for canaries in rounds whose noise is correlated: DP-FTRL, matrix factorisation."""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer.audits.federated.iterates import KEPT, MatchedFilter
from epsilometer.conformance.whitening import Whitening
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


class WhitenedFilter:
    r"""Compare canaries with what their rounds released, noise of all rounds made independent.

    Rounds release x = B z + signal, z independent noise. With C = B⁻¹, the rounds y = C x have
    independent noise, and a canary of round t is in all later ones, by column t of C. So v = Σ a y
    is the matched filter of a canary, a being the sum of its columns, and has all of what
    accounting allows: a round after a canary takes away noise that covered it.

    Guarantee: a depends on the declared noise and on the canary's rounds alone, so that the law of
        the cosine of a canary that took no part is exact, also where noise is not as declared.

    Args:
        count: How many canaries.
        encoder: C, lower triangular, one row per round.

    Example:
        >>> found = WhitenedFilter(1, np.array([[1.0, 0.0], [1.0, 1.0]]))
        >>> found.see(np.array([2.0, 0.0]), np.array([1.0]), [0])
        >>> found.see(np.array([-1.0, 1.0]), np.array([-0.7]), [])
        >>> found.summarise().round(2)  # y = (2, 0), (1, 1), and v = (3, 1)
        array([0.95])
    """

    def __init__(self, count: int, encoder: FloatArray) -> None:
        self._encoder = encoder
        self._weights = np.zeros((count, len(encoder)))
        self._dots = np.zeros((count, len(encoder)))
        self._steps: list[NDArray[np.float32]] = []

    def see(self, vector: NDArray[Any], cosines: FloatArray, members: ArrayLike) -> None:
        """Take what a round released, all cosines with it, and who took part."""
        place, own = len(self._steps), np.unique(np.asarray(members, np.int64))
        self._weights[own] += self._encoder[:, place]
        self._dots[:, place] = cosines[: len(self._dots)] * float(np.linalg.norm(vector))
        self._steps.append(vector.astype(np.float32))

    def summarise(self) -> FloatArray:
        """Return the cosine of each canary with its matched filter; nan without a round."""
        many = len(self._steps)
        if not many:
            return np.full(len(self._dots), np.nan)
        steps = np.stack(self._steps)
        by_round = self._weights[:, :many] @ self._encoder[:many, :many]  # a y = (a C) x
        products = (steps @ steps.T).astype(np.float64)
        squares = np.einsum("is,st,it->i", by_round, products, by_round)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = np.sum(by_round * self._dots[:, :many], axis=1) / np.sqrt(squares)
        return np.where(squares > 0, np.clip(cosines, -1.0, 1.0), np.nan)


def make_filter(
    count: int, *, noise: Any, rounds: int, dimension: int, memory: int
) -> MatchedFilter | WhitenedFilter:
    """Return what looks for canaries: whitened where noise is correlated and rounds fit.

    Args:
        count: How many canaries.
        noise: As declared to ``Whitening``.
        rounds: How many rounds there are.
        dimension: Of their space.
        memory: That of ``MatchedFilter``, where noise is independent.
    """
    if getattr(noise, "steady", False) and 4 * rounds * dimension <= KEPT:
        with suppress(InvalidArgument, TypeError):  # of another's making, of unknown law
            return WhitenedFilter(count, Whitening(noise).make_encoder(rounds))
    return MatchedFilter(count, memory=memory)
