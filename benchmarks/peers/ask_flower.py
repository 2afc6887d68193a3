"""Federated averaging of a small MLP by Flower's simulation on Ray: ``stopwatch.answer``.

Some clients have records; the others, if any, are canaries, which answer with a direction of their
own, as long as clipping allows.
"""

import functools
import logging
from typing import Any

import federation
import numpy as np
import stopwatch
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

logging.getLogger("flwr").setLevel(logging.ERROR)  # it has a line for every reply
server_app, client_app = ServerApp(), ClientApp()
asked: dict[str, Any] = {}  # of the server, which lives in the process that was asked
records = functools.cache(federation.records)
ragged = functools.cache(federation.ragged_records)


def net(width: int = 0) -> nn.Module:
    """The model; of so wide two layers, where a width is given."""
    if width:
        return nn.Sequential(
            nn.Linear(federation.FEATURES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, federation.CLASSES),
        )
    sizes = federation.FEATURES, federation.HIDDEN, federation.CLASSES
    return nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of plain SGD, or a canary."""
    torch.set_num_threads(1)
    width = int(message.content["config"]["width"])
    module = net(width)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    told, me = message.content["config"], int(context.node_config["partition-id"])
    if me < told["clients"]:
        _learn(module, *(ragged if width else records)(told["clients"])[me])
    else:
        _plant(module, federation.direction(told["seed"], me - told["clients"]))
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """DP-FedAvg with everybody in every round, nobody evaluated."""
    everybody = asked["clients"] + asked["canaries"]
    inner = FedAvg(min_available_nodes=everybody, min_train_nodes=everybody, fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        inner, asked["noise"], federation.CLIP, everybody
    )
    torch.manual_seed(asked["seed"])
    start = net(asked["width"])
    ended = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(start.state_dict()),
        num_rounds=asked["rounds"],
        train_config=ConfigRecord({key: asked[key] for key in ("clients", "seed", "width")}),
    )
    asked["moved"] = _flat(ended.arrays.to_torch_state_dict()) - _flat(start.state_dict())


def rounds(given: str) -> dict[str, Any]:
    """``N rounds`` of 64 clients, no canaries."""
    _simulate(clients=64, canaries=0, noise=0.5, rounds=int(given.split(maxsplit=1)[0]), seed=0)
    return {}


def sized(given: str) -> dict[str, Any]:
    """``N CLIENTS WIDTH wide``: N rounds of a larger model, no canaries."""
    many, clients, width = map(int, given.split()[:3])
    _simulate(clients=clients, canaries=0, noise=0.5, rounds=many, seed=0, width=width)
    return {}


def federated(given: str) -> dict[str, Any]:
    """The audit ``SITUATION:SEED``: cosines of canaries with how far the model moved."""
    situation, _, seed = given.partition(":")
    moved = _simulate(**federation.settings(situation), seed=int(seed))
    return {"cosines": federation.cosines(moved, int(seed)), "dimension": moved.size}


def _simulate(*, width: int = 0, **how: Any) -> Any:
    # By the module's name, so that Ray's workers import it: they know another __main__.
    import ask_flower as apps

    apps.asked.update(how, width=width)
    run_simulation(
        apps.server_app,
        apps.client_app,
        num_supernodes=how["clients"] + how["canaries"],
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return apps.asked["moved"]


def _learn(module: nn.Module, x: Any, y: Any) -> None:
    sgd = torch.optim.SGD(module.parameters(), federation.RATE)
    order = torch.randperm(len(y))
    for start in range(0, len(y), federation.BATCH):
        batch = order[start : start + federation.BATCH]
        sgd.zero_grad()
        inputs, labels = torch.from_numpy(x)[batch], torch.from_numpy(y)[batch]
        nn.functional.cross_entropy(module(inputs), labels).backward()
        sgd.step()


def _plant(module: nn.Module, direction: Any) -> None:
    weights = nn.utils.parameters_to_vector(module.parameters())
    moved = weights + federation.CLIP * torch.from_numpy(direction.astype(np.float32))
    nn.utils.vector_to_parameters(moved.detach(), module.parameters())


def _flat(state: Any) -> Any:
    return np.concatenate([value.numpy().ravel() for value in state.values()], dtype=np.float64)


if __name__ == "__main__":
    stopwatch.answer({"rounds": rounds, "sized": sized, "federated": federated}, tool="flwr")
