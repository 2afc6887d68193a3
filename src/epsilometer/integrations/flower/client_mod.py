"""Plant canaries in the clients themselves, by a mod of their ``ClientApp``."""

import inspect
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from epsilometer._extras import needs
from epsilometer.audits.federated.directions import Family
from epsilometer.audits.federated.iterates import Layout
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.messages import (
    JUST_BELOW,
    PLANTED,
    is_training,
    read_norm,
    read_weights,
    to_record,
)
from epsilometer.integrations.flower.settings import (
    STATISTICS,
    PlantedFamily,
    commit,
    draw_directions,
)

with needs("flwr", extra="flower"):
    from flwr.app import ConfigRecord, Context, Message

_Handler: TypeAlias = Callable[[Message, Context], Message]
# Flower's own mods that change nothing: a canary need not pass them.
_MEASURING = {"arrays_size_mod", "message_size_mod", "parameters_size_mod"}
_RESULTS = "fitres.metrics"  # where older clients put their metrics


def canary_mod(
    canaries: int,
    *,
    seed: int,
    family: Family = "hadamard",
    clip_norm: float | None = None,
    without: Sequence[str] = STATISTICS,
    index: Callable[[Context], int | None] | None = None,
) -> Callable[[Message, Context, _Handler], Message]:
    """Return a mod for the ``ClientApp``: designated clients answer with canaries themselves.

    Use it for secure aggregation, where the server cannot answer for a client whose masks it does
    not know, and for clients that add noise themselves, whose single replies are then audited. Put
    it *last* in the list of mods, so that its replies are clipped and masked; audit the server's
    app with ``mode="mod"`` and the same ``canaries``, ``seed`` and ``family``. The designated
    clients train like the others, and their updates are discarded. Each reports a hash of its
    family of canaries in its reply, which the audit removes again.

    Args:
        canaries: Total number of canaries.
        seed: That of ``audit_server_app``. It reveals all canaries: draw it with
            ``secrets.randbits(53)``, and keep it secret.
        family: That of ``audit_server_app``.
        clip_norm: Norm of a canary, if the message's config has no clipping norm.
        without: That of ``audit_server_app``.
        index: Number of the client's canary, or None for other clients; by default its
            ``partition-id`` if that is below ``canaries``.
    """

    asked = PlantedFamily(count=canaries, seed=seed, family=family)

    def choose_canary(context: Context) -> int | None:
        if index is not None:
            return index(context)
        partition = int(context.node_config.get("partition-id", canaries))
        return partition if partition < canaries else None

    def mod(message: Message, context: Context, call_next: _Handler) -> Message:
        number = choose_canary(context) if is_training(message) else None
        if number is None:
            return call_next(message, context)
        sent, norm = read_weights(message.content), read_norm(message.content) or clip_norm
        if norm is None:
            raise InvalidArgument(
                "Expected a clipping norm in the message's config, or clip_norm, got neither."
            )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        layout = Layout(sent, without=without)
        row = draw_directions(family, canaries, layout.size, seed).rows([number])[0]
        name = next(iter(reply.content.array_records))
        reply.content[name] = to_record(layout.move(sent, row * np.float32(norm * JUST_BELOW)))
        passed_by = list_later_mods(call_next)
        planted = " ".join([commit(asked, layout.names), str(number), *passed_by])
        if _RESULTS in reply.content.config_records:
            reply.content.config_records[_RESULTS][PLANTED] = planted
        else:
            reply.content[PLANTED] = ConfigRecord({PLANTED: planted})
        return reply

    return mod


def list_later_mods(call_next: _Handler) -> list[str]:
    """Return the names of mods that a canary bypasses, since they come after ``canary_mod``.

    Flower calls the next mod through a closure; otherwise none are known.
    """
    names = []
    while getattr(call_next, "__qualname__", "").startswith("make_ffn.") and (
        found := inspect.getclosurevars(call_next).nonlocals
    ):
        later = found.get("_mod")
        name = str(getattr(later, "__name__", type(later).__name__))
        if name not in _MEASURING:
            names.append(name)
        call_next = found.get("_ffn", None)
    return names
