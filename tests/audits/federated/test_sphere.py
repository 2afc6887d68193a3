import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.federated import directions
from epsilometer.audits.federated.directions import SphereCanaries
from epsilometer.errors import InvalidArgument
from epsilometer.stats.sphere import cosine_cdf

FLAKE = 1e-6
ROUNDING = 1e-5  # float32 sums of some thousand products of numbers below 1


def test_directions_have_unit_norm() -> None:
    rows = SphereCanaries(count=20, dimension=4000, key=1).rows(np.arange(20))
    np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_cosines_obey_their_null_law(dimension: int, rng: np.random.Generator) -> None:
    canaries = SphereCanaries(count=5000, dimension=dimension, key=int(rng.integers(2**60)))
    cosines = canaries.cosines(rng.laplace(size=dimension) ** 3)
    law = scipy.stats.kstest(cosines, lambda x: cosine_cdf(np.clip(x, -1, 1), dimension))
    assert law.pvalue > FLAKE


def test_a_canary_does_not_depend_on_blocks_order_or_memory() -> None:
    large = 2**22 // 3  # three canaries a block
    asked_backwards = SphereCanaries(count=10, dimension=large, key=3, memory=0)
    alone = asked_backwards.rows([9, 0, 4])
    kept = SphereCanaries(count=10, dimension=large, key=3)
    kept.dots(np.ones(large))
    np.testing.assert_array_equal(alone, kept.rows(np.arange(10))[[9, 0, 4]])
    more = SphereCanaries(count=1000, dimension=large, key=3)
    np.testing.assert_array_equal(alone[0], more.rows([9])[0])
    assert len(kept._cache) == 4
    assert not asked_backwards._cache


@pytest.mark.parametrize("dimension", [1, 31, 128, 500, 70_000])
def test_the_fast_engine_draws_what_the_stream_defines(
    dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    fast = SphereCanaries(count=3, dimension=dimension, key=11, memory=0).rows([0, 2])
    monkeypatch.setattr(directions, "has", lambda package: package != "numba")
    plain = SphereCanaries(count=3, dimension=dimension, key=11, memory=0).rows([0, 2])
    np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(plain[0, :1000], plain[1, :1000]) or dimension == 1


@pytest.mark.parametrize("dimension", [1, 500, 70_001])
def test_a_gpu_has_the_same_directions(dimension: int, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    canaries = SphereCanaries(count=300, dimension=dimension, key=5)
    vectors = rng.standard_normal((2, dimension)).astype(np.float32)
    there = torch.tensor(vectors, device="cuda")
    scale = np.sqrt(dimension) * ROUNDING
    np.testing.assert_allclose(canaries.dots(there), canaries.dots(vectors), atol=scale)
    np.testing.assert_allclose(
        canaries.cosines(there[0]), canaries.cosines(vectors[0]), atol=ROUNDING
    )
    planted = canaries.inject_tensor([1, 8, 8, 299], 3.0, device="cuda")
    np.testing.assert_allclose(
        planted.cpu().numpy(), canaries.inject([1, 8, 8, 299], 3.0), atol=ROUNDING
    )
    assert not canaries.inject_tensor([], 3.0, device="cuda").any()


def test_other_keys_are_other_directions() -> None:
    one, other = (SphereCanaries(count=2, dimension=10_000, key=key).rows([0, 1]) for key in (0, 1))
    cosines = np.abs([*(one @ other.T).ravel(), one[0] @ one[1]])
    assert cosines.max() < 0.06  # six standard deviations of 1/100


def test_what_is_injected_is_the_sum_and_dots_find_it(rng: np.random.Generator) -> None:
    canaries = SphereCanaries(count=10, dimension=500, key=5)
    planted = canaries.inject([1, 8, 8], norm=3.0)
    rows = canaries.rows(np.arange(10)).astype(np.float64)
    np.testing.assert_allclose(planted, 3 * (rows[1] + 2 * rows[8]), atol=ROUNDING)
    vector = rng.normal(size=500)
    np.testing.assert_allclose(canaries.dots(vector), rows @ vector, atol=1e-4)
    several = canaries.dots(np.stack([vector, -vector, planted]))
    assert several.shape == (3, 10)
    np.testing.assert_allclose(several[1], -rows @ vector, atol=1e-4)
    lengths = np.linalg.norm(vector)
    np.testing.assert_allclose(canaries.cosines(vector), rows @ vector / lengths, atol=ROUNDING)


def test_tensors_are_vectors_too(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    canaries = SphereCanaries(count=3, dimension=500, key=5)
    vector = rng.normal(size=500).astype(np.float32)
    tensor = torch.tensor(vector, requires_grad=True)
    np.testing.assert_allclose(canaries.cosines(tensor), canaries.cosines(vector), rtol=1e-6)
    assert torch.equal(
        canaries.inject_tensor([0, 2], 2.0), torch.tensor(canaries.inject([0, 2], 2.0))
    )
    half = tensor.bfloat16()
    np.testing.assert_allclose(canaries.dots(half), canaries.dots(half.detach().float().numpy()))


def test_nothing_planted_is_nothing() -> None:
    canaries = SphereCanaries(count=3, dimension=7, key=0)
    assert not canaries.inject([], norm=2.0).any()
    assert canaries.rows([]).shape == (0, 7)
    assert not canaries.cosines(np.zeros(7)).any()


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.rows([3]),
        lambda c: c.rows([-1]),
        lambda c: c.rows([0.5]),
        lambda c: c.rows([[0]]),
        lambda c: c.inject([0], norm=float("nan")),
        lambda c: c.dots(np.zeros(8)),
        lambda c: c.dots(np.zeros((2, 8))),
        lambda c: c.cosines(np.zeros((2, 7))),
        lambda c: c.block(1),
        lambda c: c.block(-1),
        lambda c: SphereCanaries(count=0, dimension=7, key=0),
        lambda c: SphereCanaries(count=1, dimension=0, key=0),
        lambda c: SphereCanaries(count=1, dimension=1, key=-1),
    ],
)
def test_bad_calls_are_refused(call) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        call(SphereCanaries(count=3, dimension=7, key=0))
