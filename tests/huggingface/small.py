"""Small language models and tokenizers, built from a configuration: nothing is downloaded."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainingArguments

from epsilometer.audits.text.planting import PlantedTexts

TEXTS = [
    f"the {animal} of the {place} {verb} a {thing} near the {place}"
    for animal in ("cat", "dog", "horse", "bird")
    for place in ("house", "river", "garden", "hill")
    for verb in ("sees", "finds", "wants")
    for thing in ("stone", "leaf", "flower")
]
LENGTH = 48


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer on the texts."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", bos_token="<eos>", pad_token="<eos>"
    )


def make_model(tokenizer: Any, *, dtype: torch.dtype = torch.float32) -> GPT2LMHeadModel:
    """Build a GPT-2 of two small layers."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).to(dtype)


def tokenize(planted: PlantedTexts, tokenizer: Any) -> list[dict[str, Any]]:
    """Return the records of a planted list as a Trainer takes them."""
    rows = []
    for text in planted.dataset:
        ids = tokenizer.encode(text, add_special_tokens=False)[:LENGTH]
        fill = LENGTH - len(ids)
        rows.append(
            {
                "input_ids": ids + [0] * fill,
                "attention_mask": [1] * len(ids) + [0] * fill,
                "labels": ids + [-100] * fill,
            }
        )
    return rows


def make_arguments(folder: Any, **more: Any) -> TrainingArguments:
    """Return arguments that report nothing and run on the CPU."""
    known: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "num_train_epochs": 1,
        "learning_rate": 5e-3,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 0,
    }
    return TrainingArguments(**{**known, **more})
