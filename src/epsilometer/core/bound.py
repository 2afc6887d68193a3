"""Bound or estimate ε: numbers that carry their own meaning."""

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.core.claim import Adjacency, check_adjacency
from epsilometer.core.plain import (
    Confidence,
    Count,
    Nonnegative,
    Number,
    Plain,
    PositiveCount,
    Probability,
    check_cites,
    html_table,
    to_plain,
)
from epsilometer.errors import InvalidArgument

Direction: TypeAlias = Literal["present→absent", "absent→present", "both"]
Basis: TypeAlias = tuple[tuple[str, float], ...]
Role: TypeAlias = Literal["lower", "upper", "reference"]


class EpsilonLowerBound(Plain, frozen=True, kw_only=True):
    """With probability at least ``confidence``, no (ε, δ)-DP claim below ``epsilon`` is true.

    That sentence holds only where ``valid`` is true, and under what ``method`` assumes
    (``epsilometer methods`` prints it). A bound of 0 means that nothing was found, not that
    nothing is there.

    Attributes:
        epsilon: The bound.
        delta: The δ at which it holds.
        confidence: One-sided: the bound exceeds the true ε in at most ``1 - confidence`` of audits.
        method: A key of ``estimators.REGISTRY``; or ``poisson_family`` of ``accounting.family``,
            ``cosines`` and ``mean_cosine`` of ``stats.sphere_bounds``.
        threshold_rule: How the threshold was chosen, and so what was paid for it.
        valid: False when the method or rule gives no guarantee; ``caveats`` says why.
        direction: Which of the two directions of the definition gave the bound.
        threshold: The attack says "in" iff score ≥ threshold (the upper one, where two are used).
        n_in: Observations with the record.
        n_out: Observations without it; 0 where the law without it is known exactly.
        adjacency: The neighbouring relation it was measured under.
        adversary: Whose view the scores were computed from, in words.
        seed: Seed of whatever was random in the estimate.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs that the method's formula takes: what was counted where the
            bound was found, and the level that was spent there. ``explain`` puts them in.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(inside=[2.0] * 100, outside=[0.0] * 100)
        >>> print(em.epsilon_lower_bound(scores, delta=1e-5))
        ε ≥ 3.026 at δ = 1e-05 (0.95 confidence, clopper_pearson)
    """

    epsilon: Nonnegative
    delta: Probability
    confidence: Confidence
    method: str
    threshold_rule: str
    valid: bool
    direction: Direction
    threshold: Number
    n_in: PositiveCount
    n_out: Count
    adjacency: Adjacency = "unstated"
    adversary: str = "unstated"
    seed: int = 0
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adjacency(self.adjacency)
        if not isinstance(self.valid, (bool, np.bool_)):
            raise InvalidArgument(f"Expected valid to be True or False, got {self.valid!r}.")
        check_cites(self.cites)
        _settle_basis(self)

    def refutes(self, claimed_epsilon: float) -> bool:
        """Tell whether a claim of ``claimed_epsilon`` at this δ is false; invalid bounds never."""
        return self.valid and self.epsilon > claimed_epsilon

    def __str__(self) -> str:
        sure = f"{self.confidence:.4g} confidence" if self.valid else "NOT A VALID BOUND"
        return f"ε ≥ {self.epsilon:.4g} at δ = {self.delta:g} ({sure}, {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def _repr_html_(self) -> str:
        counts = f"{self.n_in:,} with the record, {self.n_out:,} without it"
        caveats = (("caveat", caveat) for caveat in self.caveats)
        return html_table(str(self), [("observations", counts), *caveats])


class EpsilonEstimate(Plain, frozen=True, kw_only=True):
    """An ε by computation or sampling; not a bound from an attack on a real run.

    Attributes:
        epsilon: The estimate.
        low: Lower end: of the numerical error where ``confidence`` is 1, else of the interval.
        high: Upper end.
        delta: The δ at which it holds.
        confidence: Two-sided confidence of the interval; 1 where nothing was sampled.
        method: How it was computed.
        direction: Which direction of the definition gave it; the larger where both were asked.
        subject: Whose ε it is, in words.
        role: What it may decide. ``lower``: ``low`` is at most the ε of what was audited.
            ``upper``: ``high`` is at least that, by assumptions that were checked on this run.
            ``reference``: the ε of something else, or an estimate; it decides nothing.
        adjacency: The neighbouring relation.
        cites: Keys of ``references.BIBLIOGRAPHY``.
        caveats: What a reader must know before quoting the number.
        basis: (name, number) pairs that the method's formula takes.

    Example:
        >>> import epsilometer as em
        >>> print(em.shuffle_epsilon(noise_multiplier=1.0, steps=100, delta=1e-5))
        ε = 4.066 at δ = 1e-05 (4.066 to 4.066, numerical error, exact)
    """

    epsilon: Nonnegative
    low: Nonnegative
    high: Nonnegative
    delta: Probability
    confidence: Probability
    method: str
    direction: Direction
    subject: str
    role: Role = "lower"
    adjacency: Adjacency = "unstated"
    cites: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    basis: Basis = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adjacency(self.adjacency)
        check_cites(self.cites)
        if not self.low <= self.epsilon <= self.high:
            raise InvalidArgument(
                f"Expected low ≤ epsilon ≤ high, got {self.low!r}, {self.epsilon!r}, {self.high!r}."
            )
        _settle_basis(self)

    @property
    def lower(self) -> float:
        """What ε of the audited program is at least, by computation; 0 where that is unknown."""
        return self.low if self.confidence == 1 and self.role == "lower" else 0.0

    @property
    def upper(self) -> float:
        """What ε of the audited program is at most, by computation; ∞ where that is unknown."""
        return self.high if self.confidence == 1 and self.role == "upper" else float("inf")

    def refutes(self, claimed_epsilon: float) -> bool:
        """Tell whether a claim at this δ is false. What was sampled never refutes; a bound may."""
        return self.lower > claimed_epsilon

    def __str__(self) -> str:
        sure = "numerical error" if self.confidence == 1 else f"{self.confidence:.4g} confidence"
        ends = f"{self.low:.4g} to {self.high:.4g}, {sure}"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({ends}, {self.method})"


def _settle_basis(result: EpsilonLowerBound | EpsilonEstimate) -> None:
    """Check the numbers of a basis, and make them Python's own."""
    basis = tuple((name, float(value)) for name, value in result.basis)
    for name, value in basis:
        _validate.number(**{name: value})
    msgspec.structs.force_setattr(result, "basis", basis)
