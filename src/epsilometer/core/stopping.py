"""Say when an audit may stop early; what it then reports holds although it was watched."""

from dataclasses import dataclass
from typing import TypeAlias

from epsilometer import _validate


@dataclass(frozen=True)
class UntilRefuted:
    """Stop as soon as the claim is refuted.

    Guarantee: the bound is anytime-valid; it holds although runs were watched.
    Assumption: runs arrive in an order that does not depend on their scores.

    Example:
        >>> import epsilometer as em
        >>> em.UntilRefuted()
        UntilRefuted()
    """


@dataclass(frozen=True)
class UntilNarrow:
    """Stop when further runs of the same attack could raise the bound by at most ``width``.

    Guarantee: as for the bound itself: at every moment together, with its confidence.
    Assumption: as for ``UntilRefuted``. It takes many runs: the false positive rate at a high
        threshold rests on few scores.

    Attributes:
        width: In units of ε.

    Example:
        >>> import epsilometer as em
        >>> em.UntilNarrow(0.5).width
        0.5
    """

    width: float

    def __post_init__(self) -> None:
        _validate.positive(width=self.width)


Until: TypeAlias = UntilRefuted | UntilNarrow
