"""Hold the settings of an audit of a Flower app, and make its canaries."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from epsilometer import _validate
from epsilometer.audits.federated.directions import Directions, Family, make_directions
from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.core.claim import Claim, as_claim, check_unit
from epsilometer.core.settings import to_settings
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument

Mode: TypeAlias = Literal["replace", "virtual", "mod"]
Participation: TypeAlias = Literal["hidden", "known"]
Replies: TypeAlias = Literal["weights", "updates"]
_DEFAULT = 20  # canaries, if there are enough nodes
ONE_IN = 10  # by default at most one node in this many is a canary
# Running statistics of torch's normalisation: not trained, and useless if changed.
STATISTICS = ("*running_mean", "*running_var")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hold the settings of an audit; see :func:`audit_server_app` for the fields."""

    delta: float | None = None
    canaries: int | None = None
    mode: Mode = "replace"
    out: str | Path = "epsilometer-flower"
    claim: Claim | float | None = None
    seed: int | None = None
    family: Family = "hadamard"
    clip_norm: float | None = None
    nodes: Sequence[int] | None = None
    weight: float = 1.0
    weighted_by_key: str = "num-examples"
    without: Sequence[str] = STATISTICS
    participation: Participation = "hidden"
    accounted: AccountedMean | None = None
    replies: Replies = "weights"
    local: bool = False
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _validate.whole(1, canaries=self.count)
        if self.seed is None:  # a secret: whoever has it can subtract the canaries
            if self.mode == "mod":
                raise InvalidArgument("Expected the seed of canary_mod with mode='mod', got none.")
            object.__setattr__(self, "seed", secrets.randbits(53))  # exact in any JSON reader
        _validate.whole(0, seed=self.known_seed)
        _validate.open_unit(delta=self.request.known_delta, confidence=self.confidence)
        _validate.positive(weight=self.weight)
        check_unit(self.request.claim, "client")
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)
        if not isinstance(self.accounted, AccountedMean | None):
            raise InvalidArgument(f"Expected accounted=AccountedMean(…), got {self.accounted!r}.")
        for name, choices in (
            ("mode", Mode),
            ("family", Family),
            ("participation", Participation),
            ("replies", Replies),
        ):
            if getattr(self, name) not in get_args(choices):
                raise InvalidArgument(
                    f"Expected {name} to be one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, name)!r}."
                )
        if self.local and self.mode != "mod":
            raise InvalidArgument(
                f"Expected mode='mod' with local=True, got {self.mode!r}: canaries must pass the "
                "clients' own noise, so clients plant them by canary_mod."
            )
        if self.nodes is not None and len(set(self.nodes)) != self.count:
            raise InvalidArgument(
                f"Expected as many nodes as canaries, got {len(set(self.nodes))} different ones "
                f"for {self.count}."
            )

    @property
    def count(self) -> int:
        """The largest number of canaries."""
        if self.canaries is None:
            return _DEFAULT if self.nodes is None else len(self.nodes)
        return self.canaries

    def limit_canaries(self, nodes: int) -> int:
        """Return the number of canaries for this many real nodes: as requested, or a tenth."""
        if self.canaries is not None or self.nodes is not None or self.mode == "mod":
            return self.count
        share = nodes // (ONE_IN - 1 if self.mode == "virtual" else ONE_IN)
        return min(self.count, max(1, share))

    @property
    def known_seed(self) -> int:
        """Return the given or drawn seed."""
        assert self.seed is not None
        return self.seed

    @property
    def request(self) -> Request:
        """Return claim, δ, confidence and seed."""
        claim = as_claim(self.claim, delta=self.delta)
        return Request(
            claim=claim,
            delta=self.delta if claim is None else claim.delta,
            confidence=self.confidence,
            seed=self.known_seed,
        )

    def describe(self, function: str, **supplied: Any) -> dict[str, Any]:
        """Return the call as JSON values, so that it can be repeated.

        Args:
            function: The function that was called.
            supplied: Its arguments in addition to these settings.
        """
        apart = ("delta", "claim", "confidence", "seed", "out")
        settings = to_settings(replace(self, accounted=None))
        own = {name: value for name, value in settings.items() if name not in apart}
        if self.accounted is not None:
            # Another process has other addresses.
            own["accounted"] = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.accounted))
        given = {name: {"supplied": type(value).__name__} for name, value in supplied.items()}
        return {"function": f"epsilometer.integrations.flower:{function}", **given, **own}

    def choose_nodes(self, nodes: list[int]) -> list[int]:
        """Return which of the real nodes are canaries."""
        strange = sorted(set(self.nodes or ()) - set(nodes))
        if strange:
            raise InvalidArgument(f"Expected nodes of this grid, got {strange[:3]}, which are not.")
        many = self.limit_canaries(len(nodes))
        if len(nodes) <= many:
            raise InvalidArgument(
                f"Expected more nodes than canaries, got {len(nodes)} and {many}. "
                "Take fewer canaries, or mode='virtual' in a simulation."
            )
        if self.nodes is not None:
            return list(self.nodes)
        every = sorted(nodes)
        drawn = _spawn_streams(self.known_seed)[0].choice(len(every), many, replace=False)
        return [every[number] for number in drawn]

    def draw_virtual_nodes(self) -> list[int]:
        """Draw ids of virtual nodes: 62 bits, so that they match no real node."""
        drawn = _spawn_streams(self.known_seed)[0].integers(2**61, 2**62, size=2 * self.count)
        return list(dict.fromkeys(drawn.tolist()))[: self.count]


@dataclass(frozen=True)
class PlantedFamily:
    """Define all canaries of an audit, apart from the arrays in which they are planted."""

    count: int
    seed: int
    family: Family


def commit(asked: Settings | PlantedFamily, names: Sequence[Any]) -> str:
    """Return a hash of all canaries: equal if the same ones are planted in the same arrays.

    Example:
        >>> one, other = (PlantedFamily(9, seed, "hadamard") for seed in (1, 2))
        >>> commit(one, [("w", 3)]) == commit(one, [("w", 3)]), commit(one, []) == commit(other, [])
        (True, False)
    """
    text = repr((asked.count, asked.seed, asked.family, tuple(names)))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def draw_directions(family: Family, canaries: int, dimension: int, seed: int) -> Directions:
    """Draw canaries to plant, and as many that no one ever sees."""
    if 2 * canaries > dimension:
        raise InvalidArgument(
            f"Expected at most {dimension // 2} canaries for {dimension} weights, got {canaries}."
        )
    key = int(_spawn_streams(seed)[1].integers(2**63))
    return make_directions(family, count=2 * canaries, dimension=dimension, key=key)


def _spawn_streams(seed: int) -> list[np.random.Generator]:
    """Return the streams of nodes, and of directions."""
    return np.random.default_rng(seed).spawn(2)
