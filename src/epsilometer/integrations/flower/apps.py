"""Audit the run of a ServerApp, or of a strategy if the app cannot be changed."""

import copy
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.checkpoints import make_folder
from epsilometer.integrations.flower.grids import CanaryGrid, import_first
from epsilometer.integrations.flower.messages import Arrays, read_number, to_arrays
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.run_directory import record_run, write_run
from epsilometer.integrations.flower.settings import Settings

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord, Context
    from flwr.common import Code, FitIns, FitRes, Parameters, Status, parameters_to_ndarrays
    from flwr.server import ServerAppComponents
    from flwr.server.client_manager import ClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import FedAvg
    from flwr.server.strategy import Strategy as OldStrategy
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import Strategy

_log = logging.getLogger("flwr")  # so that it appears among Flower's own lines
_S = TypeVar("_S", Strategy, OldStrategy)
_AFTER_EVERY = "Written after every round: a run that ended early looks like a short one."
_WORKFLOW = (
    "Expected clients to be asked through their proxies, got a workflow that sends its own "
    "messages: audit the app by audit_server_app; under secure aggregation, use mode='mod' and "
    "canary_mod."
)
_compat = import_first("flwr.compat.common.recorddict_compat", "flwr.common.recorddict_compat")


def audit_server_app(server_app: ServerApp, **asked: Any) -> ServerApp:
    """Return the same ``ServerApp`` with an audited run, to use in ``pyproject.toml``.

    A canary is a random direction in the space of the weights. Its node answers every training
    message with the received weights plus this direction, as long as clipping allows. When the app
    ends or fails, a run directory with ``result.json`` and ``report.html`` is written.

    Guarantee: that of ``epsilometer.Cosines``, for both views together (the final weights, and
        those of every round); real clients, strategy and accountant are not touched; integer arrays
        are returned unchanged.
    Assumption: the app trains with a ``Strategy`` of ``flwr.serverapp``, or has a ``server_fn`` (in
        both cases the final weights are observed), or sends weights through the grid itself.

    Args:
        server_app: The app, with ``@app.main()`` or with ``server_fn``.
        delta: δ of the bounds; not needed with a ``Claim``, which has one.
        canaries: Number of canary nodes. By default a tenth of all nodes, at most 20: enough for
            the checks of the server's releases, with little harm to the model. Below 300, estimates
            of ε say little; above a tenth of a round's replies, the result warns of harm to the
            model. The result says which part of the change of the weights was theirs.
        mode: ``replace``, the default: real nodes, chosen at random, whose clients then do not
            train: sampling and accounting do not change. ``virtual``: virtual nodes in addition to
            the real ones. ``mod``: the server only observes, :func:`canary_mod` plants in the
            clients.
        out: Run directory; a number is appended if it contains a finished run. A killed run is
            resumed if the settings are the same.
        claim: The claimed ε, or a ``Claim``; by default the ε that the strategy's own accountant
            reports at this δ, if it has one.
        seed: Secret seed of directions and chosen nodes: it allows subtracting the canaries. By
            default drawn from the operating system. The private run directory contains it.
        family: ``hadamard`` (exactly orthogonal, fast) or ``sphere`` (independent).
        clip_norm: Norm of a canary. By default the clipping norm: from the messages' config if
            clients clip, from the strategy if the server does, and otherwise the median norm of the
            clients' updates. A larger one tests whether the server clips, and ruins the model if
            not.
        nodes: In mode ``replace``, the nodes to use, one per canary.
        weight: Number of examples of a canary, relative to the median of the clients in its round.
        weighted_by_key: The metric by which the strategy weights replies.
        without: Patterns of names of arrays that are not trained; integer arrays never count.
        accounted: Accounted release of the server, an ``AccountedMean``; by default read from
            Flower's own wrappers. Actual releases are checked against it.
        replies: ``weights``, or ``updates`` if clients answer with changes to add.
        local: Whether the claim is about noise in the clients, so that it must hold against an
            adversary who sees single replies. With mode ``mod`` only.
        participation: ``hidden``: all canaries count, sampled or not, so that a claim may use
            amplification by sampling. ``known``: only canaries that took part count, and the claim
            must hold without amplification.
        confidence: One-sided, of all bounds together.
    """
    if not isinstance(server_app, ServerApp):
        raise InvalidArgument(f"Expected a ServerApp of flwr, got {type(server_app).__name__}.")
    settings = Settings(**asked)
    call = settings.describe("audit_server_app", server_app=server_app)
    audited = ServerApp()

    @audited.main()
    def main(grid: Grid, context: Context) -> None:
        with record_run(settings, call) as planting:
            if server_app._main is None:
                _plant_in_app(server_app, planting)(grid, context)
            else:
                canary_grid = CanaryGrid(grid, planting)
                with _watch_starts(canary_grid, planting):
                    server_app(canary_grid, context)

    return audited


