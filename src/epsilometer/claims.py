"""What was promised."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

Adjacency: TypeAlias = Literal["add_remove", "zero_out", "replace", "unstated"]


@dataclass(frozen=True, kw_only=True)
class PrivacyClaim:
    """A promise of (ε, δ)-differential privacy, with what it was promised for.

    Attributes:
        epsilon: The promised ε.
        delta: The promised δ.
        adjacency: When two datasets count as neighbours. An ε for one adjacency says nothing
            about another: replacing a record can cost twice what adding one does.
        sampler: How batches were drawn, in words ("Poisson", "shuffle"), where it is known.
        accountant: What computed ε ("PLD", "RDP"), where it is known.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "unstated"
    sampler: str = "unstated"
    accountant: str = "unstated"

    def __post_init__(self) -> None:
        _validate.at_least(0, epsilon=self.epsilon)
        _validate.probability(delta=self.delta)
        adjacency(self.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def adjacency(value: str) -> None:
    """Refuses anything but the adjacencies we know."""
    if value not in get_args(Adjacency):
        raise InvalidArgument(
            f"Expected adjacency to be one of {', '.join(get_args(Adjacency))}, got {value!r}."
        )
