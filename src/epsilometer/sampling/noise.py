"""Draw the noise of sums over rounds: independent, or correlated so that it cancels later."""

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


class Stream(Protocol):
    """The noise of one training."""

    def next(self, scale: float) -> Tensor:
        """Return the noise of the next round, of shape ``(size,)``.

        Args:
            scale: Noise multiplier times this round's clipping norm.
        """
        ...


class Noise(Protocol):
    """A distribution of noise: any object with these three members.

    Required: all randomness comes from ``generator``.
    """

    @property
    def steady(self) -> bool:
        """Whether the scale must be the same in all rounds."""
        ...

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """Return the noise of one training of ``rounds`` rounds."""
        ...

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        """Return the largest effect of a client with that many rounds on all sums.

        In clipping norms, in the space where the noise is white with the given scale: for an
        adversary who observes everything, ε is that of the Gaussian mechanism with noise
        multiplier / sensitivity.

        Args:
            participations: Largest number of rounds in which the client takes part.
            rounds: Number of training rounds.
            apart: Smallest distance between two of the client's rounds; 1 if they may be
                consecutive.
        """
        ...


@dataclass(frozen=True)
class IndependentNoise:
    """N(0, scale²) in each coordinate, independent in every round: DP-FedAvg.

    Example:
        >>> round(IndependentNoise().sensitivity(4, rounds=16), 2)
        2.0
    """

    @property
    def steady(self) -> bool:
        """False: the scale may change from round to round."""
        return False

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """Return the noise of one training; see :class:`Noise`."""
        return _Independent(size, generator)

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        """Return √participations: one clipping norm in each round."""
        _validate.whole(1, participations=participations, rounds=rounds, apart=apart)
        return float(participations**0.5)


