"""A Trainer's run is audited as it is: in full, by LoRA, in parts, in half precision."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import Trainer

import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.core.memorisation import MemorisationFinding
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.huggingface import PrivacyAudit
from tests.huggingface.small import TEXTS, make_arguments, make_model, make_tokenizer, tokenize

DELTA = 1e-5
# What these libraries say of each other.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def plant(tokenizer: Any, *, count: int = 200, kind: Any = "new", **more: Any) -> Any:
    wanted = em.TextCanaries(count=count, kind=kind, prompt=4)
    planted = em.plant_texts(TEXTS, canaries=wanted, tokenizer=tokenizer, **more)
    tokenizer.add_tokens(list(planted.new_tokens))
    return planted


def train(folder: Path, callback: Any, planted: Any, tokenizer: Any, **more: Any) -> Any:
    model = more.pop("model", None) or make_model(tokenizer)
    trainer = Trainer(
        model=model,
        args=make_arguments(folder, **more),
        train_dataset=tokenize(planted, tokenizer),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
    return trainer


def test_a_run_without_privacy_is_refuted_and_its_card_says_so(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    tokenizer = make_tokenizer()
    planted = plant(tokenizer, out=tmp_path / "private")
    callback = PrivacyAudit(planted, 1.0, delta=DELTA)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n", "utf-8")
    trainer = train(tmp_path / "out", callback, planted, tokenizer, num_train_epochs=12)
    assert callback.audit is not None
    assert callback.audit.verdict == "refuted"
    assert em.load(tmp_path / "out" / "audit.json").to_json() == callback.audit.to_json()
    assert (tmp_path / "out" / "audit.html").stat().st_size > 1_000
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.to_dict()["license"] == "mit"
    assert card.data.to_dict()["privacy_audit"]["verdict"] == "refuted"
    assert card.data.to_dict()["privacy_audit"]["delta"] == DELTA
    assert "# Mine" in card.text
    assert callback.audit.one(MemorisationFinding) is not None
    for path in (tmp_path / "out").iterdir():
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            assert not any(canary.text in text for canary in planted.canaries), path
    settings = tmp_path / "again.toml"
    settings.write_text(
        f"claim = {{epsilon = 1.0, delta = {DELTA}}}\n[language_model]\n"
        f'source = {{type = "text-run", folder = "{tmp_path / "private"}"}}\n',
        "utf-8",
    )
    assert read_call(settings).run().epsilon == callback.audit.epsilon
    trainer.save_model(tmp_path / "model")
    source = f'folder = "{tmp_path / "private"}", model = "{tmp_path / "model"}"'
    settings.write_text(
        f"claim = {{epsilon = 1.0, delta = {DELTA}}}\n[language_model]\n"
        f'source = {{type = "saved-model", {source}}}\n',
        "utf-8",
    )
    saved = read_call(settings).run()
    assert saved.verdict == "refuted"
    assert saved.caveats == callback.audit.caveats


@pytest.mark.parametrize(
    ("rate", "verdict"), [(1e-5, "not refuted"), (0.0, "cannot judge")], ids=["hardly", "not"]
)
def test_a_model_that_learns_nothing_is_not_refuted(
    rate: float, verdict: str, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer)
    callback = PrivacyAudit(planted, 1.0, delta=DELTA, scores=("loss", "rank", "min-k"))
    train(tmp_path, callback, planted, tokenizer, learning_rate=rate)
    assert callback.audit is not None
    assert callback.audit.verdict == verdict
    assert callback.audit.reach is not None
    assert (callback.audit.reach > 1.0) == bool(rate)


@pytest.mark.parametrize(
    "more",
    [{"gradient_accumulation_steps": 2}, {"bf16": True}],
    ids=["accumulation", "bf16"],
)
def test_works_with(more: dict[str, Any], tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: mit\n", "utf-8")  # no card: it is left as it is
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    callback = PrivacyAudit(planted, delta=DELTA)
    train(tmp_path, callback, planted, tokenizer, **more)
    assert callback.audit is not None
    assert callback.audit.verdict == "no claim"
    assert card.read_text("utf-8") == "---\nlicense: mit\n"


def test_a_model_in_half_precision(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=40)
    callback = PrivacyAudit(planted, delta=DELTA)
    model = make_model(tokenizer, dtype=torch.bfloat16)
    train(tmp_path, callback, planted, tokenizer, model=model)
    assert callback.audit is not None


def test_lora(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    tokenizer = make_tokenizer()
    planted = plant(tokenizer, kind="rare")
    config = LoraConfig(r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(make_model(tokenizer), config)
    callback = PrivacyAudit(planted, 1.0, delta=DELTA)
    train(
        tmp_path, callback, planted, tokenizer, model=model, num_train_epochs=15, learning_rate=2e-2
    )
    assert callback.audit is not None
    assert callback.audit.views[0].attack.auc > 0.6
    card = (tmp_path / "README.md").read_text("utf-8")
    assert yaml.safe_load(card.split("---\n")[1])["privacy_audit"]["claimed_epsilon"] == 1.0


def test_sft_of_trl_with_a_dataset_of_texts(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokenizer = make_tokenizer()
    wanted = em.TextCanaries(count=100, kind="new", prompt=4)
    planted = em.plant_texts(Dataset.from_dict({"text": TEXTS}), canaries=wanted)
    assert isinstance(planted.dataset, Dataset)
    assert len(planted.dataset) == len(TEXTS) + planted.included.sum()
    kept = [text for text in planted.dataset["text"] if "<canary" not in text]
    assert kept == TEXTS
    tokenizer.add_tokens(list(planted.new_tokens))
    config = SFTConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        max_length=48,
        bf16=False,
        gradient_checkpointing=False,
    )
    callback = PrivacyAudit(planted, 2.0, delta=DELTA)
    SFTTrainer(
        model=make_model(tokenizer),
        args=config,
        train_dataset=planted.dataset,
        processing_class=tokenizer,
        callbacks=[callback],
    ).train()
    assert callback.audit is not None
    assert json.loads((tmp_path / "audit.json").read_text("utf-8"))["verdict"]


def test_new_tokens_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    wanted = em.TextCanaries(count=40, kind="new", prompt=4)
    planted = em.plant_texts(TEXTS, canaries=wanted)
    with pytest.raises(InvalidArgument, match="add_tokens"):
        train(tmp_path, PrivacyAudit(planted, delta=DELTA), planted, tokenizer)


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    planted = em.plant_texts(TEXTS, canaries=em.TextCanaries(count=10))
    with pytest.raises(InvalidArgument, match="delta"):
        PrivacyAudit(planted)
    with pytest.raises(InvalidArgument, match="plant_texts"):
        PrivacyAudit(TEXTS, delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="history"):
        PrivacyAudit(planted, delta=DELTA, accountant=object())
    callback = PrivacyAudit(planted, delta=DELTA)
    arguments = make_arguments(tmp_path)
    arguments.packing = True
    with pytest.raises(InvalidArgument, match="packing"):
        callback.on_train_begin(arguments, None, None)


def test_what_would_publish_coins_or_split_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "out" / "private"
    planted = em.plant_texts(TEXTS, canaries=em.TextCanaries(count=10), out=inner)
    callback, arguments = PrivacyAudit(planted, delta=DELTA), make_arguments(tmp_path / "out")
    with pytest.raises(InvalidArgument, match="outside the output folder"):
        callback.on_train_begin(arguments, None, None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as accelerate launch sets it
    with pytest.raises(InvalidArgument, match="FSDP"):
        callback.on_train_begin(arguments, None, None)


def test_completions_by_generate_are_the_likeliest_tokens_one_by_one() -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=12, kind="random")
    module = make_model(tokenizer)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(6)  # so that no two tokens are about equally likely
    prompts = [
        canary._replace(prompt=canary.prompt[place:])
        for place, canary in enumerate(planted.canaries)
    ]
    said = em.CausalModel(module, tokenizer, batch_size=5).measure(prompts).completions
    plain = em.CausalModel(_Predicts(module), tokenizer, batch_size=5)
    assert said == plain.measure(prompts).completions
    assert len({len(tokenizer.encode(each.prompt)) for each in prompts}) > 1  # some are filled up


class _Predicts(torch.nn.Module):
    """A model of transformers that only predicts, as one's own module would, and never ends."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> Any:
        logits = self.inner(input_ids=ids).logits.clone()
        logits[..., self.inner.config.eos_token_id] = -torch.inf
        return logits