def audited_strategy(strategy: _S, **asked: Any) -> _S:
    """Return the same strategy with auditing, to start or pass on instead of it.

    Use it if you control the strategy but not the ``ServerApp``, and for secure aggregation, where
    only the strategy sees the final weights.

    Guarantee: that of :func:`audit_server_app`; the original strategy is not touched.
    Assumption: a strategy of ``flwr.serverapp`` is started by ``start``; the run directory is
        written when this ends or fails. One of ``flwr.server`` (in ``ServerAppComponents``, or in
        the ``LegacyContext`` of a workflow) does not know when a run ends, and writes after every
        round.

    Args:
        strategy: A strategy of either kind, wrapped in Flower's differential privacy or not.
        **asked: See :func:`audit_server_app`.
    """
    settings = Settings(**asked)
    call = settings.describe("audited_strategy", strategy=strategy)
    if isinstance(strategy, OldStrategy):
        planting, folders = Planting(settings), list[Path]()

        def after_round() -> None:
            try:
                if not folders:
                    folders.append(make_folder(settings.out))
                write_run(planting, folders[0], call, _AFTER_EVERY)
            except Exception:  # the run never fails because of its audit
                _log.exception("epsilometer: no result could be written to %s", settings.out)

        return CanaryStrategy(strategy, planting, after_round)
    if not isinstance(strategy, Strategy):
        raise InvalidArgument(f"Expected a Strategy of flwr, got {type(strategy).__name__}.")
    audited = copy.copy(strategy)

    def start(grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **more: Any) -> Any:
        with (
            record_run(settings, call) as planting,
            watch_strategy(audited, initial_arrays, planting),
        ):
            canary_grid = CanaryGrid(grid, planting)
            return type(strategy).start(audited, canary_grid, initial_arrays, *rest, **more)

    audited.start = start  # type: ignore[method-assign]
    return audited


def _plant_in_app(server_app: ServerApp, planting: Planting) -> ServerApp:
    """Wrap the strategy of an app with ``server_fn``: such apps send one message at a time."""
    planted = copy.copy(server_app)

    def server_fn(context: Context) -> ServerAppComponents:
        made = server_app._server_fn
        parts = made(context) if made else _list_components(server_app)
        if parts.server is None:
            return replace(parts, strategy=CanaryStrategy(parts.strategy or FedAvg(), planting))
        server = copy.copy(parts.server)  # it has its own strategy
        server.set_strategy(CanaryStrategy(server.strategy, planting))
        return replace(parts, server=server)

    planted._server_fn = server_fn
    return planted


def _list_components(app: ServerApp) -> ServerAppComponents:
    """Return the components of an app that was made without a ``server_fn``."""
    return ServerAppComponents(
        server=app._server,
        config=app._config,
        strategy=app._strategy,
        client_manager=app._client_manager,
    )


@contextmanager
def _watch_starts(canary_grid: CanaryGrid, planting: Planting) -> Iterator[None]:
    """Record the result of every round of the strategy that is started on the grid."""
    start = Strategy.start

    @functools.wraps(start)
    def watched(
        self: Strategy, grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **more: Any
    ) -> Any:
        if grid is not canary_grid:
            return start(self, grid, initial_arrays, *rest, **more)
        with watch_strategy(self, initial_arrays, planting):
            return start(self, grid, initial_arrays, *rest, **more)

    Strategy.start = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = start  # type: ignore[method-assign]


@contextmanager
def watch_strategy(
    strategy: Strategy, initial_arrays: ArrayRecord, planting: Planting
) -> Iterator[None]:
    """Pass on the initial weights of a strategy and its result after every round.

    The final weights pass through no grid if nothing is evaluated.
    """
    planting.strategy = strategy
    with planting.guard():
        planting.see(to_arrays(initial_arrays))
    aggregate, before = strategy.aggregate_train, vars(strategy).copy()

    def aggregated(server_round: int, replies: Any, *args: Any, **named: Any) -> Any:
        every = list(replies)
        answered = [reply for reply in every if reply.has_content()]
        planting.open_release(
            ((reply.content, reply.metadata.src_node_id) for reply in answered),
            [read_number(reply.content, planting.weighted_by_key) for reply in answered],
        )
        arrays, metrics = aggregate(server_round, every, *args, **named)
        if arrays is not None:
            with planting.guard():
                released = to_arrays(arrays)
                planting.see(released)
                planting.close_release(released, replies=len(answered))
        return arrays, metrics

    strategy.aggregate_train = aggregated  # type: ignore[method-assign]
    try:
        yield
    finally:
        del strategy.aggregate_train
        if "aggregate_train" in before:  # another object watches too
            strategy.aggregate_train = aggregate  # type: ignore[method-assign]


