"""Where noise is Gaussian the mean of canaries decides, and errs as seldom as it says."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.audits.federated import cosine_audit
from epsilometer.conformance.server_rounds import RoundWatch, has_gaussian_noise
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.rounds import AccountedMean, IterateWatch
from epsilometer.stats import sphere
from epsilometer.stats.gaussians import gaussian_sigma, gdp_epsilon

DELTA, FLAKE, LEVEL = 1e-5, 1e-6, 0.05
pytestmark = pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")


def prove(cosines: np.ndarray, dimension: int) -> list[em.EpsilonLowerBound]:
    asked: dict[str, Any] = {"rounds": 1, "confidence": 1 - LEVEL, "delta": DELTA}
    return cosine_audit._decide(cosines, dimension=dimension, noise="gaussian", **asked)


def count_errors(shifts: np.ndarray, *, rounds: int = 4, audits: int = 400) -> tuple[int, int]:
    """Run a server whose canaries add what they like; count bounds that are too high.

    Canaries are axes, noise has the standard deviation 1. Each takes part in one round.

    Returns:
        How often the mean exceeds the ε of the mean shift, and what decides that of the largest.
    """
    dimension, above, more = 10 * shifts.size, 0, 0
    rng = np.random.default_rng(7)
    truths = [gdp_epsilon(float(of), DELTA) for of in (shifts.mean(), shifts.max())]
    for _ in range(audits):
        cosines = []
        for own in np.split(shifts, rounds):
            released = rng.normal(size=dimension)
            released[: own.size] += own
            cosines.append(released[: own.size] / np.linalg.norm(released))
        found = prove(np.concatenate(cosines), dimension)
        (mean,) = (bound.epsilon for bound in found if bound.method == "mean_cosine")
        above, more = above + (mean > truths[0]), more + (found[0].epsilon > truths[1])
    return above, more


SHIFTS = {
    "equal": np.full(100, 1.5),
    "none": np.zeros(100),
    "one in four takes part often": np.tile([3.0, 1.0, 1.0, 1.0], 25),
    "one counts thirty times": np.concatenate([[30.0], np.full(99, 1.0)]),
}


@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=SHIFTS)
def test_the_mean_is_too_high_as_seldom_as_it_says(shifts: np.ndarray) -> None:
    above_mean, above_most = count_errors(shifts)
    assert max(above_mean, above_most) <= scipy.stats.binom.isf(FLAKE, 400, LEVEL)


def test_a_mean_without_its_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sphere, "_find_error", lambda alpha, dimension: 0.0)
    above, _ = count_errors(SHIFTS["equal"], audits=100)
    assert above > scipy.stats.binom.isf(FLAKE, 100, LEVEL)


@pytest.mark.parametrize(("truth", "least"), [(8.0, 7.5), (20.0, 19.1), (30.0, 28.9)])
def test_most_of_the_truth_is_proved(truth: float, least: float) -> None:
    """By ranks alone 4.8, 14.2 and 22.7."""
    rng, dimension = np.random.default_rng(0), 10**6
    shift = 1 / gaussian_sigma(truth, DELTA)
    proved = [
        prove(rng.normal(shift, 1, 1000) / dimension**0.5, dimension)[0].epsilon for _ in range(20)
    ]
    assert least < np.mean(proved) < truth


def test_who_is_exposed_alone_is_found_by_ranks() -> None:
    cosines = np.concatenate([np.full(5, 9.0), np.zeros(995)]) / 1000
    assert prove(cosines, 10**6)[0].method == "cosines"


def watch_rounds(
    *, rate: float = 1.0, shape: str = "normal", sampled: bool = False, seed: int = 0
) -> tuple[IterateWatch, float]:
    """Show four rounds of a server that declares no rate."""
    rng, size, noise = np.random.default_rng(seed), 8_000, gaussian_sigma(8.0, DELTA)
    accounted = None if sampled else AccountedMean(noise_multiplier=noise, clip_norm=1.0)
    model = {"w": np.zeros(size)}
    watch = IterateWatch(
        model, clip_norm=1.0, canaries=200, seed=5, accounted=accounted, sampled=sampled
    )
    draw = {
        "normal": lambda: rng.normal(size=size),
        "uniform": lambda: rng.uniform(-(3**0.5), 3**0.5, size=size),
    }[shape]
    for members in np.array_split(np.arange(200), 4):
        updates = [rng.normal(size=size) / 60 for _ in range(5)]  # of norm 1.5
        total = noise * draw() + sum(part / np.linalg.norm(part) for part in updates)
        for number in members:
            total += watch.make_update(int(number))["w"]
        model = {"w": model["w"] + rate * total / (5 + members.size)}
        replies = None if sampled else [{"w": part} for part in updates]
        watch.see(model, canaries=members, updates=replies)
    return watch, 8.0


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_known_rounds_are_judged_by_the_mean(rate: float) -> None:
    watch, truth = watch_rounds(rate=rate)
    found = watch.audit(5.0, delta=DELTA)
    bound = found.view("all rounds").bound
    assert bound.method == "mean_cosine"
    assert 5.2 < bound.epsilon < truth
    assert found.verdict == "refuted"
    assert "noise is Gaussian" in bound.caveats[0]
    assert found.view("final model").bound.method == "cosines"


@pytest.mark.parametrize(
    "how", [{"shape": "uniform"}, {"sampled": True}], ids=["uniform", "hidden"]
)
def test_other_noise_and_hidden_rounds_are_judged_by_ranks(how: dict[str, Any]) -> None:
    watch, truth = watch_rounds(**how)
    found = watch.audit(truth, delta=DELTA)
    assert {view.bound.method for view in found.views} == {"cosines"}


def test_rounds_that_were_not_checked_are_not_known() -> None:
    watch, _ = watch_rounds()
    rounds: RoundWatch = watch._rounds
    assert has_gaussian_noise(rounds.finding())
    rounds.skip("it was not seen")
    assert not has_gaussian_noise(rounds.finding())
    assert not has_gaussian_noise(RoundWatch().finding())


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="noise to be 'unknown' or 'gaussian', got 'white'"):
        em.Cosines([0.1], dimension=10, noise="white")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="rounds=1"):
        em.Cosines([0.1], dimension=10, noise="gaussian", rounds=3)
