"""Train with Opacus and Flower on planted data, and audit as users do."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate

import epsilometer as em
from epsilometer.integrations.opacus import audited, check, replay, replay_setup
from tests.contract.planted import DELTA, NAMES, SAID, Planted
from tests.integrations import flower_apps
from tests.integrations.opacus_runs import NoClipping, Run, train

_RECORDS, _BATCH = 48, 8
_NODES, _CANARIES = 12, 40


class People(Dataset):  # type: ignore[type-arg]
    """Records with a name and a number to predict, all of which the dataset tells if asked."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.features = torch.tensor(rng.normal(size=(_RECORDS, 20)), dtype=torch.float32)
        self.labels = torch.tensor(rng.normal(size=(_RECORDS, 1)), dtype=torch.float32)
        self.names = NAMES[:_RECORDS]

    def __len__(self) -> int:
        return _RECORDS

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.features[place], self.labels[place]

    def __repr__(self) -> str:
        return f"People({self.names}, {self.features.tolist()}, {self.labels.tolist()})"

    def list_secrets(self) -> dict[str, str]:
        """Return all that must not be published, with what it is."""
        tensors = (self.features, self.labels)
        values = (*tensors, *(each.numpy() for each in tensors), np.array(self.names), self)
        return Planted(self, texts=(*self.names, SAID), values=values).list_secrets()


class TalkativeLoss(nn.MSELoss):
    """A loss that cannot do with fewer records than 8, and says whose are left."""

    def forward(self, found: Any, labels: Any) -> Any:
        if len(labels) < _BATCH:
            raise ValueError(f"{SAID}: only {labels.tolist()}")
        return super().forward(found, labels)


def prepare(people: Any, kind: type[DPOptimizer] = DPOptimizer) -> Run:
    """Make a small regression private, with an optimiser of this kind."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # secure random numbers
        engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(people, batch_size=_BATCH),
        noise_multiplier=0.5,
        max_grad_norm=0.1,
    )
    optimizer.__class__ = kind
    return Run(engine, model, optimizer, loader, nn.MSELoss())


def audit_opacus(people: People) -> Iterator[tuple[str, Any]]:
    """Yield whatever the integration returns, of right programs and of broken ones."""
    for kind in (DPOptimizer, NoClipping):
        run, name = prepare(people, kind), kind.__name__
        with audited(run.engine, run.optimizer, run.loader, canaries=60) as audit:
            train(run)
        yield f"{name}, object", audit
        yield f"{name}, result", audit.result(delta=DELTA)
        batch = default_collate([people[place] for place in range(_BATCH)])
        given = run.engine, run.model, run.optimizer
        yield f"{name}, replay", replay(*given, TalkativeLoss(), batch, records=1, delta=DELTA)
    yield "check", check(run.engine, run.optimizer, loader=run.loader, delta=DELTA)
    yield "set-up", replay_setup(_make_private, people, nn.MSELoss())


def _make_private(people: Any) -> tuple[Any, Any, Any]:
    run = prepare(people)
    return run.model, run.optimizer, run.loader


class Clients:
    """Clients whose updates are their data; one fails in a round, and tells whose it has."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(6).normal(size=(_NODES, 200)).astype(np.float32)
        self.losses = np.random.default_rng(7).normal(size=_NODES)

    def make_app(self) -> ClientApp:
        """Return the app of all clients."""
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            place = int(context.node_config["partition-id"])
            if place == 3 and message.content["config"]["server-round"] == 1:
                raise ValueError(f"{SAID} of {NAMES[place]}: {self.data[place].tolist()}")
            own, metrics = self.data[place], {"num-examples": 5, "loss": self.losses[place]}
            old = {name: array.numpy() for name, array in message.content["arrays"].items()}
            new = {
                name: Array(array + own[: array.size].reshape(array.shape))
                for name, array in old.items()
            }
            records = {"arrays": ArrayRecord(new), "metrics": MetricRecord(metrics)}
            return Message(RecordDict(records), reply_to=message)

        return app

    def list_secrets(self) -> dict[str, str]:
        """Return all that must not be published, with what it is."""
        values = (self.data, *self.data, self.losses)
        return Planted(self, texts=(*NAMES[:_NODES], SAID), values=values).list_secrets()


def audit_flower(clients: Clients, folder: Path) -> tuple[em.Audit, str]:
    """Audit a run in this process; return the audit, and what was logged of it."""
    app = flower_apps.server(flower_apps.private(_NODES + _CANARIES), weights=200, rounds=2)
    with _keep_log() as said:
        written = flower_apps.audit(
            app,
            clients.make_app(),
            folder,
            nodes=_NODES,
            canaries=_CANARIES,
            claim=flower_apps.CLAIM,
        )
    return written.audit, "\n".join(said)


@contextmanager
def _keep_log() -> Iterator[list[str]]:
    """Keep our own lines among Flower's."""
    said: list[str] = []
    logger, level = logging.getLogger("flwr"), logging.getLogger("flwr").level

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.pathname.endswith("run_directory.py"):
                said.append(record.getMessage())

    handler, others = Keeping(), logger.handlers
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.handlers = others
        logger.setLevel(level)
