"""Small Flower apps, as users write them, and what audits of them wrote."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.serialisation import load
from epsilometer.integrations.flower import audit_server_app, run_in_process
from epsilometer.stats.gaussians import gaussian_sigma

DELTA = 1e-5
EPSILON = 8.0
NOISE = gaussian_sigma(EPSILON, DELTA)  # of one round in which everybody takes part
CLAIM = Claim(EPSILON, delta=DELTA, adjacency="zero_out", unit="client")
logging.getLogger("flwr").setLevel(logging.ERROR)  # it has a line for every reply


def model(weights: int) -> ArrayRecord:
    """Two arrays that count."""
    start = np.linspace(-0.5, 0.5, weights, dtype=np.float32)
    return ArrayRecord({"w": Array(start[10:].reshape(2, -1)), "b": Array(start[:10])})


def flat(arrays: ArrayRecord) -> Any:
    return np.concatenate([arrays[name].numpy().ravel() for name in ("w", "b")], dtype=np.float64)


def server(
    strategy: Strategy,
    *,
    weights: int = 2000,
    rounds: int = 1,
    arrays: ArrayRecord | None = None,
    done: Callable[[ArrayRecord], None] = lambda arrays: None,
) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = model(weights) if arrays is None else arrays
        done(strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds).arrays)

    return app


def client(
    *,
    norm: float = 0.5,
    called: list[tuple[int, str]] | None = None,
    broken: int | None = None,
    mods: Any = None,
) -> ClientApp:
    """Clients whose updates have a norm; one of them may be broken, by its partition."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if called is not None:
            called.append((context.node_id, "train"))
        if context.node_config["partition-id"] == broken:
            raise RuntimeError("the disk of this phone is full")
        rng = np.random.default_rng(context.node_id)
        old = {name: array.numpy() for name, array in message.content["arrays"].items()}
        step = {name: rng.standard_normal(value.shape) for name, value in old.items()}
        length = np.sqrt(sum(np.sum(part**2) for part in step.values()))
        new = {
            name: Array((value + norm * step[name] / length).astype(value.dtype))
            for name, value in old.items()
        }
        content = RecordDict(
            {
                "arrays": ArrayRecord(new),
                "metrics": MetricRecord({"num-examples": 100, "loss": 0.5}),
            }
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if called is not None:
            called.append((context.node_id, "evaluate"))
        content = RecordDict({"metrics": MetricRecord({"num-examples": 100, "accuracy": 0.5})})
        return Message(content, reply_to=message)

    return app


def averaging(**more: Any) -> FedAvg:
    return FedAvg(**{"fraction_evaluate": 0.0, **more})


def private(nodes: int, inner: Strategy | None = None, noise: float = NOISE) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner or averaging(), noise, 1.0, nodes)


class Replies(FedAvg):
    """Keeps what it was sent."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"fraction_evaluate": 0.0, **more})
        self.kept: list[list[Message]] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.kept.append(list(replies))
        return super().aggregate_train(server_round, self.kept[-1])


def audit(
    app: ServerApp, clients: Any, folder: Path, *, nodes: int, noise_seed: int = 0, **asked: Any
) -> "Written":
    """Runs an audited app in this process."""
    usual = {"delta": DELTA, "mode": "virtual", "seed": 0}
    settings = {**usual, "out": folder / "run", **asked}
    np.random.seed(noise_seed)  # Flower's noise and samples come from global generators
    random.seed(noise_seed)
    run_in_process(audit_server_app(app, **settings), clients, nodes=nodes)
    return Written(folder / "run")


class Written:
    """A run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = (folder / "notes.txt").read_text("utf-8")
        with np.load(folder / "cosines.npz") as kept:
            self.final, self.largest, self.took = kept["final"], kept["largest"], kept["took"]

    @property
    def judged(self) -> bool:
        there = {path.name for path in self.folder.iterdir()}
        assert ("result.json" in there) == ("report.html" in there)
        return "result.json" in there

    @property
    def audit(self) -> Audit:
        return load(self.folder)
