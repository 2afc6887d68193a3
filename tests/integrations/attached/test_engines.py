"""Steps of fastDP and private-transformers: right ones are spared, wrong ones are found."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import epsilometer as em
from epsilometer.integrations.attached_engines import attached_step

SIZE, SIGMA, CLIP = 8, 1.1, 0.5
pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries about torch


def make_fast(**settings: Any) -> tuple[Any, Any, Any]:
    """Return an optimiser with an engine of fastDP, a loss, and a batch."""
    engines = pytest.importorskip("fastDP")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    usual = {"clipping_fn": "Abadi", "max_grad_norm": CLIP, "noise_multiplier": SIGMA}
    engine = engines.PrivacyEngine(
        module, batch_size=SIZE, sample_size=1000, epochs=1, **usual | settings
    )
    engine.attach(optimizer)
    reduction = settings.get("loss_reduction", "mean")
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(SIZE, 10)).astype(np.float32), rng.integers(2, size=SIZE)

    def compute_loss(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(module(x), y, reduction=reduction)

    return optimizer, compute_loss, batch


def make_transformer(**settings: Any) -> tuple[Any, Any, Any]:
    """Return the same of private-transformers, with a small GPT-2."""
    engines = pytest.importorskip("private_transformers")
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )
    module = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    usual = {"max_grad_norm": CLIP, "noise_multiplier": SIGMA}
    engine = engines.PrivacyEngine(
        module, batch_size=SIZE, sample_size=1000, epochs=1, **usual | settings
    )
    engine.attach(optimizer)

    def compute_loss(ids: Any) -> Any:
        logits = module(input_ids=ids).logits[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(logits, ids[:, 1:], reduction="none").mean(1)

    return optimizer, compute_loss, (np.random.default_rng(0).integers(40, size=(SIZE, 10)),)


SETTINGS: list[Any] = [
    (make_fast, {}),
    (make_fast, {"loss_reduction": "sum"}),
    (make_fast, {"clipping_fn": "automatic"}),
    (make_transformer, {}),
]


@pytest.mark.parametrize(("make", "settings"), SETTINGS)
def test_a_right_step_is_spared(make: Any, settings: Any) -> None:
    optimizer, compute_loss, batch = make(**settings)
    weights = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    state = torch.get_rng_state()
    audit = em.audit(attached_step(optimizer, compute_loss, batch, steps=32, records=3))
    assert audit.conformance.verdict == "conforms", audit
    assert "sensitivity to a removed record" in {c.name for c in audit.conformance.find("conforms")}
    assert torch.equal(state, torch.get_rng_state())
    after = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(torch.equal(one, other) for one, other in zip(weights, after, strict=True))
    assert optimizer.privacy_engine.steps == 0


@pytest.mark.parametrize("make", [make_fast, make_transformer])
def test_less_noise_is_found(make: Any) -> None:
    optimizer, compute_loss, batch = make()
    engine = optimizer.privacy_engine
    subject = attached_step(optimizer, compute_loss, batch, steps=32, records=3)
    engine.noise_multiplier = 0.5 * SIGMA
    for _, parameter in engine.named_params:
        parameter.noise = 0.5 * SIGMA * CLIP  # where fastDP keeps it
    assert "noise scale" in {c.name for c in em.audit(subject).conformance.find("violated")}


@pytest.mark.parametrize("make", [make_fast, make_transformer])
def test_records_that_are_not_clipped_are_found(make: Any) -> None:
    optimizer, compute_loss, batch = make()
    subject = attached_step(
        optimizer, lambda *parts: 1e3 * compute_loss(*parts), batch, steps=32, records=3
    )
    assert em.audit(subject).conformance.verdict == "conforms"  # clipped, however large
    loose, compute_loss, batch = make(max_grad_norm=10 * CLIP, noise_multiplier=SIGMA / 10)
    engine = loose.privacy_engine
    engine.max_grad_norm, engine.noise_multiplier = CLIP, SIGMA  # what is claimed
    subject = attached_step(
        loose, lambda *parts: 1e3 * compute_loss(*parts), batch, steps=32, records=3
    )
    engine.max_grad_norm, engine.noise_multiplier = 10 * CLIP, SIGMA / 10  # what is done
    names = {check.name for check in em.audit(subject).conformance.find("violated")}
    assert any(name.startswith("sensitivity") for name in names)
