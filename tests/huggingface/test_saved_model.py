"""A saved model is audited as it was trained, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.huggingface import PrivacyAudit, SavedModel
from tests.huggingface.small import make_model, make_tokenizer
from tests.huggingface.test_callback import DELTA, plant, train

# What these libraries say of each other.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def audit_saved(folder: Path, model: str, **more: Any) -> em.Audit:
    saved = SavedModel(folder=folder / "private", model=folder / model, **more)
    return em.audit(em.LanguageModel(**saved.load()), 1.0, delta=DELTA)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, em.Audit]:
    """Train an adapter, and save it, and what it was made for."""
    folder, tokenizer = tmp_path_factory.mktemp("run"), make_tokenizer()
    planted = plant(tokenizer, out=folder / "private")
    base = make_model(tokenizer)
    for part in (base, tokenizer):
        part.save_pretrained(folder / "base")
    layers = {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}
    config = LoraConfig(r=8, fan_in_fan_out=True, **layers)
    model = get_peft_model(make_model(tokenizer), config)
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    callback = PrivacyAudit(planted, 1.0, delta=DELTA)
    more = {"num_train_epochs": 10, "learning_rate": 1e-2}
    train(folder / "out", callback, planted, tokenizer, model=model, **more)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "adapter")
    for part in (model.merge_and_unload(), tokenizer):
        part.save_pretrained(folder / "merged")
    assert callback.audit is not None
    return folder, callback.audit


@pytest.mark.parametrize("model", ["adapter", "merged"])
@pytest.mark.parametrize("reference", [None, "base"])
def test_an_adapter_is_audited_as_at_the_end_of_training(
    trained: tuple[Path, em.Audit], model: str, reference: str | None
) -> None:
    folder, first = trained
    before = None if reference is None else folder / reference
    audit = audit_saved(folder, model, reference=before)
    assert audit.verdict == first.verdict == "refuted"
    assert audit.epsilon == pytest.approx(first.epsilon, rel=0.05)


def test_a_model_without_its_adapter_clears_no_claim(trained: tuple[Path, em.Audit]) -> None:
    folder, _ = trained
    audit = audit_saved(folder, "base")
    assert audit.verdict == "cannot judge"
    assert "adapter is not loaded" in "".join(audit.caveats)


def test_another_tokenizer_is_refused(trained: tuple[Path, em.Audit]) -> None:
    folder, _ = trained
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["the cat"])
    for part in (make_model(tokenizer), tokenizer):
        part.save_pretrained(folder / "other")
    with pytest.raises(InvalidArgument, match="tokenizer of training"):
        audit_saved(folder, "other")


def test_a_model_with_weights_that_were_not_saved_is_refused(
    trained: tuple[Path, em.Audit],
) -> None:
    folder, _ = trained
    tokenizer = make_tokenizer()
    for part in (make_model(tokenizer), tokenizer):
        part.save_pretrained(folder / "partly")
    path = folder / "partly" / "model.safetensors"
    weights = load_file(path)
    weights.pop(next(name for name in weights if "c_attn" in name))
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InvalidArgument, match="1 missing or left over"):
        audit_saved(folder, "partly")


@pytest.mark.parametrize("named", ["lora", "prompts"])
def test_logits_of_peft_are_read_at_the_places_of_secrets(named: str) -> None:
    tokenizer = make_tokenizer()
    planted = plant(tokenizer, count=12, kind="random")
    task = {"task_type": TaskType.CAUSAL_LM}
    config = (
        PromptTuningConfig(**task, num_virtual_tokens=5)
        if named == "prompts"
        else LoraConfig(**task, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    model = get_peft_model(make_model(tokenizer), config).eval()
    measured = em.CausalModel(model, tokenizer, batch_size=5).measure(planted.canaries)
    for canary, found in zip(planted.canaries, measured.log_probs, strict=True):
        ids = torch.tensor([tokenizer.encode(canary.text)])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        wanted = logits[0, -ids.shape[1] :].log_softmax(1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        assert found == pytest.approx(wanted[-found.size :].numpy(), rel=1e-3)
