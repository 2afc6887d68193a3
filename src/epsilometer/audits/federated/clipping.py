"""To which norm clients' updates are clipped: one for all rounds, or one after a quantile."""

import math
from dataclasses import dataclass
from typing import Protocol

from epsilometer import _validate
from epsilometer.errors import InvalidArgument


class Clipping(Protocol):
    """Has the norm of every round.

    Must keep: whatever :meth:`after` learns of the clients is made private by a part of the noise,
    so that :meth:`value_noise` leaves the rest for the updates themselves.
    """

    @property
    def first(self) -> float:
        """The norm of the first round."""
        ...

    def value_noise(self, noise_multiplier: float) -> float:
        """The noise multiplier of the sum of updates."""
        ...

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """The norm of the next round.

        Args:
            norm: Of this round.
            unclipped: How many updates were not longer than that.
            members: How many there were.
            mean: How many there are in a round on average, as configured.
            normal: A standard normal variable, for the noise of the count.
        """
        ...


@dataclass(frozen=True)
class FixedClip:
    """The same in all rounds.

    Attributes:
        norm: S.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(norm=self.norm)

    @property
    def first(self) -> float:
        """S."""
        return self.norm

    def value_noise(self, noise_multiplier: float) -> float:
        """All of it."""
        return noise_multiplier

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """S again."""
        return norm


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    r"""Follows a quantile of the clients' norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    :math:`S_{t+1} = S_t \exp(-\eta (\tilde b_t - \gamma))`, where :math:`\tilde b_t` is the share
    of updates that were not clipped: the sum of :math:`b_i - ½`, which one client moves by ½ at
    most, plus :math:`N(0, \sigma_b^2)`, over the mean number of members, shifted back by ½, and
    kept within [0, 1].

    Guarantees: count and sum together cost what a sum with the whole noise multiplier z would,
        :math:`z_\Delta = (z^{-2} - (2\sigma_b)^{-2})^{-1/2}`.

    Attributes:
        initial: S of the first round.
        quantile: γ, the share of updates that is to stay unclipped.
        learning_rate: η.
        count_noise: σ_b.

    Example:
        >>> clip = AdaptiveClip(initial=1.0, quantile=0.5, learning_rate=0.2, count_noise=10.0)
        >>> round(clip.after(1.0, unclipped=100, members=100, mean=100.0, normal=0.0), 4)
        0.9048
        >>> round(clip.value_noise(1.0), 4)
        1.0013
    """

    initial: float = 0.1
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float

    def __post_init__(self) -> None:
        _validate.positive(initial=self.initial, learning_rate=self.learning_rate)
        _validate.open_unit(quantile=self.quantile)
        _validate.at_least(0, count_noise=self.count_noise)

    @property
    def first(self) -> float:
        """S of the first round."""
        return self.initial

    def value_noise(self, noise_multiplier: float) -> float:
        """More than the whole, since the count takes its share of the privacy."""
        _validate.at_least(0, noise_multiplier=noise_multiplier)
        if noise_multiplier == 0:
            return 0.0
        left = (
            noise_multiplier**-2 - (2 * self.count_noise) ** -2 if self.count_noise else -math.inf
        )
        if left <= 0:
            raise InvalidArgument(
                f"Expected count_noise above {noise_multiplier / 2:g}, half of the noise "
                f"multiplier, got {self.count_noise!r}: the count alone would cost more privacy "
                "than there is. A twentieth of the cohort is usual."
            )
        return float(left**-0.5)

    def after(
        self, norm: float, *, unclipped: int, members: int, mean: float, normal: float
    ) -> float:
        """As of :class:`Clipping`."""
        noisy = unclipped - members / 2 + self.count_noise * normal
        share = min(max(noisy / mean + 0.5, 0.0), 1.0)
        return norm * math.exp(-self.learning_rate * (share - self.quantile))
