"""A replay finds what one record changes in a real Opacus step, and leaves no trace of itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional

import epsilometer as em
from epsilometer.conformance.batches import (
    count_records,
    find_labels,
    relabel_record,
    scale_record,
    take_records,
)
from epsilometer.conformance.neighbours import REMOVED, REPLACED
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus import replay
from tests.integrations.opacus_models import (
    ADAPTIVE,
    features,
    make,
    mlp,
    replayed,
    sum_of_losses,
)
from tests.integrations.opacus_runs import NoClipping, Run, backward


class Words(nn.Module):
    """A language model of 30 words."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.middle = nn.Linear(12, 12)
        self.head = nn.Linear(12, 30, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(torch.tanh(self.middle(self.embedding(tokens))))


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank 2 beside it, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(20, 8).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(20, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.frozen(x) + self.up(self.down(x))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = DPLSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(x.reshape(-1, 5, 4))[0][:, -1])


def kind(run: Run, optimizer: type) -> Run:
    run.optimizer.__class__ = optimizer
    return run


def augment_as_rows(model: Any, batch: Any) -> Any:
    x, y = batch
    return functional.cross_entropy(model(torch.cat([x + i / 10 for i in range(8)])), y.repeat(8))


def centre_logits(model: Any, batch: Any) -> Any:
    logits = model(batch[0])
    return functional.cross_entropy(logits - logits.mean(dim=0), batch[1])


def in_bfloat16(model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(model(batch[0]), batch[1])


def in_float16(model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(batch[0])
    return functional.cross_entropy(logits.float(), batch[1])


def words_loss(model: Any, batch: Any) -> Any:
    logits = model(batch["input_ids"])[:, :-1]
    return functional.cross_entropy(logits.reshape(-1, 30), batch["labels"][:, 1:].reshape(-1))


def words(count: int = 12) -> Any:
    tokens = torch.randint(30, (count, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens.clone()}


def words_run(**options: Any) -> Run:
    tokens = words(32)["input_ids"]
    return make(Words(tied=options.pop("tied", False)), (tokens, tokens[:, 0]), **options)


class FirstLayerNotClipped(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        first = self.params[0]
        rows = first.grad_sample
        super().clip_and_accumulate()
        first.summed_grad = rows.sum(dim=0)


class DividesByRecordsDrawn(DPOptimizer):
    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= max(1, len(p.grad_sample))


class SquaredNorm(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        total = sum(g.reshape(len(g), -1).square().sum(dim=1) for g in self.grad_samples)
        factor = (self.max_grad_norm / total).clamp(max=1.0)
        for p in self.params:
            p.summed_grad = torch.einsum("i,i...", factor, p.grad_sample)


class MeanOfBatch(DPOptimizer):
    """Clips the sum of the batch, not its records."""

    def clip_and_accumulate(self) -> None:
        said, self.max_grad_norm = self.max_grad_norm, 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = said
        norm = torch.stack([p.summed_grad.norm() for p in self.params]).norm()
        for p in self.params:
            p.summed_grad *= min(1.0, 8 * self.max_grad_norm / float(norm))


class AddsRecordsAfterNoise(DPOptimizer):
    def scale_grad(self) -> None:
        for p in self.params:
            p.grad += 0.5 * p.summed_grad
        super().scale_grad()


class Twice(DPOptimizer):
    """Applies every noisy gradient twice, cut and by its signs: that is post-processing."""

    def step(self, closure: Any = None) -> None:
        self.pre_step()
        nn.utils.clip_grad_norm_(self.params, 30.0)
        self.original_optimizer.step()
        for p in self.params:
            p.grad = 100 * p.grad.sign()
        self.original_optimizer.step()
        self.zero_grad()


class NoDivision(DPOptimizer):
    def scale_grad(self) -> None:
        """Leave the sum."""


class NoiseElsewhere(DPOptimizer):
    """Adds noise in a method of its own."""

    def pre_step(self, closure: Any = None) -> bool:
        self.clip_and_accumulate()
        for p in self.params:
            p.grad = p.summed_grad + self.max_grad_norm * torch.randn_like(p)
        self.scale_grad()
        return True


class NoiseElsewhereNoClipping(NoiseElsewhere):
    def clip_and_accumulate(self) -> None:
        for p in self.params:
            p.summed_grad = p.grad_sample.sum(dim=0)


def loud_ghost() -> Run:
    run = make(mlp(), mode="ghost")
    run.model.max_grad_norm = 1e9
    return run


def low_precision(**options: Any) -> Run:
    x, y = features()
    return make(mlp().bfloat16(), (x.bfloat16(), y), **options)


CAUGHT: dict[str, Any] = {
    "no clipping": lambda: replayed(kind(make(mlp()), NoClipping)),
    "no clipping, ghost": lambda: replayed(loud_ghost()),
    "no clipping, dropout": lambda: replayed(kind(make(mlp(nn.Dropout(0.5))), NoClipping)),
    "no clipping, bfloat16": lambda: replayed(kind(low_precision(), NoClipping)),
    "no clipping, words": lambda: replayed(
        kind(words_run(clip=0.1), NoClipping), words_loss, words()
    ),
    "first layer not clipped": lambda: replayed(kind(make(mlp()), FirstLayerNotClipped)),
    "squared norm": lambda: replayed(kind(make(mlp(), clip=0.3), SquaredNorm)),
    "clips the batch": lambda: replayed(kind(make(mlp()), MeanOfBatch)),
    "divides by the records drawn": lambda: replayed(kind(make(mlp()), DividesByRecordsDrawn)),
    "adds records after noise": lambda: replayed(kind(make(mlp()), AddsRecordsAfterNoise)),
    "no clipping, noise elsewhere": lambda: replayed(kind(make(mlp()), NoiseElsewhereNoClipping)),
    "batch normalisation": lambda: replayed(
        make(mlp(nn.BatchNorm1d(16, affine=False)), strict=False)
    ),
    "augmentation as rows": lambda: replayed(make(mlp()), augment_as_rows),
    "loss mixes records": lambda: replayed(make(mlp()), centre_logits),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_wrong_programs_are_caught(name: str) -> None:
    finding = CAUGHT[name]()
    assert finding.verdict == "violated"


def drawn_then_replayed() -> Any:
    """In the middle of a batch that is taken in parts."""
    run = make(mlp())
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer
    ) as loader:
        run.optimizer.zero_grad()
        backward(run, *next(iter(loader)))
        run.optimizer.step()
        return replayed(run)


def generator_of_its_own() -> Any:
    run = make(mlp())
    run.optimizer.generator, run.optimizer.secure_mode = torch.Generator(), True
    return replayed(run)


def without_wrapper() -> Any:
    model = mlp()
    run = make(model, wrap_model=False)
    return replayed(run._replace(model=model))


def average_augmentations(model: Any, batch: Any) -> Any:
    x, y = batch
    losses = [functional.cross_entropy(model(x + i / 10), y) for i in range(4)]
    return torch.stack(losses).mean()


def step_of_its_own(run: Run) -> Any:
    def step(model: Any, batch: Any) -> None:
        functional.cross_entropy(model(batch[0]), batch[1]).backward()
        run.optimizer.step()

    return step


SPARED: dict[str, Any] = {
    "hooks": lambda: replayed(make(mlp())),
    "functorch": lambda: replayed(make(mlp(), mode="functorch")),
    "expanded weights": lambda: replayed(make(mlp(), mode="ew")),
    "ghost": lambda: replayed(make(mlp(), mode="ghost")),
    "no wrapper": without_wrapper,
    "by layer": lambda: replayed(make(mlp(), clipping="per_layer", clip=[0.5] * 4)),
    "adaptive": lambda: replayed(make(mlp(), **ADAPTIVE)),
    "Adam": lambda: replayed(make(mlp(), inner=torch.optim.Adam)),
    "sum of losses": lambda: replayed(make(mlp(), loss_reduction="sum"), sum_of_losses),
    "a function of torch": lambda: replayed(make(mlp()), functional.cross_entropy),
    "a step of its own": lambda: replayed(run := make(mlp()), step_of_its_own(run)),
    "group normalisation": lambda: replayed(make(mlp(nn.GroupNorm(4, 16)))),
    "recurrent": lambda: replayed(make(Recurrent()), records=2),
    "bfloat16": lambda: replayed(low_precision()),
    "autocast": lambda: replayed(make(mlp()), in_bfloat16),
    "autocast to float16": lambda: replayed(make(mlp()), in_float16),
    "float64": lambda: replayed(make(mlp().double(), (features()[0].double(), features()[1]))),
    "LoRA": lambda: replayed(make(Adapted())),
    "words": lambda: replayed(words_run(clip=0.1), words_loss, words()),
    "tied words": lambda: replayed(words_run(clip=0.1, tied=True), words_loss, words()),
    "virtual steps": drawn_then_replayed,
    "secure mode": generator_of_its_own,
    "averaged augmentations": lambda: replayed(
        make(mlp(), poisson_sampling=False), average_augmentations
    ),
    "cut, signed and applied twice": lambda: replayed(kind(make(mlp()), Twice)),
    "no division": lambda: replayed(kind(make(mlp()), NoDivision)),
    "one record": lambda: replayed(make(mlp()), batch=features(1)),
}


@pytest.mark.parametrize("name", SPARED)
@pytest.mark.in_turn(3)
def test_right_programs_are_spared(name: str) -> None:
    finding = SPARED[name]()
    assert [check.outcome for check in finding.checks] == 3 * ["conforms"]
    assert finding.check(REMOVED).value == pytest.approx(1.0, abs=0.05)


def test_the_numbers_of_known_programs() -> None:
    right = replayed(make(mlp()))
    assert right.check(REMOVED).value == pytest.approx(1.0, abs=1e-3)
    rows = replayed(make(mlp()), augment_as_rows)
    assert rows.check(REMOVED).value == pytest.approx(8.0, abs=0.05)
    assert rows.check(REPLACED).value > 8
    plain = replayed(kind(make(mlp()), NoClipping)).check(REMOVED)
    assert plain.value > 1000
    assert "not enlarged change it by" in plain.detail


@pytest.mark.parametrize("name", ["divides by the records drawn", "adds records after noise"])
def test_what_looks_at_records_after_noise_is_named(name: str) -> None:
    finding = CAUGHT[name]()
    assert [check.name for check in finding.find("violated")] == ["processing after noise"]


def test_noise_that_is_added_elsewhere_is_compared_where_it_is_applied() -> None:
    finding = replayed(kind(make(mlp()), NoiseElsewhere))
    assert finding.verdict == "conforms"
    assert finding.check("processing after noise").outcome == "not tested"


def test_dropout_is_replaced_and_not_removed() -> None:
    finding = replayed(make(mlp(nn.Dropout(0.5))))
    assert finding.check(REPLACED).outcome == "conforms"
    assert finding.check(REMOVED).outcome == "not tested"
    assert "random stream" in finding.check(REMOVED).seen


def test_a_clipping_norm_that_depends_on_the_batch_is_compared_where_it_agrees() -> None:
    run = make(mlp(), engine=PrivacyEngineAdaptiveClipping, mode="ghost", noise=0.5)
    run.criterion.criterion = nn.CrossEntropyLoss(reduction="none")
    finding = replayed(run)
    assert finding.check(REPLACED).outcome == "conforms"
    assert finding.check(REMOVED).outcome == "not tested"  # a batch less: other noise
    assert finding.find("remark")[0].name == "noise of neighbouring batches"


def test_words_that_are_never_clipped_are_not_tested() -> None:
    finding = replayed(words_run(clip=1e6), words_loss, words())
    assert finding.verdict == "not tested"
    assert "enlarged" in finding.check(REMOVED).seen


def test_randomness_that_cannot_be_found_leaves_it_untested() -> None:
    hidden = {"rng": np.random.default_rng(0)}

    def shift(model: Any, batch: Any) -> Any:
        x = batch[0] + float(hidden["rng"].normal())
        return functional.cross_entropy(model(x), batch[1])

    finding = replayed(make(mlp()), shift)
    assert finding.verdict == "not tested"
    assert "differ" in finding.check(REPLACED).seen
    generator = np.random.default_rng(0)  # which the function closes over itself
    before = generator.bit_generator.state

    def shift_openly(model: Any, batch: Any) -> Any:
        x = batch[0] + float(generator.normal())
        return functional.cross_entropy(model(x), batch[1])

    assert replayed(make(mlp()), shift_openly).verdict == "conforms"
    assert generator.bit_generator.state == before


def test_gradients_that_overflow_are_a_remark() -> None:
    def explode(model: Any, batch: Any) -> Any:
        x = batch[0]
        return functional.cross_entropy(model(torch.where(x.abs() > 500, x / 0, x)), batch[1])

    finding = replayed(make(mlp()), explode)
    assert finding.verdict == "conforms"
    assert finding.find("remark")[0].name == "finite gradients of enlarged records"


def test_batches_of_every_kind() -> None:
    x, y = features(3)
    assert count_records((x, y)) == count_records([x, {"a": y, "b": [1, 2, 3]}]) == 3
    assert count_records([{"text": "a"}, {"text": "b"}]) == 2
    with pytest.raises(InvalidArgument, match="as many records"):
        count_records((x, y[:2]))
    with pytest.raises(InvalidArgument, match="as many records"):
        count_records(3)
    taken = take_records({"x": x, "all": torch.tensor(4.0), "y": y}, [2, 2])
    assert taken["x"].shape == (2, 20)
    assert float(taken["all"]) == 4
    assert take_records(["a", "b", "c"], [2]) == ["c"]
    scaled = scale_record([x, y], 1, -3.0)
    assert torch.equal(scaled[0][1], -3 * x[1])
    assert torch.equal(scaled[0][0], x[0])
    assert scaled[1] is y
    assert scale_record([(1.0, 2), {"w": 0.5}], 1, 4.0) == [(1.0, 2), {"w": 2.0}]
    assert [each.tolist() for each in find_labels((x, y))] == [y.tolist()]
    assert find_labels(x) == []
    batch = words(3)
    assert find_labels(batch)[0] is batch["labels"]
    changed = relabel_record(batch, 0, 1)
    assert torch.equal(changed["labels"][0], batch["labels"][1])
    assert torch.equal(changed["input_ids"], batch["input_ids"])
    assert find_labels((batch["input_ids"], y))[0] is y


def test_wrong_arguments_are_refused() -> None:
    run = make(mlp())
    data = features(4)
    with pytest.raises(InvalidArgument, match="PrivacyEngine first"):
        replay(run.model, run.model, run.optimizer, run.criterion, data)
    with pytest.raises(InvalidArgument, match="DPOptimizer"):
        replay(run.engine, run.model, run.optimizer.original_optimizer, run.criterion, data)
    with pytest.raises(InvalidArgument, match="module"):
        replay(run.engine, run.criterion.forward, run.optimizer, run.criterion, data)
    with pytest.raises(InvalidArgument, match=r"loss\(model, batch\)"):
        replay(run.engine, run.model, run.optimizer, 3, data)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="records"):
        replay(run.engine, run.model, run.optimizer, run.criterion, data, records=0)
    with pytest.raises(InvalidArgument, match="one record or more"):
        replay(run.engine, run.model, run.optimizer, run.criterion, (data[0][:0], data[1][:0]))
    with pytest.raises(InvalidArgument, match="inputs, targets"):
        replay(run.engine, run.model, run.optimizer, run.criterion, {"x": data[0]})
    with pytest.raises(InvalidArgument, match="reached the optimiser"):
        replay(run.engine, run.model, run.optimizer, lambda model, batch: _skip(run), data)
    run.model.eval()
    with pytest.raises(InvalidArgument, match="training mode"):
        replay(run.engine, run.model, run.optimizer, run.criterion, data)


def _skip(run: Run) -> Any:
    run.optimizer.step = lambda: None


def test_an_audit_is_written_with_its_claim_and_without_the_batch(tmp_path: Path) -> None:
    run = make(mlp())
    batch = features(6)
    audit = replay(
        run.engine, run.model, run.optimizer, run.criterion, batch, records=1, claim=3.0, delta=1e-5
    )
    assert audit.claim == em.Claim(3.0, 1e-5)
    file = audit.save(tmp_path / "audit.json")
    again = from_json(file.read_bytes())
    assert again.conformance == audit.conformance
    assert again.provenance.supplied == ("engine", "model", "optimizer", "loss", "batch")
    assert f"{float(batch[0][0, 0]):.4f}" not in file.read_text()
    same = replay(run.engine, run.model, run.optimizer, run.criterion, batch, records=1)
    assert same.conformance == audit.conformance