class CanaryStrategy(OldStrategy):
    """Wrap a strategy to add canaries to the clients of every round.

    It sees the weights before and after every round, and the replies of clients before aggregation;
    under secure aggregation these replies are all the same sum.

    Args:
        strategy: The strategy of the user.
        planting: The canaries.
        after_round: Called after every round, including failed ones.
    """

    def __init__(
        self,
        strategy: OldStrategy,
        planting: Planting,
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.strategy, self._planting, self._after_round = strategy, planting, after_round
        planting.strategy, planting.weighted_by_key = strategy, "num_examples"
        planting.example = _compat.fitres_to_recorddict(_make_reply(), keep_input=True)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Do as the strategy does."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Configure as the strategy does; canaries get proxies that reach no client."""
        planting = self._planting
        with planting.guard():
            planting.see(_number_arrays(parameters))
        real = sum(not isinstance(each, _CanaryProxy) for each in client_manager.all().values())
        for node in planting.list_virtual(real):
            client_manager.register(_CanaryProxy(node))  # those that exist already stay
        if planting.ended:
            for proxy in list(client_manager.all().values()):
                if isinstance(proxy, _CanaryProxy):
                    client_manager.unregister(proxy)
        asked = self.strategy.configure_fit(server_round, parameters, client_manager)
        different = {id(ins.parameters): ins for _, ins in asked}
        sent = (_compat.fitins_to_recorddict(ins, keep_input=True) for ins in different.values())
        with planting.guard():
            if different:
                planting.note_sent(list(sent))
            planting.begin_round(
                lambda: [int(name) for name in client_manager.all()], asked=len(asked)
            )
        return [
            (_CanaryProxy(int(proxy.cid)) if int(proxy.cid) in planting.canary_of else proxy, ins)
            for proxy, ins in asked
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Call the strategy with the replies of canaries after those of clients."""
        try:
            every = self._add_canaries(results)
            self._planting.open_release(
                (
                    (_compat.fitres_to_recorddict(reply, keep_input=True), int(proxy.cid))
                    for proxy, reply in every
                ),
                [float(reply.num_examples) for _, reply in every],
            )
            found = self.strategy.aggregate_fit(server_round, every, failures)
            if found[0]:
                with self._planting.guard():
                    released = _number_arrays(found[0])
                    self._planting.see(released)
                    self._planting.close_release(released, replies=len(every))
            return found
        finally:
            self._planting.failed += len(failures)
            self._after_round()

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> Any:
        """Call the strategy; virtual nodes have nothing to evaluate with."""
        asked = self.strategy.configure_evaluate(server_round, parameters, client_manager)
        sent = {id(ins.parameters): ins.parameters for _, ins in asked}.values()
        with self._planting.guard():
            self._planting.compare_sent(map(_number_arrays, sent))
        return [pair for pair in asked if not isinstance(pair[0], _CanaryProxy)]

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Do as the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> Any:
        """Do as the strategy does."""
        return self.strategy.evaluate(server_round, parameters)

    def _add_canaries(self, results: list[tuple[ClientProxy, FitRes]]) -> Any:
        theirs = [pair for pair in results if not isinstance(pair[0], _CanaryProxy)]
        for _, reply in theirs:
            self._planting.take_commitment(reply.metrics)
        ours = [proxy for proxy, _ in results if isinstance(proxy, _CanaryProxy)]
        asked = [proxy.asked for proxy in ours if proxy.asked is not None]
        if len(asked) < len(ours):
            self._planting.end(InvalidArgument(_WORKFLOW))
            return results  # which clients sent, bypassing their proxies
        contents = self._planting.answer(  # all in a round get the same request
            [proxy.node_id for proxy in ours],
            _compat.fitins_to_recorddict(asked[0], keep_input=True) if ours else None,
            [_compat.fitres_to_recorddict(reply, keep_input=True) for _, reply in theirs],
        )
        answered = [_compat.recorddict_to_fitres(part, False) for part in contents]
        return [*theirs, *zip(ours, answered, strict=False)]  # none once the audit ended


class _CanaryProxy(ClientProxy):
    """Represent a canary: record requests; its reply is made with the others."""

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node
        self.asked: FitIns | None = None

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        self.asked = ins
        return _make_reply()

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has nothing to evaluate with.")

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has no model.")

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has no properties.")

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary is not connected.")


def _make_reply() -> FitRes:
    """Return a reply without a model."""
    return FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), num_examples=1, metrics={})


def _number_arrays(parameters: Parameters) -> Arrays:
    """Return arrays by number: older models have no names."""
    return {str(n): array for n, array in enumerate(parameters_to_ndarrays(parameters))}
