"""Sum the replies of one round in each way that a server may have averaged them."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.conformance.client_weights import SampledUpdates
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_LEAST_RATE = 1e-6  # where there is no noise at all
_KEPT = 1 << 19  # numbers of all updates, once a round has ended: 4 MiB
_ROUNDINGS = 2  # of weights, between noise and residual
COARSE = 1 / 256  # of the noise: coarser rounding of single weights hides what is averaged


@dataclass(frozen=True, kw_only=True)
class AccountedMean:
    """Declare the accounted release of a round: a mean of clipped updates plus noise.

    The server is accounted to release ``sent + server_rate · (Σᵢ wᵢ clip(updateᵢ) + noise)``.
    Noise has the standard deviation ``noise_multiplier · clip_norm · max wᵢ`` in every coordinate.

    Attributes:
        noise_multiplier: σ, in units of what one client may add.
        clip_norm: C, of a client's whole update; or one norm per array, by its name.
        clients: Number by which the sum is divided, if it is fixed; None for the number of replies.
        weights: ``equal``, or ``examples`` if updates are weighted by their numbers of examples.
        clipped_by: ``server``, or ``clients`` if their replies are already clipped.
        server_rate: Factor of the noisy mean. None if it is unknown and may differ from round to
            round: then noise is compared with the released mean.
        normalised: Whether shorter updates are lengthened to the clipping norm.
        noise: Declared correlated noise, a ``conformance.whitening.Whitening``.
        without: Patterns of names of arrays that are neither clipped nor released with noise.

    Example:
        >>> AccountedMean(noise_multiplier=1.0, clip_norm=0.5).norm
        0.5
    """

    noise_multiplier: float
    clip_norm: float | Mapping[str, float]
    clients: int | None = None
    weights: Literal["equal", "examples"] = "equal"
    clipped_by: Literal["server", "clients"] = "server"
    server_rate: float | None = None
    normalised: bool = False
    noise: Any = None
    without: Sequence[str] = ()

    def __post_init__(self) -> None:
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        norms = self.clip_norm
        named = dict(norms) if isinstance(norms, Mapping) else {"clip_norm": norms}
        _validate.positive(server_rate=self.rate, **named)
        if self.clients is not None:
            _validate.whole(1, clients=self.clients)
        for name, choices in (
            ("weights", ("equal", "examples")),
            ("clipped_by", ("server", "clients")),
        ):
            if getattr(self, name) not in choices:
                raise InvalidArgument(
                    f"Expected {name} to be one of {', '.join(choices)}, "
                    f"got {getattr(self, name)!r}."
                )

    @property
    def rate(self) -> float:
        """The factor of the noisy mean, if it is declared."""
        return 1.0 if self.server_rate is None else self.server_rate

    @property
    def norm(self) -> float:
        """The largest norm of a client's whole update."""
        if isinstance(self.clip_norm, Mapping):
            return math.hypot(*self.clip_norm.values())
        return float(self.clip_norm)


