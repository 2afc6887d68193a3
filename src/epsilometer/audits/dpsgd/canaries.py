"""Insert gradients of an adversary's choice instead of the records' own, before noise is added.

The adversary watches the noisy sum of every step along a direction ĝ, in units of the clipping
norm. The inserted gradients decide the mean of that sum (Annamalai et al. 2025, Algorithm 2):

======================  ==================  ==================  ==============================
adversary               target's batch      other batches       other records' own gradients
======================  ==================  ==================  ==============================
``target_canary``       +1                  0                   kept
``partially_informed``  +1                  −1, by its last     kept
``worst_case``          +1                  −1, by its last     all 0
``batch_then_shuffle``  B                   −B                  none: the first B are +1, others −1
======================  ==================  ==================  ==============================

Without the target, its +1 becomes 0 (zero-out), −1 (replace), or there is one record less, and no
batch is the target's (add/remove). The target is record 0.

If the target takes another record's place in its batch, some dataset has a −1 in the other batches
only: all other records are −1, and the target's batch lacks one. If the target joins its batch in
addition to the others (Poisson sampling, balls in bins), no dataset does so, and a correct
accountant would be refuted. There the target's batch has the −1 too, which then reveals nothing.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from epsilometer import _validate
from epsilometer.core.claim import Adjacency, check_adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.networks.trainer import Batches, Inserted
from epsilometer.sampling.samplers import Sampler, find_law
from epsilometer.stats.likelihood_ratio import each_with, one_of
from epsilometer.types import BoolArray, FloatArray

Adversary: TypeAlias = Literal[
    "target_canary", "partially_informed", "worst_case", "batch_then_shuffle"
]
_HARDLY = 1e-3  # assumed noise for scores of noiseless observations
IN_WORDS: dict[Adversary, str] = {
    "target_canary": "sees every noisy sum and chooses the target's gradient",
    "partially_informed": "sees every noisy sum, chooses the target's gradient and that of the "
    "last record of other batches",
    "worst_case": "sees every noisy sum and chooses all gradients",
    "batch_then_shuffle": "sees every noisy sum and chooses all gradients, the first batch's alike",
}


def random_direction(size: int, *, rng: np.random.Generator) -> FloatArray:
    """Return a uniformly random unit gradient."""
    _validate.whole(1, size=size)
    direction = rng.standard_normal(size)
    return np.asarray(direction / np.linalg.norm(direction))


def dirac_direction(size: int, *, rng: np.random.Generator) -> FloatArray:
    """Return the direction of one random parameter."""
    _validate.whole(1, size=size)
    direction = np.zeros(size)
    direction[rng.integers(size)] = 1.0
    return direction


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetCanary:
    """Insert a gradient of the adversary's choice for record 0, the target, and for other records.

    Attributes:
        adversary: What the adversary may choose.
        direction: ĝ, a unit vector.
        adjacency: What replaces the target in runs without it; under ``add_remove`` the training
            itself must leave the record out.
        present: Whether the target is in the training set.
        batch_size: B.
        displaces: Whether the target takes another record's place in its batch, see
            :func:`~epsilometer.sampling.samplers.is_displacing`.
    """

    adversary: Adversary
    direction: FloatArray
    adjacency: Adjacency = "zero_out"
    present: bool = True
    batch_size: int
    displaces: bool = True

    def __post_init__(self) -> None:
        if self.adversary not in get_args(Adversary):
            raise InvalidArgument(
                f"Expected adversary to be one of {', '.join(get_args(Adversary))}, "
                f"got {self.adversary!r}."
            )
        check_adjacency(self.adjacency)
        if self.adjacency == "unstated":
            raise InvalidArgument(
                "Expected adjacency to be zero_out, add_remove or replace, got 'unstated': "
                "it defines training without the target."
            )
        _validate.whole(1, batch_size=self.batch_size)
        norm = float(np.linalg.norm(self.direction))
        if self.direction.ndim != 1 or not abs(norm - 1) <= 1e-6:  # nan too
            raise InvalidArgument(f"Expected a unit vector as direction, got one of norm {norm:g}.")

    @property
    def directions(self) -> FloatArray:
        """Return the one direction, shape ``(1, size)``."""
        return self.direction[None, :]

    @property
    def records(self) -> int:
        """Return 0: the target is one of the training set's own records."""
        return 0

    def insert(self, batches: Batches) -> Inserted:
        """Insert the chosen gradients, as :class:`~epsilometer.networks.trainer.Canaries`."""
        has = (batches == 0).any(-1)
        without = {"zero_out": 0.0, "replace": -1.0, "add_remove": 0.0}[self.adjacency]
        own = 1.0 if self.present else without
        if self.adversary == "batch_then_shuffle":
            there = batches >= 0
            alike = there & (batches < self.batch_size)
            amounts = 2.0 * alike.sum(-1) - there.sum(-1)  # +1 for each of the first B, else −1
            amounts = amounts + has * (own - 1.0)
            return Inserted(None, amounts[..., None], has[..., None])
        others = np.greater(batches, 0, order="C")
        if self.adversary == "target_canary":
            return Inserted(others, (own * has)[..., None], has[..., None])
        displaced = has & self.displaces  # the target has taken the place of the −1
        inserts = others.any(-1) & ~displaced
        amounts = has * own - inserts * 1.0
        if self.adversary == "worst_case":
            return Inserted(None, amounts[..., None], has[..., None])
        _take_last(others.reshape(-1, others.shape[-1]), inserts.ravel())
        return Inserted(others, amounts[..., None], has[..., None])

    @property
    def means(self) -> tuple[float, float, float]:
        """Return means of observations: target's batch with it, without it, and other batches."""
        whole = float(self.batch_size)
        other = {"target_canary": 0.0, "batch_then_shuffle": -whole}.get(self.adversary, -1.0)
        if self.adversary == "batch_then_shuffle":
            present = whole
        else:
            present = 1.0 if self.displaces else other + 1.0
        if self.adjacency == "add_remove":
            # Without it a batch is like any other; only the first B still give themselves away,
            # now with one of the others among them.
            absent = whole - 2.0 if self.adversary == "batch_then_shuffle" else other
        else:
            absent = present - (1.0 if self.adjacency == "zero_out" else 2.0)
        return present, absent, other

    def log_ratio(
        self,
        observations: FloatArray,
        *,
        sampler: Sampler,
        noise_multiplier: float,
        rate: float | None = None,
    ) -> FloatArray:
        """Return ln Λ of each run's observations, ``(runs, epochs, steps)``, with the target and
        without.

        It is exact if other records' gradients are orthogonal to ĝ (up to 1/√size for a random one)
        and batches are exchangeable. Otherwise it is only a score, from which bounds are still
        valid. Runs that diverged must have been removed.

        Args:
            observations: Noisy sums along ĝ, in clipping norms.
            sampler: How batches were drawn.
            noise_multiplier: σ; if it is 0, a small value is assumed.
            rate: Probability that a batch has the target, for samplers that draw batches
                independently and do not state it; 1/steps by default.
        """
        sigma = max(noise_multiplier, _HARDLY)
        present, absent, other = self.means
        x = np.asarray(observations, np.float64) - other
        above, below = present - other, absent - other
        try:
            law = find_law(sampler, x.shape[-1], self.batch_size)
        except InvalidArgument:  # unknown here; the ratio of a full shuffle is still a valid score
            law = None
        if law is None or law.rate is None:
            x = x if law is None else x[..., : law.steps]  # record 0 is in one of the first
            return np.asarray(one_of(x, sigma=sigma, present=above, absent=below))
        chance = getattr(sampler, "rate", None) or rate or law.rate
        return np.asarray(each_with(x, sigma=sigma, present=above, absent=below, rate=chance))


