"""The noise of rounds, by its law."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from epsilometer.errors import InvalidArgument
from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, Noise, SquareRoot, TreeNoise
from tests.oracles import FLAKE

SIZE = 20_000


def drawn(noise: Noise, rounds: int, rng: np.random.Generator, scale: float = 1.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    stream = noise.start(SIZE, rounds=rounds, generator=generator)
    return torch.stack([stream.next(scale) for _ in range(rounds)]).double()


def has_variance(values: torch.Tensor, variance: float) -> None:
    """To what a sample of normals leaves unsure."""
    ratio = float((values**2).sum()) / variance
    low, high = scipy.stats.chi2.ppf([FLAKE / 2, 1 - FLAKE / 2], values.numel())
    assert low < ratio < high


def test_independent_noise_is_normal_and_independent(rng: np.random.Generator) -> None:
    rounds = drawn(IndependentNoise(), 3, rng)
    for one in rounds:
        has_variance(one, 1.5**2)
        assert scipy.stats.kstest(one.numpy() / 1.5, "norm").pvalue > FLAKE
    between = np.corrcoef(rounds.numpy())[np.triu_indices(3, 1)]
    assert np.abs(between).max() < scipy.stats.norm.isf(FLAKE / 6) / SIZE**0.5


def test_noise_of_a_tree_adds_up_to_one_node_a_binary_digit(rng: np.random.Generator) -> None:
    prefixes = drawn(TreeNoise(), 13, rng).cumsum(0)
    for number, prefix in enumerate(prefixes, 1):
        has_variance(prefix, number.bit_count() * 1.5**2)


def test_noise_of_a_tree_is_taken_back_where_a_node_takes_others_place(
    rng: np.random.Generator,
) -> None:
    rounds = drawn(TreeNoise(), 4, rng)
    nodes = {1: rounds[0], 2: rounds[0] + rounds[1], 3: rounds[2]}
    nodes[4] = rounds.sum(0)
    between = np.corrcoef([nodes[key].numpy() for key in nodes])[np.triu_indices(4, 1)]
    assert np.abs(between).max() < scipy.stats.norm.isf(FLAKE / 12) / SIZE**0.5  # white nodes


def patterns(participations: int, rounds: int, apart: int) -> list[tuple[int, ...]]:
    """All rounds that a client may be in: so many, or fewer."""
    return [
        when
        for count in range(1, participations + 1)
        for when in combinations(range(rounds), count)
        if all(second - first >= apart for first, second in pairwise(when))
    ]


def worst_of_all(participations: int, rounds: int, apart: int) -> float:
    """By trying all: the change of every complete node, of the client's rounds."""
    most = 0.0
    for when in patterns(participations, rounds, apart):
        squares = 0
        for level in range(rounds.bit_length()):
            for start in range(0, rounds - 2**level + 1, 2**level):
                squares += sum(start <= one < start + 2**level for one in when) ** 2
        most = max(most, squares**0.5)
    return most


@pytest.mark.parametrize("apart", [1, 2, 3])
@pytest.mark.parametrize(
    ("participations", "rounds"), [(1, 1), (1, 2), (2, 2), (1, 5), (2, 5), (3, 5), (1, 8), (3, 8)]
)
def test_no_client_is_further_than_the_sensitivity(
    participations: int, rounds: int, apart: int
) -> None:
    tree = TreeNoise().sensitivity(participations, rounds=rounds, apart=apart)
    assert tree >= worst_of_all(participations, rounds, apart) - 1e-9
    assert IndependentNoise().sensitivity(participations, rounds=rounds) == participations**0.5


# Noise of a factorisation.

ENCODERS: dict[str, Any] = {
    "square root": SquareRoot(),
    "two bands": SquareRoot(bands=2),
    "three bands": SquareRoot(bands=3),
    "alone": np.eye(9),
    "any": np.tril(np.random.default_rng(3).random((9, 9))) + np.eye(9),
    "signed": np.tril(np.random.default_rng(4).normal(size=(9, 9)), -1) + np.eye(9),
    "signed bands": np.eye(9) + np.diag(np.random.default_rng(5).normal(size=8), -1),
}
every_encoder = pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)


