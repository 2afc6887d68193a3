"""Canaries that plant themselves, for servers that see sums only."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from epsilometer._extras import needs
from epsilometer.audits.federated.iterates import Layout
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.records import (
    JUST_BELOW,
    is_training,
    record,
    sent_norm,
    weights_in,
)
from epsilometer.integrations.flower.settings import STATISTICS, Family, directions

with needs("flwr", extra="flower"):
    from flwr.app import Context, Message

_Handler: TypeAlias = Callable[[Message, Context], Message]


def canary_mod(
    canaries: int,
    *,
    seed: int = 0,
    family: Family = "hadamard",
    clip_norm: float | None = None,
    without: Sequence[str] = STATISTICS,
    index: Callable[[Context], int | None] | None = None,
) -> Callable[[Message, Context, _Handler], Message]:
    """A mod for the ``ClientApp``: designated clients answer with canaries themselves.

    For secure aggregation, where the server cannot answer for a client whose masks it does not
    know. Put it *last* in the list of mods, so that clipping and masking are done to what it made;
    audit the server's app with ``mode="mod"`` and the same ``canaries``, ``seed`` and ``family``.
    The designated clients train as the others do, and what they trained is thrown away.

    Args:
        canaries: How many there are in all.
        seed: That of ``audit_server_app``. Whoever has it knows all canaries.
        family: That of ``audit_server_app``.
        clip_norm: Norm of a canary, where the message's config has no clipping norm.
        without: That of ``audit_server_app``.
        index: Which canary a client is, or None if it is none; by default its ``partition-id``
            where that is below ``canaries``.
    """

    def chosen(context: Context) -> int | None:
        if index is not None:
            return index(context)
        partition = int(context.node_config.get("partition-id", canaries))
        return partition if partition < canaries else None

    def mod(message: Message, context: Context, call_next: _Handler) -> Message:
        number = chosen(context) if is_training(message) else None
        if number is None:
            return call_next(message, context)
        sent, norm = weights_in(message.content), sent_norm(message.content) or clip_norm
        if norm is None:
            raise InvalidArgument(
                "Expected a clipping norm in the message's config, or clip_norm, got neither."
            )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        layout = Layout(sent, without=without)
        row = directions(family, canaries, layout.size, seed).rows([number])[0]
        name = next(iter(reply.content.array_records))
        reply.content[name] = record(layout.moved(sent, row * np.float32(norm * JUST_BELOW)))
        return reply

    return mod
