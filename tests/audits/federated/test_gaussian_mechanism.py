from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.errors import InvalidArgument
from epsilometer.stats.sphere_estimates import cosine_epsilon

FLAKE = 1e-6
DELTA = 1e-6


def mechanism_cosines(
    sigma: float, dimension: int, *, rng: np.random.Generator, **options: Any
) -> Any:
    return em.GaussianMechanism(sigma, dimension, **options).cosines(rng)


def test_finds_the_known_epsilon() -> None:
    audit = em.audit(em.GaussianMechanism(0.541, 100_000), delta=DELTA)
    truth = em.gaussian_epsilon(0.541, DELTA)
    tied, fitted, true = audit.estimates
    assert (true.epsilon, true.role) == (truth, "reference")
    assert "tied" in tied.method
    assert "fitted" in fitted.method
    assert tied.low < truth < tied.high
    # Other records blur a little: σ² becomes σ² + k/d, a part in sixty.
    assert tied.epsilon == pytest.approx(truth, abs=1.0)
    assert 3 < audit.epsilon < truth
    assert audit.verdict == "no claim"


def test_a_true_claim_stands() -> None:
    truth = em.gaussian_epsilon(0.541, DELTA)
    audit = em.audit(em.GaussianMechanism(0.541, 100_000), truth, delta=DELTA)
    assert audit.claim == em.Claim(truth, delta=DELTA, adjacency="add_remove")
    assert audit.verdict == "not refuted"  # and not proved: the true ε is a reference


def test_less_noise_than_claimed_is_found() -> None:
    audit = em.audit(em.GaussianMechanism(0.541, 100_000), 3.0, delta=DELTA)
    assert audit.verdict == "refuted"


@pytest.mark.slow
def test_the_power_is_that_of_the_whole_audit() -> None:
    """A claim is refuted 4 times in 5 at the ε that an audit names as its power."""
    settings: dict[str, Any] = {"dimension": 20_000, "canaries": 300}
    named = em.audit(em.GaussianMechanism(1.0, **settings), 2.0, delta=DELTA).power
    assert named is not None
    sigma = em.gaussian_sigma(named, DELTA)
    audits = [
        em.audit(em.GaussianMechanism(sigma, **settings), 2.0, delta=DELTA, seed=seed)
        for seed in range(100)
    ]
    assert 60 <= sum(audit.verdict == "refuted" for audit in audits) <= 97


def test_both_families_give_one_law(rng: np.random.Generator) -> None:
    found = {
        family: np.concatenate(
            [
                mechanism_cosines(1.0, 10_000, canaries=200, family=family, rng=rng)
                for _ in range(20)
            ]
        )
        for family in ("hadamard", "sphere")
    }
    assert scipy.stats.ks_2samp(found["hadamard"], found["sphere"]).pvalue > FLAKE
    epsilons = {
        family: [
            cosine_epsilon(part, dimension=10_000, delta=DELTA, spread="tied")
            for part in cosines.reshape(20, 200)
        ]
        for family, cosines in found.items()
    }
    means = [np.mean(part) for part in epsilons.values()]
    scatter = np.hypot(*(np.std(part) / np.sqrt(20) for part in epsilons.values()))
    assert abs(means[0] - means[1]) < 5 * scatter


def test_one_run_of_many_canaries_is_as_many_runs_of_few(rng: np.random.Generator) -> None:
    def estimates(runs: int, canaries: int, sigma: float) -> list[float]:
        """ε of 1,000 cosines, whichever runs they are from."""
        every = (
            np.concatenate(
                [mechanism_cosines(sigma, 8192, canaries=canaries, rng=rng) for _ in range(runs)]
            )
            for _ in range(60)
        )
        return [cosine_epsilon(c, dimension=8192, delta=DELTA, spread="tied") for c in every]

    # Canaries are noise to each other, of variance k/d: the one run is given so much less.
    one, ten = estimates(1, 1000, np.sqrt(1 - 900 / 8192)), estimates(10, 100, 1.0)
    assert scipy.stats.ks_2samp(one, ten).pvalue > FLAKE
    np.testing.assert_allclose(*np.quantile([one, ten], [0.1, 0.5, 0.9], axis=1).T, rtol=0.05)


def test_same_seed_same_answer() -> None:
    first, second = (
        em.audit(em.GaussianMechanism(1.0, 20_000), delta=DELTA, seed=5) for _ in range(2)
    )
    assert first.to_json() == second.to_json()


def test_a_result_has_all_that_is_needed_to_do_it_again(tmp_path: Path) -> None:
    mechanism = em.GaussianMechanism(0.7, 20_000, canaries=400, family="sphere")
    audit = em.audit(mechanism, 3.195138, delta=DELTA, seed=5, confidence=0.9)
    again = read_call(audit.save(tmp_path / "audit.json")).run()
    assert again.to_json() == audit.to_json()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"canaries": 0}, "canaries"),
        ({"canaries": 20_000}, "as many canaries as dimensions"),
        ({"family": "cube"}, "'hadamard' or 'sphere'"),
        ({"delta": 0.0}, "delta"),
        ({"dimension": 1.5}, "whole number"),
    ],
)
def test_bad_calls_are_refused(change: dict, told: str) -> None:
    asked = {"sigma": 1.0, "dimension": 10_000, "delta": DELTA, **change}
    delta = asked.pop("delta")
    with pytest.raises(InvalidArgument, match=told):
        em.audit(em.GaussianMechanism(**asked), delta=delta)
