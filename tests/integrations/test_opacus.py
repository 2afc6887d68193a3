"""Canaries take part as records do, whatever the loop looks like, and nothing else changes."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers import LambdaNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus import Audited, audited
from tests.integrations.opacus_runs import Run, audited_run, backward, prepared, train

QUIET = 1e-4  # noise that hides nothing
NEAR = 1e-3
DELTA = 1e-5


def begin(run: Run, **more: Any) -> Audited:
    return audited(run.engine, run.optimizer, run.loader, **{"canaries": 20, **more})


def virtual_steps(run: Run) -> None:
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=5, optimizer=run.optimizer
    ) as loader:
        train(run, loader=loader)


def accumulation(run: Run) -> None:
    for at, (features, labels) in enumerate(run.loader):
        backward(run, features, labels)
        if at % 2 == 1:
            run.optimizer.step()
            run.optimizer.zero_grad()


SETTINGS: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "shuffled": {"poisson": False},
    "in order": {"poisson": False, "shuffle": False},
    "Adam": {"inner": torch.optim.Adam},
    "sum of losses": {"loss_reduction": "sum"},
    "ghost": {"mode": "ghost"},
    "expanded weights": {"mode": "ew"},
    "functorch": {"mode": "functorch"},
    "adaptive": {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 1.0,
    },
    "often empty": {"batch": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_planted_is_seen_in_its_steps_and_nowhere_else(name: str) -> None:
    run = prepared(noise=QUIET, **{"batch": 8, **SETTINGS[name]})
    audit = begin(run)
    train(run)
    assert audit.steps == len(run.loader)
    assert_planted(audit)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_what_other_records_add_is_known_and_subtracted(mode: str) -> None:
    run = prepared(noise=QUIET, mode=mode)
    features, labels = run.loader.dataset.tensors
    features[:], labels[:] = 10.0, 1  # 64 times the same gradient, to be clipped: a sum of norm 64
    with torch.no_grad():
        run.optimizer.params[-1].copy_(torch.tensor([50.0, 0.0]))  # sure of the wrong label
    audit = begin(run)
    train(run)
    assert_planted(audit)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("poisson", [True, False])
def test_virtual_steps_are_one_step(mode: str, poisson: bool) -> None:
    run = prepared(noise=QUIET, batch=16, mode=mode, poisson=poisson)
    audit = begin(run)
    virtual_steps(run)
    assert audit.steps == 4
    assert_planted(audit)


def test_accumulated_batches_are_one_step() -> None:
    run = prepared(noise=QUIET, batch=8, poisson=False)
    audit = begin(run)
    accumulation(run)
    assert audit.steps == 4
    assert_planted(audit)
    steps = audit._run().steps
    np.testing.assert_allclose(steps.chance, 2 / 8)
    assert steps.took.sum(axis=0).tolist() == [1] * 20  # once an epoch


def test_clipping_by_layer_leaves_most_of_a_canary() -> None:
    norms = [0.5, 0.5, 0.5, 0.5]
    run = prepared(noise=QUIET, batch=8, clipping="per_layer", clip=norms)
    audit = begin(run)
    train(run)
    steps = audit._run().steps
    seen = steps.seen[steps.took & audit.included]
    assert seen.min() > 0.3  # its layers are weighted otherwise than its direction


def assert_planted(audit: Audited) -> None:
    steps = audit._run().steps
    expected = (steps.took & audit.included).astype(float)
    assert expected.any()
    np.testing.assert_allclose(steps.seen, expected, atol=NEAR)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_without_planted_canaries_training_is_the_same(mode: str) -> None:
    weights = []
    for watched in (False, True):
        run = prepared(batch=16, mode=mode, poisson=False)
        if watched:
            begin(run).included[:] = False
        torch.manual_seed(1)
        train(run)
        weights.append([p.detach().clone() for p in run.optimizer.params])
    # Loud rows are taken out of the sum again, up to rounding; ghost clipping has none.
    apart = [float((a - b).abs().max()) for a, b in zip(*weights, strict=True)]
    assert max(apart) <= (0.0 if mode == "ghost" else 1e-7)


def test_the_accountant_books_the_same_steps() -> None:
    run = prepared(batch=16)
    begin(run)
    virtual_steps(run)
    assert run.engine.accountant.history == [(1.0, 0.25, 4)]


def test_schedulers_of_learning_rate_and_noise_keep_working() -> None:
    run = prepared(batch=16)
    rates = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=1, gamma=0.5)
    noise = LambdaNoise(run.optimizer, noise_lambda=lambda step: 1.0 + step)
    audit = begin(run, canaries=400)
    for features, labels in run.loader:
        run.optimizer.zero_grad()
        backward(run, features, labels)
        run.optimizer.step()
        rates.step()
        noise.step()
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 2**4)
    assert audit._run().steps.noise.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert audit.result(delta=DELTA).verdict == "not refuted"


def test_a_closure_is_called() -> None:
    run = prepared()
    audit = begin(run)
    features, labels = next(iter(run.loader))

    def closure() -> None:
        run.optimizer.zero_grad()
        backward(run, features, labels)

    run.optimizer.step(closure)
    assert audit.steps == 1


def test_opacus_still_says_that_gradients_were_not_cleared() -> None:
    run = prepared()
    audit = begin(run)
    features, labels = next(iter(run.loader))
    backward(run, features, labels)
    run.optimizer.step()
    with pytest.raises(ValueError, match="haven't been cleared"):
        run.optimizer.step()
    train(run)
    assert audit.steps == 2


def test_the_loop_goes_on_when_the_audit_is_dropped_or_closed() -> None:
    run = prepared(batch=16)
    begin(run)
    gc.collect()
    train(run)
    run = prepared(batch=16)
    with begin(run) as audit:
        train(run)
    train(run)
    assert audit.steps == 4
    assert "pre_step" not in run.optimizer.__dict__
    audit.close()  # a second time harms nobody
    begin(run)


def test_a_result_says_what_a_reader_must_know() -> None:
    audit = audited_run(DPOptimizer, canaries=200, noise=2.0, epochs=2)
    result = audit.result(delta=DELTA)
    assert result.claim is not None
    assert (result.claim.accountant, result.claim.sampler) == ("PRV", "Poisson")
    (view,) = result.views
    assert view.bound.method == "one_run"
    assert [bound.method for bound in view.also] == ["one_run_fdp"]
    assert view.bound.adjacency == "add_remove"
    assert "sees every noisy gradient" in view.bound.adversary
    assert [(e.method, e.role, e.epsilon) for e in result.estimates] == [
        ("accounting", "reference", result.claim.epsilon)
    ]
    assert {name for name, _ in result.provenance.versions} >= {"opacus", "torch", "epsilometer"}
    # Half of 200 orthogonal unit vectors beside noise of 2 in each of 4,602 dimensions
    assert audit.noise_share == pytest.approx(10 / (2 * np.sqrt(4602)), rel=0.2)
    assert f"{audit.noise_share:.3g} times the norm of the noise" in " ".join(view.bound.caveats)
    report = audit.report(delta=DELTA)
    assert len({view.subject for view in report.views}) == 2  # a table must tell them apart
    assert [bound.confidence for bound in report.bounds] == pytest.approx([0.975] * 2)
    for found in (report, result, audit.step_result(delta=DELTA), audit.final_result(delta=DELTA)):
        assert from_json(found.to_json()) == found


def test_same_seeds_same_result() -> None:
    one, other = (audited_run(DPOptimizer, canaries=100, batch=16, seed=4) for _ in range(2))
    for name in ("step_result", "report"):  # which is made of the two others
        first, second = (getattr(audit, name)(delta=DELTA) for audit in (one, other))
        assert first.to_json() == second.to_json()


def test_a_claim_may_be_given() -> None:
    audit = audited_run(DPOptimizer, canaries=500, noise=0.5, epochs=3)
    claim = em.Claim(1.0, delta=DELTA)
    for found in (
        audit.result(claim=claim),
        audit.result(claim=1, delta=DELTA),
        audit.final_result(claim=claim, delta=DELTA),
    ):
        assert found.verdict == "refuted"
        assert found.claim == em.Claim(1.0, DELTA, adjacency="add_remove", unit="record")
    with pytest.raises(InvalidArgument, match="Expected delta with claim"):
        audit.result(claim=1.0)
    with pytest.raises(InvalidArgument, match="a number, a Claim or None"):
        audit.result(claim="1", delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Expected delta, got none"):
        audit.final_result()


def test_doing_it_again_needs_what_was_supplied(tmp_path: Path) -> None:
    audit = audited_run(DPOptimizer, canaries=20, batch=16)
    found = audit.result(delta=DELTA, confidence=0.9)
    source = found.provenance
    assert (source.subject, source.confidence, source.delta) == ("opacus", 0.9, DELTA)
    assert source.supplied == ("privacy_engine", "optimizer", "loader")
    assert (source.settings["canaries"], source.settings["result"]) == (20, "result")
    with pytest.raises(InvalidArgument, match="privacy_engine, optimizer, loader of opacus"):
        read_call(found.save(tmp_path / "audit.json"))
    for name in ("report.html", "report.md"):
        assert found.save(tmp_path / name).stat().st_size > 100
    assert len(str(found).splitlines()) <= 25


def test_a_shuffled_loader_is_told_from_one_in_order() -> None:
    shuffled = audited_run(DPOptimizer, canaries=20, batch=16, poisson=False)
    in_order = audited_run(DPOptimizer, canaries=20, batch=16, poisson=False, shuffle=False)
    assert "but not the batches" in shuffled.result(delta=DELTA).bounds[0].adversary
    assert "and the order of the records" in in_order.result(delta=DELTA).bounds[0].adversary


def test_ghost_clipping_and_strange_samplers_are_confessed() -> None:
    found = audited_run_of_ghost().result(delta=DELTA)
    assert found.conformance is not None
    clipping = found.conformance.check("clipping")
    assert (clipping.outcome, "ghost clipping" in clipping.seen) == ("not tested", True)
    # Noise alone is no all-clear for a claim that canaries cannot reach.
    assert audited_run_of_ghost().result(delta=DELTA, claim=1e3).verdict == "cannot judge"
    run = prepared()
    dataset = run.loader.dataset
    strange = DataLoader(
        dataset, batch_size=16, sampler=RandomSampler(dataset, replacement=True, num_samples=64)
    )
    audit = audited(run.engine, run.optimizer, strange, canaries=20)
    train(run, loader=strange)
    assert any("was not tested" in said for said in audit.result(delta=DELTA).bounds[0].caveats)


def audited_run_of_ghost() -> Audited:
    run = prepared(mode="ghost")
    audit = begin(run)
    train(run)
    return audit


def test_without_noise_nothing_is_promised_and_nothing_breaks() -> None:
    audit = audited_run(DPOptimizer, canaries=400, noise=0.0, batch=16)
    result = audit.result(delta=DELTA)
    assert (result.claim, result.verdict) == (None, "no claim")  # ε = ∞ is true of every program
    assert "Opacus reports ε = ∞" in " ".join(result.caveats)
    for claim in (1.0, 1e6):
        assert audit.result(delta=DELTA, claim=claim).verdict == "refuted"
    assert result.epsilon == float("inf")


def test_gradients_that_are_not_finite_count_as_nothing_seen() -> None:
    run = prepared(batch=16)
    audit = begin(run)
    for at, (features, labels) in enumerate(run.loader):
        run.optimizer.zero_grad()
        backward(run, features * (float("nan") if at == 3 else 1.0), labels)
        run.optimizer.step()
    result = audit.result(delta=DELTA)
    assert any("gradients were not finite: 1." in s for s in result.bounds[0].caveats)


def test_bad_calls_are_refused() -> None:
    run = prepared()
    plain = torch.optim.SGD(run.model.parameters(), lr=0.1)
    for call, said in (
        (lambda: audited(run.optimizer, run.optimizer, run.loader), "PrivacyEngine"),
        (lambda: audited(run.engine, plain, run.loader), "DPOptimizer"),
        (lambda: audited(run.engine, run.optimizer, run.loader.dataset), "DataLoader"),
        (lambda: begin(run, canaries=1), "canaries"),
        (lambda: begin(run, seed=-1), "seed"),
        (lambda: begin(run).result(delta=DELTA), "at least one step"),
        (lambda: begin(run), "not audited yet"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            call()
    audit = audited_run(DPOptimizer, canaries=20)
    with pytest.raises(InvalidArgument, match="delta"):
        audit.result(delta=0.0)
    with pytest.raises(InvalidArgument, match="one_run"):
        audit.result(delta=DELTA, method="clopper_pearson")


def test_shards_of_gradients_are_refused() -> None:
    class FSDPOptimizerOfMine(DPOptimizer):
        pass

    run = prepared()
    run.optimizer.__class__ = FSDPOptimizerOfMine
    with pytest.raises(InvalidArgument, match="holds whole gradients"):
        begin(run)


def test_training_by_the_inner_optimiser_alone_is_found() -> None:
    run = prepared(batch=16)
    audit = begin(run)
    for features, labels in run.loader:
        run.optimizer.zero_grad()
        backward(run, features, labels)
        run.optimizer.original_optimizer.step()
    found = audit.result(delta=DELTA, claim=3.0)
    assert found.verdict == "violated"
    assert found.conformance is not None
    assert found.conformance.check("updates").outcome == "violated"


def test_streams_of_records_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(TensorDataset(torch.zeros(3, 1)))

    run = prepared()
    with pytest.raises(InvalidArgument, match="IterableDataset"):
        audited(run.engine, run.optimizer, DataLoader(Stream()))
