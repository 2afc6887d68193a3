"""Audit the run of a ServerApp."""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.grid import CanaryGrid
from epsilometer.integrations.flower.old_strategies import CanaryStrategy
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.run_directory import recorded
from epsilometer.integrations.flower.settings import Asked, Settings
from epsilometer.integrations.flower.strategies import watched_strategy

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord, Context
    from flwr.server import ServerAppComponents
    from flwr.server.strategy import FedAvg
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import Strategy


def audit_server_app(server_app: ServerApp, **asked: Unpack[Asked]) -> ServerApp:
    """Return the same ``ServerApp``, whose run is audited, to put into ``pyproject.toml``.

    A canary is a random direction in the space of the weights. Its node answers every training
    message with the weights that came plus that direction, as long as clipping allows. When the
    app ends, or fails, a run directory with ``result.json`` and ``report.html`` is written.

    Guarantee: that of ``epsilometer.Cosines``, for both views together (who sees the last weights,
        and who sees those of every round); real clients, strategy and accountant are not touched;
        integer arrays are handed back as they came.
    Assumption: the app trains with a ``Strategy`` of ``flwr.serverapp``, or has a ``server_fn``
        (then the last weights are seen too), or sends its weights through the grid by itself.

    Args:
        server_app: The app, with ``@app.main()`` or with ``server_fn``.
        delta: δ of the bounds; not needed beside a ``Claim``, which has one.
        canaries: How many nodes are canaries, 1,000 by default. Below 300 the estimates say little.
        mode: ``replace``, the default: real nodes, chosen at random, whose clients then do not
            train: sampling and accounting stay as they are. ``virtual``: nodes that do not exist
            beside the real ones. ``mod``: the server only looks, :func:`canary_mod` plants in the
            clients.
        directory: Where to write; a number is added to the name where there is one already.
        claim: The claimed ε, or a ``Claim``; by default what the strategy's own accountant reports,
            where it keeps one at this δ.
        seed: Of directions and chosen nodes.
        family: ``hadamard`` (exactly orthogonal, fast) or ``sphere`` (independent).
        clip_norm: Norm of a canary. By default the clipping norm: that of the messages' config
            where clients clip, that of the strategy where the server does, and the median norm of
            the clients' own updates where neither is known. A larger one tests whether the server
            clips, and ruins the model if it does not.
        nodes: In mode ``replace``, the nodes to take: as many as there are canaries.
        weight: Examples of a canary, in medians of the clients of its round.
        weighted_by_key: The metric by which the strategy weights replies.
        without: Patterns of names of arrays that are not trained; integer ones never count.
        participation: ``hidden``: all canaries count, sampled or not, so that a claim may rest on
            amplification by sampling. ``known``: only those that took part, and the claim must
            hold without it.
        confidence: One-sided, of all bounds together.
    """
    if not isinstance(server_app, ServerApp):
        raise InvalidArgument(f"Expected a ServerApp of flwr, got {type(server_app).__name__}.")
    settings = Settings(**asked)
    call = settings.describe("audit_server_app", server_app=server_app)
    audited = ServerApp()

    @audited.main()
    def main(grid: Grid, context: Context) -> None:
        with recorded(settings, call) as planting:
            if server_app._main is None:
                _with_canaries(server_app, planting)(grid, context)
            else:
                canary_grid = CanaryGrid(grid, planting)
                with _watching(canary_grid, planting):
                    server_app(canary_grid, context)

    return audited


def _with_canaries(server_app: ServerApp, planting: Planting) -> ServerApp:
    """An app of ``server_fn``, its strategy wrapped: such apps send one message at a time."""
    planted = copy.copy(server_app)

    def server_fn(context: Context) -> ServerAppComponents:
        made = server_app._server_fn
        parts = made(context) if made else _given(server_app)
        if parts.server is None:
            return replace(parts, strategy=CanaryStrategy(parts.strategy or FedAvg(), planting))
        server = copy.copy(parts.server)  # it brings a strategy of its own
        server.set_strategy(CanaryStrategy(server.strategy, planting))
        return replace(parts, server=server)

    planted._server_fn = server_fn
    return planted


def _given(app: ServerApp) -> ServerAppComponents:
    """What the app was made with, where that was not a ``server_fn``."""
    return ServerAppComponents(
        server=app._server,
        config=app._config,
        strategy=app._strategy,
        client_manager=app._client_manager,
    )


@contextmanager
def _watching(canary_grid: CanaryGrid, planting: Planting) -> Iterator[None]:
    """Shows what the strategy that is started on the grid makes of every round."""
    start = Strategy.start

    @functools.wraps(start)
    def watched(
        self: Strategy, grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **more: Any
    ) -> Any:
        if grid is not canary_grid:
            return start(self, grid, initial_arrays, *rest, **more)
        with watched_strategy(self, initial_arrays, planting):
            return start(self, grid, initial_arrays, *rest, **more)

    Strategy.start = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = start  # type: ignore[method-assign]
