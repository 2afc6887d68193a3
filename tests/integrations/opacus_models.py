"""Small models of many kinds, made private with the real Opacus, and their replays."""

import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.integrations.opacus import replay
from tests.integrations.opacus_runs import Run

ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 1.0,
}


def features(count: int = 32) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 20, generator=generator)
    return x, (x[:, 0] > 0).long()


def mlp(*middle: Any) -> Any:
    return nn.Sequential(nn.Linear(20, 16), *middle, nn.ReLU(), nn.Linear(16, 2))


def make(
    model: Any,
    data: Any = None,
    *,
    engine: Any = PrivacyEngine,
    strict: bool = True,
    mode: str = "hooks",
    inner: Any = torch.optim.SGD,
    clip: Any = 1.0,
    batch: int = 8,
    **more: Any,
) -> Run:
    """Any model, made private as users do it, or past Opacus' validation."""
    torch.manual_seed(1)
    x, y = features() if data is None else data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        owner = engine()
    if not strict:
        owner.validate = lambda **_: None
        model = GradSampleModule(model, strict=False)
    made = owner.make_private(
        module=model,
        optimizer=inner([each for each in model.parameters() if each.requires_grad], lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=more.pop("noise", 1.0),
        max_grad_norm=clip,
        grad_sample_mode=mode,
        **more,
    )
    if mode == "ghost":
        return Run(owner, made[0], made[1], made[3], made[2])
    return Run(owner, made[0], made[1], made[2], nn.CrossEntropyLoss())


def replayed(run: Run, loss: Any = None, batch: Any = None, **options: Any) -> Any:
    """Outcomes of both checks, with the finding."""
    own = run.loader.dataset[:12] if batch is None else batch
    chosen = run.criterion if loss is None else loss
    audit = replay(run.engine, run.model, run.optimizer, chosen, own, **{"records": 2, **options})
    return audit.conformance


def sum_of_losses(model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