class RoundSums:
    """Sum the replies of one round, averaged in several ways, as vectors.

    Args:
        sent: The weights that clients were sent.
        accounted: The accounted release of this round.
        usual_examples: The mean number of examples of a reply, if known in advance.

    Attributes:
        residual: What was released minus the accounted mean, in units of the accounted noise.
        mean: The accounted mean.
        raw: The mean of the updates without clipping.
        heavier: What weights by examples would add for clients with more examples than usual.
        sample: Some coordinates of every clipped update.
        norms: Norms of the replies of real clients, in units of the clipping norm.
        still: Whether each coordinate is of an array that was not released at all.
    """

    def __init__(
        self, sent: Arrays, accounted: AccountedMean, *, usual_examples: float | None = None
    ) -> None:
        self.accounted = accounted
        self._shapes = {
            name: np.shape(value)
            for name, value in self._keep(sent)
            if value.dtype.kind == "f" and value.size
        }
        self._sent = {name: np.asarray(value, np.float64) for name, value in self._keep(sent)}
        self._bare = {name: value for name, value in sent.items() if name not in self._shapes}
        self._spacing = max(
            (float(np.spacing(np.abs(sent[name]).max())) for name in self._shapes), default=0.0
        )
        size = sum(math.prod(shape) for shape in self._shapes.values())
        self._clipped, self._raw, self._weighted, self._heavy = np.zeros((4, size))
        self._usual = usual_examples
        self.sample = SampledUpdates([math.prod(shape) for shape in self._shapes.values()])
        self.replies, self.clipped, self._examples, self._most = 0, 0, 0.0, 0.0
        self._counted = True
        self._reason = "" if size else "no floating-point arrays"
        self.norms: list[float] = []  # of real clients

    def add(
        self,
        reply: Arrays,
        examples: float | None,
        *,
        canary: bool,
        client: Hashable | None = None,
    ) -> None:
        """Add a reply to all sums."""
        reply = dict(self._keep(reply))
        if set(reply) != set(self._sent) or any(
            np.shape(reply[name]) != value.shape for name, value in self._sent.items()
        ):
            self._reason = "replies have other arrays than were sent"
            return
        update = {
            name: np.asarray(reply[name], np.float64) - own for name, own in self._sent.items()
        }
        square = {name: float(np.sum(part**2)) for name, part in update.items()}
        norm = math.sqrt(sum(square.values()))
        if not math.isfinite(norm):
            self._reason = "a reply was not finite"
            return
        limits = self.accounted.clip_norm
        if isinstance(limits, Mapping):
            if missing := set(self._shapes) - set(limits):
                self._reason = f"no clipping norm is accounted for {min(missing)!r}"
                return
            factors = {name: self._scale(limits.get(name, 0.0), square[name]) for name in update}
        else:
            factors = dict.fromkeys(update, self._scale(limits, norm**2))
        most = self.accounted.norm
        clipped = self._join({name: factors[name] * part for name, part in update.items()})
        if self.accounted.clipped_by == "clients":  # their replies are averaged unchanged
            clipped = self._join(update)
        self._clipped += clipped
        # Lengthening an update by less is correct: bets are only on longer ones.
        self._raw += clipped if self.accounted.normalised and norm < most else self._join(update)
        self.replies += 1
        self.clipped += norm > most
        self._counted &= examples is not None and examples > 0
        if self.accounted.weights == "examples":
            self._weighted += (examples or 0.0) * clipped
        elif self._usual is not None and (examples or 0.0) > self._usual:
            self._weighted += (examples or 0.0) * clipped
            self._heavy += clipped
        self.sample.add(
            clipped,
            client=client,
            norm=norm / most,
            examples=examples or 0.0,
            by_layer=[
                _find_factor(most, square[name]) / max(factors[name], 1e-300)
                for name in self._shapes
            ],
        )
        self._examples += examples or 0.0
        self._most = max(self._most, examples or 0.0)
        if not canary:  # rounding may have made a clipped reply longer
            rounding = self._spacing * math.sqrt(self._clipped.size)
            self.norms.append(max(0.0, norm - rounding) / most)

    def _scale(self, limit: float, square: float) -> float:
        """Return the accounted factor for a part of a squared norm."""
        if self.accounted.normalised and square:
            return limit / math.sqrt(square)
        return _find_factor(limit, square)

    def list_still(self, released: Arrays) -> list[int]:
        """Return the indices of unchanged arrays: nothing of these was released."""
        return [
            place
            for place, name in enumerate(self._shapes)
            if np.array_equal(released.get(name, ()), self._sent[name])
        ]

    @property
    def unreleased(self) -> list[str]:
        """Names of the arrays that were not released in this round."""
        return [name for place, name in enumerate(self._shapes) if place in self.sample.still]

    def leaves_all(self, released: Arrays) -> bool:
        """Tell whether nothing at all was released, for example because too few clients replied."""
        return bool(self._shapes) and len(self.list_still(released)) == len(self._shapes)

    def close(self, released: Arrays, *, number: int = 1) -> str:
        """Compute the residual; return why the round cannot be compared, or an empty string.

        Arrays that were not released get fresh noise, and no mean.

        Args:
            released: The new weights.
            number: Number of the round.
        """
        own = self.accounted
        by_examples = own.weights == "examples"
        if own.noise_multiplier == 0:
            return "no noise is accounted for"
        if self._reason or not self.replies:
            return self._reason or "there was no reply"
        if by_examples and not self._counted:
            return "replies do not say their numbers of examples"
        if any(
            name not in released or np.shape(released[name]) != shape
            for name, shape in self._shapes.items()
        ):
            return "what was released has other arrays than were sent"
        divisor = own.clients or self.replies
        share = self._most / self._examples if by_examples else 1 / divisor
        self.unit = own.noise_multiplier * own.norm * share
        if self._spacing > COARSE * self.unit * own.rate:
            return "weights are rounded to more than 1/256 of the accounted noise"
        self.mean = self._weighted / self._examples if by_examples else self._clipped / divisor
        self.raw = self._raw / divisor
        self.heavier = None
        if self._counted and self._usual is not None and not by_examples:
            # By the usual number, not that of this round: no weight is ever below the equal weight.
            self.heavier = (self._weighted / self._usual - self._heavy) / divisor
        self._leave_still([] if own.noise is not None else self.list_still(released), number)
        shares = self.sample.examples / self._examples if by_examples else None
        self.sample.scale(shares if shares is not None else 1 / divisor, unit=self.unit)
        self._moved = self._measure_move(released)
        self.residual = self.rescale(own.rate)
        return "" if np.isfinite(self.residual).all() else "what was released is not finite"

    def rescale(self, rate: float) -> FloatArray:
        """Return the residual for a noisy mean multiplied by a rate."""
        residual = np.asarray(self._moved / rate - self.mean / self.unit)
        residual[self.still] = self._fresh
        return residual

    def _leave_still(self, places: Sequence[int], number: int) -> None:
        """Remove arrays that were not released from all means."""
        self.sample.still = frozenset(places)
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.still = np.repeat([place in places for place in range(len(sizes))], sizes)
        self._fresh = np.random.default_rng([number, 0, 0, 6]).normal(size=int(self.still.sum()))
        for mean in (self.mean, self.raw, self.heavier):
            if mean is not None:
                mean[self.still] = 0.0

    @property
    def resolution(self) -> float:
        """Largest difference of equal noise, in units of it: weights and replies are rounded."""
        return _ROUNDINGS * self._spacing / (self.unit * self.accounted.rate)

    def shrink(self) -> None:
        """Free the memory that only the comparison of this round needs."""
        self._clipped = self._raw = self._weighted = self._heavy = np.zeros(0)
        self._moved = self.residual = self.raw = self._fresh = np.zeros(0)
        self.heavier = None
        self.sample.thin(max(_KEPT, 8 * self.replies**2))  # or no array is large enough

    def list_bare(self, released: Arrays) -> list[str]:
        """Return arrays that changed but are not compared: integer arrays, and those left out."""
        return [
            name
            for name, value in self._bare.items()
            if value.size and not np.array_equal(value, released.get(name, value))
        ]

    def _measure_move(self, arrays: Arrays) -> FloatArray:
        """Return the distance of arrays from those sent, in units of the accounted noise."""
        moved = {
            name: np.asarray(arrays[name], np.float64) - self._sent[name] for name in self._shapes
        }
        return np.asarray(self._join(moved) / self.unit)

    def measure_apart(self, arrays: Arrays, others: Arrays) -> float:
        """Return the largest difference of arrays, in units of the accounted noise."""
        if any(
            name not in arrays or np.shape(arrays[name]) != shape
            for name, shape in self._shapes.items()
        ):
            return math.inf
        return max(
            float(np.abs(np.asarray(arrays[name], np.float64) - others[name]).max()) / self.unit
            for name in self._shapes
        )

    def find_share(self, arrays: Arrays) -> float:
        """Return how much of the accounted mean the change of the arrays contains."""
        mean = self.mean / self.unit
        return float(np.vdot(self._measure_move(arrays), mean) / np.vdot(mean, mean))

    def limit_rate(self, alpha: float, arrays: Arrays | None = None) -> tuple[float, float] | None:
        """Return confidence limits of the factor of the accounted noise.

        Noise is measured outside the span of the updates, so that their use does not matter. None
        if no array is large enough.

        Args:
            alpha: Error probability of each limit.
            arrays: Arrays with the noise; by default the released ones.
        """
        moved = self._moved if arrays is None else self._measure_move(arrays)
        count, squares = self.sample.measure_beside(moved)
        if not count:
            return None
        quantiles = 2 * scipy.special.gammaincinv(count / 2, [1 - alpha, alpha])
        low, high = np.sqrt(squares / quantiles).tolist()
        return low, max(high, _LEAST_RATE)

    @property
    def usual_examples(self) -> float | None:
        """The mean number of examples of a reply, if all replies have one."""
        return self._examples / self.replies if self.replies and self._counted else None

    def shift(self, other: FloatArray) -> FloatArray:
        """Return the centre of the residual if another mean had been released."""
        return (other - self.mean) / self.unit

    def split(self, vector: FloatArray) -> list[tuple[str, FloatArray]]:
        """Return a vector by arrays."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(vector, ends[:-1])
        return [
            (name, part.reshape(shape))
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        ]

    def _keep(self, arrays: Arrays) -> Iterable[tuple[str, NDArray[Any]]]:
        odd = self.accounted.without
        return [pair for pair in arrays.items() if not any(fnmatchcase(pair[0], p) for p in odd)]

    def _join(self, arrays: Arrays) -> FloatArray:
        return np.concatenate([np.ravel(arrays[name]) for name in self._shapes])


def _find_factor(limit: float, square: float) -> float:
    """Return the factor for a part of a squared norm that keeps a limit."""
    return min(1.0, limit / math.sqrt(square)) if square else 1.0