def largest_change(columns: np.ndarray, rng: np.random.Generator) -> float:
    """How far clipped updates in these rounds can move: equal ones, and by climbing from others."""
    overlap = columns.T @ columns
    found = float(overlap.sum())
    for _ in range(3):
        updates = rng.normal(size=(len(overlap), len(overlap)))
        for _ in range(20):  # each round in the direction that helps most
            updates = overlap @ updates
            updates /= np.linalg.norm(updates, axis=1, keepdims=True)
        found = max(found, float(np.sum(overlap * (updates @ updates.T))))
    return found**0.5


@every_encoder
@pytest.mark.parametrize("apart", [1, 2, 3])
@pytest.mark.parametrize(("participations", "rounds"), [(1, 1), (2, 4), (3, 5), (2, 9), (4, 9)])
@pytest.mark.in_turn(3)
def test_no_client_is_further_than_the_sensitivity_of_an_encoder(
    encoder: Any, participations: int, rounds: int, apart: int, rng: np.random.Generator
) -> None:
    noise = MatrixNoise(encoder)
    columns = noise.matrix(rounds)
    said = noise.sensitivity(participations, rounds=rounds, apart=apart)
    worst = max(
        largest_change(columns[:, when], rng) for when in patterns(participations, rounds, apart)
    )
    assert worst <= said * (1 + 1e-9)
    bands = max(row - column for row, column in np.argwhere(columns)) + 1
    if isinstance(encoder, SquareRoot) or bands <= apart:  # then it is exact
        assert said == pytest.approx(worst)


