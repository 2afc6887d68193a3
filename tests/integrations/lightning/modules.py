"""A small Lightning module with Opacus inside, and ways to write it wrongly."""

from typing import Any

import lightning
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.core.audit import Audit
from epsilometer.integrations.lightning import AuditCallback

RECORDS, BATCH, SIGMA = 300, 30, 1.0


class Private(lightning.LightningModule):
    """Softmax regression, made private when its optimiser is."""

    def __init__(self, *, poisson: bool = True, hand_over: bool = True, noise: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Linear(20, 2)
        self.privacy_engine = PrivacyEngine(accountant="prv")
        self.poisson, self.hand_over, self.noise = poisson, hand_over, noise
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(RECORDS, 20, generator=draw)
        own = torch.Generator().manual_seed(5)
        loader = DataLoader(
            TensorDataset(x, (x[:, 0] > 0).long()), batch_size=BATCH, shuffle=True, generator=own
        )
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        made, self.optimizer, private = self.privacy_engine.make_private(
            module=self.net,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=SIGMA,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
            noise_generator=torch.Generator().manual_seed(1),
        )
        self.made = made
        self.loader = private if hand_over else loader
        if noise != 1.0:
            self._scale_noise(noise)

    def _scale_noise(self, factor: float) -> None:
        own = self.optimizer.add_noise

        def add_noise() -> None:
            before, self.optimizer.noise_multiplier = (
                self.optimizer.noise_multiplier,
                SIGMA * factor,
            )
            try:
                own()
            finally:
                self.optimizer.noise_multiplier = before

        self.optimizer.add_noise = add_noise

    def train_dataloader(self) -> Any:
        return self.loader

    def configure_optimizers(self) -> Any:
        return self.optimizer

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(self.made(x), y)


def fit(module: Any, epochs: int = 6, **settings: Any) -> Audit:
    """Train with the callback, and return its audit."""
    lightning.seed_everything(0, verbose=False)
    callback = AuditCallback(delta=1e-5, canaries=20, **settings)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(module)
    assert callback.audit is not None
    return callback.audit
