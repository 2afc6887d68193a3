"""Define when an audit may stop early; its bounds hold despite the optional stopping."""

from dataclasses import dataclass
from typing import TypeAlias

from epsilometer import _validate


@dataclass(frozen=True)
class UntilRefuted:
    """Stop as soon as the claim is refuted.

    Guarantee: the bound is anytime-valid: it holds although every run was checked.
    Assumption: runs arrive in an order that does not depend on their scores.

    Example:
        >>> import epsilometer as em
        >>> em.UntilRefuted()
        UntilRefuted()
    """


@dataclass(frozen=True)
class UntilNarrow:
    """Stop when further runs of the same attack could raise the bound by at most ``width``.

    Guarantee: bounds after any number of runs hold together, at the audit's confidence.
    Assumption: as for ``UntilRefuted``. It takes many runs: the false positive rate at a high
        threshold is estimated from few scores.

    Attributes:
        width: Largest further increase of the bound, in units of ε.

    Example:
        >>> import epsilometer as em
        >>> em.UntilNarrow(0.5).width
        0.5
    """

    width: float

    def __post_init__(self) -> None:
        _validate.positive(width=self.width)


Until: TypeAlias = UntilRefuted | UntilNarrow
