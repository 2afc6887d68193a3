"""Compare what clients report as planted with the canaries that an audit searches for."""

import math
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.messages import PLANTED

_NOBODY = (
    "Expected clients that plant canaries, but none said that it did: put canary_mod last in the "
    "mods of the ClientApp. Without canaries nothing is proved."
)
_MISMATCH = (
    "Expected clients that plant the canaries of this audit, but {wrong} of {said} replies were "
    "about others: canary_mod and the audit must have the same canaries, seed, family and without, "
    "and the model the same arrays. What the audit looked for was never planted."
)
_MISPLACED = (
    "Expected canary_mod last among the mods of the ClientApp, but it came before {names}: "
    "canaries of {said} replies did not pass these mods, so that they say nothing of them."
)
_FEW = (
    "Expected clients that plant {count:,} canaries, but {some:,} of them were ever planted, where "
    "{least:,} or more should have been. Canaries that nobody planted would prove 0: give the "
    "audit and canary_mod as many canaries as there are clients that plant."
)


@dataclass(kw_only=True)
class Commitments:
    """Collect what the clients of a run report as planted.

    Attributes:
        count: Number of canaries that the audit searches for.
        right: Number of replies about these canaries.
        wrong: Number of replies about others.
        planted: Canaries that some client planted.
        recent: Those of them since :meth:`end_round`.
        misplaced: Mods that canaries bypassed, with numbers of replies.
        absent: Probability that a node was asked in no round.

    Example:
        >>> said = Commitments(count=2)
        >>> said.take({PLANTED: "abc 1"}, "abc"), said.take({PLANTED: "xyz 0"}, "abc")
        (1, None)
        >>> said.right, said.wrong
        (1, 1)
    """

    count: int
    right: int = 0
    wrong: int = 0
    planted: set[int] = field(default_factory=set)
    recent: set[int] = field(default_factory=set)
    misplaced: dict[str, int] = field(default_factory=dict)
    absent: float = 1.0

    def take(self, record: MutableMapping[str, Any], expected: str | None) -> int | None:
        """Remove a client's report from its reply; return its canary if it is one of the audit's.

        Args:
            record: Record of the reply.
            expected: The hash of the audit's canaries; None if not yet known.
        """
        said = record.pop(PLANTED, None)
        if said is None:
            return None
        hashed, number, *passed = str(said).split(" ")
        for name in passed:
            self.misplaced[name] = self.misplaced.get(name, 0) + 1
        if hashed != expected:
            self.wrong += 1
            return None
        self.right += 1
        self.planted.add(int(number))
        self.recent.add(int(number))
        return int(number)

    def end_round(self, rate: float) -> None:
        """End a round that moved the weights, in which a node was asked with some probability."""
        self.absent *= 1 - rate
        self.recent.clear()

    def refuse_mismatch(self, *, everybody: bool) -> None:
        """Refuse to judge canaries that no one planted: finding nothing would mean nothing.

        Args:
            everybody: Whether all nodes were asked in all rounds: then nodes that planted nothing
                are known, and do not count.
        """
        said = self.right + self.wrong
        if self.wrong or not self.right:
            words = _MISMATCH.format(wrong=self.wrong, said=said) if said else _NOBODY
            raise InvalidArgument(words)
        if self.misplaced:
            names, most = ", ".join(self.misplaced), max(self.misplaced.values())
            raise InvalidArgument(_MISPLACED.format(names=names, said=most))
        some, least = len(self.planted), math.ceil(self.count * (1 - self.absent) / 2)
        if not everybody and some < least:
            raise InvalidArgument(_FEW.format(count=self.count, some=some, least=least))

    def describe(self) -> Iterator[str]:
        """Yield caveats."""
        if self.planted:
            yield f"{len(self.planted):,} of {self.count:,} canaries were planted by clients."

    def export(self) -> dict[str, Any]:
        """Return the state needed to continue in another process, as JSON values."""
        return {
            "right": self.right,
            "wrong": self.wrong,
            "planted": sorted(self.planted),
            "misplaced": self.misplaced,
            "absent": self.absent,
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Continue from the result of :meth:`export`."""
        self.right += int(kept["right"])
        self.wrong += int(kept["wrong"])
        self.planted |= set(map(int, kept["planted"]))
        self.misplaced = {**kept["misplaced"], **self.misplaced}
        self.absent *= float(kept["absent"])
