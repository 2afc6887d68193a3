"""Federated averaging of a small MLP by Flower's simulation on Ray: ROUNDS rounds of 64 clients.

    python benchmarks/measure_flower.py ROUNDS

Called by ``federated.py``, which watches how much CPU it and all that it starts take.
"""

import functools
import sys
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

CLIENTS, FEATURES, HIDDEN, CLASSES, BATCH, RATE = 64, 64, 66, 10, 20, 0.05
server_app, client_app = ServerApp(), ClientApp()


def net() -> nn.Module:
    """The model."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


@functools.cache
def records(count: int = CLIENTS) -> list[tuple[Any, Any]]:
    """The records of all clients: 20 to 60 each."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 60, size=count)
    return [
        (rng.normal(size=(n, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=n))
        for n in sizes
    ]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of plain SGD."""
    torch.set_num_threads(1)
    module = net()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records()[int(context.node_config["partition-id"])]
    sgd = torch.optim.SGD(module.parameters(), RATE)
    order = torch.randperm(len(y))
    for start in range(0, len(y), BATCH):
        batch = order[start : start + BATCH]
        sgd.zero_grad()
        inputs, labels = torch.from_numpy(x)[batch], torch.from_numpy(y)[batch]
        nn.functional.cross_entropy(module(inputs), labels).backward()
        sgd.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """DP-FedAvg with everybody in every round, nobody evaluated."""
    inner = FedAvg(min_available_nodes=CLIENTS, min_train_nodes=CLIENTS, fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.5, 1.0, CLIENTS)
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net().state_dict()), num_rounds=int(sys.argv[1])
    )


if __name__ == "__main__":
    # By the module's name, so that Ray's workers import it: they know another __main__.
    import measure_flower as apps

    run_simulation(
        apps.server_app,
        apps.client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
