"""Define methods of the registry and their results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from epsilometer.core.bound import Basis, Direction
from epsilometer.core.scores import Design
from epsilometer.stats.derivation import Derive
from epsilometer.stats.thresholds import Observed, ThresholdRule

DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best look of a method: a bound still without its meaning."""

    epsilon: float
    direction: Direction
    threshold: float
    basis: Basis
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best look: its merit, the row of its direction, its threshold, what it rests on."""

    merit: float
    row: int
    threshold: float
    basis: Basis


class Find(Protocol):
    """Bounds ε from observations under one rule."""

    def __call__(
        self,
        observed: Observed,
        *,
        delta: float,
        alpha: float,
        rule: ThresholdRule,
        rng: np.random.Generator,
    ) -> Found:
        """Returns the best look; ``alpha`` is the chance of error for the whole bound."""
        ...


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the registry.

    Attributes:
        find: Computes the bound.
        derive: Says how a bound of it was computed, from its ``basis``.
        rules: Threshold rules it takes, the default first.
        exact: Whether the bound holds at its confidence under ``assumes`` and a valid rule.
        guarantees: In a sentence.
        assumes: In a sentence.
        cites: Keys of the bibliography.
        designs: Designs of observations that it is valid for.
        find_replaced: Computes the bound where a neighbour has a record replaced, if it differs.
        choose_rule: Chooses the default rule, where it depends on the observations.
    """

    find: Find
    derive: Derive
    rules: tuple[type, ...]
    exact: bool
    guarantees: str
    assumes: str
    cites: tuple[str, ...]
    designs: tuple[Design, ...] = ("runs",)
    find_replaced: Find | None = None
    choose_rule: Callable[[Observed], ThresholdRule] | None = None
