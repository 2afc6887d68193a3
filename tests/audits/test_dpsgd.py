"""Audits of real DP-SGD: wrong accountants fall, right ones are spared, every view holds."""

import inspect
import os
import signal
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer import (
    AuditGroup,
    AuditResult,
    InProcess,
    Local,
    PrivacyClaim,
    UntilNarrow,
    UntilRefuted,
    audit_dpsgd,
    shuffle_epsilon,
)
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd import Knobs, OneRun, dpsgd_job
from epsilometer.canaries.data import Record
from epsilometer.canaries.gradient import TargetCanary, displaces, random_direction
from epsilometer.engine.run import run
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.samplers import (
    BallsInBins,
    BatchThenShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
from tests import oracles
from tests.audits.dpsgd_audits import DELTA, audit, long_audit, network, pixels
from tests.faults.processes import started, until

pytestmark = pytest.mark.usefixtures("coarse")


def one(**changed: Any) -> AuditResult:
    found = audit(**changed)
    assert isinstance(found, AuditResult)
    return found


# Verdicts


@pytest.mark.parametrize("adversary", ["worst_case", "partially_informed"])
def test_shuffling_under_the_claim_of_poisson_sampling_is_refuted(adversary: Any) -> None:
    """60 steps: the claim is ε = 0.5, the truth of shuffling above 3."""
    found = one(claim=0.5, noise_multiplier=None, batch_size=1, runs=1500, adversary=adversary)
    assert found.verdict == "refuted"
    assert found.claim is not None
    assert (found.claim.sampler, found.claim.accountant) == ("Poisson", "PLD")
    assert found.bound.adjacency == "zero_out"
    (curve,) = found.evidence.curves
    assert curve.name == "PLD of Poisson sampling"


@pytest.mark.parametrize(
    ("adversary", "sampler"),
    [
        ("worst_case", Poisson(rate=0.2, steps=5)),
        ("partially_informed", Poisson(rate=0.2, steps=5)),
        ("target_canary", Poisson(rate=0.3, steps=10)),
        ("worst_case", Poisson(rate=1.0, steps=2)),
    ],
    ids=str,
)
def test_poisson_sampling_is_spared_under_its_own_claim(
    adversary: Any, sampler: Any, rng: np.random.Generator
) -> None:
    """The noise is just enough. The best attack's bound is rarely above the claim."""
    audits, wrong = 25, 0
    noise = pld.poisson_noise(
        epsilon=1.0,
        delta=DELTA,
        sampling_rate=sampler.rate,
        steps=sampler.steps,
        adjacency="zero_out",
    )
    for seed in rng.integers(2**32, size=audits).tolist():
        found = one(
            claim=1.0,
            noise_multiplier=noise,
            sampler=sampler,
            adversary=adversary,
            runs=200,
            seed=seed,
            records=20,
            batch_size=4,
            module=network(2),
        )
        wrong += found.verdict == "refuted"
    assert not oracles.too_often(wrong, audits)


# Known truths


def truth_of(sampler: Any, sigma: float, steps: int) -> float:
    if isinstance(sampler, Shuffle):
        return shuffle_epsilon(noise_multiplier=sigma, steps=steps, delta=DELTA).high
    return pld.poisson_epsilon(
        noise_multiplier=sigma,
        sampling_rate=sampler.rate or 1 / steps,
        steps=steps,
        delta=DELTA,
        adjacency="zero_out",
    )


@pytest.mark.parametrize("sampler", [Shuffle(), Poisson(), Poisson(rate=1.0, steps=5)], ids=str)
def test_every_view_is_rarely_above_the_truth(sampler: Any, rng: np.random.Generator) -> None:
    truth, audits = truth_of(sampler, 1.5, 5), 25
    views = ("updates", "model", "loss")
    wrong = dict.fromkeys(views, 0)
    for seed in rng.integers(2**32, size=audits).tolist():
        found = audit(
            noise_multiplier=1.5,
            sampler=sampler,
            adversary="worst_case",
            views=views,
            runs=100,
            seed=seed,
            records=20,
            batch_size=4,
            module=network(2),
        )
        for view, each in zip(views, found.audits, strict=True):
            wrong[view] += each.bound.epsilon > truth
    for count in wrong.values():
        assert not oracles.too_often(count, audits)


@pytest.mark.parametrize("sampler", [Shuffle(), Poisson(rate=1.0, steps=5)], ids=str)
def test_all_updates_come_near_the_truth(sampler: Any) -> None:
    """2000 runs a side prove no more than ln(2000/3) or so, at a threshold that few pass."""
    truth = truth_of(sampler, 1.5, 5)
    found = one(
        noise_multiplier=1.5,
        sampler=sampler,
        adversary="worst_case",
        runs=2000,
        records=20,
        batch_size=4,
        module=network(2),
    )
    assert truth / 4 < found.bound.epsilon < truth


# Single steps


TIGHT = [(0.2, 1.0), (0.5, 1.0), (0.5, 0.7), (1.0, 1.0)]


@pytest.mark.parametrize(("rate", "sigma"), TIGHT)
def test_single_steps_of_poisson_sampled_training_are_audited_tightly(
    rate: float, sigma: float
) -> None:
    """1,000 runs of ten real steps, half of them with the canary: within 15 % of the PLD ε."""
    sampler = Poisson(rate=rate, steps=10)
    truth = truth_of(sampler, sigma, 10)
    found = one(
        sampler=sampler,
        noise_multiplier=sigma,
        claim=truth,
        adversary="target_canary",
        views=("steps",),
        runs=500,
        records=100,
        batch_size=int(100 * rate),
        seed=1,
    )
    assert 0.85 * truth < found.bound.epsilon < 1.03 * truth
    assert found.bound.n_in + found.bound.n_out == 10_000
    assert found.bound.method == "poisson_family"
    assert found.bound.adversary.endswith("knows all other records and the batches")


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sigma"), TIGHT)
def test_single_steps_are_rarely_above_the_truth(
    rate: float, sigma: float, rng: np.random.Generator
) -> None:
    sampler, audits = Poisson(rate=rate, steps=10), 60
    truth = truth_of(sampler, sigma, 10)
    shares = np.array(
        [
            one(
                sampler=sampler,
                noise_multiplier=sigma,
                adversary="target_canary",
                views=("steps",),
                runs=60,
                records=20,
                batch_size=int(20 * rate),
                module=network(2),
                seed=seed,
            ).bound.epsilon
            / truth
            for seed in rng.integers(2**32, size=audits).tolist()
        ]
    )
    assert not oracles.too_often(int(np.sum(shares > 1)), audits)
    assert shares.mean() > 0.6


def test_the_rate_of_single_steps_is_the_samplers_own() -> None:
    """Not one in the number of steps: 100 of 20 %, say."""
    job = dpsgd_job(
        network(),
        pixels(60),
        runs=10,
        delta=DELTA,
        noise_multiplier=1.0,
        learning_rate=0.1,
        batch_size=12,
        sampler=Poisson(steps=100),
        adversary="target_canary",
        views=("steps",),
    )
    (view,) = job.runs.programs[0].views
    knobs = view.bound.keywords  # type: ignore[union-attr]
    assert (knobs["sampling_rate"], knobs["steps"]) == (0.2, 100)
    assert job.plan.parameters["training"]["sampler"] == repr(Poisson(rate=0.2, steps=100))


# Views side by side


def test_threat_models_are_side_by_side_and_more_is_seen_in_all_updates() -> None:
    group = audit(
        runs=1500,
        noise_multiplier=0.6,
        adversary="worst_case",
        views=("updates", "model", "loss"),
        canaries=40,
        records=20,
        batch_size=4,
        module=network(2),
    )
    assert isinstance(group, AuditGroup)
    updates, model, loss, many = group.audits
    assert updates.bound.epsilon >= model.bound.epsilon
    assert updates.bound.epsilon > 1
    assert [each.attack.n_in for each in (updates, model, loss)] == [1500] * 3
    assert many.attack.n_in + many.attack.n_out == 40
    assert many.bound.method == "one_run"
    assert [each.bound.adjacency for each in group.audits] == ["zero_out"] * 4
    assert len({each.subject for each in group.audits}) == 4
    assert "final model" in model.bound.adversary
    # All views saw the same runs; the loss and the one run had their own.
    assert updates.provenance.units == model.provenance.units == loss.provenance.units
    assert many.provenance.units == 1


def test_one_run_with_many_canaries_is_rarely_above_the_truth(rng: np.random.Generator) -> None:
    """Each canary is a record of its own that takes part in every step: three Gaussians."""
    audits, count = 30, 60
    truth = truth_of(Poisson(rate=1.0), 0.8, 3)
    job = dpsgd_job(
        network(4),
        pixels(20),
        runs=2,
        delta=DELTA,
        noise_multiplier=0.8,
        learning_rate=0.1,
        batch_size=5,
        sampler=Poisson(rate=1.0, steps=3),
        canaries=count,
    )
    assert job.one is not None
    found = [bound_of(job.one, stream) for stream in rng.spawn(audits)]
    assert not oracles.too_often(int(np.sum(np.array(found) > truth)), audits)
    assert np.median(found) > 0.3  # one run of 60 canaries proves something


def bound_of(alone: OneRun, rng: np.random.Generator) -> float:
    from epsilometer import epsilon_lower_bound
    from epsilometer.audits.runs import joined

    scores = joined([alone.play(rng)])
    return epsilon_lower_bound(scores, delta=DELTA, method="one_run").epsilon


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace"])
@pytest.mark.parametrize(
    "sampler",
    [
        Shuffle(drop_last=True),
        Poisson(),
        BallsInBins(),
        BatchThenShuffle(drop_last=True),
        Sequential(drop_last=True),
        WithoutReplacement(steps=4),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_adjacency_of_every_sampler(adjacency: Any, sampler: Any) -> None:
    found = audit(
        runs=4,
        records=23,
        batch_size=4,
        sampler=sampler,
        adjacency=adjacency,
        views=("updates", "model", "loss"),
        epochs=2,
        module=network(2),
    )
    assert [each.bound.adjacency for each in found.audits] == [adjacency] * 3
    # What is inserted by place is a pair of neighbours, unless a record less moves all others.
    proved = adjacency != "add_remove" or not displaces(sampler)
    assert [each.bound.valid for each in found.audits] == [proved, proved, True]


def test_the_canary_of_the_loss_may_be_given() -> None:
    canary = Record(features=np.ones(64, np.float32), label=3)
    given, own = (audit(views=("loss",), canary=which, runs=4) for which in (canary, None))
    assert given.audits[0].provenance.inputs != own.audits[0].provenance.inputs


# The same bytes


def test_processes_and_crashes_leave_no_trace(tmp_path: Path) -> None:
    whole = long_audit(tmp_path / "whole")
    expected = (tmp_path / "whole" / "result.json").read_bytes()
    assert long_audit(tmp_path / "two", Local(count=2)) == whole
    assert (tmp_path / "two" / "result.json").read_bytes() == expected
    program = (
        "import sys; from tests.audits.dpsgd_audits import long_audit; long_audit(sys.argv[1])"
    )
    killed = tmp_path / "killed"
    with started("-c", program, killed) as family:
        until(lambda: list(killed.glob("shards/*.shard")), "a unit was finished")
        os.kill(family.process.pid, signal.SIGKILL)
        family.process.wait()
    assert not (killed / "result.json").exists()
    assert long_audit(killed) == whole
    assert (killed / "result.json").read_bytes() == expected


def test_a_directory_is_never_continued_with_another_audit(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"directory": tmp_path, "runs": 4, "claim": 9.0}
    audit(**plain)
    features, labels = pixels(60)
    for changed in (
        {"seed": 1},
        {"adversary": "worst_case"},
        {"adjacency": "replace"},
        {"learning_rate": 0.4},
        {"direction": "dirac"},
        {"views": ("updates", "model")},
        {"data": (features + 1, labels)},
        {"module": network(9)},
        {"noise_multiplier": 1.1},
        {"canaries": 20},
        {"clip_norm": 2.0},
        {"initial": "given"},
    ):
        with pytest.raises(InvalidArgument, match="Expected no other run"):
            audit(**{**plain, **changed})


# Runs that diverge, and units that fail


def test_runs_that_diverge_are_counted_told_and_refute_nothing() -> None:
    group = audit(
        runs=30,
        claim=0.0,
        noise_multiplier=0.01,
        learning_rate=3e38,
        sampler=Poisson(rate=0.5, steps=8),
        adversary="target_canary",
        views=("updates", "model", "loss", "steps"),
        canaries=20,
        module=network(),
    )
    for each in group.audits:
        said = [caveat for caveat in each.bound.caveats if caveat.startswith("Diverged: ")]
        assert len(said) == 1, each.subject
        assert "count against a refutation" in said[0]
    of = ["of 30 runs", "of 30 runs", "steps", "of 30 runs", "canaries"]
    for each, what in zip(group.audits, of, strict=True):
        assert f" {what} with the target" in each.bound.caveats[-1]
    assert group.audits[-1].bound.epsilon == 0


def test_diverged_runs_could_only_have_raised_the_bound() -> None:
    """Scores of runs that all diverged prove nothing, although all runs inside are alike."""
    found = one(runs=40, claim=0.0, learning_rate=3e38, noise_multiplier=50.0, epochs=3)
    assert found.bound.caveats[-1].startswith("Diverged: 40 of 40 runs with the target, 40 of 40")
    assert (found.bound.epsilon, found.verdict) == (0.0, "not refuted")


def test_a_failed_unit_counts_against_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    job = dpsgd_job(
        network(),
        pixels(60),
        runs=6,
        delta=DELTA,
        at_once=2,
        noise_multiplier=1.0,
        learning_rate=0.1,
        batch_size=12,
        epochs=2,
        sampler=Poisson(),
        adversary="target_canary",
        views=("updates", "steps", "loss"),
        canaries=20,
    )
    first, last = job.missing(0), job.missing(job.plan.units - 1)
    assert first["updatesinside"].tolist() == [-np.inf] * 2
    assert first["stepsinside"].tolist() == [-np.inf] * 2 * 2 * 10  # as many as could have been
    assert first["stepsoutside"].tolist() == [np.inf] * 2 * 2 * 10
    assert job.missing(3)["lossoutside"].tolist() == [np.inf] * 2
    assert last["inside"].size + last["outside"].size == 20

    def fails(self: Any, rng: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(OneRun, "play", fails)
    group = run(job, engine=InProcess())
    assert [each.provenance.failed for each in group.audits] == [0, 0, 0, 1]
    assert group.audits[-1].verdict == "no claim"
    assert group.audits[-1].bound.epsilon == 0
    assert not any("Diverged" in caveat for caveat in group.audits[-1].bound.caveats)


# Stopping early, and what may be given


def test_an_audit_stops_when_the_claim_has_fallen() -> None:
    plain = {"claim": 0.2, "noise_multiplier": 0.3, "at_once": 20, "runs": 2000}
    found = one(**plain, until=UntilRefuted())
    assert found.verdict == "refuted"
    assert found.provenance.used < found.provenance.units / 2
    both = audit(**plain, until=UntilRefuted(), views=("updates", "model"))
    assert both.audits[0].provenance.used == both.audits[1].provenance.used
    assert both.audits[0].verdict == "refuted"


def test_noise_may_be_nothing_or_next_to_it() -> None:
    for noise in (0.0, 0.01):
        found = one(claim=1.0, noise_multiplier=noise, adversary="worst_case", runs=100)
        assert found.verdict == "refuted"


def test_noise_is_what_the_claim_asks_for_at_the_rate_that_is_drawn() -> None:
    plain = {"runs": 2, "delta": DELTA, "learning_rate": 0.1, "batch_size": 10, "claim": 2.0}
    for sampler, rate, steps in [
        (Shuffle(), 1 / 6, 6),
        (Poisson(), 1 / 6, 6),
        (Poisson(rate=0.4), 0.4, 6),
        (Poisson(rate=0.4, steps=3), 0.4, 3),
    ]:
        job = dpsgd_job(network(), pixels(60), sampler=sampler, epochs=2, **plain)
        noise = job.plan.parameters["training"]["noise_multiplier"]
        found = pld.poisson_epsilon(
            noise_multiplier=noise,
            sampling_rate=rate,
            steps=2 * steps,
            delta=DELTA,
            adjacency="zero_out",
        )
        assert found == pytest.approx(2.0, rel=1e-2)  # accountants are coarse here


CLAIM = PrivacyClaim(epsilon=1.0, delta=1e-3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"views": ("all",)}, "Expected views of updates, model, loss, steps, each once"),
        ({"views": ()}, "Expected views of"),
        ({"views": ("model", "model")}, "Expected views of"),
        ({"views": ("steps",)}, "Expected adversary='target_canary' with the view 'steps'"),
        (
            {"views": ("steps",), "adversary": "target_canary"},
            "Expected sampler=Poisson.. with the view 'steps'",
        ),
        (
            {
                "views": ("steps",),
                "adversary": "target_canary",
                "sampler": Poisson(),
                "adjacency": "replace",
            },
            "Expected adjacency='zero_out' or 'add_remove' with the view 'steps'",
        ),
        (
            {
                "views": ("steps",),
                "adversary": "target_canary",
                "sampler": Poisson(),
                "until": UntilNarrow(1.0),
            },
            "Expected no view 'steps' with until",
        ),
        ({"adversary": "everyone"}, "Expected adversary to be one of"),
        ({"adjacency": "unstated"}, "Expected adjacency"),
        ({"adjacency": "add_remove", "records": 61}, "their number alone gives it away"),
        ({"noise_multiplier": None}, "Expected noise_multiplier, or a claim"),
        (
            {"noise_multiplier": None, "claim": 1.0, "adjacency": "replace"},
            "Expected noise_multiplier with adjacency='replace'",
        ),
        ({"claim": CLAIM}, "Expected delta to be the claim's 0.001"),
        ({"claim": -1.0}, "epsilon"),
        ({"records": 9}, "Expected at least a batch of 10 records, got 9"),
        ({"batch_size": 0}, "batch_size"),
        ({"runs": 1}, "runs"),
        ({"at_once": 0}, "at_once"),
        ({"canaries": -1}, "canaries"),
        ({"canaries": 19}, "Expected canaries=0, or 20 or more"),
        ({"direction": "up"}, "Expected direction 'random' or 'dirac'"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"until": UntilRefuted()}, "Expected a claim with until"),
        ({"until": UntilNarrow(1.0), "canaries": 20}, "Expected no canaries and no view 'loss'"),
        (
            {"until": UntilNarrow(1.0), "views": ("updates", "loss")},
            "Expected no canaries and no view 'loss'",
        ),
        ({"until": UntilNarrow(1.0), "at_once": 60}, "two units or more"),
        ({"data": (np.zeros((5, 64)), [0, 1])}, "one label for each"),
    ],
    ids=str,
)
def test_bad_calls_are_told_before_anything_is_trained(
    wrong: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was trained")

    monkeypatch.setattr(EnsembleDPSGD, "train", train)
    with pytest.raises(InvalidArgument, match=said):
        audit(**wrong)


def test_what_both_calls_take_is_written_alike() -> None:
    parameters = dict(inspect.signature(dpsgd_job).parameters)
    hints = typing.get_type_hints(Knobs)
    given = typing.get_type_hints(dpsgd_job)
    assert [*hints] == [*parameters][2:]
    assert {name: given[name] for name in hints} == hints
    needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    assert Knobs.__required_keys__ == needed - {"module", "data"}
    assert audit_dpsgd.__doc__ is not None
    ours = {"name", "parameters", "command"}  # for the command line
    assert all(f"``{name}``" in audit_dpsgd.__doc__ for name in set(hints) - ours)


# What it costs


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["target_canary", "partially_informed"])
def test_a_model_that_is_audited_is_as_good(adversary: Any) -> None:
    """Accuracy on digits held out, with the target and without canaries: within half a percent."""
    features, labels = pixels(1797)
    runs, held = 600, 1300
    training = EnsembleDPSGD(
        network(32),
        cross_entropy,
        runs=runs,
        noise_multiplier=1.0,
        learning_rate=2.0,
        batch_size=50,
        epochs=4,
    )
    canary = TargetCanary(
        adversary=adversary,
        direction=random_direction(training.size, rng=np.random.default_rng(0)),
        batch_size=50,
        displaces=displaces(training.sampler),
    )
    plain, audited = (
        training.train(
            features[:held], labels[:held], rng=np.random.default_rng(seed), **more
        ).accuracy(features[held:], labels[held:])
        for seed, more in ((1, {}), (2, {"canaries": canary}))
    )
    error = np.hypot(scipy.stats.sem(plain), scipy.stats.sem(audited))
    assert error < 0.0015
    assert plain.mean() > 0.7  # it learns
    assert abs(audited.mean() - plain.mean()) < 0.005
