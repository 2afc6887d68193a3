"""The noise of rounds, by its law."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch

from epsilometer.training.noise import IndependentNoise, Noise, TreeNoise
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


def worst_of_all(participations: int, rounds: int) -> float:
    """By trying all: the change of every complete node, of the client's rounds."""
    most = 0.0
    for when in combinations(range(rounds), participations):
        squares = 0
        for level in range(rounds.bit_length()):
            for start in range(0, rounds - 2**level + 1, 2**level):
                squares += sum(start <= one < start + 2**level for one in when) ** 2
        most = max(most, squares**0.5)
    return most


@pytest.mark.parametrize(
    ("participations", "rounds"), [(1, 1), (1, 2), (2, 2), (1, 5), (2, 5), (3, 5), (1, 8), (3, 8)]
)
def test_no_client_is_further_than_the_sensitivity(participations: int, rounds: int) -> None:
    tree = TreeNoise().sensitivity(participations, rounds=rounds)
    assert tree >= worst_of_all(participations, rounds) - 1e-9
    assert IndependentNoise().sensitivity(participations, rounds=rounds) == participations**0.5
