"""Audit the run of a strategy, for whoever cannot have another ServerApp."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.grid import CanaryGrid
from epsilometer.integrations.flower.old_strategies import CanaryStrategy
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.records import decoded
from epsilometer.integrations.flower.run_directory import new_folder, recorded, write
from epsilometer.integrations.flower.settings import Asked, Settings

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord
    from flwr.server.strategy import Strategy as OldStrategy
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy

_S = TypeVar("_S", Strategy, OldStrategy)
_AFTER_EVERY = "Written after every round: a run that ended early looks like a short one."


def audited_strategy(strategy: _S, **asked: Unpack[Asked]) -> _S:
    """Return the same strategy, whose run is audited, to start or pass on in its place.

    For whoever writes the strategy but not the ``ServerApp``, and for secure aggregation, where
    the strategy alone sees what the last round made of the weights.

    Guarantee: that of :func:`audit_server_app`; the strategy that was given is not touched.
    Assumption: one of ``flwr.serverapp`` is started by ``start``, and the run directory is written
        when that ends, or fails. One of ``flwr.server`` (in ``ServerAppComponents``, or in the
        ``LegacyContext`` of a workflow) is never told of an end, and writes after every round.

    Args:
        strategy: A strategy of either kind, wrapped in Flower's differential privacy or not.
        **asked: As for :func:`audit_server_app`.
    """
    settings = Settings(**asked)
    call = settings.describe("audited_strategy", strategy=strategy)
    if isinstance(strategy, OldStrategy):
        return _old(strategy, settings, call)
    if not isinstance(strategy, Strategy):
        raise InvalidArgument(f"Expected a Strategy of flwr, got {type(strategy).__name__}.")
    audited = copy.copy(strategy)

    def start(grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **more: Any) -> Any:
        with (
            recorded(settings, call) as planting,
            watched_strategy(audited, initial_arrays, planting),
        ):
            canary_grid = CanaryGrid(grid, planting)
            return type(strategy).start(audited, canary_grid, initial_arrays, *rest, **more)

    audited.start = start  # type: ignore[method-assign]
    return audited


@contextmanager
def watched_strategy(
    strategy: Strategy, initial_arrays: ArrayRecord, planting: Planting
) -> Iterator[None]:
    """Shows the weights a strategy begins with, and what it makes of every round.

    Those after the last round cross no grid where nothing is evaluated.
    """
    planting.strategy = strategy
    planting.see(decoded(initial_arrays))
    aggregate, before = strategy.aggregate_train, vars(strategy).copy()

    def aggregated(*args: Any, **named: Any) -> Any:
        arrays, metrics = aggregate(*args, **named)
        if arrays is not None:
            planting.see(decoded(arrays))
        return arrays, metrics

    strategy.aggregate_train = aggregated  # type: ignore[method-assign]
    try:
        yield
    finally:
        del strategy.aggregate_train
        if "aggregate_train" in before:  # somebody else watches too
            strategy.aggregate_train = aggregate  # type: ignore[method-assign]


def _old(strategy: OldStrategy, settings: Settings, call: dict[str, Any]) -> OldStrategy:
    planting = Planting(settings)
    folders: list[Path] = []

    def after_round() -> None:
        if not folders:
            folders.append(new_folder(settings.directory))
        write(planting, folders[0], call, _AFTER_EVERY)

    return CanaryStrategy(strategy, planting, after_round)
