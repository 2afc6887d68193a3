"""Train with Lightning and Opacus, audited by a callback.

pip install 'epsilometer[lightning]'
python examples/lightning/train.py
python examples/lightning/train.py --forget-loader   # Lightning keeps the old loader
"""

import argparse

import lightning
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.core.audit import Audit
from epsilometer.integrations.lightning import AuditCallback


class Classifier(lightning.LightningModule):
    """Train softmax regression with DP-SGD."""

    def __init__(self, *, forget_loader: bool = False) -> None:
        super().__init__()
        self.net = nn.Linear(20, 2)
        features = torch.randn(600, 20)
        records = TensorDataset(features, (features[:, 0] > 0).long())
        loader = DataLoader(records, batch_size=60, shuffle=True)
        self.privacy_engine = PrivacyEngine()
        self.private, self.optimizer, sampled = self.privacy_engine.make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.2),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        self.loader = loader if forget_loader else sampled

    def train_dataloader(self) -> DataLoader:
        """Return the loader that Lightning iterates over."""
        return self.loader

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser that Opacus made."""
        return self.optimizer

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        features, labels = batch
        return nn.functional.cross_entropy(self.private(features), labels)


def train(*, forget_loader: bool = False, epochs: int = 6) -> Audit:
    """Train with the callback, and return its audit."""
    lightning.seed_everything(0, verbose=False)
    callback = AuditCallback(delta=1e-5, canaries=40)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(forget_loader=forget_loader))
    assert callback.audit is not None
    return callback.audit


def main() -> None:
    """Train as asked, print the audit, and exit as ``epsilometer`` does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--forget-loader", action="store_true", help="Keep the shuffled loader.")
    audit = train(**vars(parser.parse_args()))
    print(audit)
    raise SystemExit(audit.exit_code)


if __name__ == "__main__":
    main()
