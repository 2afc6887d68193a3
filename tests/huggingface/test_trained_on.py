"""A Trainer that does not train on the canaries as they were planted never clears a claim."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.huggingface import PrivacyAudit
from tests.huggingface.small import TEXTS, make_arguments, make_model, make_tokenizer, tokenize
from tests.huggingface.test_callback import DELTA, plant, train

# What these libraries say of each other.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def truncate(rows: Any) -> Any:
    return [{name: part[:4] for name, part in row.items()} for row in rows]


def drop(rows: Any) -> Any:
    """Drop what has a new token, as a filter of odd texts would."""
    last = max(max(row["input_ids"]) for row in rows)
    return [row for row in rows if max(row["input_ids"]) < last - 100]


def mask(rows: Any) -> Any:
    """Leave the last token of each text out of the loss."""
    for row in rows:
        row["labels"][sum(row["attention_mask"]) - 1] = -100
    return rows


def pack(rows: Any) -> Any:
    """Join texts into blocks, as scripts for pretraining do."""
    ids = [token for row in rows for token in row["input_ids"][: sum(row["attention_mask"])]]
    blocks = [ids[at : at + 48] for at in range(0, len(ids) - 48, 48)]
    return [{"input_ids": ids, "labels": ids, "attention_mask": [1] * 48} for ids in blocks]


def run(folder: Path, planted: Any, rows: Any, tokenizer: Any, **more: Any) -> Any:
    callback = more.pop("callback", None) or PrivacyAudit(planted, 1.0, delta=DELTA)
    Trainer(
        model=more.pop("model", None) or make_model(tokenizer),
        args=make_arguments(folder, **{"num_train_epochs": 4, **more}),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[callback],
    ).train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return callback.audit


@pytest.mark.parametrize("change", [truncate, drop, mask, pack])
def test_changed_rows_clear_no_claim(
    change: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    rows = change(tokenize(planted, tokenizer))
    audit = run(tmp_path / "out", planted, rows, tokenizer)
    assert audit.verdict == "cannot judge"
    assert len(audit.caveats) > 1
    assert "prove nothing" in caplog.text  # early enough to stop


def test_masks_that_the_model_does_not_see_clear_no_claim(tmp_path: Path) -> None:
    """With label smoothing a Trainer computes the loss outside the model."""
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    rows, more = mask(tokenize(planted, tokenizer)), {"label_smoothing_factor": 0.1}
    audit = run(tmp_path, planted, rows, tokenizer, num_train_epochs=1, **more)
    assert audit.verdict == "cannot judge"
    assert "without labels" in "".join(audit.caveats)


def test_a_run_that_ends_before_its_epoch_clears_no_claim(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    audit = run(tmp_path / "out", planted, tokenize(planted, tokenizer), tokenizer, max_steps=1)
    assert audit.verdict == "cannot judge"
    assert "in no batch" in "".join(audit.caveats)


def test_other_coins_than_those_of_the_data_clear_no_claim(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    other = plant(tokenizer, count=100, seed=1)
    audit = run(tmp_path / "out", planted, tokenize(other, tokenizer), tokenizer)
    assert audit.verdict == "cannot judge"


@pytest.mark.parametrize("kept", [True, False], ids=["with folder", "without"])
def test_a_resumed_run_is_audited_as_a_whole(kept: bool, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100, out=tmp_path / "private" if kept else None)
    rows = tokenize(planted, tokenizer)
    more = {"save_strategy": "epoch", "learning_rate": 1e-2}
    first = run(tmp_path / "out", planted, rows, tokenizer, num_train_epochs=9, **more)
    again = run(tmp_path / "out", planted, rows, tokenizer, num_train_epochs=9, **more)
    assert first.verdict == "refuted"
    assert again.verdict == ("refuted" if kept else "cannot judge")
    assert (again.caveats == first.caveats) == kept


def test_a_model_that_is_trained_twice_keeps_its_reference(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    callback, model = PrivacyAudit(planted, 1.0, delta=DELTA), make_model(tokenizer)
    more = {"callback": callback, "model": model, "learning_rate": 1e-2}
    rows = tokenize(planted, tokenizer)
    assert run(tmp_path, planted, rows, tokenizer, num_train_epochs=9, **more).verdict == "refuted"
    assert run(tmp_path, planted, rows, tokenizer, max_steps=1, **more).verdict == "refuted"


def test_the_best_checkpoint_is_audited_by_what_it_saw(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=100)
    rows = tokenize(planted, tokenizer)
    callback = PrivacyAudit(planted, 1.0, delta=DELTA)
    Trainer(
        model=make_model(tokenizer),
        args=make_arguments(
            tmp_path,
            max_steps=4,
            learning_rate=1.0,  # so that the first checkpoint is the best
            load_best_model_at_end=True,
            **dict.fromkeys(("eval_strategy", "save_strategy"), "steps"),
            **dict.fromkeys(("eval_steps", "save_steps"), 1),
        ),
        train_dataset=rows,
        eval_dataset=tokenize(em.plant_texts(TEXTS[:4], canaries=planted.wanted), tokenizer)[:4],
        processing_class=tokenizer,
        callbacks=[callback],
    ).train()
    assert callback.audit is not None
    (said,) = [each for each in callback.audit.caveats if "in no batch" in each]
    planted_count = int(planted.included.sum())
    missing = int(said.split(",")[1].split()[0])
    assert planted_count - 16 <= missing < planted_count  # one batch of 16 rows


@pytest.mark.parametrize(
    "more",
    [{"gradient_checkpointing": True}, {"train_sampling_strategy": "group_by_length"}],
    ids=["checkpointing", "by length"],
)
def test_canaries_are_seen_with(more: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    rows = Dataset.from_list(tokenize(planted, tokenizer))
    audit = run(tmp_path, planted, rows, tokenizer, num_train_epochs=1, **more)
    assert len(audit.caveats) == 1


def test_a_stream_is_watched_and_has_no_books(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    stream = Dataset.from_list(tokenize(planted, tokenizer)).to_iterable_dataset()
    audit = run(tmp_path, planted, stream, tokenizer, max_steps=12)
    assert len(audit.caveats) == 1

    class Books:
        history: Any = ()

    books = PrivacyAudit(planted, 1.0, delta=DELTA, accountant=Books())
    with pytest.raises(InvalidArgument, match="stream"):
        run(tmp_path, planted, stream, tokenizer, max_steps=1, callback=books)


def test_new_tokens_are_refused_where_lora_leaves_them_as_they_are(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    more = {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    frozen = get_peft_model(make_model(tokenizer), LoraConfig(**more))
    callback = PrivacyAudit(planted, 1.0, delta=DELTA)
    with pytest.raises(InvalidArgument, match="modules_to_save"):
        train(tmp_path, callback, planted, tokenizer, model=frozen)
    head = LoraConfig(**more, modules_to_save=["lm_head"])
    trained = get_peft_model(make_model(tokenizer), head)
    train(tmp_path, callback, planted, tokenizer, model=trained)
    assert callback.audit is not None
    assert len(callback.audit.caveats) == 1


def test_compiled_batches_are_not_taken_for_none(tmp_path: Path, monkeypatch: Any) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    audit = run(tmp_path, planted, tokenize(planted, tokenizer), tokenizer, max_steps=1)
    assert "not watched" in "".join(audit.caveats)
