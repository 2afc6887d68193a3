import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from epsilometer.audits.federated import directions
from epsilometer.audits.federated.directions import Directions, HadamardCanaries, SphereCanaries
from epsilometer.errors import InvalidArgument
from epsilometer.stats.sphere import cosine_cdf

FLAKE = 1e-6
ROUNDING = 3e-6  # float32, through some twenty levels of sums

DIMENSIONS = [1, 2, 3, 5, 13, 64, 100, 777, 1024]


def _vectors(dimension: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What models' updates may look like, and what transforms without randomness would find."""
    few = np.zeros(dimension)
    few[rng.integers(0, dimension, 10)] = rng.normal(size=10)
    return {
        "one-hot, first": np.eye(1, dimension)[0],
        "one-hot, last": np.eye(1, dimension, dimension - 1)[0],
        "two-hot": np.eye(1, dimension)[0] - np.eye(1, dimension, 1)[0],
        "sparse": few,
        "constant": np.ones(dimension),
        "a row of Hadamard's": np.resize([1.0, -1.0], dimension),
        "heavy-tailed": rng.standard_cauchy(dimension),
        "random": rng.normal(size=dimension),
    }


@pytest.mark.parametrize("size", [1, 2, 64, 128, 4096])
def test_transform_is_the_matrix_of_the_textbook(size: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=size)
    found = x.astype(np.float32)
    directions._transform(found, directions._numpy)
    expected = scipy.linalg.hadamard(size) @ x / np.sqrt(size)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("place", [0, 1, 2**20, 2**22 - 1])
def test_transform_of_pieces_is_that_of_the_whole(place: int) -> None:
    """Of a unit vector it is a row of the matrix, with signs by the bits in common."""
    size = 2**22  # pieces have 2**20
    x = np.zeros(size, np.float32)
    x[place] = 1
    directions._transform(x, directions._numpy)
    odd = np.bitwise_count(np.arange(size) & place) % 2
    np.testing.assert_allclose(x, np.where(odd, -1, 1) / np.sqrt(size), rtol=1e-5)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_directions_are_orthonormal_whatever_the_dimension(dimension: int) -> None:
    count = 1 << (dimension.bit_length() - 1)
    rows = HadamardCanaries(count=count, dimension=dimension, key=1).rows(np.arange(count))
    gram = rows.astype(np.float64) @ rows.T.astype(np.float64)
    np.testing.assert_allclose(gram, np.eye(count), atol=ROUNDING)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_dots_and_sums_are_those_of_the_rows(dimension: int, rng: np.random.Generator) -> None:
    count = min(10, 1 << (dimension.bit_length() - 1))
    canaries = HadamardCanaries(count=count, dimension=dimension, key=5)
    rows = canaries.rows(np.arange(count)).astype(np.float64)
    chosen = [0, count - 1, count - 1]
    expected = 3 * rows[chosen].sum(axis=0)
    np.testing.assert_allclose(canaries.inject(chosen, 3.0), expected, atol=10 * ROUNDING)
    several = rng.normal(size=(3, dimension))
    np.testing.assert_allclose(canaries.dots(several), several @ rows.T, atol=1e-4)
    np.testing.assert_allclose(canaries.dots(several[1]), rows @ several[1], atol=1e-4)
    lengths = np.linalg.norm(several[1])
    np.testing.assert_allclose(
        canaries.cosines(several[1]), rows @ several[1] / lengths, atol=10 * ROUNDING
    )


@pytest.mark.parametrize("dimension", [1024, 1500])
def test_tensors_are_transformed_alike(dimension: int, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    canaries = HadamardCanaries(count=np.int64(7), dimension=np.int64(dimension), key=2)
    vector = rng.normal(size=dimension).astype(np.float32)
    tensor = torch.tensor(vector, requires_grad=True)
    np.testing.assert_allclose(canaries.dots(tensor), canaries.dots(vector), atol=1e-5)
    np.testing.assert_allclose(canaries.cosines(tensor), canaries.cosines(vector), atol=1e-6)
    planted = canaries.inject_tensor([1, 4], 2.0)
    np.testing.assert_allclose(planted.numpy(), canaries.inject([1, 4], 2.0), atol=1e-6)
    for device in ("cuda",) if torch.cuda.is_available() else ():
        there = canaries.inject_tensor([1, 4], 2.0, device=device)
        assert there.device.type == device
        np.testing.assert_allclose(there.cpu().numpy(), planted.numpy(), atol=1e-6)
        np.testing.assert_allclose(
            canaries.dots(tensor.to(device)), canaries.dots(vector), atol=1e-5
        )


@pytest.mark.parametrize("dimension", [2**15, 20_001, 50_000])
def test_cosines_obey_their_null_law(dimension: int, rng: np.random.Generator) -> None:
    keys = rng.integers(2**60, size=5)
    for name, vector in _vectors(dimension, rng).items():
        cosines = np.stack(
            [
                HadamardCanaries(count=1000, dimension=dimension, key=int(key)).cosines(vector)
                for key in keys
            ]
        )
        law = scipy.stats.kstest(cosines.ravel(), lambda x: cosine_cdf(x, dimension))
        assert law.pvalue > FLAKE, name
        # Canaries of one family together: were they equal in pairs, their squares would scatter.
        energy = (dimension * (cosines**2).sum(axis=1) - 1000) / np.sqrt(2 * 1000)
        assert np.abs(energy).max() < 7, name  # standard deviations of a χ²


def _pairs_agree(dimension: int, key: int) -> float:
    """How far the squares of cosines of 1,000 canaries lie from what independent ones have."""
    two = np.zeros(dimension)
    two[[0, 1]] = 1.0, 1.0
    cosines = HadamardCanaries(count=1000, dimension=dimension, key=key).cosines(two)
    return float(np.abs(np.corrcoef(np.abs(cosines[::2]), np.abs(cosines[1::2]))[0, 1]))


def test_without_the_permutation_canaries_would_agree_in_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _pairs_agree(2**14, key=3) < 0.25  # five standard deviations of 500 pairs
    monkeypatch.setattr(
        HadamardCanaries, "_permute", lambda self: iter([np.arange(self.dimension)])
    )
    assert _pairs_agree(2**14, key=3) > 0.9


def test_without_signs_a_constant_would_be_seen_by_one_canary_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HadamardCanaries, "_flip", lambda *_: None)
    cosines = HadamardCanaries(count=1000, dimension=2**14, key=0).cosines(np.ones(2**14))
    law = scipy.stats.kstest(cosines, lambda x: cosine_cdf(np.clip(x, -1, 1), 2**14))
    assert law.pvalue < FLAKE


@pytest.mark.parametrize("dimension", [1, 2, 7, 64, 1000])
def test_places_are_a_permutation(dimension: int) -> None:
    canaries = HadamardCanaries(count=1, dimension=dimension, key=9)
    places = np.concatenate(list(canaries._permute()))
    assert np.unique(places).size == places.size == 1 << (dimension.bit_length() - 1)
    assert places.min() >= 0
    assert places.max() < dimension


def test_a_canary_does_not_depend_on_memory_or_count() -> None:
    asked = HadamardCanaries(count=10, dimension=5000, key=3)
    alone = asked.rows([9, 0, 4])
    more = HadamardCanaries(count=1000, dimension=5000, key=3, memory=0)
    np.testing.assert_allclose(more.rows([9, 0, 4]), alone, atol=1e-6)
    assert asked._cache
    assert not more._cache


def test_other_keys_are_other_directions() -> None:
    one, other = (
        HadamardCanaries(count=2, dimension=10_000, key=key).rows([0, 1]) for key in (0, 1)
    )
    assert np.abs(one @ other.T).max() < 0.06  # six standard deviations of 1/100


def test_takes_the_place_of_the_other_family() -> None:
    families: list[Directions] = [
        kind(count=3, dimension=100, key=0) for kind in (SphereCanaries, HadamardCanaries)
    ]
    for canaries in families:
        assert canaries.inject([], norm=2.0).shape == (100,)
        assert not canaries.inject([], norm=2.0).any()
        assert canaries.rows([]).shape == (0, 100)
        assert not canaries.cosines(np.zeros(100)).any()
        assert canaries.dots(np.zeros((2, 100))).shape == (2, 3)


def test_a_vector_that_diverged_has_no_cosines() -> None:
    vector = np.ones(100)
    vector[3] = np.nan
    assert np.isnan(HadamardCanaries(count=3, dimension=100, key=0).cosines(vector)).all()


def test_memory_does_not_grow_with_canaries(rng: np.random.Generator) -> None:
    vector = rng.normal(size=2**20).astype(np.float32)
    canaries = HadamardCanaries(count=10_000, dimension=2**20, key=0, memory=0)
    tracemalloc.start()
    canaries.cosines(vector)
    canaries.inject(np.arange(10_000), 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20 * 64  # some copies and chunks; all canaries would be 40 GB


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.rows([3]),
        lambda c: c.rows([0.5]),
        lambda c: c.inject([0], norm=float("nan")),
        lambda c: c.dots(np.zeros(8)),
        lambda c: c.dots(np.zeros((2, 8))),
        lambda c: c.cosines(np.zeros((2, 7))),
        lambda c: HadamardCanaries(count=0, dimension=7, key=0),
        lambda c: HadamardCanaries(count=1, dimension=0, key=0),
        lambda c: HadamardCanaries(count=1, dimension=1, key=-1),
        lambda c: HadamardCanaries(count=8, dimension=7, key=0),
    ],
)
def test_bad_calls_are_refused(call) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        call(HadamardCanaries(count=3, dimension=7, key=0))
