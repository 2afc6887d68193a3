"""Measure what canaries prove of a Flower server, with and without what clients replied.

    python benchmarks/known_updates.py

500 virtual canaries beside 100 clients that all pull one way, 20,000 weights in three arrays.
"""

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sizes import ARGUMENTS, choose_size

import epsilometer as em
from epsilometer.integrations.flower import audit_server_app, run_in_process

DELTA, SIZES = 1e-5, choose_size((10_000, 7_000, 3_000), (60, 30, 10))
CANARIES, CLIENTS = choose_size((500, 100), (20, 5))
NOISE = em.gaussian_sigma(8.0, DELTA)
ROWS = {
    "as promised": (1, (1.0, 1.0, 1.0)),
    "3 % of the noise": (1, (0.03, 0.03, 0.03)),
    "no noise on the first array": (1, (0.0, 1.0, 1.0)),
    "half of the noise, 4 rounds": (4, (0.5, 0.5, 0.5)),
}
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client whose update is half its own, half that of all."""
    common, own = np.random.default_rng(1), np.random.default_rng(context.node_id)
    arrays = {}
    for name, sent in message.content["arrays"].items():
        step = common.normal(size=sent.shape) + own.normal(size=sent.shape)
        arrays[name] = Array((sent.numpy() + step / 100).astype(np.float32))
    metrics = MetricRecord({"num-examples": 100})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


class Noisy(FedAvg):
    """Clips to norm 1, averages, and adds a share of the noise to each array."""

    def __init__(self, rounds: int, shares: tuple[float, ...]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.scale, self.shares = NOISE * rounds**0.5, shares
        self.rng, self.sent = np.random.default_rng(5), dict[str, Any]()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Grid) -> Any:
        """Remember what is sent."""
        self.sent = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Return the mean of clipped updates plus noise."""
        total = {name: np.zeros(value.shape) for name, value in self.sent.items()}
        many = 0
        for reply in replies:
            arrays = next(iter(reply.content.array_records.values()))
            update = {name: arrays[name].numpy() - old for name, old in self.sent.items()}
            length = np.sqrt(sum(np.sum(np.square(part, dtype=float)) for part in update.values()))
            for name, part in update.items():
                total[name] += part * min(1.0, 1 / length)
            many += 1
        new = {}
        for share, (name, part) in zip(self.shares, total.items(), strict=True):
            noise = share * self.scale * self.rng.normal(size=part.shape)
            new[name] = Array((self.sent[name] + (part + noise) / many).astype(np.float32))
        return ArrayRecord(new), MetricRecord({})


def prove(rounds: int, shares: tuple[float, ...]) -> float:
    """Return the largest ε that is proved."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = {f"layer{n}": Array(np.zeros(size, np.float32)) for n, size in enumerate(SIZES)}
        Noisy(rounds, shares).start(grid, ArrayRecord(start), num_rounds=rounds)

    with tempfile.TemporaryDirectory() as folder:
        audited = audit_server_app(
            app,
            canaries=CANARIES,
            mode="virtual",
            out=Path(folder) / "run",
            claim=8.0,
            delta=DELTA,
            clip_norm=1.0,
            seed=3,
        )
        run_in_process(audited, client_app, nodes=CLIENTS)
        return max(view.bound.epsilon for view in em.load(Path(folder) / "run").views)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in ARGUMENTS or ROWS:
        print(f"| {name} | {prove(*ROWS[name]):.1f} |")
