"""Declared correlated noise is spared, undeclared is not, and a false declaration is found."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.conformance import whitening
from epsilometer.conformance.run_epsilon import bound_epsilon_of_run
from epsilometer.conformance.summary import summarise_step
from epsilometer.conformance.watch import StepWatch
from epsilometer.conformance.whitening import Whitening
from epsilometer.core.findings import ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

FLAKE = 1e-6
STEPS = 48
SHAPES = {"weight": (20, 12), "bias": (20,)}


def square_root(bands: int) -> FloatArray:
    """Encoder of prefix sums with so many diagonals, by its recurrence."""
    column = np.zeros(STEPS)
    column[0] = 1.0
    for k in range(1, bands):
        column[k] = column[k - 1] * (2 * k - 1) / (2 * k)
    places = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    return np.tril(column[places])


def tree_mixing() -> FloatArray:
    """Steps 1, 2, …: each adds a node, and takes away the nodes below it."""
    mixing = np.eye(STEPS)
    for step in range(1, STEPS + 1):
        node = 1
        while step % (2 * node) == 0:
            mixing[step - 1, step - 1 - node] = -1
            node *= 2
    return mixing


MIXING = {
    "square root of 4 bands": np.linalg.inv(square_root(4)),
    "square root of all bands": np.linalg.inv(square_root(STEPS)),
    "tree": tree_mixing(),
    "cancels the step before": np.eye(STEPS) - np.eye(STEPS, k=-1),
}


def draw(
    mixing: FloatArray, rng: np.random.Generator, *, scale: float = 1.0
) -> Iterator[list[tuple[str, Any]]]:
    white = {name: scale * rng.normal(size=(STEPS, *shape)) for name, shape in SHAPES.items()}
    mixed = {name: np.tensordot(mixing, noise, axes=1) for name, noise in white.items()}
    for step in range(STEPS):
        yield [(name, noise[step]) for name, noise in mixed.items()]


def watch_run(
    noise: Iterator[list[tuple[str, Any]]], declared: Any, *, sketched: bool = False
) -> ConformanceFinding:
    watch = StepWatch(noise=declared)
    for residuals in noise:
        if sketched:
            watch.see_summary(summarise_step(residuals))
        else:
            watch.see(residuals)
    return watch.finding()


@pytest.mark.parametrize("name", MIXING)
def test_whitening_undoes_mixing(name: str, rng: np.random.Generator) -> None:
    white = rng.normal(size=(STEPS, 3))
    stream = Whitening(MIXING[name]).start()
    for own, mixed in zip(white, MIXING[name] @ white, strict=True):
        (found,) = stream.next([mixed])
        np.testing.assert_allclose(found, own, atol=1e-9)


def test_all_ways_to_declare_agree(rng: np.random.Generator) -> None:
    noise = pytest.importorskip("epsilometer.sampling.noise")
    residuals = rng.normal(size=(STEPS, 5))

    def whiten(declared: Whitening) -> list[FloatArray]:
        stream = declared.start()
        return [stream.next([row])[0] for row in residuals]

    by_matrix = whiten(Whitening(MIXING["square root of 4 bands"]))
    for other in (
        Whitening.by_encoder(square_root(4)),
        Whitening(noise.SquareRoot(4)),
        Whitening(noise.MatrixNoise(noise.SquareRoot(4))),
        Whitening(noise.MatrixNoise(square_root(4))),
        Whitening(Whitening.by_encoder(square_root(4))),
    ):
        np.testing.assert_allclose(whiten(other), by_matrix, atol=1e-9)
    every = whiten(Whitening(MIXING["square root of all bands"]))
    np.testing.assert_allclose(whiten(Whitening(noise.SquareRoot())), every, atol=1e-9)
    trees = whiten(Whitening(MIXING["tree"]))
    for tree in (Whitening.by_tree(), Whitening(noise.TreeNoise())):
        np.testing.assert_allclose(whiten(tree), trees, atol=1e-9)
    np.testing.assert_allclose(whiten(Whitening(noise.IndependentNoise())), residuals)


def test_noise_that_our_trainings_draw_becomes_white() -> None:
    noise = pytest.importorskip("epsilometer.sampling.noise")
    torch = pytest.importorskip("torch")
    for law in (noise.TreeNoise(), noise.MatrixNoise(noise.SquareRoot(5))):
        drawn = law.start(4000, rounds=40, generator=torch.Generator().manual_seed(0))
        stream = Whitening(law).start()
        white = [stream.next([drawn.next(1.0).double().numpy()])[0] for _ in range(40)]
        products = np.array(white) @ np.array(white).T / 4000
        assert np.abs(products - np.eye(40)).max() < 7 / np.sqrt(4000) + 7 * np.sqrt(2 / 4000)


def test_memory_is_bounded(rng: np.random.Generator) -> None:
    declared = Whitening(np.linalg.inv(square_root(4))[:, :])
    banded, tree = Whitening.by_encoder(square_root(4)).start(), Whitening.by_tree().start()
    for _ in range(STEPS):
        residual = [rng.normal(size=3)]
        banded.next(residual)
        tree.next(residual)
        assert len(banded._kept) <= 4
        assert len(tree._kept) <= 7
    assert declared.kept > 4  # the inverse of a banded matrix has no bands
    assert Whitening.by_tree().fits([100_000])
    assert not Whitening.by_tree().fits([10**6])


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", MIXING)
def test_right_correlated_noise_is_spared_where_it_is_declared(
    name: str, sketched: bool, rng: np.random.Generator
) -> None:
    finding = watch_run(draw(MIXING[name], rng), MIXING[name], sketched=sketched)
    assert finding.verdict == "conforms", finding.find("violated")
    assert finding.check("quantised noise").outcome == "not tested"
    outside = finding.check("noise outside the sketch").outcome
    assert outside == ("conforms" if sketched else "not tested")


@pytest.mark.parametrize("name", MIXING)
def test_correlated_noise_is_violated_where_it_is_not_declared(
    name: str, rng: np.random.Generator
) -> None:
    finding = watch_run(draw(MIXING[name], rng), None)
    broken = {check.name for check in finding.find("violated")}
    assert broken & {"independence of steps", "noise that cancels"}


WRONG: dict[str, tuple[FloatArray, float, FloatArray, str]] = {
    "half the noise": (MIXING["tree"], 0.5, MIXING["tree"], "noise scale"),
    "10 % less": (
        MIXING["square root of 4 bands"],
        0.9,
        MIXING["square root of 4 bands"],
        "noise scale",
    ),
    "fewer bands": (
        np.linalg.inv(square_root(2)),
        1.0,
        MIXING["square root of 4 bands"],
        "independence of steps",
    ),
    "independent noise": (
        np.eye(STEPS),
        1.0,
        MIXING["square root of 4 bands"],
        "independence of steps",
    ),
    "another strategy": (
        MIXING["tree"],
        1.0,
        MIXING["square root of all bands"],
        "independence of steps",
    ),
    "cancels besides": (
        MIXING["square root of 4 bands"] @ MIXING["cancels the step before"],
        1.0,
        MIXING["square root of 4 bands"],
        "noise that cancels",
    ),
}


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_a_false_declaration_is_found(name: str, sketched: bool, rng: np.random.Generator) -> None:
    mixing, scale, declared, check = WRONG[name]
    finding = watch_run(draw(mixing, rng, scale=scale), declared, sketched=sketched)
    assert finding.check(check).outcome == "violated", finding.checks


@pytest.mark.parametrize("quiet", [0.0, 0.5])
def test_noise_that_lacks_outside_the_sketch_is_found(
    quiet: float, rng: np.random.Generator
) -> None:
    """2,000 rows of which the sketch has few coordinates; one row lacks noise, or a tensor."""
    mixing = MIXING["square root of 4 bands"]
    white = rng.normal(size=(20, 2000, 8))
    if quiet:
        white *= quiet
    else:
        white[:, 1234] = 0
    watch = StepWatch(noise=mixing)
    for residual in np.tensordot(mixing[:20, :20], white, axes=1):
        watch.see_summary(summarise_step([("embedding", residual), ("bias", rng.normal(size=9))]))
    check = watch.finding().check("noise outside the sketch")
    assert check.outcome == "violated"
    assert "embedding" in check.seen


def test_noise_too_large_to_keep_is_sketched(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "MOST_KEPT", 1000)
    finding = watch_run(draw(MIXING["tree"], rng), MIXING["tree"])
    assert finding.verdict == "conforms"
    assert finding.check("noise outside the sketch").outcome == "conforms"


def count_accused(runs: int, level: float, rng: np.random.Generator) -> int:
    accused = 0
    mixing = np.linalg.inv(square_root(3))[:6, :6]
    for run in range(runs):
        watch = StepWatch(level=level, noise=mixing)
        for residual in np.tensordot(mixing, rng.normal(size=(6, 4, 8)), axes=1):
            step = [("a", residual[:3]), ("b", residual[3])]
            if run % 2:
                watch.see(step)
            else:
                watch.see_summary(summarise_step(step))
        accused += watch.violated
    return accused


@pytest.mark.simulation
def test_right_declared_runs_are_accused_no_more_often_than_the_level_says(
    rng: np.random.Generator,
) -> None:
    runs, level = 300, 0.05
    assert count_accused(runs, level, rng) <= scipy.stats.binom.isf(FLAKE, runs, level)


def test_all_steps_are_one_release_for_the_bound(rng: np.random.Generator) -> None:
    mixing = MIXING["tree"]
    watch = StepWatch(noise=mixing)
    for residuals in draw(mixing, rng, scale=0.5):
        watch.see(residuals, noise_multiplier=4.0, rate=1.0)
    (ran,) = watch.group_noise()
    assert (ran.steps, ran.rate) == (1, 1.0)
    right = bound_epsilon_of_run([ran], delta=1e-5, sensitivity=6**0.5)
    booked = StepWatch(noise=mixing)
    for residuals in draw(mixing, rng):
        booked.see(residuals, noise_multiplier=4.0, rate=1.0)
    assert (
        right.epsilon
        > 1.8 * bound_epsilon_of_run(booked.group_noise(), delta=1e-5, sensitivity=6**0.5).epsilon
    )
    sampled = StepWatch(noise=mixing)
    sampled.see(residuals, noise_multiplier=4.0, rate=0.1)
    assert sampled.group_noise() == ()
    with pytest.raises(InvalidArgument, match="same noise multiplier"):
        sampled.see(residuals, noise_multiplier=3.0, rate=0.1)
    sampled.see(residuals, noise_multiplier=4.0, rate=0.1)
    assert sampled.steps == 2


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([[1.0, 2.0]], "square"),
        ([[1.0, 1.0], [0.0, 1.0]], "lower triangular"),
        ([[0.0]], "positive diagonal"),
        ([[np.nan]], "finite"),
    ],
)
def test_what_is_no_mixing_matrix_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Whitening(declared)


def test_more_steps_than_were_declared_are_refused() -> None:
    stream = Whitening([[1.0]]).start()
    stream.next([np.ones(2)])
    with pytest.raises(InvalidArgument, match="at most 1 steps"):
        stream.next([np.ones(2)])


def test_other_noise_of_ours_is_refused() -> None:
    noise = pytest.importorskip("epsilometer.sampling.noise")
    with pytest.raises(InvalidArgument, match="4096 bands"):
        Whitening(noise.SquareRoot(5000))
    with pytest.raises(InvalidArgument, match="noise that is declared"):
        Whitening(noise._Tree(3, None))
