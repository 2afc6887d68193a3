"""Flower's older strategies, those of ``flwr.server``: a wrapper that plants and sees."""

from collections.abc import Callable
from typing import Any

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.records import Arrays
from epsilometer.integrations.flower.versions import recorddict_compat

with needs("flwr", extra="flower"):
    from flwr.common import Code, FitIns, FitRes, Parameters, Status, parameters_to_ndarrays
    from flwr.server.client_manager import ClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import Strategy


class CanaryStrategy(Strategy):
    """The strategy, with canaries among the clients of every round.

    It sees the weights before and after every round, and the replies of clients before they are
    aggregated; under secure aggregation these replies are all the same sum.

    Args:
        strategy: The strategy of the user.
        planting: The canaries.
        after_round: Called after every round, also one that failed.
    """

    def __init__(
        self,
        strategy: Strategy,
        planting: Planting,
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.strategy, self._planting, self._after_round = strategy, planting, after_round
        planting.strategy, planting.weighted_by_key = strategy, "num_examples"
        planting.example = recorddict_compat.fitres_to_recorddict(_reply(), keep_input=True)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """As the strategy does."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """As the strategy does; canaries are asked by proxies that reach no client."""
        planting = self._planting
        planting.see(_arrays(parameters))
        if planting.settings.mode == "virtual":
            for node in planting.canary_of:
                client_manager.register(_CanaryProxy(node))  # those that are there already stay
        asked = self.strategy.configure_fit(server_round, parameters, client_manager)
        planting.begin_round(lambda: [int(name) for name in client_manager.all()])
        return [
            (_CanaryProxy(int(proxy.cid)) if int(proxy.cid) in planting.canary_of else proxy, ins)
            for proxy, ins in asked
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """As the strategy does, with the replies of canaries after those of clients."""
        try:
            found = self.strategy.aggregate_fit(server_round, self._planted(results), failures)
            if found[0]:
                self._planting.see(_arrays(found[0]))
            return found
        finally:
            self._planting.failed += len(failures)
            self._after_round()

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> Any:
        """As the strategy does; virtual nodes have nothing to evaluate with."""
        asked = self.strategy.configure_evaluate(server_round, parameters, client_manager)
        return [pair for pair in asked if not isinstance(pair[0], _CanaryProxy)]

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Parameters) -> Any:
        """As the strategy does."""
        return self.strategy.evaluate(server_round, parameters)

    def _planted(self, results: list[tuple[ClientProxy, FitRes]]) -> Any:
        theirs = [pair for pair in results if not isinstance(pair[0], _CanaryProxy)]
        ours = [proxy for proxy, _ in results if isinstance(proxy, _CanaryProxy)]
        asked = [proxy.asked for proxy in ours if proxy.asked is not None]
        if len(asked) < len(ours):
            raise InvalidArgument(
                "Expected clients to be asked through their proxies, got a workflow that sends its "
                "own messages: audit the app, by audit_server_app, or under secure aggregation "
                "take mode='mod' and canary_mod."
            )
        contents = self._planting.answers(  # all of a round are asked the same
            [proxy.node_id for proxy in ours],
            recorddict_compat.fitins_to_recorddict(asked[0], keep_input=True) if ours else None,
            [recorddict_compat.fitres_to_recorddict(reply, keep_input=True) for _, reply in theirs],
        )
        answered = [recorddict_compat.recorddict_to_fitres(part, False) for part in contents]
        return [*theirs, *zip(ours, answered, strict=True)]


class _CanaryProxy(ClientProxy):
    """Stands for a canary: takes note of what it is asked; the answer is made with the others."""

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node
        self.asked: FitIns | None = None

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        self.asked = ins
        return _reply()

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has nothing to evaluate with.")

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has no model.")

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary has no properties.")

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        raise NotImplementedError("A canary is not connected.")


def _reply() -> FitRes:
    """A reply without a model."""
    return FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), num_examples=1, metrics={})


def _arrays(parameters: Parameters) -> Arrays:
    """Older models have no names: arrays are numbered."""
    return {str(n): array for n, array in enumerate(parameters_to_ndarrays(parameters))}