@pytest.mark.parametrize(("rounds", "bands", "times"), [(12, 4, 3), (10, 3, 4), (7, 2, 9)])
def test_rounds_that_do_not_overlap_cost_their_columns(rounds: int, bands: int, times: int) -> None:
    """With bands no wider than rounds are apart, squared norms of columns add up."""
    noise = MatrixNoise(SquareRoot(bands=bands))
    squares = (noise.matrix(rounds) ** 2).sum(0)
    often = min(times, -(-rounds // bands))
    found = noise.sensitivity(times, rounds=rounds, apart=bands) ** 2
    assert found == pytest.approx(squares[::bands][:often].sum())
    assert found < noise.sensitivity(times, rounds=rounds) ** 2


@every_encoder
def test_noise_of_an_encoder_is_white_once_encoded(encoder: Any, rng: np.random.Generator) -> None:
    """C x = z, of which all coordinates are independent and of the given scale."""
    noise = MatrixNoise(encoder)
    produced = drawn(noise, 9, rng).numpy()
    white = noise.matrix(9) @ produced
    for one in white:
        has_variance(torch.from_numpy(one), 1.5**2)
    between = np.corrcoef(white)[np.triu_indices(9, 1)]
    assert np.abs(between).max() < scipy.stats.norm.isf(FLAKE / 72) / SIZE**0.5
    generator = torch.Generator().manual_seed(3)
    stream = noise.start(40, rounds=9, generator=generator)
    x = torch.stack([stream.next(2.0) for _ in range(9)]).double().numpy()
    generator.manual_seed(3)
    z = np.stack([torch.empty(40).normal_(0, 2.0, generator=generator).numpy() for _ in range(9)])
    np.testing.assert_allclose(x, np.linalg.solve(noise.matrix(9), z), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@every_encoder
def test_noise_of_an_encoder_on_a_gpu_is_white_once_encoded(encoder: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    noise = MatrixNoise(encoder)
    stream = noise.start(SIZE, rounds=9, generator=generator)
    produced = torch.stack([stream.next(1.5) for _ in range(9)])
    assert produced.is_cuda
    white = noise.matrix(9) @ produced.cpu().double().numpy()
    for one in white:
        has_variance(torch.from_numpy(one), 1.5**2)
    between = np.corrcoef(white)[np.triu_indices(9, 1)]
    assert np.abs(between).max() < scipy.stats.norm.isf(FLAKE / 72) / SIZE**0.5


def test_the_covariance_of_rounds_is_that_of_the_inverse(rng: np.random.Generator) -> None:
    noise = MatrixNoise(SquareRoot(bands=3))
    encoder = noise.matrix(5)
    truth = np.linalg.inv(encoder.T @ encoder)
    found = np.cov(drawn(noise, 5, rng, scale=1.0).numpy())
    # A covariance of normals has variance (v_i v_j + c²) / n.
    spread = ((np.outer(np.diag(truth), np.diag(truth)) + truth**2) / SIZE) ** 0.5
    assert (np.abs(found - truth) / spread).max() < scipy.stats.norm.isf(FLAKE / 50)


def test_an_encoder_that_changes_nothing_is_independent_noise() -> None:
    streams = [
        noise.start(50, rounds=4, generator=torch.Generator().manual_seed(1))
        for noise in (MatrixNoise(np.eye(4)), IndependentNoise())
    ]
    for _ in range(4):
        one, two = (stream.next(0.7) for stream in streams)
        assert torch.equal(one, two)
    for times in (1, 3):
        alone = MatrixNoise(np.eye(4)).sensitivity(times, rounds=4)
        assert alone == pytest.approx(IndependentNoise().sensitivity(times, rounds=4))


def test_only_as_many_vectors_are_kept_as_there_are_bands() -> None:
    generator = torch.Generator().manual_seed(0)
    stream: Any = MatrixNoise(SquareRoot(bands=4)).start(10, rounds=500, generator=generator)
    assert stream._kept.shape == (3, 10)


def prefix_error(noise: Noise, encoder: np.ndarray, rounds: int, **pattern: int) -> float:
    """Root mean square of the noise of prefix sums, at a sensitivity of 1."""
    prefixes = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(encoder)
    error = np.linalg.norm(prefixes) / rounds**0.5
    return float(error * noise.sensitivity(pattern["times"], rounds=rounds, apart=pattern["apart"]))


@pytest.mark.parametrize(
    ("rounds", "times", "apart", "bands"), [(64, 1, 1, None), (64, 4, 1, 16), (128, 4, 32, 32)]
)
def test_prefix_sums_have_less_noise_than_by_tree_or_alone_at_equal_privacy(
    rounds: int, times: int, apart: int, bands: int | None
) -> None:
    noise = MatrixNoise(SquareRoot(bands=bands))
    ours = prefix_error(noise, noise.matrix(rounds), rounds, times=times, apart=apart)
    alone = prefix_error(IndependentNoise(), np.eye(rounds), rounds, times=times, apart=apart)
    nodes = np.mean([number.bit_count() for number in range(1, rounds + 1)]) ** 0.5
    tree = nodes * TreeNoise().sensitivity(times, rounds=rounds, apart=apart)
    assert ours < 0.75 * min(alone, tree)


def test_the_square_root_squared_sums_up() -> None:
    root = SquareRoot()(30)
    np.testing.assert_allclose(root @ root, np.tril(np.ones((30, 30))), atol=1e-12)


def test_encoders_are_told_apart_by_their_names() -> None:
    one = np.eye(1000)
    other = one.copy()
    other[500, 300] = 1e-9
    assert len({repr(MatrixNoise(encoder)) for encoder in (one, other, SquareRoot())}) == 3
    assert repr(MatrixNoise(one)) == repr(MatrixNoise(one.copy()))


@pytest.mark.parametrize(
    ("encoder", "part"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(4), "square"),
        (np.zeros((0, 0)), "square"),
        (np.array([[1.0, 1.0], [0.0, 1.0]]), "lower triangular"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), "finite"),
        (np.array([[1.0, 0.0], [1.0, 0.0]]), "positive diagonal"),
        (np.array([[1.0, 0.0], [1.0, -1.0]]), "positive diagonal"),
    ],
)
def test_bad_encoders_are_told(encoder: Any, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        MatrixNoise(encoder)


def test_an_encoder_of_too_few_rounds_is_told() -> None:
    with pytest.raises(InvalidArgument, match="at least 4 rounds, got one of 3"):
        MatrixNoise(np.eye(3)).sensitivity(1, rounds=4)
    with pytest.raises(InvalidArgument, match="bands"):
        SquareRoot(bands=0)
