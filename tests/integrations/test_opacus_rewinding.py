"""A replay leaves no trace: weights, books, streams and half a batch are as they were."""

import copy
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from epsilometer.errors import InvalidArgument, MissingExtra
from epsilometer.integrations.opacus import audited
from epsilometer.integrations.opacus.rewinding import RandomStreams, Rewinder, unwrap
from tests.integrations.opacus_models import ADAPTIVE, features, make, mlp, replayed
from tests.integrations.opacus_runs import Run, backward, prepared, train


def everything(run: Run) -> list[Any]:
    """All that a training consists of, as bytes."""
    tensors = [*run.model.parameters(), *run.model.buffers()]
    tensors += [each.grad for each in run.model.parameters() if each.grad is not None]
    for each in run.model.parameters():
        held = (getattr(each, "summed_grad", None), getattr(each, "grad_sample", None))
        tensors += [part for part in held if part is not None]
    for state in run.optimizer.original_optimizer.state.values():
        tensors += [torch.as_tensor(value) for value in state.values()]
    return [
        *(each.detach().float().numpy().tobytes() for each in tensors),
        copy.deepcopy(run.engine.accountant.history),
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state()),
        random.getstate(),
        list(run.optimizer._step_skip_queue),
        run.optimizer._is_last_step_skipped,
        float(run.optimizer.max_grad_norm),
        sorted(vars(run.optimizer)),
        sorted(vars(run.optimizer.original_optimizer)),
        [sorted(vars(module)) for module in run.model.modules()],
        [sorted(vars(each)) for each in run.model.parameters()],
        None if run.optimizer.generator is None else run.optimizer.generator.get_state().tolist(),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"inner": torch.optim.Adam},
        {"mode": "ghost"},
        {"mode": "functorch"},
        dict(ADAPTIVE),
        {"noise_generator": torch.Generator().manual_seed(3)},
    ],
    ids=["Adam", "ghost", "functorch", "adaptive", "generator"],
)
def test_everything_is_as_it_was(options: dict[str, Any]) -> None:
    run = make(mlp(nn.Dropout(0.2)), **options)
    train(run)
    held = [*run.model.parameters()], run.engine.accountant.history
    before = everything(run)
    replayed(run, records=2)
    assert everything(run) == before
    after = [*run.model.parameters()], run.engine.accountant.history
    assert after[1] is held[1]
    assert all(one is two for one, two in zip(held[0], after[0], strict=True))


def test_buffers_and_half_a_batch_are_as_they_were() -> None:
    run = make(mlp(nn.BatchNorm1d(16, affine=False)), strict=False)
    x, y = features(6)
    run.optimizer.signal_skip_step(do_skip=True)
    backward(run, x, y)
    run.optimizer.step()  # clipped, added up, and waiting for more
    run.optimizer.signal_skip_step(do_skip=False)
    before = everything(run)
    replayed(run, records=2)
    assert everything(run) == before


def test_an_error_leaves_no_trace_either() -> None:
    run = make(mlp(), mode="ghost")

    def fail(model: Any, batch: Any) -> Any:
        run.criterion(model(batch[0]), batch[1]).backward()
        run.model.disable_hooks()
        raise ValueError("not today")

    before = everything(run)
    with pytest.raises(InvalidArgument, match="ends: ValueError"):
        replayed(run, fail)
    assert everything(run) == before
    assert run.model.hooks_enabled


def test_training_goes_on_as_if_nothing_had_been() -> None:
    ends = []
    for looks in (0, 1):
        torch.manual_seed(5)
        run = make(mlp(nn.Dropout(0.2)), inner=torch.optim.Adam)
        train(run)
        for _ in range(looks):
            replayed(run, records=1)
        train(run)
        ends.append([each.detach().clone() for each in run.model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def test_an_audit_does_not_see_a_replay() -> None:
    run = prepared(batch=8)
    audit = audited(run.engine, run.optimizer, run.loader, canaries=20)
    train(run)
    before, own = audit.steps, dict(vars(run.optimizer))
    assert replayed(run).verdict == "conforms"
    assert audit.steps == before
    assert dict(vars(run.optimizer)) == own
    train(run)
    assert audit.steps == 2 * before


def test_only_what_an_audit_wrapped_is_taken_off() -> None:
    run = make(mlp())
    own = run.optimizer.add_noise

    def louder() -> None:
        own()

    run.optimizer.add_noise = louder
    unwrap(run.optimizer)
    assert run.optimizer.add_noise is louder
    wrapper = eval("lambda: None", {"__name__": "epsilometer.integrations.opacus.audited_run"})
    run.optimizer.add_noise = wrapper
    unwrap(run.optimizer)
    assert run.optimizer.add_noise == own
    wrapper.__wrapped__ = louder
    run.optimizer.add_noise = wrapper
    unwrap(run.optimizer)
    assert run.optimizer.add_noise is louder


class TrueRandomness(torch.Generator):
    """A source without a state, as secure mode has."""

    def get_state(self) -> Any:
        raise RuntimeError("no state")


def test_a_source_of_noise_without_a_state_is_stood_in_for() -> None:
    run = make(mlp())
    source = TrueRandomness()
    run.optimizer.generator, run.optimizer.secure_mode = source, True
    drawn = torch.Generator.get_state(source).clone()
    finding = replayed(run)
    assert finding.verdict == "conforms"
    assert run.optimizer.generator is source
    assert torch.equal(torch.Generator.get_state(source), drawn)


def test_streams_are_read_seeded_and_restored() -> None:
    own, held = np.random.default_rng(1), random.Random(2)
    module = nn.Linear(1, 1)
    module.generator = torch.Generator()
    holder = type("Holder", (), {})()
    holder.own, holder.held = own, held
    streams = RandomStreams(modules=[module], loss=holder)
    start = streams.read()
    drawers: list[Any] = [
        own.normal,
        held.random,
        lambda: torch.rand(1, generator=module.generator),
        lambda: torch.rand(1),
        np.random.random,
        random.random,
    ]
    for draw in drawers:
        draw()
        assert streams.read() != start
        streams.restore()
        assert streams.read() == start
    streams.seed(1)
    seeded = streams.read()
    streams.seed(2)
    assert streams.read() != seeded
    streams.restore()


def test_a_rewinder_is_a_context() -> None:
    run = make(mlp())
    before = everything(run)
    with Rewinder(run.engine, run.model, run.optimizer, run.criterion):
        train(run)
        assert everything(run) != before
    assert everything(run) == before


def test_an_older_opacus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.grad_sample.gsm_base", None)
    with pytest.raises(MissingExtra, match=r"Expected Opacus 1\.6 or later"):
        replayed(make(mlp()), nn.CrossEntropyLoss())