def _take_last(rows: BoolArray, where: BoolArray) -> None:
    """Make the last True of some rows False, in place."""
    here = np.flatnonzero(where)
    last = rows.shape[-1] - 1
    whole = rows[here, last]  # most batches are: nobody looks for their last
    rows[here[whole], last] = False
    part = here[~whole]
    rows[part, last - rows[part, ::-1].argmax(-1)] = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ManyCanaries:
    """Append canary records to the training set, each with its own direction.

    A canary that is not included has gradient 0: zero-out adjacency, and the batches stay the same.

    Attributes:
        directions: Unit vectors, ``(canaries, size)``.
        included: Which of them train, ``(runs, canaries)``.
        first: Index of the first canary record: the size of the training set.
    """

    directions: FloatArray
    included: BoolArray
    first: int

    @property
    def records(self) -> int:
        """Return the number of canaries: one record each."""
        return len(self.directions)

    def insert(self, batches: Batches) -> Inserted:
        """Insert the included canaries; see :class:`~epsilometer.networks.trainer.Canaries`."""
        place = np.maximum(batches - self.first, -1) + 1  # column 0 is for the other records
        drawn = np.zeros((*batches.shape[:-1], self.records + 1), np.bool_)
        np.put_along_axis(drawn, place, True, axis=-1)
        drawn = drawn[..., 1:]
        between = [1] * (batches.ndim - 2)  # steps share what a run includes
        included = self.included.reshape(len(self.included), *between, -1)
        keep = (batches >= 0) & (batches < self.first)
        return Inserted(keep, (drawn & included).astype(np.float64), drawn)
