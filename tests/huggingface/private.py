"""A Trainer that trains with Opacus inside: right, and with one part wrong."""

import warnings
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

import epsilometer as em
from epsilometer.integrations.huggingface import PrivacyAudit
from epsilometer.integrations.opacus import audited
from tests.huggingface.small import TEXTS, make_arguments, make_tokenizer, tokenize

DELTA, NOISE, CLIP, BATCH = 1e-5, 0.8, 0.5, 12


class Tagger(torch.nn.Module):
    """A small causal model of layers that Opacus knows; takes and returns what a Trainer wants."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(tokens, 16)
        self.inner = torch.nn.Linear(16, 32)
        self.head = torch.nn.Linear(32, tokens)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        """Return logits, and the loss where labels are given."""
        logits = self.head(torch.tanh(self.inner(self.table(input_ids))))
        if labels is None:
            return logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        return {"loss": loss, "logits": logits}


class ZeroGradients(TrainerCallback):
    """Clear the sums of Opacus after every step: a Trainer clears the model alone."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Clear them."""
        parts["optimizer"].zero_grad()


class PrivateTrainer(Trainer):
    """A Trainer that goes through the loader that Opacus made."""

    private_loader: Any = None

    def get_train_dataloader(self) -> Any:
        """Return that loader."""
        return self.private_loader or super().get_train_dataloader()


def run_private(
    folder: Path,
    *,
    keep_loader: bool = True,
    clear: bool = True,
    change: Any = None,
    callbacks: Any = (),
    watch: bool = True,
    epochs: int = 4,
    seed: int = 0,
) -> Any:
    """Train once, and return the audit.

    Args:
        folder: For the output.
        keep_loader: Whether the Trainer goes through the loader of Opacus.
        clear: Whether sums are cleared after every step.
        change: ``change(engine, optimizer)``, before training.
        callbacks: Further ones.
        watch: Whether ``audited`` watches; else the books alone are compared.
        epochs: How many.
        seed: Of training.
    """
    tokenizer = make_tokenizer()
    planted = em.plant_texts(TEXTS, canaries=em.TextCanaries(count=40, prompt=3), seed=seed)
    rows = tokenize(planted, tokenizer)
    torch.manual_seed(seed)
    model = Tagger(len(tokenizer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        loader = DataLoader(rows, batch_size=BATCH, collate_fn=collate)
        model, optimizer, private = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            data_loader=loader,
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
    if change is not None:
        change(engine, optimizer)
    audit = PrivacyAudit(
        planted,
        delta=DELTA,
        accountant=engine.accountant,
        watch=(lambda optimizer, loader: audited(engine, optimizer, loader, canaries=50))
        if watch
        else None,
        tokenizer=tokenizer,
    )
    trainer = PrivateTrainer(
        model=model,
        args=make_arguments(
            folder,
            remove_unused_columns=False,
            max_grad_norm=0.0,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            lr_scheduler_type="constant",
            seed=seed,
        ),
        train_dataset=rows,
        data_collator=collate,
        optimizers=(optimizer, None),
        callbacks=[*([ZeroGradients()] if clear else []), *callbacks, audit],
    )
    trainer.private_loader = private if keep_loader else None
    trainer.model_accepts_loss_kwargs = False  # it looks so, as Opacus wraps the model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return audit.audit


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack rows; an empty batch is one row that counts for nothing."""
    if not rows:
        return {name: torch.zeros(0, 48, dtype=torch.long) for name in ("input_ids", "labels")}
    return {
        name: torch.tensor([row[name] for row in rows])
        for name in ("input_ids", "attention_mask", "labels")
    }