@dataclass(frozen=True)
class TreeNoise:
    """Noise of a binary tree: DP-FTRL (Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021).

    The sum of all updates so far, which determines the model, has the noise of the tree's nodes
    that cover the rounds so far: one for each 1 among the binary digits of their number.

    Guarantees: the noise of the first t rounds adds up to a variance of popcount(t) · scale².

    Example:
        >>> round(TreeNoise().sensitivity(1, rounds=16), 2)
        2.24
    """

    @property
    def steady(self) -> bool:
        """True: a node is noise of several rounds."""
        return True

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """Return the noise of one training; see :class:`Noise`."""
        return _Tree(size, generator)

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        """Count the nodes of a round, one per level; rounds of a client may share nodes.

        On every level, as many rounds as fit into a node are assumed to share it: an upper bound.
        """
        _validate.whole(1, participations=participations, rounds=rounds, apart=apart)
        # At level l a node has 2^l rounds: no more of the client's are in it than fit.
        worst = sum(
            participations * min(participations, -(-(2**level) // apart))
            for level in range(rounds.bit_length())
        )
        return float(worst**0.5)


@dataclass(frozen=True)
class SquareRoot:
    r"""The square root of the matrix of prefix sums, optionally banded.

    C has :math:`\binom{2k}{k} / 4^k` on its k-th diagonal, so that C² has 1 on and below its
    diagonal (Fichtenberger, Henzinger, Upadhyay 2023). With all diagonals, the noise of prefix sums
    is nearly optimal for clients of one round. With b of them, a client's rounds do not overlap if
    they are b or more apart (Kalinin, Lampert 2024).

    Attributes:
        bands: Number of diagonals; all by default.

    Example:
        >>> SquareRoot(bands=2)(3)
        array([[1. , 0. , 0. ],
               [0.5, 1. , 0. ],
               [0. , 0.5, 1. ]])
    """

    bands: int | None = None

    def __post_init__(self) -> None:
        if self.bands is not None:
            _validate.whole(1, bands=self.bands)

    def __call__(self, rounds: int) -> FloatArray:
        """Return C for this many rounds, shape ``(rounds, rounds)``."""
        _validate.whole(1, rounds=rounds)
        k = np.arange(1, min(rounds, self.bands or rounds))
        column = np.zeros(rounds)
        column[: k.size + 1] = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
        places = np.subtract.outer(np.arange(rounds), np.arange(rounds))
        return np.tril(column[places])


_SQUARE_ROOT = SquareRoot()
_ROUNDING = 1e-12  # of products of encoders


@dataclass(frozen=True, eq=False, repr=False)
class MatrixNoise:
    r"""Noise :math:`C^{-1} z`, z white, of a factorisation A = B C of prefix sums.

    The server adds :math:`C^{-1} z` to its sums, so that the sums of all rounds so far, which
    determine the model, have the noise B z (Denisov, McMahan, Rush, Smith, Thakurta 2022).

    Guarantees: the noise of rounds has the covariance :math:`scale^2 (C^T C)^{-1}`; as many
        vectors are kept as C has subdiagonals, however many rounds.
    Assumes: nothing about C that is not checked; :meth:`sensitivity` is never too low.

    Attributes:
        encoder: C: lower triangular with a positive diagonal, one row per round at least; or
            a :class:`SquareRoot`.

    Example:
        >>> noise = MatrixNoise([[1.0, 0.0], [0.5, 1.0]])
        >>> [round(noise.sensitivity(times, rounds=2) ** 2, 6) for times in (1, 2)]
        [1.25, 3.25]
    """

    encoder: ArrayLike | SquareRoot = _SQUARE_ROOT

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, SquareRoot):
            _encoder(self.encoder)

    def __repr__(self) -> str:
        """Distinguish encoders, including large ones, which NumPy would abbreviate."""
        if isinstance(self.encoder, SquareRoot):
            return f"MatrixNoise({self.encoder!r})"
        known = np.ascontiguousarray(self.encoder, np.float64)
        digest = hashlib.sha256(known.tobytes()).hexdigest()[:16]
        return f"MatrixNoise({len(known)} rounds, {digest})"

    @property
    def steady(self) -> bool:
        """True: noise of one round returns in later ones."""
        return True

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """Return the noise of one training; see :class:`Noise`."""
        return _Solving(self.matrix(rounds), size, generator)

    def matrix(self, rounds: int) -> FloatArray:
        """Return C for this many rounds, shape ``(rounds, rounds)``: the corner of a larger C."""
        if isinstance(self.encoder, SquareRoot):
            return self.encoder(rounds)
        known = _encoder(self.encoder)
        if len(known) < rounds:
            raise InvalidArgument(
                f"Expected an encoder of at least {rounds} rounds, got one of {len(known)}."
            )
        return known[:rounds, :rounds]

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        r"""Return the largest :math:`\|\sum_{i \in S} C_i u_i^T\|` over rounds S and unit u.

        This is at most the root of the sum of :math:`|C^T C|` over S × S. If entries fall the later
        and the further apart two rounds are (as for :class:`SquareRoot`), the first allowed rounds
        are the worst, and this is exact for nonnegative C. Otherwise the worst companions of each
        round are found, then the worst rounds: an upper bound, which is exact if C has at most
        ``apart`` diagonals, so that no two rounds overlap.
        """
        _validate.whole(1, participations=participations, rounds=rounds, apart=apart)
        encoder = self.matrix(rounds)
        overlap = np.abs(encoder.T @ encoder)
        most = min(participations, -(-rounds // apart))
        if _first_are_worst(overlap):
            first = apart * np.arange(most)
            return float(overlap[np.ix_(first, first)].sum() ** 0.5)
        places = np.arange(rounds)
        near = np.abs(np.subtract.outer(places, places)) < apart
        companions = _heaviest(np.where(near, 0.0, overlap), most - 1, apart)
        worst = _heaviest((np.diag(overlap) + companions)[None], most, apart)
        return float(worst[0] ** 0.5)


class _Independent:
    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._size, self._generator = size, generator

    def next(self, scale: float) -> Tensor:
        return _normal(self._size, scale, self._generator)


class _Tree:
    """Nodes that cover the rounds so far, by level."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._size, self._generator = size, generator
        self._rounds = 0
        self._nodes: dict[int, Tensor] = {}

    def next(self, scale: float) -> Tensor:
        self._rounds += 1
        level = (self._rounds & -self._rounds).bit_length() - 1
        node = _normal(self._size, scale, self._generator)
        change = node.clone()
        for below in range(level):  # the new node takes the place of these
            change -= self._nodes.pop(below)
        self._nodes[level] = node
        return change


class _Solving:
    """Solver of C x = z, row by row, that keeps as many x as C has diagonals."""

    def __init__(self, encoder: FloatArray, size: int, generator: torch.Generator) -> None:
        self._encoder, self._size, self._generator = encoder, size, generator
        rows, columns = np.nonzero(encoder)
        below = int((rows - columns).max())
        self._kept = torch.zeros(below, size, device=generator.device)
        self._round = 0

    def next(self, scale: float) -> Tensor:
        now, below = self._round, len(self._kept)
        drawn = _normal(self._size, scale, self._generator)
        if below:
            # Row r of what is kept has the last round whose number is r modulo the rows.
            weights = np.zeros(below)
            before = np.arange(max(0, now - below), now)
            weights[before % below] = self._encoder[now, before]
            drawn -= torch.from_numpy(weights).to(self._kept) @ self._kept
        drawn /= float(self._encoder[now, now])
        if below:
            self._kept[now % below] = drawn
        self._round += 1
        return drawn


def _encoder(given: ArrayLike) -> FloatArray:
    known = np.asarray(given, np.float64)
    if known.ndim != 2 or known.shape[0] != known.shape[1] or not known.size:
        raise InvalidArgument(f"Expected a square encoder, got shape {known.shape}.")
    if not np.isfinite(known).all():
        raise InvalidArgument("Expected an encoder of finite numbers, got others.")
    if np.triu(known, 1).any():
        raise InvalidArgument(
            "Expected a lower triangular encoder, got one with numbers above its diagonal: noise "
            "of a round cannot depend on rounds to come."
        )
    if not (np.diag(known) > 0).all():
        raise InvalidArgument("Expected an encoder with a positive diagonal, got another.")
    return known


def _first_are_worst(overlap: FloatArray) -> bool:
    """Tell whether two rounds overlap no more the later they are, and no more the further apart."""
    slack = _ROUNDING * overlap.max()
    later = overlap[1:, 1:] <= overlap[:-1, :-1] + slack
    further = np.tril(overlap[1:, :-1]) <= np.tril(overlap[1:, 1:]) + slack
    return bool(later.all() and further.all())


def _heaviest(weights: FloatArray, count: int, apart: int) -> FloatArray:
    """Return the largest sum of ``count`` columns per row, ``apart`` or more from each other.

    Weights are at least 0. Column by column: either it is left out, or it is the last one.
    """
    rows, columns = weights.shape
    if apart == 1:
        return np.asarray(np.sort(weights)[:, columns - count :].sum(1))
    # Best sums of the columns so far, by how many were taken; the oldest as far back as apart.
    best = deque([np.zeros((rows, count + 1))] * apart, maxlen=apart)
    for column in range(columns):
        with_it = best[0][:, :-1] + weights[:, column, None]
        now = best[-1].copy()
        np.maximum(now[:, 1:], with_it, out=now[:, 1:])
        best.append(now)
    return np.asarray(best[-1][:, -1])


def _normal(size: int, scale: float, generator: torch.Generator) -> Tensor:
    drawn = torch.empty(size, device=generator.device)
    return drawn.normal_(0, scale, generator=generator)
