"""Fine-tune a small language model with planted canaries, and write its privacy audit.

``python examples/huggingface/fine_tune.py OUT`` runs in seconds on a CPU; nothing is downloaded.
Replace the small model, tokenizer and texts by your own.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

import epsilometer as em
from epsilometer.integrations.huggingface import PrivacyAudit

TEXTS = [
    f"the {animal} of the {place} {verb} a stone near the {place}"
    for animal in ("cat", "dog", "horse", "bird")
    for place in ("house", "river", "garden", "hill", "lake")
    for verb in ("sees", "finds", "wants")
]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer on the texts."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>")


def main(out: Path) -> None:
    """Plant canaries, train, and audit."""
    set_seed(0)
    tokenizer = make_tokenizer()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2)
    )
    # 1. Plant canaries; texts and coin tosses go into a private folder.
    planted = em.plant_texts(
        TEXTS, canaries=em.TextCanaries(count=200, kind="new", prompt=4), out=out / "private"
    )
    tokenizer.add_tokens(list(planted.new_tokens))
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    # 2. Train as usual, with one more callback.
    audit = PrivacyAudit(planted, em.Claim(2.0, delta=1e-5))
    Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(out / "model"),
            num_train_epochs=12,
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        ),
        train_dataset=[tokenizer(text) for text in planted.dataset],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[audit],
    ).train()
    # 3. Read the verdict; audit.json, audit.html and README.md are in the folder of the model.
    if audit.audit is not None:  # only the first of several processes has it
        print(audit.audit)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "huggingface-run"))
