"""Flower's own secure aggregation: the server sees sums, the canaries plant themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig
from flwr.server.compat import LegacyContext
from flwr.server.strategy import FedAvg, Strategy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower import (
    audit_server_app,
    audited_strategy,
    canary_mod,
    run_in_process,
)
from tests.integrations.flower_apps import DELTA, Written

WEIGHTS, NODES, CANARIES = 400, 8, 4


class Still(NumPyClient):
    """A client that learns nothing, so that the sum is that of the canaries."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return parameters, 10, {}


def averaging() -> FedAvg:
    return FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=NODES,
        min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters([np.zeros(WEIGHTS, np.float32)]),
    )


def secure_server(rounds: int, strategy: Strategy | None = None) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        legacy = LegacyContext(
            context=context,
            config=ServerConfig(num_rounds=rounds),
            strategy=strategy or averaging(),
        )
        secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, clipping_range=3.0)
        DefaultWorkflow(fit_workflow=secure)(grid, legacy)

    return app


def client_app(*mods: Any) -> ClientApp:
    return ClientApp(client_fn=lambda context: Still().to_client(), mods=list(mods))


def test_canaries_plant_themselves_under_the_masks(tmp_path: Path) -> None:
    app = audit_server_app(
        secure_server(rounds=2),
        delta=DELTA,
        mode="mod",
        seed=9,
        canaries=CANARIES,
        out=tmp_path / "run",
    )
    clients = client_app(secaggplus_mod, canary_mod(CANARIES, seed=9, clip_norm=1.0))
    run_in_process(app, clients, nodes=NODES)
    found = Written(tmp_path / "run")
    # Four orthonormal canaries and nothing else: each has half of the sum's length.
    np.testing.assert_allclose(found.final[:CANARIES], 0.5, atol=1e-3)  # what quantising leaves
    np.testing.assert_allclose(found.final[CANARIES:], 0, atol=1e-3)
    assert "last round were observed only if they were sent" in found.told
    assert found.judged
    assert "Canaries were at most 4 of the 8 replies of a round." in found.told
    assert "Canaries added 100% of the norm" in found.told


@pytest.mark.parametrize("through", [audit_server_app, audited_strategy])
@pytest.mark.parametrize(
    ("planted", "reason"),
    [
        (canary_mod(CANARIES, seed=8, clip_norm=1.0), "4 of 4 replies were about others"),
        (canary_mod(CANARIES, seed=9, family="sphere", clip_norm=1.0), "about others"),
        (canary_mod(CANARIES + 1, seed=9, clip_norm=1.0), "5 of 5 replies were about others"),
        (None, "none said that it did"),
    ],
)
def test_canaries_that_nobody_planted_are_an_error(
    planted: Any, reason: str, through: Any, tmp_path: Path
) -> None:
    asked = {"delta": DELTA, "mode": "mod", "seed": 9, "canaries": CANARIES}
    if through is audit_server_app:
        app = audit_server_app(secure_server(1), out=tmp_path / "run", **asked)
    else:
        app = secure_server(1, audited_strategy(averaging(), out=tmp_path / "run", **asked))
    mods = [secaggplus_mod] if planted is None else [secaggplus_mod, planted]
    run_in_process(app, client_app(*mods), nodes=NODES)
    told = (tmp_path / "run" / "notes.txt").read_text("utf-8")
    # The app sees weights after the last round only if they cross the grid.
    assert reason in told
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_seed_of_planting_clients_must_be_given() -> None:
    with pytest.raises(InvalidArgument, match="seed of canary_mod"):
        audit_server_app(secure_server(1), delta=DELTA, mode="mod", canaries=CANARIES)


def test_nobody_can_answer_for_a_client_with_masks(tmp_path: Path) -> None:
    app = audit_server_app(
        secure_server(rounds=1),
        delta=DELTA,
        mode="replace",
        canaries=CANARIES,
        out=tmp_path / "run",
    )
    run_in_process(app, client_app(secaggplus_mod), nodes=NODES)  # goes on without canaries
    told = (tmp_path / "run" / "notes.txt").read_text("utf-8")
    assert "The audit ended before the run did" in told
    assert "Under secure aggregation use canary_mod" in told
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_strategy_sees_the_sum_of_the_last_round_too(tmp_path: Path) -> None:
    strategy = audited_strategy(
        averaging(),
        delta=DELTA,
        mode="mod",
        seed=9,
        canaries=CANARIES,
        out=tmp_path / "run",
    )
    clients = client_app(secaggplus_mod, canary_mod(CANARIES, seed=9, clip_norm=1.0))
    run_in_process(secure_server(1, strategy), clients, nodes=NODES)
    found = Written(tmp_path / "run")
    np.testing.assert_allclose(found.final[:CANARIES], 0.5, atol=1e-3)  # what quantising leaves
    np.testing.assert_allclose(found.final[CANARIES:], 0, atol=1e-3)
    assert "sent over the grid" not in found.told


def test_the_strategy_cannot_answer_for_a_client_with_masks_either(tmp_path: Path) -> None:
    strategy = audited_strategy(
        averaging(), delta=DELTA, mode="replace", canaries=CANARIES, out=tmp_path / "run"
    )
    run_in_process(secure_server(1, strategy), client_app(secaggplus_mod), nodes=NODES)
    told = (tmp_path / "run" / "notes.txt").read_text("utf-8")
    assert "use mode='mod' and canary_mod" in told
    assert not (tmp_path / "run" / "result.json").exists()
