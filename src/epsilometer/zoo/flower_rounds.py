"""Provide the small federated run with Flower that programs change in one part.

40 clients and 20 virtual canaries, 2,000 weights in three arrays, σ = 1, C = 1, 8 rounds in which
everyone takes part: everything that a program does not change.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.types import FloatArray
from epsilometer.zoo.program import Register

CLIENTS, CANARIES, ROUNDS = 40, 20, 8
EVERYBODY = CLIENTS + CANARIES
SIGMA = C = 1.0
SHAPES = {"first": (40, 30), "second": (20, 30), "out": (20, 10)}
Arrays: TypeAlias = dict[str, Any]
Rng: TypeAlias = np.random.Generator


@dataclass(kw_only=True)
class FederatedRun:
    """Hold a federated run that is ready to be audited.

    Attributes:
        server_app: The app of the server.
        client_app: The app of the clients.
        clients: Number of clients.
        settings: Settings of ``audit_server_app``: what is accounted for.
    """

    server_app: ServerApp
    client_app: ClientApp
    clients: int = CLIENTS
    settings: dict[str, Any] = field(default_factory=dict)


def measure_norm(update: Arrays) -> float:
    """Return the norm of all arrays together."""
    return math.sqrt(sum(float(np.sum(part**2)) for part in update.values()))


def clip(update: Arrays) -> Arrays:
    """Clip a whole update to C."""
    factor = min(1.0, C / max(measure_norm(update), 1e-12))
    return {name: factor * part for name, part in update.items()}


def draw(server: "PrivateMean", scale: float) -> Arrays:
    """Draw Gaussian noise for every array."""
    return {name: server.rng.normal(0, scale, shape) for name, shape in SHAPES.items()}


class PrivateMean(FedAvg):
    """Release the mean of clipped updates plus noise, by parts that a program may change.

    Args:
        seed: Seed of the noise.
        parts: ``clip(update)``; ``weigh(server, examples)`` returns one weight per reply;
            ``average(server, updates, weights)``; ``scale(server, replies)`` of the noise;
            ``draw(server, scale)``; ``publish(server, mean, noise)`` returns what is added to the
            weights; ``read(reply, sent)`` returns an update.
    """

    def __init__(self, seed: int, **parts: Callable[..., Any]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.rng = np.random.default_rng([seed, 0, 0, 1])  # [7, 0] and 7 would be one stream
        self.round, self.memory = 0, dict[str, Any]()
        self._parts = parts
        self._sent: Arrays = {}

    def summary(self) -> None:
        """Print nothing."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid
    ) -> Any:
        """Record the sent weights."""
        self._sent = {name: part.numpy() for name, part in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Aggregate one round."""
        self.round = server_round
        contents = [reply.content for reply in replies if reply.has_content()]
        read: Callable[..., Any] = self._parts.get("read", np.subtract)
        updates = [
            {
                name: np.float64(read(np.float64(part.numpy()), np.float64(self._sent[name])))
                for name, part in content["arrays"].items()
            }
            for content in contents
        ]
        examples = np.array([float(content["metrics"]["num-examples"]) for content in contents])
        clipped = [self._parts.get("clip", clip)(update) for update in updates]
        weights = self._call("weigh", lambda _, many: np.full(many.size, 1 / many.size), examples)
        mean = self._call("average", average, clipped, weights)
        scale = self._call("scale", lambda _, replies: SIGMA * C / replies, len(contents))
        noise = self._call("draw", draw, scale)
        step = self._call("publish", add, mean, noise)
        new = {
            name: Array((self._sent[name] + step[name]).astype(np.float32)) for name in self._sent
        }
        return ArrayRecord(new), MetricRecord()

    def _call(self, name: str, usual: Callable[..., Any], *args: Any) -> Any:
        return self._parts.get(name, usual)(self, *args)


def average(_: PrivateMean, updates: Sequence[Arrays], weights: FloatArray) -> Arrays:
    """Return the weighted mean of updates."""
    return {
        name: sum(weight * update[name] for weight, update in zip(weights, updates, strict=True))
        for name in SHAPES
    }


def add(_: PrivateMean, mean: Arrays, noise: Arrays) -> Arrays:
    """Return the noisy mean."""
    return {name: mean[name] + noise[name] for name in mean}


def make_clients(
    *, unequal: bool = False, updates: bool = False, mods: Any = None, scale: float = 1.0
) -> ClientApp:
    """Return clients whose updates have norms of 0.3 to 3, around a common direction.

    Args:
        unequal: Whether numbers of examples go from 10 to 1,000, instead of 100.
        updates: Whether they answer with updates instead of weights.
        mods: Mods of the app.
        scale: Scale by which updates are multiplied.
    """
    app = ClientApp(mods=mods)

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        number = int(str(message.content["config"]["server-round"]))
        rng = np.random.default_rng([partition, number, 0, 2])
        common = np.random.default_rng([7, 0, 0, 3])
        (arrays,) = message.content.array_records.values()
        sent = {name: part.numpy() for name, part in arrays.items()}
        step = {
            name: common.normal(size=value.shape) / 2 + rng.normal(size=value.shape)
            for name, value in sent.items()
        }
        wanted = scale * 0.3 * 10 ** ((partition % 10) / 9)
        factor = wanted / measure_norm(step)
        new = {
            name: (factor * step[name] + (0 if updates else value)).astype(np.float32)
            for name, value in sent.items()
        }
        examples = int(10 * 100 ** ((partition % 7) / 6)) if unequal else 100
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(value) for name, value in new.items()}),
                "metrics": MetricRecord({"num-examples": examples}),
            }
        )
        return Message(content, reply_to=message)

    return app


def make_run(
    seed: int,
    *,
    strategy: Callable[[int], Strategy] | None = None,
    clients: Callable[[], ClientApp] = make_clients,
    settings: dict[str, Any] | None = None,
    **parts: Callable[..., Any],
) -> FederatedRun:
    """Return the right run with a program's changes.

    Args:
        seed: Seed of weights and noise.
        strategy: Makes the whole strategy from a seed.
        clients: Makes the app of the clients.
        settings: Settings of ``audit_server_app``, instead of σ, C and the number of replies.
        parts: As of :class:`PrivateMean`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        rng = np.random.default_rng([seed, 0, 0, 4])
        np.random.seed(seed)  # Flower's own noise comes from the global generator
        start = {name: Array(rng.normal(size=s).astype(np.float32)) for name, s in SHAPES.items()}
        made = PrivateMean(seed, **parts) if strategy is None else strategy(seed)
        made.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=ROUNDS, timeout=60)

    accounted = AccountedMean(noise_multiplier=SIGMA, clip_norm=C)
    return FederatedRun(
        server_app=app,
        client_app=clients(),
        settings={"accounted": accounted} if settings is None else settings,
    )


program = Register("flower", make_run)
