"""One federated run and what it proves: never too much, and enough where it leaks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import epsilometer as em
from epsilometer.audits.federated.rounds import AdaptiveClip, OnceIn, PoissonCohorts
from epsilometer.audits.federated.subject import FederatedJob, make_job
from epsilometer.core import judge
from epsilometer.core.settings import from_settings, to_settings
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.optimizers import Adam
from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, SquareRoot, TreeNoise
from epsilometer.stats.sphere import cosine_bound
from epsilometer.stats.sphere_estimates import cosine_epsilon
from tests.oracles import FLAKE

DELTA = 1e-5
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*canaries are few:epsilometer.errors.EpsilometerWarning"
)


@dataclass(frozen=True)
class Task:
    """Names a model and clients, as a file does."""

    classes: int = 100

    def load(self) -> dict[str, Any]:
        data = np.random.default_rng(1)
        clients = [
            (data.normal(size=(n, 49)), data.integers(10, size=n)) for n in (3, 9, 1, 5, 7, 2)
        ]
        torch.manual_seed(0)
        return {"module": nn.Linear(49, self.classes), "clients": clients, "loss": cross_entropy}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        return (("task", str(self.classes)),)


def training(**options: Any) -> em.Federated:
    usual: dict[str, Any] = {
        "rounds": 12,
        "cohort": 2,
        "noise_multiplier": 0.5,
        "learning_rate": 0.1,
        "canaries": 400,
    }
    return em.Federated(**{**Task().load(), **usual, **options})


def audit(how: em.Federated, claim: Any = None, **options: Any) -> em.Audit:
    return em.audit(how, claim, **{"delta": DELTA, "engine": em.InProcess(), **options})


def job_of(how: em.Federated, **asked: Any) -> FederatedJob:
    return make_job(how, Request(**{"delta": DELTA, **asked}))


def accounted(how: em.Federated, **asked: Any) -> float:
    return how.epsilon(DELTA, **asked)[0]


def verdicts(found: em.Audit) -> list[str]:
    """What each view says by itself."""
    return [judge.judge_finding(found.claim, view) for view in found.views]


def test_each_number_of_repetitions_has_the_final_model_and_all_rounds() -> None:
    found = audit(training(repetitions=(1, 4)))
    assert [view.subject.partition(", ")[2] for view in found.views] == [
        "each canary once, 12 rounds: final model",
        "each canary once, 12 rounds: all rounds",
        "each canary 4 times, 12 rounds: final model",
        "each canary 4 times, 12 rounds: all rounds",
    ]
    said = [view.estimates[-1] for view in found.views]
    assert [estimate.epsilon for estimate in said] == pytest.approx(
        [em.gaussian_epsilon(0.5, DELTA)] * 2 + [em.gaussian_epsilon(0.25, DELTA)] * 2
    )
    assert {(estimate.method, estimate.role, estimate.adjacency) for estimate in said} == {
        ("accounting", "reference", "zero_out")
    }
    assert "fitted" in found.views[0].estimates[0].method
    assert em.audit(training(repetitions=(1, 4)), 100.0, delta=DELTA).verdict == "not refuted"


@pytest.mark.parametrize("often", [1, 4])
def test_what_accounting_says_is_not_refuted(often: int) -> None:
    how = training(repetitions=(often,))
    assert audit(how, accounted(how, repetitions=often)).verdict == "not refuted"


def test_all_bounds_share_the_confidence() -> None:
    """The verdict and ε are taken over all of them."""
    found = audit(training(repetitions=(1, 2)), confidence=0.9)
    assert [bound.confidence for bound in found.bounds] == pytest.approx([1 - 0.1 / 4] * 4)
    assert found.confidence == 0.9
    assert found.epsilon == max(bound.epsilon for bound in found.bounds)
    assert [bound.confidence for bound in audit(training(rounds=1)).bounds] == [0.95]


def test_all_rounds_show_more_than_the_final_model_and_repetitions_more_than_once() -> None:
    """As in the paper, estimated and proved; noise is little, so that chance does not decide."""
    found = audit(training(noise_multiplier=0.25, rounds=64, repetitions=(1, 2, 4)))
    for proved in (False, True):
        shown = [
            view.bound.epsilon if proved else view.estimates[0].epsilon for view in found.views
        ]
        final, all_rounds = shown[::2], shown[1::2]
        assert all(one < other for one, other in zip(final, all_rounds, strict=True))
        assert final == sorted(final)
        assert all_rounds == sorted(all_rounds)


def test_a_claim_is_about_clients_whose_updates_are_there_or_zero() -> None:
    for claim in (3.0, em.Claim(3.0, delta=DELTA)):
        found = audit(training(rounds=1), claim)
        assert found.claim == em.Claim(3.0, delta=DELTA, adjacency="zero_out", unit="client")
        assert {bound.adjacency for bound in found.bounds} == {"zero_out"}
    stated = em.Claim(3.0, delta=DELTA, adjacency="add_remove", accountant="mine")
    known = audit(training(rounds=1), stated).claim
    assert known is not None
    assert (known.adjacency, known.accountant, known.unit) == ("add_remove", "mine", "client")


def test_nothing_is_claimed_unless_somebody_claims_it() -> None:
    found = audit(training())
    assert (found.claim, found.verdict, found.reach, found.power) == (None, "no claim", None, None)
    assert {bound.adjacency for bound in found.bounds} == {"zero_out"}


def test_a_claim_that_is_not_refuted_has_reach_and_power() -> None:
    found = audit(training(canaries=100, noise_multiplier=4.0), 3.0)
    assert found.verdict == "not refuted"
    assert found.reach is not None
    assert found.power is not None
    assert 3.0 < found.power < found.reach


class OneRoundAlone(MatrixNoise):
    """The classic mistake with correlated noise: accounts as if everybody came once."""

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        return super().sensitivity(1, rounds=rounds, apart=apart)


@pytest.mark.parametrize("bands", [None, 3])
def test_correlated_noise_accounted_for_one_round_alone_is_refuted(bands: int | None) -> None:
    root = SquareRoot(bands=bands)
    how = training(noise=MatrixNoise(root), rounds=8, noise_multiplier=4.0, repetitions=(8,))
    wrong = replace(how, noise=OneRoundAlone(root))
    mistaken = audit(wrong, accounted(wrong, repetitions=8))
    honest = audit(how, accounted(how, repetitions=8))
    assert mistaken.verdict == "refuted"
    assert honest.verdict == "not refuted"
    final = [found.view("final model").bound.epsilon for found in (honest, mistaken)]
    assert final[0] == final[1]  # the noise is the same


def test_a_server_that_scales_noise_for_the_mean_is_refuted() -> None:
    """The classic mistake: noise is divided by the number of members, and then again."""
    honest = training(noise_multiplier=4.0)
    claim = em.Claim(accounted(honest, repetitions=1), delta=DELTA)
    broken = replace(honest, noise_multiplier=4.0 / (2 + 400 / 12))
    assert verdicts(audit(broken, claim)) == ["refuted", "refuted"]
    assert audit(broken, claim).verdict == "refuted"
    assert audit(honest, claim).verdict == "not refuted"


def test_the_number_of_canaries_that_were_lost_and_the_accuracy_are_reported() -> None:
    bad = training()
    clients = [*bad.clients[:-1], (np.full((2, 49), np.nan), np.zeros(2, np.int64))]
    test = np.zeros((4, 49), np.float32), np.zeros(4, np.int64)
    found = audit(replace(bad, clients=clients, test=test))
    for bound in found.bounds:
        said = " ".join(bound.caveats)
        assert "updates were not finite" in said
        assert "of the test data" in said


def test_canaries_drawn_like_clients_are_accounted_so() -> None:
    how = training(
        participation=PoissonCohorts(), cohort=40, noise_multiplier=1.0, repetitions=None
    )
    found = audit(how)
    said = {view.estimates[-1] for view in found.views}
    assert len(said) == 1
    (reference,) = said
    assert "PLD" in reference.subject
    assert reference.epsilon == pytest.approx(accounted(how, canaries=400))


def test_without_noise_accounting_says_nothing() -> None:
    found = audit(training(noise_multiplier=0.0))
    assert all(estimate.method != "accounting" for estimate in found.estimates)
    assert found.view("final model").bound.epsilon > 1


def test_a_run_is_finished_to_the_same_bytes(tmp_path: Path) -> None:
    whole = audit(training())
    assert audit(training(), out=tmp_path / "run") == whole
    assert audit(training(), out=tmp_path / "run") == whole  # read, not trained again
    assert audit(training(), seed=1) != whole
    with pytest.raises(InvalidArgument):  # another training is another run
        audit(training(rounds=13), out=tmp_path / "run")
    encoder = np.eye(12)
    audit(training(noise=MatrixNoise(encoder)), out=tmp_path / "matrix")
    encoder[1, 0] = 0.5
    with pytest.raises(InvalidArgument):  # so is another matrix, of which no settings tell
        audit(training(noise=MatrixNoise(encoder)), out=tmp_path / "matrix")


def test_a_file_has_all_settings_but_the_data() -> None:
    how = training(
        participation=OnceIn(3),
        noise=MatrixNoise(SquareRoot(bands=2)),
        server_optimizer=Adam(betas=(0.8, 0.99)),
        divisor=3.5,
        repetitions=(1, 2),
        family="sphere",
        source=Task(),
    )
    settings = to_settings(how)
    assert {"module", "clients", "loss"}.isdisjoint(settings)
    again = from_settings(em.Federated, settings, trust=True)
    assert to_settings(again) == settings
    assert audit(again, 3.195138).to_json() == audit(how, 3.195138).to_json()
    adaptive = training(clip=AdaptiveClip(count_noise=2.0), source=Task())
    settings = to_settings(adaptive)
    assert from_settings(em.Federated, settings, trust=True).clip == adaptive.clip
    short = {"clip": "fixed-clip:0.5", "noise": "tree", "participation": "poisson-cohorts"}
    named = from_settings(em.Federated, {**settings, **short}, trust=True)
    assert (named.clip.norm, named.noise) == (0.5, TreeNoise())
    assert named.participation == PoissonCohorts()
    with pytest.raises(InvalidArgument, match="module, clients of Federated: supplied from Python"):
        from_settings(
            em.Federated, {k: v for k, v in to_settings(training()).items() if k != "loss"}
        )


def test_a_unit_depends_on_the_plan_alone() -> None:
    one, two = (job_of(training(canaries=50)).unit(0) for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("family", ["hadamard", "sphere"])
@pytest.mark.parametrize("statistic", ["moved", "model"])
def test_every_kind_of_canary_and_statistic_can_be_asked_for(family: Any, statistic: Any) -> None:
    found = audit(training(family=family, statistic=statistic, iterates="steps"))
    assert len(found.views) == 2


def test_a_failed_run_proves_nothing_and_cannot_be_judged() -> None:
    job = job_of(training(canaries=300), claim=em.Claim(1.0, delta=DELTA))
    done = Done(plan=job.plan, seen=1, failed=frozenset({0}))
    found = job.result([job.missing(0)], done)
    assert [bound.epsilon for bound in found.bounds] == [0, 0]
    assert found.verdict == "cannot judge"
    assert verdicts(found) == ["cannot judge", "cannot judge"]


# Coverage.


@pytest.mark.slow
def test_the_bound_of_one_round_errs_no_oftener_than_it_says() -> None:
    """One round of canaries and noise is the Gaussian mechanism, whose ε is known."""
    how = training(rounds=1, learning_rate=1e-30, noise_multiplier=1.0, canaries=100)
    job = job_of(how)
    truth, audits, wrong = em.gaussian_epsilon(1.0, DELTA), 200, 0
    for seed in range(audits):
        cosines = replace(job, plan=replace(job.plan, seed=seed)).unit(0)["final"]
        bound = cosine_bound(cosines, dimension=job.subject.size, delta=DELTA, confidence=0.8)
        wrong += bound.refutes(truth)
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.2)


@pytest.mark.slow
def test_bounds_of_many_rounds_stay_below_what_accounting_allows() -> None:
    how = training(rounds=8, noise_multiplier=0.4, canaries=300, repetitions=(2,))
    truth, audits, over = accounted(how, repetitions=2), 200, 0
    for seed in range(audits):
        over += audit(how, truth, seed=seed, confidence=0.9).verdict == "refuted"
    assert over <= scipy.stats.binom.isf(FLAKE, audits, 0.1)


# Many canaries in one run.


@pytest.mark.slow
def test_canaries_of_one_run_do_not_disturb_each_other() -> None:
    """One run with 200 canaries, or ten with 20 each: estimates of the same law."""
    estimates: dict[int, list[float]] = {1: [], 10: []}
    for runs, found in estimates.items():
        job = job_of(training(rounds=2, noise_multiplier=0.5, canaries=200 // runs))
        for number in range(30):
            seeds = range(100 * number, 100 * number + runs)
            units = [replace(job, plan=replace(job.plan, seed=seed)).unit(0) for seed in seeds]
            every = np.concatenate([arrays["final"] for arrays in units])
            size = job.subject.size
            found.append(cosine_epsilon(every, dimension=size, delta=DELTA, spread="tied"))
    assert scipy.stats.ks_2samp(estimates[1], estimates[10]).pvalue > FLAKE
    assert np.median(estimates[1]) == pytest.approx(np.median(estimates[10]), rel=0.1)


# On a GPU.

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@on_gpu
@pytest.mark.parametrize("family", ["hadamard", "sphere"])
def test_an_audit_on_a_gpu_sees_what_the_cpu_does(family: Any) -> None:
    here, there = (
        job_of(
            training(
                noise_multiplier=0.0,
                device=device,
                canaries=300,
                repetitions=(2,),
                family=family,
                test=(np.zeros((9, 49)), np.zeros(9, np.int64)),
            )
        ).unit(0)
        for device in ("cpu", "cuda")
    )
    for name in here:
        np.testing.assert_allclose(here[name], there[name], rtol=1e-3, atol=1e-4)


@on_gpu
@pytest.mark.parametrize("noise", [IndependentNoise(), TreeNoise(), MatrixNoise()], ids=repr)
def test_an_audit_on_a_gpu_refutes_what_is_wrong_and_nothing_else(noise: Any) -> None:
    honest = training(noise_multiplier=4.0, noise=noise, device="cuda")
    claim = em.Claim(accounted(honest, repetitions=1), delta=DELTA)
    assert verdicts(audit(replace(honest, noise_multiplier=0.1), claim))[0] == "refuted"
    for often in (1, 2):
        spared = replace(honest, repetitions=(often,))
        assert audit(spared, accounted(spared, repetitions=often)).verdict == "not refuted"


# What is refused.


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"canaries": 2501}, "at most 2500 canaries"),
        ({"canaries": 1}, "canaries"),
        ({"repetitions": ()}, "at least one number of repetitions"),
        ({"repetitions": (13,)}, "at most 12 repetitions"),
        ({"repetitions": (0,)}, "repetitions"),
        ({"statistic": "all"}, "moved, model"),
        ({"iterates": "none"}, "updates, steps"),
        ({"family": "dirac"}, "hadamard, sphere"),
        ({"cohort": 0}, "cohort"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        audit(training(**options))


def test_bad_calls_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="delta"):
        audit(training(), delta=0.0)
    with pytest.raises(InvalidArgument, match="Expected no until"):
        audit(training(), 1.0, until=em.UntilRefuted())
