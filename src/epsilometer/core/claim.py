"""Define claims: (ε, δ)-differential privacy, for whom, by which accountant."""

import math
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

Adjacency: TypeAlias = Literal["add_remove", "zero_out", "replace", "unstated"]
Unit: TypeAlias = Literal["record", "client", "unstated"]

_OTHER_UNIT = {
    "client": "This audit tests whole clients, with all their records. A leak of whole clients "
    "does not refute a claim about records: state the ε that was computed for clients.",
    "record": "This audit tests one record. A client may have many records and leak more: to "
    "audit a claim about clients, use federated training or one record per client.",
}
DEFAULT_CONFIDENCE = 0.95  # one-sided, of all deciding bounds together


class Claim(msgspec.Struct, frozen=True):
    """A claim of (ε, δ)-differential privacy, and what it refers to.

    Guarantee: a claim that every program satisfies (δ = 1, ε = ∞) cannot be built.
    Assumption: none; a claim says nothing about whether it is true.

    Attributes:
        epsilon: The claimed ε, finite.
        delta: The claimed δ, in [0, 1).
        adjacency: When two datasets count as neighbours. An ε for one adjacency says nothing
            about another: replacing a record can cost twice what adding one does.
        unit: Whom the claim protects: a record, or a client with all its records. By default, the
            unit that the audited mechanism protects. An ε for clients also holds for records; an ε
            for records says little about clients. So an audit refuses a claim about the other unit.
        sampler: How batches were drawn ("Poisson", "shuffle"), if known.
        accountant: The accountant that computed ε ("PLD", "RDP"), if known.

    Example:
        >>> from epsilometer import Claim
        >>> claim = Claim(3.0, delta=1e-5, adjacency="add_remove")
        >>> claim.epsilon, claim.delta, claim.unit
        (3.0, 1e-05, 'unstated')
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "unstated"
    unit: Unit = "unstated"
    sampler: str = "unstated"
    accountant: str = "unstated"

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        check_delta(self.delta)
        if math.isinf(self.epsilon):
            raise InvalidArgument("Expected a finite epsilon, got inf: every program satisfies it.")
        check_adjacency(self.adjacency)
        if self.unit not in get_args(Unit):
            raise InvalidArgument(
                f"Expected unit to be one of {', '.join(get_args(Unit))}, got {self.unit!r}."
            )
        # NumPy's numbers are not JSON's.
        msgspec.structs.force_setattr(self, "epsilon", float(self.epsilon))
        msgspec.structs.force_setattr(self, "delta", float(self.delta))


def as_claim(
    value: "Claim | float | None", *, delta: float | None = None, **known: Any
) -> Claim | None:
    """Convert a claim as users give it: a number, a ``Claim``, or None for no claim.

    Args:
        value: The claimed ε, or the whole claim.
        delta: Needed with a number; with a ``Claim`` it must equal the claim's δ.
        known: Further fields (``adjacency``, ``accountant``, …) of a claim given as a number.

    Raises:
        InvalidArgument: The value is none of these, δ is missing, or two δ differ.

    Example:
        >>> as_claim(3.0, delta=1e-5) == Claim(3.0, delta=1e-5)
        True
    """
    if value is None:
        return None
    if isinstance(value, Claim):
        if delta is not None and delta != value.delta:
            raise InvalidArgument(
                f"Expected delta to be the claim's {value.delta!r}, got {delta!r}. Give it once."
            )
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidArgument(
            f"Expected claim to be a number, a Claim or None, got {type(value).__name__}."
        )
    if delta is None:
        raise InvalidArgument(
            f"Expected delta with claim={value!r}, got none. Pass delta=1e-5 or "
            "Claim(epsilon, delta=…)."
        )
    return Claim(float(value), float(delta), **known)


def warn_of_delta(claim: Claim | None, count: int, unit: str) -> tuple[str, ...]:
    """Return a caveat where δ is at least the chance that a record drawn at random is published.

    Args:
        claim: The claim; None without one.
        count: Number of records or clients.
        unit: Name of the unit, in the plural.

    Example:
        >>> warn_of_delta(Claim(3.0, delta=1e-5), 60_000, "records")
        ()
    """
    if claim is None or claim.delta * count < 1:
        return ()
    return (
        f"The claimed δ of {claim.delta:g} is at least 1/n for n = {count:,} {unit}: publishing "
        "one of them at random would satisfy it. Use a δ far below 1/n.",
    )


def check_delta(delta: float) -> None:
    """Refuse a δ at which every claim is true."""
    _validate.probability(delta=delta)
    if delta >= 1:
        raise InvalidArgument(
            "Expected delta below 1, got 1: every program satisfies such a claim."
        )


def check_adjacency(value: str) -> None:
    """Refuse unknown adjacencies."""
    if value not in get_args(Adjacency):
        raise InvalidArgument(
            f"Expected adjacency to be one of {', '.join(get_args(Adjacency))}, got {value!r}."
        )


def check_unit(claim: Claim | None, tested: Unit) -> None:
    """Refuse a claim about records where clients are tested, and vice versa.

    Example:
        >>> check_unit(Claim(1.0, delta=1e-5, unit="client"), "client")
    """
    if claim is None or claim.unit in ("unstated", tested):
        return
    raise InvalidArgument(
        f"Expected a claim about a {tested}, got unit={claim.unit!r}. {_OTHER_UNIT[tested]}"
    )
