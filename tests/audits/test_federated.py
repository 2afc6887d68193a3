"""One federated run and what it proves: never too much, and enough where it leaks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from epsilometer import InProcess, PrivacyClaim, audit_federated, gaussian_epsilon
from epsilometer.audits.federated import federated_job
from epsilometer.engine.run import Done
from epsilometer.errors import InvalidArgument
from epsilometer.results import AuditGroup
from epsilometer.stats.sphere_bounds import cosine_bound
from epsilometer.stats.sphere_estimates import cosine_epsilon
from epsilometer.training.ensemble import cross_entropy
from epsilometer.training.federated import FederatedTraining
from epsilometer.training.noise import IndependentNoise, MatrixNoise, SquareRoot, TreeNoise
from epsilometer.training.participation import PoissonCohorts
from tests.oracles import FLAKE

DELTA = 1e-5
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*canaries are few:epsilometer.errors.EpsilometerWarning"
)


def training(classes: int = 100, **options: Any) -> FederatedTraining:
    data = np.random.default_rng(1)
    clients = [(data.normal(size=(n, 49)), data.integers(10, size=n)) for n in (3, 9, 1, 5, 7, 2)]
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "clients": clients,
        "rounds": 12,
        "cohort": 2,
        "noise_multiplier": 0.5,
        "learning_rate": 0.1,
    }
    return FederatedTraining(nn.Linear(49, classes), cross_entropy, **{**usual, **options})


def audit(how: FederatedTraining, **options: Any) -> AuditGroup:
    usual: dict[str, Any] = {"canaries": 400, "delta": DELTA, "engine": InProcess()}
    return audit_federated(how, **{**usual, **options})


def test_each_number_of_repetitions_has_the_final_model_and_all_rounds() -> None:
    found = audit(training(), repetitions=(1, 4))
    assert [result.subject.rpartition(": ")[2] for result in found.results] == [
        *("final model", "all rounds"),
        *("final model", "all rounds"),
    ]
    promised = [result.claim.epsilon for result in found.results if result.claim is not None]
    assert promised == pytest.approx(
        [gaussian_epsilon(0.5, DELTA)] * 2 + [gaussian_epsilon(0.25, DELTA)] * 2
    )
    assert all(result.verdict == "not refuted" for result in found.results)


def test_all_rounds_show_more_than_the_final_model_and_repetitions_more_than_once() -> None:
    """As in the paper, estimated and proved; noise is little, so that chance does not decide."""
    found = audit(training(noise_multiplier=0.25, rounds=64), repetitions=(1, 2, 4)).results
    for proved in (False, True):
        shown = [
            result.bound.epsilon if proved else result.estimates[0].epsilon for result in found
        ]
        final, all_rounds = shown[::2], shown[1::2]
        assert all(one < other for one, other in zip(final, all_rounds, strict=True))
        assert final == sorted(final)
        assert all_rounds == sorted(all_rounds)


class OneRoundAlone(MatrixNoise):
    """The classic mistake with correlated noise: accounts as if everybody came once."""

    def sensitivity(self, participations: int, *, rounds: int, apart: int = 1) -> float:
        return super().sensitivity(1, rounds=rounds, apart=apart)


@pytest.mark.parametrize("bands", [None, 3])
def test_correlated_noise_accounted_for_one_round_alone_is_refuted(bands: int | None) -> None:
    root = SquareRoot(bands=bands)
    options: dict[str, Any] = {"rounds": 8, "noise_multiplier": 4.0}
    honest, mistaken = (
        audit(training(noise=noise, **options), repetitions=(8,)).results
        for noise in (MatrixNoise(root), OneRoundAlone(root))
    )
    assert mistaken[0].verdict == "refuted"
    assert [result.verdict for result in honest] == ["not refuted", "not refuted"]
    assert honest[0].bound.epsilon == mistaken[0].bound.epsilon  # the noise is the same


def test_a_server_that_scales_noise_for_the_mean_is_refuted() -> None:
    """The classic mistake: noise is divided by the number of members, and then again."""
    honest = training(noise_multiplier=4.0)
    claim = PrivacyClaim(epsilon=honest.epsilon(DELTA, repetitions=1)[0], delta=DELTA)
    broken = replace(honest, noise_multiplier=4.0 / (2 + 400 / 12))
    verdicts = [result.verdict for result in audit(broken, claim=claim).results]
    assert verdicts == ["refuted", "refuted"]
    assert all(result.verdict == "not refuted" for result in audit(honest, claim=claim).results)


def test_the_number_of_canaries_that_were_lost_and_the_accuracy_are_told() -> None:
    bad = training()
    clients = [*bad.clients[:-1], (np.full((2, 49), np.nan), np.zeros(2, np.int64))]
    test = np.zeros((4, 49), np.float32), np.zeros(4, np.int64)
    found = audit(replace(bad, clients=clients), test=test)
    for result in found.results:
        said = " ".join(result.bound.caveats)
        assert "updates were not finite" in said
        assert "of the test data" in said


def test_canaries_drawn_like_clients_are_accounted_so() -> None:
    how = training(participation=PoissonCohorts(), cohort=40, noise_multiplier=1.0)
    found = audit(how, repetitions=None)
    (claim,) = {result.claim for result in found.results}
    assert claim is not None
    assert "PLD" in claim.accountant
    assert claim.epsilon == pytest.approx(how.epsilon(DELTA, canaries=400)[0])


def test_without_noise_nothing_is_promised() -> None:
    found = audit(training(noise_multiplier=0.0))
    assert [result.claim for result in found.results] == [None, None]
    assert found.results[0].bound.epsilon > 1


def test_a_run_is_finished_to_the_same_bytes(tmp_path: Path) -> None:
    whole = audit(training())
    assert audit(training(), directory=tmp_path / "run") == whole
    assert audit(training(), directory=tmp_path / "run") == whole  # read, not trained again
    assert audit(training(), seed=1) != whole
    with pytest.raises(InvalidArgument):  # another training is another run
        audit(training(rounds=13), directory=tmp_path / "run")


def test_a_unit_depends_on_the_plan_alone() -> None:
    one, two = (federated_job(training(), canaries=50, delta=DELTA).unit(0) for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("family", ["hadamard", "sphere"])
@pytest.mark.parametrize("statistic", ["moved", "model"])
def test_every_kind_of_canary_and_statistic_can_be_asked_for(family: Any, statistic: Any) -> None:
    found = audit(training(), family=family, statistic=statistic, iterates="steps")
    assert len(found.results) == 2


def test_a_failed_run_proves_nothing_and_gives_no_verdict() -> None:
    job = federated_job(training(), canaries=300, delta=DELTA)
    done = Done(plan=job.plan, seen=1, failed=frozenset({0}))
    for result in job.result([job.missing(0)], done).results:
        assert result.bound.epsilon == 0
        assert result.verdict == "no verdict"


# Coverage.


def test_the_bound_of_one_round_errs_no_oftener_than_it_says() -> None:
    """One round of canaries and noise is the Gaussian mechanism, whose ε is known."""
    how = training(rounds=1, learning_rate=1e-30, noise_multiplier=1.0)
    job = federated_job(how, canaries=100, delta=DELTA)
    truth, audits, wrong = gaussian_epsilon(1.0, DELTA), 200, 0
    for seed in range(audits):
        cosines = replace(job, plan=replace(job.plan, seed=seed)).unit(0)["final"]
        bound = cosine_bound(cosines, dimension=how.size, delta=DELTA, confidence=0.8)
        wrong += bound.refutes(truth)
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.2)


@pytest.mark.slow
def test_bounds_of_many_rounds_stay_below_what_accounting_allows() -> None:
    how = training(rounds=8, noise_multiplier=0.4)
    truth, audits, over = how.epsilon(DELTA, repetitions=2)[0], 200, np.zeros(2)
    for seed in range(audits):
        found = audit(how, canaries=300, repetitions=(2,), seed=seed, confidence=0.9)
        over += [result.bound.refutes(truth) for result in found.results]
    assert over.max() <= scipy.stats.binom.isf(FLAKE, audits, 0.1)


# Many canaries in one run.


def test_canaries_of_one_run_do_not_disturb_each_other() -> None:
    """One run with 200 canaries, or ten with 20 each: estimates of the same law."""
    how = training(rounds=2, noise_multiplier=0.5)
    estimates: dict[int, list[float]] = {1: [], 10: []}
    for runs, found in estimates.items():
        job = federated_job(how, canaries=200 // runs, delta=DELTA)
        for audit in range(30):
            seeds = range(100 * audit, 100 * audit + runs)
            units = [replace(job, plan=replace(job.plan, seed=seed)).unit(0) for seed in seeds]
            every = np.concatenate([arrays["final"] for arrays in units])
            found.append(cosine_epsilon(every, dimension=how.size, delta=DELTA, spread="tied"))
    assert scipy.stats.ks_2samp(estimates[1], estimates[10]).pvalue > FLAKE
    assert np.median(estimates[1]) == pytest.approx(np.median(estimates[10]), rel=0.1)


# On a GPU.

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@on_gpu
@pytest.mark.parametrize("family", ["hadamard", "sphere"])
def test_an_audit_on_a_gpu_sees_what_the_cpu_does(family: Any) -> None:
    here, there = (
        federated_job(
            training(noise_multiplier=0.0, device=device),
            canaries=300,
            repetitions=(2,),
            delta=DELTA,
            family=family,
            test=(np.zeros((9, 49)), np.zeros(9, np.int64)),
        ).unit(0)
        for device in ("cpu", "cuda")
    )
    for name in here:
        np.testing.assert_allclose(here[name], there[name], rtol=1e-3, atol=1e-4)


@on_gpu
@pytest.mark.parametrize("noise", [IndependentNoise(), TreeNoise(), MatrixNoise()], ids=repr)
def test_an_audit_on_a_gpu_refutes_what_is_wrong_and_nothing_else(noise: Any) -> None:
    honest = training(noise_multiplier=4.0, noise=noise, device="cuda")
    claim = PrivacyClaim(epsilon=honest.epsilon(DELTA, repetitions=1)[0], delta=DELTA)
    broken = replace(honest, noise_multiplier=0.1)
    assert audit(broken, claim=claim).results[0].verdict == "refuted"
    verdicts = [result.verdict for result in audit(honest, repetitions=(1, 2)).results]
    assert verdicts == ["not refuted"] * 4


# What is refused.


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"canaries": 2501}, "at most 2500 canaries"),
        ({"canaries": 1}, "canaries"),
        ({"repetitions": ()}, "at least one number of repetitions"),
        ({"repetitions": (13,)}, "at most 12 repetitions"),
        ({"repetitions": (0,)}, "repetitions"),
        ({"delta": 0.0}, "delta"),
        ({"statistic": "all"}, "moved, model"),
        ({"iterates": "none"}, "updates, steps"),
        ({"family": "dirac"}, "hadamard, sphere"),
    ],
)
def test_bad_audits_are_told(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        audit(training(), **options)
